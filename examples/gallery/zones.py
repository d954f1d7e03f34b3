# %% [markdown]
# # Zones: which stations behave alike?
#
# Stations of one town lie in the centre, in the suburbs and in the hills. Nobody tells the model.
# You will find the zones without pooling readings, and see what finding them reveals.
#
# The town is made up, with three zones, so that you can compare.

# %%
import os
from copy import copy

import numpy as np
import polars as pl

from pfedhgp import RBF, FederatedGP, Periodic, plot
from pfedhgp.data import demo_town

SMALL = bool(os.environ.get("PFEDHGP_SMALL"))  # a quick version, for tests
town = demo_town.Town(days=14, stations=6) if SMALL else demo_town.Town()
rows = demo_town.simulate(seed=0, town=town)
readings = {
    each.name: ((each.X - demo_town.START) / demo_town.DAY, each.Y) for each in rows
}
zone_of = {name: zone for zone, names in demo_town.ZONES.items() for name in names}

# %% [markdown]
# ## Fit, then group
#
# After the fit each station has a function of its own: its deviation and its local layer. Each
# sends a random sketch of it, 24 numbers. The server computes distances between sketches.

# %%
model = FederatedGP(
    kernel=RBF(3.0) + Periodic(1.0, period=1.0),
    local_kernel=RBF(6.0),
    inducing=16 if SMALL else 48,
    local_inducing=8 if SMALL else 32,
    rounds=3 if SMALL else 8,
).fit(readings, inputs="day", outputs="NO2 (µg/m³)")
before = copy(model)  # a model in which no station has sent a sketch yet
zones = model.cluster(3, grid=100 if SMALL else 200, size=24, data=readings)
for number, members in enumerate(zones.members(), 1):
    print(f"group {number}: {', '.join(members)}")

# %% [markdown]
# The tree shows at which distance groups join. Long branches mean that the groups are far apart.

# %%
plot.tree(zones)
# %%
plot.distances(zones)
# %% [markdown]
# ## On a map
#
# Places are made up, too: the centre in the middle, suburbs around it, hills in the north.

# %%
rng = np.random.default_rng(3)
middle = {"centre": (50.00, 8.00), "suburbs": (49.93, 8.02), "hills": (50.12, 8.05)}
spread = {"centre": (0.04, 0.10), "suburbs": (0.03, 0.22), "hills": (0.03, 0.16)}
places = {}
for name in zones.clients:
    zone = zone_of[name]
    places[name] = tuple(
        np.array(middle[zone]) + np.array(spread[zone]) * rng.uniform(-1, 1, 2)
    )
plot.zones_map(zones, places)
# %% [markdown]
# ## Are they the town's zones?

# %%
pl.DataFrame(
    {
        "station": zones.clients,
        "group": [zones.labels[name] + 1 for name in zones.clients],
        "the town's zone": [zone_of[name] for name in zones.clients],
    }
).sort("group")

# %% [markdown]
# ## What it reveals
#
# A sketch is not a reading, but it is about the readings. R² says how well somebody who knows
# everything except the readings could reproduce them from it. Smaller sketches reveal less, and at
# some point they find other zones.

# %%
sizes = (6, 24) if SMALL else (3, 6, 12, 24, 48)
lines = []
for size in sizes:
    found = copy(before).cluster(
        3, grid=100 if SMALL else 200, size=size, data=readings
    )
    reveals = float(np.mean(list(found.r2.values())))
    together = [
        (found.labels[a] == found.labels[b]) == (zone_of[a] == zone_of[b])
        for a in found.clients
        for b in found.clients
        if a < b
    ]
    lines.append(
        {
            "numbers": size,
            "R²": round(reveals, 2),
            "pairs right": round(np.mean(together), 2),
        }
    )
pl.DataFrame(lines)
