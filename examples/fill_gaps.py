"""Fill a station's outage from what the other stations saw, and say how sure you can be."""

import numpy as np
import polars as pl

from pfedhgp import FederatedGP

rng = np.random.default_rng(2)
day = np.linspace(0, 10, 30)
weather = 8 * np.sin(day) + 4 * np.sin(2.3 * day)  # the same at all stations
truth = {f"station {i}": 50 + 3 * i + weather for i in range(4)}
noisy = {name: y + rng.normal(size=30) for name, y in truth.items()}
outage = (day > 4) & (day < 7)
noisy["station 2"][outage] = np.nan  # a missing reading is NaN

model = FederatedGP().fit({name: (day, y) for name, y in noisy.items()})

p = model.predict("station 2", day)
low, high = p.interval(0.95)  # of a reading, noise included
filled = pl.DataFrame(
    {
        "day": day,
        "reading": np.where(outage, p.mean, noisy["station 2"]),
        "from": low,
        "to": high,
        "imputed": outage,
    }
)
print(filled.filter("imputed").head(3).with_columns(pl.col(pl.Float64).round(1)).write_csv())
error = np.sqrt(np.mean((p.mean - truth["station 2"])[outage] ** 2))
print(f"{outage.sum()} readings filled: error {error:.1f}, sd {p.sd[outage].mean():.1f}")
