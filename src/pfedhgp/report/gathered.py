"""What every section of the page draws on: the model, rows, scores, and predictions of the clients shown.

With one input a client's prediction runs along it. With several there is a slice along each, the others held
at one place for all clients: the median of the rows, or the middle of the agreed domain without rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.layers import layers_of
from pfedhgp.plot.slices import Slice, domain_of, finest_scale, grid_size, slice_of, slices_of
from pfedhgp.report import scores, since
from pfedhgp.report.words import InputAxis, axes_of

if TYPE_CHECKING:
    from pfedhgp.estimator import FederatedGP

ClientTables = Sequence[ClientRows] | None
LARGEST = 12
"""Clients with figures."""
CLEAR_SCALES = 18.0
"""Finest scales that are clear in a narrow figure; with more it also shows the last ones larger."""


def by_error(clients: Sequence[str], errors: Mapping[str, float]) -> Sequence[str]:
    """From the smallest error, if all are known."""
    if all(name in errors for name in clients):
        return sorted(clients, key=lambda name: errors[name])
    return list(clients)


def choose(clients: Sequence[str], errors: Mapping[str, float], limit: int = LARGEST) -> list[str]:
    """At most `limit` clients: all, or evenly spread by error, or by order if errors are unknown."""
    if len(clients) <= limit:
        return list(clients)
    clients = by_error(clients, errors)
    return [clients[i] for i in np.linspace(0, len(clients) - 1, limit).round().astype(int)]


@dataclass(frozen=True, eq=False)
class Gathered:
    """What the sections show; rows by client are those of the fit, those held out, and others."""

    exchanges: int
    model: FittedModel
    metrics: Mapping[str, Any]
    axes: tuple[InputAxis, ...]
    layers: tuple[str, ...]
    rows: Mapping[str, ClientRows]
    held_out: Mapping[str, ClientRows]
    others: Mapping[str, ClientRows]
    chosen: Sequence[str]
    by_error: bool
    slices: Mapping[str, list[Slice]]
    """of the chosen clients, one along each input"""
    since: Sequence[float]
    """for each input, where the stretch begins that a narrow figure shows larger, as a share of the domain"""
    counts: Mapping[str, int]
    """observed cells of each client in the model: as the fit counted them, by the model's sums, or in the
    given rows"""
    counts_exact: bool
    changed: bool
    """whether rows came or went since the fit"""
    in_order: Sequence[str]
    """all clients, from the smallest error where errors are known, or as they came"""
    points: Sequence[int]
    """along each input"""
    centre: np.ndarray | None
    """what the other inputs are held at; None: the middle of the domain"""

    def small(self) -> dict[str, Slice]:
        """Every client along the first input."""
        lower, upper = domain_of(self.model)
        centre = 0.5 * (lower + upper) if self.centre is None else self.centre
        x = np.linspace(lower[0], upper[0], self.points[0])
        there = {name: own[0] for name, own in self.slices.items()}
        return {n: there.get(n) or slice_of(self.model, n, 0, x, centre) for n in self.in_order}


def gather(
    estimator: FederatedGP, rows: Sequence[ClientTables], metrics: Mapping[str, Any]
) -> Gathered:
    """Chooses the clients to show and predicts for them; `rows` of the fit, held out, and others."""
    clients, model = estimator.clients_, estimator.model_
    errors = scores.relative_errors(metrics)
    chosen = choose(clients, errors)
    given = [{r.name: r for r in part or ()} for part in rows]
    finest = [finest_scale(model, chosen, j) for j in range(model.inputs)]
    points = [grid_size(scale) for scale in finest]
    every = [r.X for part in given for r in part.values() if len(r.X)]
    centre = np.median(np.concatenate(every), axis=0) if every else None
    slices = {
        name: slices_of(
            model,
            name,
            points=points,
            centre=centre,
            rows=[part.get(name) for part in given],
        )
        for name in chosen
    }
    counts, exact = since.cells(model, metrics, given[0])
    return Gathered(
        exchanges=estimator.exchanges_,
        model=model,
        metrics=metrics,
        axes=axes_of(model),
        layers=layers_of(model),
        rows=given[0],
        held_out=given[1],
        others=given[2],
        chosen=chosen,
        by_error=all(name in errors for name in model.clients),
        slices=slices,
        since=[max(1.0 - CLEAR_SCALES * scale, 0.0) for scale in finest],
        counts=counts,
        counts_exact=exact,
        in_order=by_error(clients, errors),
        points=points,
        centre=centre,
        changed=bool(since.lines_of(metrics)),
    )
