"""A station with few rows left: is it put in its zone, and what does it predict?

All other stations keep their rows. Zones are found again from a new fit of the zone model, and from pooled
rows. The rows that were removed are predicted by a new fit of the imputing model, by the zone model, and by
the station's own GP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pfedhgp.estimator import FederatedGP
from pfedhgp.studies.airquality import imputation as imputing
from pfedhgp.zones import groups as zone_groups
from pfedhgp.zones.clustering import ClusterSettings, discover

KEPT = 0.05
Pooled = Callable[[dict[str, imputing.Series]], tuple[tuple[str, ...], np.ndarray]]


def one_of_each(zones: Mapping[str, str], seed: int, rounds: int = 1) -> list[str]:
    """Random stations, `rounds` of each zone, or all of a smaller zone."""
    rng = np.random.default_rng([seed, 5])
    chosen: list[str] = []
    for zone in sorted(set(zones.values())):
        members = sorted(name for name, own in zones.items() if own == zone)
        chosen += list(rng.permutation(members)[:rounds])
    return [str(name) for name in chosen]


def thinned(
    sites: Mapping[str, imputing.Series], name: str, *, share: float, seed: int
) -> tuple[dict[str, imputing.Series], imputing.Series]:
    """All rows, but only a `share` of one station's; and the rows that were removed."""
    t, y = sites[name]
    rng = np.random.default_rng([seed, 6])
    kept = np.zeros(len(t), bool)
    kept[rng.choice(len(t), max(3, round(share * len(t))), replace=False)] = True
    return {**sites, name: (t[kept], y[kept])}, (t[~kept], y[~kept])


def in_its_zone(labels: Mapping[str, int], zones: Mapping[str, str], name: str) -> bool:
    """Whether most other stations in its group are of its zone; False if it is alone."""
    others = [zones[n] for n in labels if n != name and labels[n] == labels[name]]
    return bool(others) and others.count(zones[name]) > len(others) / 2


def sparse_part(
    sites: Mapping[str, imputing.Series],
    zones: Mapping[str, str],
    stations: Sequence[str],
    *,
    model: Callable[[], FederatedGP],
    predictor: Callable[[], FederatedGP],
    pooled: Pooled,
    seed: int,
    say: Callable[[str], None],
) -> dict[str, dict[str, list[float]]]:
    """{method: {metric: one value per station}}; `accuracy` is 1 if a station was put in its zone."""
    found: dict[str, dict[str, list[float]]] = {}
    count = len(set(zones.values()))
    how = ClusterSettings(groups=count, seed=seed, draws=0)
    for i, name in enumerate(stations):
        left, rest = thinned(sites, name, share=KEPT, seed=seed + i)
        data = {n: (t[:, None], y) for n, (t, y) in left.items()}
        fitted = model().fit(data)
        groups = discover(fitted.model_, how, measure=False).labels
        names, squared = pooled(left)
        labels = zone_groups.group(squared, count, "agglomerative")
        together = dict(zip(names, map(int, labels), strict=True))
        smooth, ours = (_scores(each, name, rest) for each in (fitted, predictor().fit(data)))
        plain = {name: imputing.gaussian_process(*left[name], rest[0])}
        waves = imputing.with_waves({name: left[name]}, {name: rest})
        alone = imputing.scores({name: rest}, waves)
        for method, values in (
            ("pfedhgp", {"accuracy": float(in_its_zone(groups, zones, name)), **ours}),
            ("pfedhgp-zone-model", smooth),
            ("pooled", {"accuracy": float(in_its_zone(together, zones, name))}),
            ("station-gp", alone),
            ("station-gp-plain", imputing.scores({name: rest}, plain)),
        ):
            for metric, value in values.items():
                found.setdefault(method, {}).setdefault(metric, []).append(value)
        say(
            f"{name} with {len(left[name][0])} rows: zone {bool(found['pfedhgp']['accuracy'][-1])}, pooled "
            f"{bool(found['pooled']['accuracy'][-1])}; CRPS {ours['crps']:.3f}, by the zone model "
            f"{smooth['crps']:.3f}, alone {alone['crps']:.3f}, without waves "
            f"{found['station-gp-plain']['crps'][-1]:.3f}"
        )
    return found


def _scores(model: FederatedGP, name: str, rest: imputing.Series) -> dict[str, float]:
    return imputing.scores({name: rest}, {name: imputing.predicted(model, name, rest[0])})
