"""How well each method finds the paper's zones, and how much loadings and sketches of each size reveal."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from pfedhgp.base.numerics import with_numerics
from pfedhgp.estimator import FederatedGP
from pfedhgp.studies.airquality.imputation import Series
from pfedhgp.studies.airquality.models import AirQuality, loadings_model, paper_model, zone_model
from pfedhgp.studies.airquality.stations import ZONES
from pfedhgp.zones import groups as zone_groups
from pfedhgp.zones import sketches as zone_sketches
from pfedhgp.zones.clustering import GRID, SHARE, ClusterSettings, Known, discover, sketch_r2
from pfedhgp.zones.comparison import Comparison
from pfedhgp.zones.result import Zones

SIZES = (25, 50, 100, 150, 200, 250, 300, 400)
Say = Callable[[str], None]


def ari(labels: dict[str, int]) -> float:
    return zone_groups.agreement([ZONES[n] for n in labels], list(labels.values()))


def nmi(labels: dict[str, int]) -> float:
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score([ZONES[n] for n in labels], list(labels.values())))


def pooled_distances(sites: dict[str, Series]) -> tuple[tuple[str, ...], np.ndarray]:
    """Mean squared differences over the hours that two stations share; needs pooled rows."""
    names = tuple(sorted(sites))
    every = np.unique(np.concatenate([t for t, _ in sites.values()]))
    table = np.full((len(names), len(every)), np.nan)
    for i, name in enumerate(names):
        t, y = sites[name]
        table[i, np.searchsorted(every, t)] = y
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two stations without a common hour
        gaps = np.array([[np.nanmean((a - b) ** 2) for b in table] for a in table])
    return names, np.where(np.isfinite(gaps), gaps, np.nanmax(gaps))


def loadings_part(study: AirQuality, sites: dict[str, Series], say: Say) -> dict[str, Any]:
    """Zones by loadings, once for each start: labels, what was found first, scores and costs."""
    data = {name: (t[:, None], y) for name, (t, y) in sites.items()}
    rows = {name: (X, y[:, None]) for name, (X, y) in data.items()}
    found: dict[str, list[Any]] = {"zones": [], "seconds": [], "exchanges": [], "bytes": []}
    for i in range(study.starts):
        began = time.perf_counter()
        model = loadings_model(study, sites, study.seed + i).fit(data)
        how = ClusterSettings(groups=3, by="loadings", draws=0 if i else 20)
        zones = discover(model.model_, how, rows=rows)
        found["zones"].append(zones)
        found["seconds"].append(time.perf_counter() - began)
        found["exchanges"].append(float(model.exchanges_))
        found["bytes"].append(float(sum(entry["bytes"] for entry in model.messages_)))
        say(
            f"zones by {zones.size} loadings, start {i + 1}/{study.starts}: ARI {ari(zones.labels):.2f}, "
            f"{found['seconds'][-1]:.0f} s"
        )
    starts = [
        {
            "seed": study.seed + i,
            "ari": ari(zones.labels),
            "ari_ward": ari(_again(zones, "agglomerative")),
            "ari_spectral": ari(_again(zones, "spectral")),
            "r2": float(np.mean(list(zones.r2.values()))),
            "r2_largest": max(zones.r2.values()),
            "r2_shared": float(np.mean(list(zones.r2_shared.values()))),
            "numbers": float(zones.numbers),
        }
        for i, zones in enumerate(found["zones"])
    ]
    return {**found, "starts": starts}


def _again(zones: Zones, method: str) -> dict[str, int]:
    """The groups from the same distances, by another method."""
    labels = zone_groups.group(zones.between, zones.groups, method)
    return dict(zip(zones.clients, map(int, labels), strict=True))


def zones_part(study: AirQuality, sites: dict[str, Series], say: Say) -> dict[str, Any]:
    """Labels of every row but loadings with both kinds of grouping, and the curve over sketch sizes."""
    began = time.perf_counter()
    data = {name: (t[:, None], y) for name, (t, y) in sites.items()}
    rows: dict[tuple[str, str], list[dict[str, int]]] = {}
    model = zone_model(study).fit(data)
    fit_seconds = time.perf_counter() - began
    say(f"zones: fitted in {fit_seconds:.0f} s")
    stacked = {name: (X, y[:, None]) for name, (X, y) in data.items()}
    own, attacks = own_functions(model), attacks_on(model, stacked)
    known = Known(own, attacks)
    by_seed: list[Zones] = []
    for method in ("agglomerative", "spectral"):
        for i in range(study.sketches):
            draws = 20 if i == 0 and method == "agglomerative" else 0
            how = ClusterSettings(groups=3, method=method, seed=study.seed + i, draws=draws)
            ward = method == "agglomerative"
            found = discover(model.model_, how, rows=stacked, known=known, measure=ward)
            by_seed += [found] if ward else []
            rows.setdefault(("sketch", method), []).append(found.labels)
    first = by_seed[0]
    counts = {
        choice: zone_groups.choose_count(first.between, first.method, choice)[0]
        for choice in zone_groups.CHOICES
    }
    curve = reveal(study, own, attacks)
    say(f"zones: sketches compared after {time.perf_counter() - began:.0f} s")
    say(
        f"zones: groups left to the eigengap {counts['eigengap']}, silhouette {counts['silhouette']}"
    )
    paper = paper_model(study).fit(data)
    whole = own_functions(paper)
    for method in ("agglomerative", "spectral"):
        how = ClusterSettings(groups=3, method=method, size=GRID, seed=study.seed, draws=0)
        by_function = discover(paper.model_, how, known=Known(whole), measure=False)
        rows["paper", method] = [by_function.labels]
        how = ClusterSettings(groups=3, method=method, distance="operator")
        by_operator = discover(paper.model_, how, rows=stacked)
        rows["operator", method] = [by_operator.labels]
        names, squared = pooled_distances(sites)
        labels = zone_groups.group(squared, 3, method)
        rows["pooled", method] = [dict(zip(names, map(int, labels), strict=True))]
    say(f"zones: all rows after {time.perf_counter() - began:.0f} s")
    return {
        "rows": rows,
        "zones": first,
        "seeds": [
            {
                "seed": zones.seed,
                "ari": ari(zones.labels),
                "ari_spectral": ari(rows["sketch", "spectral"][i]),
                "r2": float(np.mean(list(zones.r2.values()))),
                "r2_largest": max(zones.r2.values()),
            }
            for i, zones in enumerate(by_seed)
        ],
        "counts": counts,
        "curve": curve,
        "seconds": fit_seconds,
        "exchanges": model.exchanges_,
        "bytes": sum(entry["bytes"] for entry in model.messages_),
        "paper_exchanges": paper.exchanges_,
    }


def own_functions(model: FederatedGP) -> dict[str, zone_sketches.OwnFunction]:
    """Every station's own function on the public grid."""
    grid = zone_sketches.public_grid(model.model_, GRID)
    return {n: zone_sketches.own_function(model.model_, n, grid) for n in model.clients_}


