"""All hours of all stations, PM2.5 and temperature together, and held-out days.

The global layer has two latents, whose kernel is a sum: Matérn 3/2 over days, a seasonal part, and periodic
parts for the week and the day. Each station's own functions are state-space layers over the hours. The
kernels of the global layer are fixed; everything else is learned.
"""

from __future__ import annotations

import resource
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pfedhgp.errors import InputError
from pfedhgp.estimator import FederatedGP
from pfedhgp.gp.kernels import RBF, Kernel, Matern32, Periodic
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.studies.airquality.imputation import score
from pfedhgp.studies.airquality.station_gp import station_gps
from pfedhgp.studies.airquality.stations import ATTRIBUTION, load_stations, years_of
from pfedhgp.studies.common.pages import write_results
from pfedhgp.studies.common.provenance import machine
from pfedhgp.studies.common.records import record_of
from pfedhgp.studies.common.store import make_folder

COLUMNS = ("PM2.5", "TEMP")
Say = Callable[[str], None]
Predicted = dict[str, tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class AllHours:
    """Settings of the study; without `year` it uses all years in the files."""

    year: int | None = None
    raw: bool = False
    seed: int = 0
    spacing: float = 1.43
    """days between global inducing inputs"""
    rounds: int = 4
    evaluations: int = 8
    probes: int = 4
    held_out: float = 0.1


@dataclass(frozen=True, eq=False)
class Hours:
    """All stations on one clock: days (n,), and {station: (n, 2)} with NaN for missing values."""

    days: np.ndarray
    values: dict[str, np.ndarray]


def hours_of(study: AllHours, source: str | Path) -> Hours:
    """Every hour that a station has; log(1 + PM2.5) unless `raw`."""
    years = years_of(source) if study.year is None else [study.year]
    stations = load_stations(source, years=years, columns=COLUMNS)
    days = np.unique(np.concatenate([s.days for s in stations]))
    values = {}
    for station in stations:
        whole = np.full((len(days), len(COLUMNS)), np.nan)
        whole[np.searchsorted(days, station.days)] = station.values
        if not study.raw:
            whole[:, 0] = np.log1p(whole[:, 0])
        values[station.name] = whole
    return Hours(days, values)


def split(hours: Hours, *, share: float, seed: int) -> tuple[Hours, dict[str, np.ndarray]]:
    """Holds out random whole days at each station: the rows without them, and a mask of them."""
    rng = np.random.default_rng([seed, 11])
    whole = np.unique(np.floor(hours.days))
    if len(whole) < 10:
        raise InputError(f"{len(whole)} days are too few to hold days out: at least 10 are needed")
    kept, held = {}, {}
    for name in sorted(hours.values):
        out = rng.choice(whole, max(1, round(share * len(whole))), replace=False)
        held[name] = np.isin(np.floor(hours.days), out)
        kept[name] = np.where(held[name][:, None], np.nan, hours.values[name])
    return Hours(hours.days, kept), held


def shared_kernel(spacing: float) -> Kernel:
    """The kernel of the global layer: days, the season, the week and the day."""
    return (
        0.5 * Matern32(spacing)
        + 0.25 * RBF(45.0)
        + 0.05 * Periodic(1.0, period=7.0)
        + 0.2 * Periodic(1.0, period=1.0)
    )


def model_of(study: AllHours, days: np.ndarray) -> FederatedGP:
    """The model to fit."""
    return FederatedGP(
        kernel=shared_kernel(study.spacing),
        layers=("global", "local"),
        local="state-space",
        local_kernel="matern12",
        latents=2,
        inducing=max(8, round(float(np.ptp(days)) / study.spacing)),
        inference=Structured(
            rounds=study.rounds,
            evaluations=study.evaluations,
            first_evaluations=study.evaluations,
            frozen_rounds=1,
            averaging=None,
            probes=study.probes,
            learn_shared=False,
        ),
        seed=study.seed,
    )


def scores(hours: Hours, held: dict[str, np.ndarray], found: Predicted) -> dict[str, Any]:
    """{column: scores} over all stations' held-out cells, in transformed units."""
    result = {}
    for q, column in enumerate(COLUMNS):
        y, mean, sd = [], [], []
        for name, where in held.items():
            seen = np.isfinite(hours.values[name][where, q])
            y.append(hours.values[name][where, q][seen])
            mean.append(found[name][0][seen, q])
            sd.append(found[name][1][seen, q])
        result[column] = score(*(np.concatenate(v) for v in (y, mean, sd)))
    return result


def run(study: AllHours, source: str | Path, folder: Path, say: Say) -> dict[str, Any]:
    """Fits, predicts held-out days, compares; writes results.json, tables and report.html into `folder`."""
    hours = hours_of(study, source)
    kept, held = split(hours, share=study.held_out, seed=study.seed)
    make_folder(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, cost = _ours(study, kept, held, say)
        by_station = _alone(kept, held)
    say(f"stations alone: after {time.process_time():.0f} s of CPU time")
    every = {
        "pfedhgp": scores(hours, held, found),
        "station-gp": scores(hours, held, by_station),
    }
    return _write(study, hours, folder, every, cost)


def _ours(
    study: AllHours, kept: Hours, held: dict[str, np.ndarray], say: Say
) -> tuple[Predicted, dict[str, float]]:
    began, worked = time.perf_counter(), time.process_time()

    def tell(entry: dict[str, Any]) -> None:
        spent = time.process_time() - worked
        say(f"round {entry['round']}: bound {entry['bound']:.0f}, {spent:.0f} s of CPU time")

    model = model_of(study, kept.days).set_params(callbacks=[tell])
    data = {name: (kept.days[:, None], values) for name, values in kept.values.items()}
    model.fit(data)
    cost = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - worked,
        "peak_gib": peak_gib(),
        "exchanges": float(model.exchanges_),
        "bytes": float(sum(entry["bytes"] for entry in model.messages_)),
    }
    say(f"fitted: {cost['cpu_seconds']:.0f} s of CPU time, at most {cost['peak_gib']:.2f} GiB")
    found = {}
    for name, where in held.items():
        p = model.predict(name, kept.days[where][:, None])
        found[name] = (p.mean, p.sd)
    say(f"predicted: {time.process_time() - worked:.0f} s of CPU time, {peak_gib():.2f} GiB")
    return found, cost | {"peak_gib_predict": peak_gib()}


def _alone(kept: Hours, held: dict[str, np.ndarray]) -> Predicted:
    names = list(held)
    mean, sd = station_gps(kept.days, np.concatenate([kept.values[n] for n in names], axis=1))
    found = {}
    for i, name in enumerate(names):
        own = slice(len(COLUMNS) * i, len(COLUMNS) * (i + 1))
        found[name] = (mean[held[name], own], sd[held[name], own])
    return found


def peak_gib() -> float:
    """Peak memory of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def _write(
    study: AllHours,
    hours: Hours,
    folder: Path,
    every: dict[str, dict[str, dict[str, float]]],
    cost: dict[str, float],
) -> dict[str, Any]:
    period = "all years" if study.year is None else str(study.year)
    records, rows = [], []
    for model, columns in every.items():
        for column, found in columns.items():
            scenario = f"{period}, {column}"
            for metric, value in found.items():
                records.append(record_of(scenario, model, metric, [value]))
            rows.append([model, column, *(f"{v:.3f}" for v in found.values())])
    for metric, value in cost.items():
        records.append(record_of(period, "pfedhgp", metric, [value]))
    count = sum(len(v) for v in hours.values.values())
    results = {
        "records": records,
        "config": {
            "study": "airquality, all hours",
            **asdict(study),
            "machine": machine(),
            "rows": count,
            "observed": int(sum(np.isfinite(v).sum() for v in hours.values.values())),
        },
    }
    names = ["method", "column", *next(iter(every["pfedhgp"].values()))]
    spent = [[name, f"{value:.4g}"] for name, value in cost.items()]
    unit = "raw PM2.5 (µg/m³)" if study.raw else "log(1 + PM2.5)"
    notes = (
        ATTRIBUTION,
        f"{count} station-hours; {unit} and temperature (°C) on held-out days, one in "
        f"{round(1 / study.held_out)} at each station. station-gp: each station alone, an exact GP "
        "with waves of the year, the week and the day.",
    )
    tables = {"Held-out days": (names, rows), "What it took": (["", ""], spent)}
    write_results(folder, results, f"Beijing, all hours, {period}", notes, tables, {})
    return results
