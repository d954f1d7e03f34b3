"""The section about client loadings: where clients lie, and what the functions look like that they mix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from pfedhgp.base.batching import on_numpy
from pfedhgp.base.numerics import with_numerics
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.kernel_words import kernels_of
from pfedhgp.plot.slices import finest_scale, grid_size
from pfedhgp.report import mixing_figures, words
from pfedhgp.report.gathered import Gathered
from pfedhgp.report.theme import both
from pfedhgp.zones.loadings import Loadings
from pfedhgp.zones.named_functions import Named, named, plane

SCALES = 150.0
"""A figure shows no more than so many lengthscales of the fastest function: more would be a blur."""
MOST_SHOWN = 8
"""Functions in the figure."""
MOST_LISTED = 60
"""Clients in the table of loadings."""


def section(found: Gathered, groups: Mapping[str, int] | None) -> Markup | None:
    """The section's HTML; None if clients have no loadings of their own."""
    model = found.model
    if not model.structure.client_loadings or not np.shape(model.shared.block.loadings)[1]:
        return None
    loadings = Loadings.of(model)
    names = named(loadings, on_numpy(model.shared.block).kernels)
    if groups is not None and not {*loadings.names} <= {*groups}:
        groups = None
    drawn = None
    if len(loadings.names) > 1:
        where = plane(loadings, names)
        drawn = both(
            lambda w, key: mixing_figures.plane(where, loadings.names, groups, width=w, name=key),
            "mixing-plane",
        )
    functions, whole, stretch = _functions(found, names)
    own = loadings.numbers @ names.turn
    kernels = kernels_of(model)
    table = [
        {
            "name": f"shared {r + 1}",
            "share": names.shares[r],
            "mean": float(own[:, :, r].mean()),
            "sd": float(own[:, :, r].std(axis=0).mean()),
            "kernel": kernels[int(names.first[r])],
        }
        for r in range(len(names.shares))
    ]
    context: dict[str, Any] = {
        "plane": drawn,
        "sure": bool(np.any(loadings.covariances)),
        "grouped": groups is not None,
        "functions": functions,
        "whole": whole,
        "stretch": stretch,
        "left_out": max(len(table) - MOST_SHOWN, 0),
        "table": table,
        "clients": _clients(loadings, names),
        "several": model.outputs > 1,
    }
    return Markup(words.template("mixing.html").render(context))


def _clients(loadings: Loadings, names: Named) -> dict[str, Any] | None:
    """Each client's loadings on the named functions, with their sd; and who differs most in which.

    None with several outputs, where a client has a matrix, and with very many clients.
    """
    if loadings.mean.shape[0] > 1 or not 1 < len(loadings.names) <= MOST_LISTED:
        return None
    own = loadings.numbers[:, 0] @ names.turn
    V = np.einsum("ar,kab,br->kr", names.turn, loadings.covariances, names.turn, optimize=True)
    sds = np.sqrt(np.maximum(V, 0.0))
    moves = np.diagonal(names.turn.T @ loadings.gram @ names.turn)
    k = int(np.argmax(own.var(axis=0) * moves))
    order = np.argsort(-own[:, k], kind="stable")
    rows = [
        {"name": loadings.names[i], "loadings": list(zip(own[i], sds[i], strict=True))}
        for i in order
    ]
    return {"rows": rows, "function": k}


def _functions(found: Gathered, names: Named) -> tuple[Markup, bool, str]:
    """The figure of the functions along the first input; whether it shows all of it, and how much."""
    axis, model = found.axes[0], found.model
    view = found.slices[found.chosen[0]][0]
    scale = finest_scale(model, (), 0)
    part = min(1.0, SCALES * scale)
    lower, upper = float(view.x[0]), float(view.x[-1])
    x = np.linspace(upper - part * (upper - lower), upper, grid_size(scale / part))
    X = np.empty((len(x), model.inputs))
    X[:, 0] = x
    X[:, 1:] = [value for _, value in view.at]
    kept = names.turn[:, :MOST_SHOWN]
    means, sds = moments(model, X, kept)
    figure = both(
        lambda w, key: mixing_figures.functions(
            x, means, sds, axis, shares=names.shares.tolist(), width=w, name=key
        ),
        "shared-functions",
    )
    return figure, part >= 1.0, axis.length(part * (upper - lower))


@with_numerics
def moments(model: FittedModel, X: np.ndarray, turn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations (n, R') of Tᵀg at inputs in the data's units."""
    shared = on_numpy(model.shared)
    basis = shared.block.basis(model.jitter)
    A = np.asarray(basis.features(np.asarray(model.scaling.inputs(X), np.float64)))
    R, M, n = A.shape
    weights = np.einsum("rmn,rk->rmnk", A, turn).reshape(R * M, n * turn.shape[1])
    mean = (np.asarray(shared.mean) @ weights).reshape(n, -1)
    S = np.asarray(shared.covariance)
    variance = np.einsum("an,an->n", weights, S @ weights).reshape(n, -1)
    variance += np.asarray(basis.residual(A)).T @ turn**2
    return mean, np.sqrt(np.maximum(variance, 0.0))