def attacks_on(
    model: FederatedGP, rows: dict[str, tuple[np.ndarray, np.ndarray]]
) -> dict[str, zone_sketches.Attack]:
    """The attacks that guess each station's rows from sketches."""
    grid = zone_sketches.public_grid(model.model_, GRID)
    return {n: zone_sketches.Attack.on(model.model_, n, grid, rows[n]) for n in model.clients_}


@with_numerics
def reveal(
    study: AirQuality,
    own: dict[str, zone_sketches.OwnFunction],
    attacks: dict[str, zone_sketches.Attack],
) -> list[dict[str, Any]]:
    """ARI (Ward's) and R² by sketch size: means over seeds, and the largest R² of any station and seed."""
    names = tuple(sorted(own))
    sizes = sorted({*SIZES, round(SHARE * GRID)})
    curve = []
    for size in sizes:
        found = []
        for i in range(study.sketches):
            compared = Comparison(own, names, size=size, seed=study.seed + i, grid="", least=3)
            labels = compared.label(3, "agglomerative")
            r2 = list(sketch_r2(attacks, own, compared.sent).values())
            found.append((ari(dict(zip(names, map(int, labels), strict=True))), r2))
        curve.append(
            {
                "size": size,
                "ari": float(np.mean([score for score, _ in found])),
                "exact": sum(score == 1.0 for score, _ in found),
                "seeds": study.sketches,
                "r2": float(np.mean([r2 for _, r2 in found])),
                "r2_largest": float(np.max([r2 for _, r2 in found])),
            }
        )
    return curve
