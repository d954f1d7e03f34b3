"""The paper's second application: twelve Beijing stations, PM2.5 at 02:00 and 14:00, and their three zones.

Two models, because the two questions want different ones. Zones: a smooth global layer (48 inputs a year)
and exact state-space local layers, so that what crosses in training says little of single days. Imputation: a
global layer at the rows' own resolution, since it is the other stations that know a missing day; its sums
then determine the rows (docs/zones.md).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pfedhgp.base.numerics import with_numerics
from pfedhgp.errors import InputError
from pfedhgp.estimator import FederatedGP
from pfedhgp.gp.kernels import RBF
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.report import zone_figures
from pfedhgp.studies.airquality import imputation as imputing
from pfedhgp.studies.airquality.sparse_station import one_of_each, sparse_part
from pfedhgp.studies.airquality.stations import COORDINATES, ZONES, load_stations
from pfedhgp.studies.common.summary import interval
from pfedhgp.studies.synthetic.report import machine, write_results
from pfedhgp.zones import groups as zone_groups
from pfedhgp.zones import sketches as zone_sketches
from pfedhgp.zones.clustering import GRID, SHARE, Zones, discover, revealed
from pfedhgp.zones.comparison import Compared

ATTRIBUTION = (
    "Data: Beijing Multi-Site Air-Quality, Song Xi Chen, UCI Machine Learning Repository 501, CC BY 4.0. "
    "Station coordinates are approximate and are used for maps alone."
)
FEW = " (5% of a station)"
SIZES = (25, 50, 100, 150, 200, 250, 300, 400)
MOST_INPUTS = 730
"""Of the imputing model: two a day over a year."""
RESOLVED = 0.8
"""Lengthscale of its global layer in spacings: of .4, .6, .8, .9, 1, 1.1 and 1.5 and Matérn
kernels the one with the highest bound in 2014."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class AirQuality:
    """Settings of the study."""

    year: int
    raw: bool = False
    hours: tuple[int, ...] = (2, 14)
    seed: int = 0
    sketches: int = 5
    inducing: int = 48
    rounds: int = 6
    impute_inducing: int | None = None
    """global inputs of the imputing model; without it one at each time, 730 at most"""
    held_out: float = 0.1
    full: bool = False
    sparse: int = 0
    """stations of each zone that are left with 5% of their rows, one at a time; with `full` at least 4"""

    @property
    def splits(self) -> int:
        """Imputation's repetitions."""
        return 3 if self.full else 1


def sites_of(study: AirQuality, source: str | Path) -> dict[str, imputing.Series]:
    """{station: (days, values)} without missing values; log1p unless `raw`."""
    found = {}
    for station in load_stations(source, years=[study.year], hours=study.hours):
        seen = np.isfinite(station.values[:, 0])
        values = station.values[seen, 0]
        found[station.name] = (station.days[seen], values if study.raw else np.log1p(values))
    return found


def run(study: AirQuality, source: str | Path, folder: Path, say: Say) -> dict[str, Any]:
    """Fits, groups and imputes; writes results.json, tables, figures and report.html into `folder`."""
    if study.sketches < 1:
        raise InputError(f"`sketches` must be at least 1, got {study.sketches}")
    sites = sites_of(study, source)
    splits = [
        imputing.split(sites, share=study.held_out, seed=study.seed + i)
        for i in range(study.splits)
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot write there ({error.strerror})") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = zones_part(study, sites, say)
        imputed = imputation_part(study, splits, say)
        few = max(study.sparse, 4 if study.full else 0)
        sparse = sparse_part(
            sites,
            ZONES,
            one_of_each(ZONES, study.seed, few) if few else [],
            model=lambda: zone_model(study),
            predictor=lambda: imputing_model(study, sites),
            pooled=pooled_distances,
            seed=study.seed,
            say=say,
        )
    return _write(study, folder, found, imputed, sparse)


# -------------------------------------------------------------------------------------------- zones


def zone_model(study: AirQuality) -> FederatedGP:
    """What zones are found with."""
    return FederatedGP(
        kernel="rbf",
        local="state-space",
        local_kernel="matern12",
        inducing=study.inducing,
        rounds=study.rounds,
        seed=study.seed,
    )


def paper_model(study: AirQuality) -> FederatedGP:
    """M = 30 and M_i = 12, as in the paper."""
    return FederatedGP(inducing=30, local_inducing=12, rounds=study.rounds, seed=study.seed)


def ari(labels: dict[str, int]) -> float:
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score([ZONES[n] for n in labels], list(labels.values())))


def nmi(labels: dict[str, int]) -> float:
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score([ZONES[n] for n in labels], list(labels.values())))


def pooled_distances(sites: dict[str, imputing.Series]) -> tuple[tuple[str, ...], np.ndarray]:
    """Mean squared differences over hours that both stations have: centralised, on the rows themselves."""
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


