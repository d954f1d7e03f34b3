"""The section of each client, and the table of all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from markupsafe import Markup

from pfedhgp.report import facts, figures, scores
from pfedhgp.report.gathered import Gathered
from pfedhgp.report.theme import NARROW, both

MOST_PANELS = 8
"""Figures a client: one for each output and input, up to this."""


def section(found: Gathered, index: int, name: str) -> dict[str, Any]:
    """A client's figures and what stands beside them."""
    model, view = found.model, found.views[name]
    wanted = [(j, q) for q in range(model.outputs) for j in range(len(view.slices))]
    panels = [
        {"figure": _panel(found, index, name, j, q), "slice": view.slices[j], "output": q}
        for j, q in wanted[:MOST_PANELS]
    ]
    first = model.output_names[0]
    return {
        "name": name,
        "observed": found.counts.get(name),
        "score": scores.of_client(found.metrics, name, first),
        "panels": panels,
        "left_out": max(len(wanted) - MOST_PANELS, 0),
        "local": facts.local_kernel(model, name) if "local" in found.layers else [],
        "noise": facts.layer_sizes(model, name)[:, 3],
    }


def _panel(found: Gathered, index: int, name: str, j: int, q: int) -> Markup:
    span = _span(found, j, q)
    extent = float(found.model.scaling.extent[j]) * (1.0 - found.since[j])
    return both(
        lambda width, key: figures.client_panels(
            found.views[name].slices[j],
            q,
            output_name=found.model.output_names[q],
            layers=found.layers,
            width=width,
            name=key,
            span=span,
            since=found.since[j] if width <= NARROW else 0.0,
            last=found.axes[j].length(extent),
        ),
        f"client-{index}-{j}-{q}",
    )


def _span(found: Gathered, j: int, q: int) -> float:
    """A height that holds every client's deviation and local layer, up to a hundredth of their bands."""
    tallest = 0.0
    for view in found.views.values():
        for name in ("deviation", "local"):
            layer = view.slices[j].prediction.layers[name]
            mean, reach = layer.mean[:, q], 2.0 * layer.sd[:, q]
            low, high = np.quantile(mean - reach, 0.01), np.quantile(mean + reach, 0.99)
            tallest = max(tallest, 2.0 * abs(float(low)), 2.0 * abs(float(high)))
    return 1.05 * tallest


def table(found: Gathered) -> list[dict[str, Any]]:
    """A line for each client and output: noise, and held-out scores in that output's units."""
    lines = []
    wanted = ("rows", "rmse", "nll", "crps", "coverage", "width")
    for name in found.model.clients:
        noise = facts.layer_sizes(found.model, name)[:, 3]
        for q, output in enumerate(found.model.output_names):
            score = scores.of_client(found.metrics, name, output)
            lines.append(
                {
                    "name": name,
                    "output": output,
                    "observed": found.counts.get(name),
                    "noise": noise[q],
                    **{key: score.get(key) for key in wanted},
                }
            )
    return lines
