"""The paper's second application: twelve Beijing stations, PM2.5 at 02:00 and 14:00, and their three zones.

Each question needs its own model. For zones by loadings: shared functions at the rows' own times, which each
station mixes for itself, so that it sends a few numbers alone. For zones by sketches: a smooth global layer
(48 inducing inputs a year) and exact state-space local layers, so that training messages say little about
single days. For imputation: a global layer as fine as the rows, because only the other stations know a
missing day. Its sums then determine the rows (docs/zones.md), as do those of the model for loadings.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pfedhgp.errors import InputError
from pfedhgp.studies.airquality import imputation as imputing
from pfedhgp.studies.airquality.models import AirQuality, imputing_model, zone_model
from pfedhgp.studies.airquality.report import write
from pfedhgp.studies.airquality.sparse_station import one_of_each, sparse_part
from pfedhgp.studies.airquality.stations import ZONES, load_stations
from pfedhgp.studies.airquality.zone_scores import Say, loadings_part, pooled_distances, zones_part
from pfedhgp.studies.common.store import make_folder


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
    for name in ("sketches", "starts"):
        if getattr(study, name) < 1:
            raise InputError(f"`{name}` must be at least 1, got {getattr(study, name)}")
    sites = sites_of(study, source)
    splits = [
        imputing.split(sites, share=study.held_out, seed=study.seed + i)
        for i in range(study.splits)
    ]
    make_folder(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = loadings_part(study, sites, say)
        found = {**zones_part(study, sites, say), "loadings": loaded}
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
    return write(study, folder, found, imputed, sparse)


def imputation_part(
    study: AirQuality, splits: Sequence[imputing.Split], say: Say
) -> dict[str, list[dict[str, float]]]:
    """{method: scores of each split}: held-out days with the fortnight, and the fortnight alone."""
    found: dict[str, list[dict[str, float]]] = {}
    for i, parts in enumerate(splits):
        began = time.perf_counter()
        held = parts.held
        data = {n: (t[:, None], y) for n, (t, y) in parts.kept.items()}
        model = imputing_model(study, parts.kept).fit(data)
        ours = {name: imputing.predicted(model, name, t) for name, (t, _) in held.items()}
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