def zones_part(study: AirQuality, sites: dict[str, imputing.Series], say: Say) -> dict[str, Any]:
    """ARI and NMI of every row with both kinds of grouping, and the curve over sketch sizes."""
    began = time.perf_counter()
    data = {name: (t[:, None], y) for name, (t, y) in sites.items()}
    rows: dict[tuple[str, str], list[dict[str, int]]] = {}
    model = zone_model(study).fit(data)
    fit_seconds = time.perf_counter() - began
    say(f"zones: fitted in {fit_seconds:.0f} s")
    stacked = {name: (X, y[:, None]) for name, (X, y) in data.items()}
    own, attacks = own_functions(model), attacks_on(model, stacked)
    by_seed: list[Zones] = []
    for method in ("agglomerative", "spectral"):
        for i in range(study.sketches):
            found = discover(
                model.model_,
                3,
                method=method,
                seed=study.seed + i,
                draws=20 if i == 0 and method == "agglomerative" else 0,
                rows=stacked,
                own=own,
                attacks=attacks,
                measure=method == "agglomerative",
            )
            by_seed += [found] if method == "agglomerative" else []
            rows.setdefault(("pfedhgp", method), []).append(found.labels)
    first = by_seed[0]
    counts = {
        choice: zone_groups.how_many(first.between, first.method, choice)[0]
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
        by_function = discover(
            *(paper.model_, 3),
            method=method,
            size=GRID,
            seed=study.seed,
            draws=0,
            own=whole,
            measure=False,
        )
        rows["paper", method] = [by_function.labels]
        by_operator = discover(paper.model_, 3, method=method, distance="operator", rows=stacked)
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
                "ari_spectral": ari(rows["pfedhgp", "spectral"][i]),
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
    """What it takes to guess at every station's rows from sketches."""
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
            compared = Compared(own, names, size=size, seed=study.seed + i, grid="", least=3)
            labels = compared.label(3, "agglomerative")
            r2 = list(revealed(attacks, own, compared.sent).values())
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


# --------------------------------------------------------------------------------------- imputation


def imputing_model(study: AirQuality, sites: Mapping[str, imputing.Series]) -> FederatedGP:
    """A global layer at the rows' own resolution and state-space local layers, which hold the deviation too.

    The global kernel stays as given, 0.8 of the spacing of its inputs: what all stations share from one time
    to the next half a day later is little more than its mean, and each time has twelve stations to say it.
    """
    times = np.unique(np.concatenate([t for t, _ in sites.values()]))
    extent, step = float(np.ptp(times)), float(np.median(np.diff(times)))
    inducing = study.impute_inducing or min(MOST_INPUTS, round(extent / step) + 1)
    return FederatedGP(
        kernel=RBF(RESOLVED * extent / (inducing - 1)),
        layers=("global", "local"),
        local="state-space",
        local_kernel="matern12",
        inducing=inducing,
        inference=Structured(
            rounds=4,
            evaluations=15,
            first_evaluations=25,
            frozen_rounds=1,
            averaging=None,
            probes=4,
            learn_shared=False,
        ),
        seed=study.seed,
    )


def imputation_part(
    study: AirQuality, splits: Sequence[imputing.Split], say: Say
) -> dict[str, list[dict[str, float]]]:
    """{method: scores of each split}, on held-out days and the fortnight together; fortnight alone beside."""
    found: dict[str, list[dict[str, float]]] = {}
    for i, parts in enumerate(splits):
        began = time.perf_counter()
        held = parts.held
        data = {n: (t[:, None], y) for n, (t, y) in parts.kept.items()}
        model = imputing_model(study, parts.kept).fit(data)
        ours = {}
        for name in held:
            p = model.predict(name, held[name][0][:, None])
            ours[name] = (p.mean[:, 0], p.sd[:, 0])
        every = {"pfedhgp": ours, **imputing.baselines(parts.kept, held)}
        for method, predicted in every.items():
            scores = imputing.scores(held, predicted)
            last = {
                name: (predicted[name][0][-len(t) :], predicted[name][1][-len(t) :])
                for name, (t, _) in parts.fortnight.items()
            }
            alone = imputing.scores(parts.fortnight, last)
            scores |= {f"fortnight_{name}": value for name, value in alone.items()}
            found.setdefault(method, []).append(scores)
        said = ", ".join(
            f"{name} {every_score[-1]['crps']:.3f} ({every_score[-1]['coverage']:.3f})"
            for name, every_score in found.items()
        )
        say(
            f"imputation {i + 1}/{study.splits}: {time.perf_counter() - began:.0f} s; CRPS (coverage) {said}"
        )
    return found


# ------------------------------------------------------------------------------------------ writing


def _write(
    study: AirQuality,
    folder: Path,
    found: dict[str, Any],
    imputed: dict[str, list[dict[str, float]]],
    sparse: dict[str, dict[str, list[float]]],
) -> dict[str, Any]:
    year = str(study.year)
    records = []

    def add(model: str, metric: str, values: list[float]) -> None:
        mean, ci95 = interval(values)
        records.append(
            {"scenario": year, "model": model, "metric": metric, "mean": mean, "ci95": ci95}
            | {"runs": len(values)}
        )

    for (model, method), labels in found["rows"].items():
        name = row_name(model, method)
        add(name, "ari", [ari(each) for each in labels])
        add(name, "nmi", [nmi(each) for each in labels])
    for metric in ("r2", "r2_largest"):
        add("pfedhgp", metric, [each[metric] for each in found["seeds"]])
    for metric in ("seconds", "exchanges", "bytes"):
        add("pfedhgp", metric, [float(found[metric])])
    for model, scores in imputed.items():
        for metric in scores[0]:
            add(f"{model} (imputation)", metric, [each[metric] for each in scores])
    for model, values in sparse.items():
        for metric, each in values.items():
            add(model + FEW, metric, each)
    zones = found["zones"]
    results = {
        "records": records,
        "curves": {"ari against r2": found["curve"]},
        "tables": {
            "zones": zones.to_json(),
            "sketch seeds": found["seeds"],
            "number of groups": found["counts"],
        },
        "config": {
            "study": "airquality",
            **asdict(study),
            "machine": machine(),
            "cpu_seconds": time.process_time(),
        },
    }
    pictures = {
        "map-paper.svg": zone_figures.site_map(ZONES, COORDINATES, "The paper's zones"),
        "map-pfedhgp.svg": zone_figures.site_map(
            zones.labels, COORDINATES, f"Found from {year}, sketches of {zones.size} numbers"
        ),
        "dendrogram.svg": zone_figures.dendrogram(zones),
        "heat-map.svg": zone_figures.heat_map(zones),
        "curve.svg": zone_figures.reveal_curve(found["curve"]),
    }
    write_results(
        folder, results, f"Beijing air quality, {year}", _notes(study), _tables(results), pictures
    )
    return results


def row_name(model: str, method: str) -> str:
    """Rows are called by their usual grouping, which for the paper's operators is the paper's, spectral."""
    usual = zone_groups.USUAL["operator" if model == "operator" else "function"]
    if method == usual:
        return model
    return f"{model} ({'ward' if method == 'agglomerative' else method})"


def _notes(study: AirQuality) -> tuple[str, ...]:
    unit = "raw PM2.5 (µg/m³)" if study.raw else "log(1 + PM2.5)"
    return (
        ATTRIBUTION,
        f"All in {unit}. Groups are Ward's unless the row says spectral, and of operators spectral unless "
        f"the row says ward; pfedhgp's figures are means over {study.sketches} sketch seeds. R² is that of "
        "the best linear guess at a station's rows from all that it sent for zones, by one who knows "
        "everything but its readings: kernels, noise, hours and the global layer.",
        "operator: the paper's operators, which see input times and kernels and never what a function looks "
        "like. paper: M = 30, M_i = 12, whole fitted functions compared. pooled: the rows themselves.",
    )


def _tables(results: dict[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    cells: dict[str, dict[str, float]] = {}
    for record in results["records"]:
        cells.setdefault(record["model"], {})[record["metric"]] = record["mean"]
    zones = [[m, f"{v['ari']:.3f}", f"{v['nmi']:.3f}"] for m, v in cells.items() if "ari" in v]
    columns = ("rmse", "nll", "crps", "coverage", "width")
    imputed, fortnight = (
        [
            [m.removesuffix(" (imputation)"), *(f"{v[part + c]:.3f}" for c in columns)]
            for m, v in cells.items()
            if m.endswith("(imputation)")
        ]
        for part in ("", "fortnight_")
    )
    few = [
        [
            m.removesuffix(FEW),
            *(f"{v[c]:.3f}" if c in v else "" for c in ("accuracy", *columns)),
        ]
        for m, v in cells.items()
        if m.endswith(FEW)
    ]
    curve = [
        [
            str(p["size"]),
            f"{p['r2']:.3f}",
            f"{p['r2_largest']:.3f}",
            f"{p['ari']:.3f}",
            f"{p['exact']}/{p['seeds']}",
        ]
        for p in results["curves"]["ari against r2"]
    ]
    seeds = [
        [str(s["seed"]), *(f"{s[c]:.3f}" for c in ("r2", "r2_largest", "ari", "ari_spectral"))]
        for s in results["tables"]["sketch seeds"]
    ]
    counts = [[choice, str(n)] for choice, n in results["tables"]["number of groups"].items()]
    return {
        "Zones": (["row", "ARI", "NMI"], zones),
        "Sketch seeds": (["seed", "R², mean", "R², largest", "ARI", "ARI, spectral"], seeds),
        "Number of groups, were it not given": (["chosen by", "groups"], counts),
        "Sketch size, what it reproduces, what it finds": (
            ["numbers", "R², mean", "R², largest", "ARI", "exact"],
            curve,
        ),
        "Imputation of held-out days and a fortnight": (["method", *columns], imputed),
        "The fortnight alone": (["method", *columns], fortnight),
    } | (
        {"A station with 5% of its rows": (["method", "in its zone", *columns], few)} if few else {}
    )
