# %% [markdown]
# # Machine cycles: which fault is it, and why?
#
# A press closes, and four sensors record the tonnage: one cycle. Cycles come in runs. You have runs
# of a normal press and of two faults. You will train a model that names the condition of a
# new cycle, says how sure it is, shows where in the cycle it saw the fault, and notices a fault
# that it has never seen.
#
# The press is simulated (`pfedhgp reproduce tonnage --data simulated` studies it in full).

# %%
import os

import numpy as np

from pfedhgp import plot
from pfedhgp.estimator.diagnosis_training import train_diagnosis
from pfedhgp.studies.tonnage import press

SMALL = bool(os.environ.get("PFEDHGP_SMALL"))  # a quick version, for tests
count, samples = (12, 31) if SMALL else (40, 101)
seen = press.simulate(
    1, normal=count, faulty=count, samples=samples, runs=4 if SMALL else 8
)
seen.cycles.shape  # cycles, channels, samples

# %% [markdown]
# ## Train
#
# Classes are the clients of the model. `block` says which cycles belong to one run: cycles of a
# run are alike, and a model that is judged by cycles of a run that it knows would look too good.
# Fault 2 and fault 4 are left out.

# %%
CLASSES = ("normal", "fault 1", "fault 3")
labels = np.array(seen.label)
classes = {name: (seen.grid, seen.cycles[labels == name]) for name in CLASSES}
runs = {name: np.array(seen.block)[labels == name].tolist() for name in CLASSES}
model = train_diagnosis(
    classes,
    block=runs,
    inputs="crank position",
    outputs=seen.channels,
    rounds=2 if SMALL else 6,
)
model.clients_

# %% [markdown]
# Each class has a mean function. The faint bump of fault 3, near position 560, is far smaller than
# the differences between two cycles.

# %%
plot.clients(model, output="tonnage 1")
# %% [markdown]
# ## Name new cycles
#
# New cycles come from other runs. Rows are what they are, columns what they were taken for.

# %%
later = press.simulate(
    2, normal=count, faulty=count, samples=samples, runs=4 if SMALL else 8
)
known = np.isin(later.label, CLASSES)
truth = [label for label, kept in zip(later.label, known, strict=True) if kept]
found = model.classify(later.cycles[known], grid=later.grid)
plot.diagnosis(found, truth=truth)
# %% [markdown]
# ## Why?
#
# For one cycle of fault 3: which channel said so, and where. Above zero speaks for fault 3.

# %%
place = truth.index("fault 3")
cycle = later.cycles[known][place]
reasons = model.why(cycle, grid=later.grid, chosen="fault 3", other="normal")
plot.why(reasons)
# %%
strongest = reasons.stretches()[0]
print(
    f"{strongest['channel']}, positions {strongest['start']:.0f} to {strongest['end']:.0f}: "
    f"{strongest['nats']:.1f} nats of {reasons.total:.1f}"
)

# %% [markdown]
# ## A fault that it has never seen
#
# Fault 2 was not in the training. Its cycles should be "none of these".

# %%
strange = np.array(later.label) == "fault 2"
unknown = model.classify(later.cycles[strange], grid=later.grid)
print(
    f"{int(unknown.none.sum())} of {int(strange.sum())} cycles of fault 2 are none of these"
)
print(
    f"{int(found.none.sum())} of {len(truth)} cycles of known classes are none of these"
)

# %%
plot.diagnosis(model.classify(later.cycles[strange][:6], grid=later.grid))
