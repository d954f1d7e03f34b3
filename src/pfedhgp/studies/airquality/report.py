"""What the air-quality study writes: results.json, tables, maps and report.html."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pfedhgp.report import zone_figures
from pfedhgp.report.theme import standalone
from pfedhgp.studies.airquality.models import AirQuality
from pfedhgp.studies.airquality.stations import ATTRIBUTION, COORDINATES, ZONES
from pfedhgp.studies.airquality.zone_scores import ari, nmi
from pfedhgp.studies.common.pages import Table, write_results
from pfedhgp.studies.common.provenance import machine
from pfedhgp.studies.common.records import record_of
from pfedhgp.zones import groups as zone_groups

FEW = " (5% of a station)"


def write(
    study: AirQuality,
    folder: Path,
    found: dict[str, Any],
    imputed: dict[str, list[dict[str, float]]],
    sparse: dict[str, dict[str, list[float]]],
) -> dict[str, Any]:
    year = str(study.year)
    records = []

    def add(model: str, metric: str, values: list[float]) -> None:
        records.append(record_of(year, model, metric, values))

    loaded = found["loadings"]
    by_method = {"average": "ari", "agglomerative": "ari_ward", "spectral": "ari_spectral"}
    for method, metric in by_method.items():
        add(row_name("pfedhgp", method), "ari", [each[metric] for each in loaded["starts"]])
    add("pfedhgp", "nmi", [nmi(each.labels) for each in loaded["zones"]])
    for metric in ("r2", "r2_largest", "r2_shared", "numbers"):
        add("pfedhgp", metric, [each[metric] for each in loaded["starts"]])
    for metric in ("seconds", "exchanges", "bytes"):
        add("pfedhgp", metric, loaded[metric])
    for (model, method), labels in found["rows"].items():
        name = row_name(model, method)
        add(name, "ari", [ari(each) for each in labels])
        add(name, "nmi", [nmi(each) for each in labels])
    for metric in ("r2", "r2_largest"):
        add("sketch", metric, [each[metric] for each in found["seeds"]])
    add("sketch", "numbers", [float(found["zones"].numbers)])
    for metric in ("seconds", "exchanges", "bytes"):
        add("sketch", metric, [float(found[metric])])
    for model, scores in imputed.items():
        for metric in scores[0]:
            add(f"{model} (imputation)", metric, [each[metric] for each in scores])
    for model, values in sparse.items():
        for metric, each in values.items():
            add(model + FEW, metric, each)
    zones = loaded["zones"][0]
    results = {
        "records": records,
        "curves": {"ari against r2": found["curve"]},
        "tables": {
            "zones": zones.to_json(),
            "zones by sketch": found["zones"].to_json(),
            "starts": loaded["starts"],
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
    found_title = f"Found from {year}, by {zones.size} loadings"
    pictures = {
        "map-paper.svg": zone_figures.site_map(
            ZONES, COORDINATES, title="The paper's zones", name="paper"
        ),
        "map-pfedhgp.svg": zone_figures.site_map(
            zones.labels, COORDINATES, title=found_title, name="found"
        ),
        "dendrogram.svg": zone_figures.tree(zones),
        "heat-map.svg": zone_figures.heat_map(zones),
        "curve.svg": zone_figures.reveal_curve(found["curve"]),
    }
    pictures = {file: standalone(svg) for file, svg in pictures.items()}
    write_results(
        folder, results, f"Beijing air quality, {year}", _notes(study), _tables(results), pictures
    )
    return results


def row_name(model: str, method: str) -> str:
    """A row's name, with the grouping unless it is the default: Ward, or spectral for operators."""
    kind = {"operator": "operator", "pfedhgp": "loadings"}.get(model, "function")
    usual = zone_groups.DEFAULT_METHOD[kind]
    if method == usual:
        return model
    return f"{model} ({'ward' if method == 'agglomerative' else method})"


def _notes(study: AirQuality) -> tuple[str, ...]:
    unit = "raw PM2.5 (µg/m³)" if study.raw else "log(1 + PM2.5)"
    return (
        ATTRIBUTION,
        f"All in {unit}. pfedhgp: by loadings, means over {study.starts} starts, groups by average linkage. "
        f"sketch: means over {study.sketches} sketch seeds. Groups of the other rows are Ward's, of "
        "operators spectral; a row that has others says so. R² is that of the best linear guess at a "
        "station's rows from all that it sent for zones, by one who knows everything but its readings: "
        "kernels, noise, hours and the global layer. By loadings it is mostly what the global layer says.",
        "operator: the paper's operators, which see input times and kernels and never what a function looks "
        "like. paper: M = 30, M_i = 12, whole fitted functions compared. pooled: the rows themselves.",
    )


def _tables(results: dict[str, Any]) -> dict[str, Table]:
    cells: dict[str, dict[str, float]] = {}
    for record in results["records"]:
        cells.setdefault(record["model"], {})[record["metric"]] = record["mean"]
    zones = [
        [m, *(f"{v[c]:.3f}" if c in v else "" for c in ("ari", "nmi", "r2", "r2_largest"))]
        for m, v in cells.items()
        if "ari" in v
    ]
    columns = ("rmse", "nll", "crps", "coverage", "width")
    imputed, fortnight = (
        [
            [m.removesuffix(" (imputation)"), *(f"{v[part + c]:.3f}" for c in columns)]
            for m, v in cells.items()
            if m.endswith("(imputation)")
        ]
        for part in ("", "fortnight_")
    )
    few = []
    for m, v in cells.items():
        if m.endswith(FEW):
            shown = (f"{v[c]:.3f}" if c in v else "" for c in ("accuracy", *columns))
            few.append([m.removesuffix(FEW), *shown])
    curve = []
    for p in results["curves"]["ari against r2"]:
        values = [f"{p[c]:.3f}" for c in ("r2", "r2_largest", "ari")]
        curve.append([str(p["size"]), *values, f"{p['exact']}/{p['seeds']}"])
    seeds = [
        [str(s["seed"]), *(f"{s[c]:.3f}" for c in ("r2", "r2_largest", "ari", "ari_spectral"))]
        for s in results["tables"]["sketch seeds"]
    ]
    columns_of_starts = ("r2", "r2_largest", "r2_shared", "ari", "ari_ward")
    starts = [
        [str(s["seed"]), *(f"{s[c]:.3f}" for c in columns_of_starts), f"{s['numbers']:.0f}"]
        for s in results["tables"]["starts"]
    ]
    sizes = ["numbers", "R², mean", "R², largest", "ARI", "exact"]
    counts = [[choice, str(n)] for choice, n in results["tables"]["number of groups"].items()]
    return {
        "Zones": (["row", "ARI", "NMI", "R², mean", "R², largest"], zones),
        "Starts of pfedhgp": (
            [
                "seed",
                "R², mean",
                "R², largest",
                "R² without loadings",
                "ARI",
                "ARI, Ward",
                "numbers",
            ],
            starts,
        ),
        "Sketch seeds": (["seed", "R², mean", "R², largest", "ARI", "ARI, spectral"], seeds),
        "Number of groups, were it not given": (["chosen by", "groups"], counts),
        "Sketch size, what it reproduces, what it finds": (sizes, curve),
        "Imputation of held-out days and a fortnight": (["method", *columns], imputed),
        "The fortnight alone": (["method", *columns], fortnight),
        "A station with 5% of its rows": (["method", "in its zone", *columns], few),
    }  # a table without rows is left out
