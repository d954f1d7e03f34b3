# %% [markdown]
# # Kernels of your own
#
# A kernel says which functions are likely: smooth or rough, with a daily wave or without. You will
# combine kernels, compare them, read the fitted parameters in your own units, and write a kernel
# that the library does not have.

# %%
import os

import numpy as np
import polars as pl

from pfedhgp import RBF, FederatedGP, Matern32, Periodic, plot

SMALL = bool(os.environ.get("PFEDHGP_SMALL"))  # a quick version, for tests
rng = np.random.default_rng(4)
hours = np.arange(0.0, 96.0, 3.0 if SMALL else 1.0)
trend = 4 * np.sin(2 * np.pi * hours / 190)
sites = {}
for i, name in enumerate(("north", "east", "south", "west")):
    wave = (1 + 0.1 * i) * np.maximum(np.sin(2 * np.pi * (hours - 6) / 24), 0) ** 2
    sites[name] = (
        hours,
        20 + trend + 5 * wave + 0.5 * i + 0.3 * rng.normal(size=len(hours)),
    )
known = {name: (x[x < 72], y[x < 72]) for name, (x, y) in sites.items()}

# %% [markdown]
# ## Sums and products
#
# `+` means "this and also that". `*` means "that, as long as this holds". Parameters are starting
# values in the units of your data; what you leave out starts from the data.

# %%
kernels = {
    "smooth": RBF(),
    "rough": Matern32(),
    "smooth + daily": RBF(48.0) + Periodic(1.0, period=24.0),
    "smooth × daily": RBF(96.0) * Periodic(1.0, period=24.0),
}
rounds = 2 if SMALL else 10
models = {
    name: FederatedGP(kernel=kernel, rounds=rounds, domain=(0, 96)).fit(
        known, inputs="hour", outputs="load"
    )
    for name, kernel in kernels.items()
}

# %% [markdown]
# The last day was not in the fit. The bound on the log evidence says which kernel the *known* rows
# prefer, without looking at the last day.

# %%
future = {name: (x[x >= 72], y[x >= 72]) for name, (x, y) in sites.items()}


def last_day(model):
    gaps = [model.predict(n, x).mean - y for n, (x, y) in future.items()]
    return float(np.sqrt(np.mean(np.square(gaps))))


table = pl.DataFrame(
    {
        "kernel": models.keys(),
        "bound": [round(float(model.bound_), 1) for model in models.values()],
        "error of the last day": [
            round(last_day(model), 2) for model in models.values()
        ],
    }
)
table

# %% [markdown]
# A kernel without a daily wave forgets what it knew after a few hours.

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(
    2, figsize=(8.4, 5.2), sharex=True, sharey=True, layout="constrained"
)
for each, name in zip(axes, ("smooth", "smooth + daily"), strict=True):
    plot.prediction(models[name], "south", rows=known, held_out=future, ax=each)
    each.set_title(name, loc="left")
axes[0].set_xlabel("")

# %% [markdown]
# ## Fitted parameters
#
# They are in the units of your data: hours here.

# %%
fitted = models["smooth + daily"]
for part in fitted.kernel_.parts:
    print(part)

# %% [markdown]
# ## A kernel that the library does not have
#
# A stationary kernel is a function of r², the squared distance in lengthscales. Write it with
# `namespace`, so that it works in NumPy and in JAX. It must be 1 at 0, and positive definite. This
# one, a hole-effect kernel with a Gaussian around it, swings below zero: what went up
# comes down after some distance.

# %%
from pfedhgp.base.arrays_of import namespace
from pfedhgp.gp.kernels import Stationary


class Swing(Stationary):
    """cos(2 r) exp(−½ r²) for one input: positive definite, as a product of two kernels that are."""

    def of_squared(self, squared):
        xp = namespace(squared)
        # cos(√u) has a series in u, so that its gradient is fine at zero.
        u = 4.0 * squared
        near = 1.0 - u / 2.0 + u**2 / 24.0
        far = xp.cos(xp.sqrt(xp.where(u < 1e-4, 1.0, u)))
        return xp.where(u < 1e-4, near, far) * xp.exp(-0.5 * squared)


# %% [markdown]
# The library knows no derivatives of it by hand, so JAX compiles them: the first fit takes longer.

# %%
short = (
    {name: (x[:24:2], y[:24:2]) for name, (x, y) in list(known.items())[:2]}
    if SMALL
    else known
)
own = FederatedGP(
    kernel=Swing(12.0), rounds=1 if SMALL else 6, inducing=8 if SMALL else "auto"
).fit(short, inputs="hour", outputs="load")
plot.prediction(own, "north", rows=short)
