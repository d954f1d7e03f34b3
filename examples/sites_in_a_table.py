"""Fit sites from one pandas table; predict for one of them, with uncertainty and by layer."""

import numpy as np
import pandas as pd

from pfedhgp import FederatedGP

rng = np.random.default_rng(0)
parts = []
for i, site in enumerate(["north", "east", "south", "west"]):
    hour = np.sort(rng.uniform(0, 24, 30))
    load = 40 + 10 * np.sin(hour / 3) + 3 * i * np.cos(hour / 6) + rng.normal(size=30)
    parts.append(pd.DataFrame({"site": site, "hour": hour, "load": load}))
table = pd.concat(parts, ignore_index=True)

model = FederatedGP().fit(table, client="site", inputs="hour", outputs="load")

p = model.predict("south", pd.DataFrame({"hour": [6.0, 12.0, 18.0]}))
low, high = p.interval(0.95)  # of a reading, noise included
shown = pd.DataFrame({"load": p.mean, "from": low, "to": high}, [6, 12, 18])
for name, layer in p.layers.items():
    shown[name] = layer.mean  # the means of the layers add up to the prediction
print(shown.round(1).to_string())
