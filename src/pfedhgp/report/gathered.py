"""What every section of the page draws on: the model, rows, scores, and predictions of the clients shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.model.fitted import FittedModel
from pfedhgp.report import facts, scores, words
from pfedhgp.report.views import ClientView, choose, finest_scale, grid_size, view_client

if TYPE_CHECKING:
    from pfedhgp.estimator import FederatedGP

ClientTables = Sequence[ClientRows] | None

CLEAR_SCALES = 18.0
"""Finest scales that are clear in a narrow figure; with more it also shows the last ones larger."""


@dataclass(frozen=True, eq=False)
class Gathered:
    """What the sections show; rows by client are those of the fit, those held out, and others."""

    exchanges: int
    model: FittedModel
    metrics: Mapping[str, Any]
    axes: tuple[words.InputAxis, ...]
    layers: tuple[str, ...]
    rows: Mapping[str, ClientRows]
    held_out: Mapping[str, ClientRows]
    others: Mapping[str, ClientRows]
    chosen: Sequence[str]
    by_error: bool
    views: Mapping[str, ClientView]
    since: Sequence[float]
    """for each input, where the stretch begins that a narrow figure shows larger, as a share of the domain"""

    @property
    def counts(self) -> dict[str, int]:
        """Observed cells of each client in the fit: as the fit counted them, or in the given rows."""
        kept = self.metrics.get("data") or {}
        if kept:
            return {name: int(entry["cells"]) for name, entry in kept.items() if "cells" in entry}
        return {name: int(np.isfinite(r.Y).sum()) for name, r in self.rows.items()}


def gather(
    estimator: FederatedGP,
    *,
    rows: ClientTables,
    metrics: Mapping[str, Any],
    held_out: ClientTables,
    others: ClientTables,
) -> Gathered:
    """Chooses the clients to show and predicts for them."""
    clients, model = estimator.clients_, estimator.model_
    errors = scores.relative_errors(metrics)
    chosen = choose(clients, errors)
    given = [{r.name: r for r in part or ()} for part in (rows, held_out, others)]
    finest = [finest_scale(model, chosen, j) for j in range(model.inputs)]
    points = [grid_size(scale) for scale in finest]
    every = [r.X for part in given for r in part.values() if len(r.X)]
    centre = np.median(np.concatenate(every), axis=0) if every else None
    views = {
        name: view_client(
            model,
            name,
            points=points,
            centre=centre,
            rows=given[0].get(name),
            held_out=given[1].get(name),
            others=given[2].get(name),
        )
        for name in chosen
    }
    return Gathered(
        exchanges=estimator.exchanges_,
        model=model,
        metrics=metrics,
        axes=words.axes_of(model),
        layers=facts.layers_of(model),
        rows=given[0],
        held_out=given[1],
        others=given[2],
        chosen=chosen,
        by_error=all(name in errors for name in model.clients),
        views=views,
        since=[max(1.0 - CLEAR_SCALES * scale, 0.0) for scale in finest],
    )
