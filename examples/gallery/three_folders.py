# %% [markdown]
# # A federation between three folders
#
# Three organisations have a folder each, with a table of their own. They want one model, and no
# table may leave its folder. You will run a server and three sites as processes of this
# machine, which talk over TLS with keys of their own, as they would between machines. Then you
# look at what each site sent.
#
# This needs Flower (`pip install 'pfedhgp[flower]'`). Without it the same training runs in one
# process, and this page says so.

# %%
import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl

from pfedhgp import FederatedGP, plot

SMALL = bool(os.environ.get("PFEDHGP_SMALL"))  # a quick version, for tests
HAS_FLOWER = find_spec("flwr") is not None and not SMALL
words = "server and sites are processes", "no Flower here: one process"
print(words[0] if HAS_FLOWER else words[1])

# %% [markdown]
# ## Three folders

# %%
work = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
hours = np.arange(0.0, 48.0, 0.5 if SMALL else 0.2)
for i, site in enumerate(("ana", "ben", "cleo")):
    shared = 10 + 3 * np.sin(2 * np.pi * hours / 16)
    away = (hours - 12 * (i + 1)) / 3  # from an event that only this site had
    event = 2 * np.exp(-(away**2))
    load = shared + event + 0.3 * rng.normal(size=len(hours))
    table = pl.DataFrame({"site": site, "hour": hours, "load": load.round(2)})
    if site == "ben":  # an outage
        table = table.filter(~pl.col("hour").is_between(30, 42))
    (work / site).mkdir()
    table.write_csv(work / site / "rows.csv")
table.head(3)

# %% [markdown]
# ## Train together
#
# `pfedhgp federate` starts a server and one process for each client. A site process reads its own
# rows and nothing else. Between real machines each site runs `pfedhgp client` instead.


# %%
def pfedhgp(*words):
    """The command, in the folder of the three."""
    command = [sys.executable, "-m", "pfedhgp", *words]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


tables = [f"{site}/rows.csv" for site in ("ana", "ben", "cleo")]
columns = ("--client", "site", "--input", "hour", "--output", "load")
options = (*columns, "--privacy", "sums", "--no-report")
rounds = "3" if SMALL else "8"
how = "federate" if HAS_FLOWER else "fit"
said = pfedhgp(how, *tables, *options, "--rounds", rounds, "--out", "RUN")

# %% [markdown]
# ## What a site sent
#
# Every message is in a log: its kind, and the names and shapes of its arrays. None of these shapes
# grows with the rows.

# %%
lines = [
    json.loads(line)
    for line in (work / "RUN" / "messages.jsonl").read_text().splitlines()
]
sent = [each for each in lines if each["from"] == "ana"]
pl.DataFrame(
    {
        "message": [each["kind"] for each in sent],
        "round": [each["round"] for each in sent],
        "bytes": [each["bytes"] for each in sent],
        "arrays": [", ".join(each["arrays"])[:60] for each in sent],
    }
)

# %%
if HAS_FLOWER:  # each site has a log of its own, whose lines are chained by hashes
    for line in pfedhgp("audit", "RUN").splitlines():
        print(line.rsplit(", ends in", 1)[0])

# %% [markdown]
# ## What they got for it
#
# Ben's outage is filled from what the three share. His own event, at hour 24, stays his.

# %%
model = FederatedGP.load(work / "RUN")
rows = {
    site: pl.read_csv(work / site / "rows.csv") for site in ("ana", "ben", "cleo")
}
plot.layers(model, "ben", rows=rows["ben"])

# %%
plot.convergence(model)

# %% [markdown]
# ## The same as in one process
#
# Where the messages travel makes no difference to the model.

# %%
pfedhgp("fit", *tables, *options, "--rounds", rounds, "--out", "ONE")
one = FederatedGP.load(work / "ONE")
x = np.linspace(0, 48, 97)
gap = np.abs(one.predict("ben", x).mean - model.predict("ben", x).mean).max()
print(f"largest difference of the predictions: {gap:.1e}")
