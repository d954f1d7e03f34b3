# %% [markdown]
# # Air quality: fill outages and forecast
#
# Twelve stations measure nitrogen dioxide. Stations have outages, and one was set up six days
# before the end. They share the weather, and each has a street of its own. You will fit a
# federated model, fill the outages, see what is shared and what is not, check the intervals, and
# forecast.
#
# The town is made up, so that everything here can be checked: `pfedhgp demo` uses the same one.

# %%
import os

import numpy as np
import polars as pl

from pfedhgp import RBF, FederatedGP, Periodic, plot
from pfedhgp.data import demo_town

SMALL = bool(os.environ.get("PFEDHGP_SMALL"))  # a quick version, for tests
town = demo_town.Town(days=14, stations=5) if SMALL else demo_town.Town(days=42)

# %% [markdown]
# ## The readings
#
# Each station reads every seven hours. Whole stretches of readings are held out: the model never
# sees them, and you will compare its predictions with them. Time is in days.


# %%
def in_days(rows):
    return {
        each.name: ((each.X - demo_town.START) / demo_town.DAY, each.Y)
        for each in rows
    }


split = demo_town.hold_out_blocks(
    demo_town.simulate(seed=0, town=town), seed=0, block_days=2.0 if SMALL else 4.0
)
train, test = in_days(split.train), in_days(split.test)
counts = {name: int(np.isfinite(y).sum()) for name, (_, y) in train.items()}
pl.DataFrame({"station": counts.keys(), "readings": counts.values()})

# %% [markdown]
# ## Fit
#
# The kernel of what is shared says: a trend over some days, plus a wave that repeats every day.
# What a station has of its own changes within a week.

# %%
model = FederatedGP(
    kernel=RBF(3.0) + Periodic(1.0, period=1.0),
    local_kernel=RBF(6.0),
    inducing=16 if SMALL else 48,
    local_inducing=8 if SMALL else 32,
    rounds=3 if SMALL else 10,
).fit(train, inputs="day", outputs="NO2 (µg/m³)")
plot.convergence(model)
# %% [markdown]
# ## What is shared, and what is the station's own
#
# Dots are readings of the fit, rings those held out. The prediction is the sum of the three layers
# below it. Where the station has no readings, the shared layer carries the prediction.

# %%
plot.layers(model, "Willow Lane", rows=train, held_out=test)
# %% [markdown]
# Bars show how much of each station's variation each layer explains.

# %%
plot.shares(model)
# %% [markdown]
# ## How good it is
#
# Errors on the held-out readings, beside a model of each station alone and one model of all
# readings together.

# %%
from pfedhgp.estimator.evaluation import summarise
from pfedhgp.gp.metrics import Scored


def scores(fitted):
    found = {}
    for name, (x, y) in test.items():
        if len(x):
            p = fitted.predict(name, x)
            found[name] = Scored(y=y, mean=p.mean, cov=p.covariance())
    return summarise(found, ["NO2"])


same = {"rounds": 3 if SMALL else 8, "averaging": False}
kernel = RBF(3.0) + Periodic(1.0, period=1.0)
inducing = 16 if SMALL else 48
alone = FederatedGP(
    layers=("local",), local_kernel=kernel, local_inducing=inducing, **same
)
pooled = FederatedGP(layers=("global",), kernel=kernel, inducing=inducing, **same)
table = {
    "federated": scores(model),
    "each alone": scores(alone.fit(train)),
    "one for all": scores(pooled.fit(train)),
}
pl.DataFrame(
    [
        {
            "model": name,
            **{key: round(found["overall"]["client_mean"][key], 2) for key in keys},
        }
        for name, found in table.items()
        for keys in [("rmse", "crps", "coverage", "width")]
    ]
)

# %% [markdown]
# 95% intervals should hold 95% of what they are for, and 50% intervals half of it.

# %%
plot.calibration(table["federated"])
# %% [markdown]
# ## Forecast
#
# A forecast begins after the station's last reading. It knows the daily wave and the level. It
# does not know the weather, and its bands say so.

# %%
ahead = model.forecast("Willow Lane", horizon=3.0, step=1 / 24)
plot.forecast(ahead, rows=train)
# %% [markdown]
# A back-test says how good such forecasts would have been: the model is fitted to the time before
# the last windows, and moved on with `update` from window to window.

# %%
past = model.backtest(
    train, horizon=2.0, origins=2 if SMALL else 5, season=1.0, bins=4
)
plot.backtest(past)
