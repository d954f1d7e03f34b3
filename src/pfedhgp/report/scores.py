"""Errors and calibration: what metrics.json says, as lines of tables and as figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from pfedhgp.report import charts
from pfedhgp.report.theme import both

if TYPE_CHECKING:
    from pfedhgp.report.gathered import Gathered

OVER = {"pooled": "rows", "client_mean": "clients"}
"""What the averages of `pfedhgp.estimator.evaluation` are over."""


def of_output(metrics: Mapping[str, Any], output: str, average: str) -> Mapping[str, Any]:
    """One output's scores; {} where there are none."""
    return ((metrics.get("outputs") or {}).get(output) or {}).get(average) or {}


def of_client(metrics: Mapping[str, Any], client: str, output: str) -> Mapping[str, Any]:
    """One client's scores for one output; {} where there are none."""
    return of_output(metrics, output, "clients").get(client) or {}


def lines(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A line for each output and average; with several outputs, for all of them together too."""
    found = []
    tables = dict(metrics.get("outputs") or {})
    if len(tables) > 1:
        tables["all outputs"] = metrics.get("overall") or {}
    for name, table in tables.items():
        for average, over in OVER.items():
            if table.get(average):
                found.append({"name": name, "over": over, "scores": table[average]})
    return found


def relative_errors(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Each client's RMSE over the pooled one, averaged over outputs: a number without units, to rank by."""
    found: dict[str, list[float]] = {}
    for output in metrics.get("outputs") or {}:
        whole = of_output(metrics, output, "pooled").get("rmse")
        for client, each in of_output(metrics, output, "clients").items():
            if each.get("rmse") is not None:
                found.setdefault(client, []).append(each["rmse"] / (whole or 1.0))
    return {client: float(np.mean(values)) for client, values in found.items()}


def sharpness(found: Gathered) -> list[dict[str, Any]]:
    """How wide the intervals are, beside what the outputs' own spread would ask for."""
    model = found.model
    spread = np.broadcast_to(model.scaling.spread, (model.outputs,))
    lines = []
    for name, sd in zip(model.output_names, spread, strict=True):
        width = of_output(found.metrics, name, "client_mean").get("width")
        if width is not None:
            lines.append({"output": name, "width": width, "spread": float(sd)})
    return lines


def calibration(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """The coverage curve and the PIT histogram."""
    found = metrics.get("calibration") or {}
    if not found.get("levels"):
        return None
    pit = found.get("pit") or {}
    curve = charts.coverage_curve(found["levels"], found["coverage"], name="coverage")
    drawn = None
    if pit.get("counts"):
        drawn = Markup(charts.pit_histogram(pit["edges"], pit["counts"], name="pit"))
    ece = ((metrics.get("overall") or {}).get("client_mean") or {}).get("ece")
    return {"coverage": Markup(curve), "pit": drawn, "ece": ece}


def baselines(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """This model and others on the same held-out rows, averaged over clients; of one output only."""
    others = metrics.get("baselines") or {}
    ours = (metrics.get("overall") or {}).get("client_mean") or {}
    if not others or ours.get("rmse") is None:
        return None
    scores = {"this model": ours, **{n: s.get("client_mean") or {} for n, s in others.items()}}
    best = {
        metric: min((v for s in scores.values() if (v := s.get(metric)) is not None), default=None)
        for metric in ("rmse", "nll", "crps", "ece")
    }
    figure = None
    if all(s.get("rmse") is not None for s in scores.values()):
        figure = both(lambda w, key: charts.baselines(scores, width=w, name=key), "baselines")
    return {"scores": scores, "best": best, "figure": figure}
