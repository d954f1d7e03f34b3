"""A model fitted again with its parameters held: all rows at once, with dense matrices.

The design H is formed cell by cell, and moments are plain inverses. Nothing here adds one set of sums to
another, and nothing is compiled but the smoother of states.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from pfedhgp.base.batching import on_numpy
from pfedhgp.data.rows import ClientRows, in_order
from pfedhgp.inference.rows import white_rows
from pfedhgp.inference.structured.client_step import StepOptions
from pfedhgp.inference.structured.kept import PointSums, points_of
from pfedhgp.inference.structured.posterior import batched_states, distinct_states
from pfedhgp.model.blocks import ClientBlock, Rows, deviation_loadings, global_loadings
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.kept_sums import KeptSums, of_rows, packed
from pfedhgp.model.posterior import ClientPosterior, GlobalPosterior

PADDED = 32
"""Rows of a series with states are padded to so many: one length is compiled."""


def refit(model: FittedModel, clients: list[ClientRows]) -> FittedModel:
    """The posterior and the sums of `clients`, at the parameters of `model`."""
    block, k = on_numpy(model.shared.block), len(model.shared.mean)
    sums: dict[str, PointSums] = {}
    rows = {}
    for each in clients:
        own, kept = on_numpy(model.clients[each.name]), model.sums.get(each.name)
        scaled = model.scaling.rows(in_order(each))
        rows[each.name] = white_rows(scaled, full_noise=False)
        points = points_of(model.structure, block, own, None if kept is None else kept.best)
        parts = [
            _dense(model, point, model.jitter_of(each.name), rows[each.name]) for point in points
        ]
        sums[each.name] = PointSums(*(np.stack(part) for part in zip(*parts, strict=True)))
    J, h = {}, {}
    for name, own in sums.items():
        W = np.linalg.inv(np.eye(own.linear.shape[1] - k) + own.precision[0, k:, k:])
        cross = own.precision[0, :k, k:] @ W
        J[name] = own.precision[0, :k, :k] - cross @ own.precision[0, k:, :k]
        h[name] = own.linear[0, :k] - cross @ own.linear[0, k:]
    S = np.linalg.inv(np.eye(k) + sum(J.values()))
    shared = GlobalPosterior(model.shared.block, S @ sum(h.values()), S)
    found = {}
    for name, own in sums.items():
        before = model.clients[name]
        which = 0 if before.tangents is None else 1
        W = np.linalg.inv(np.eye(own.linear.shape[1] - k) + own.precision[which, k:, k:])
        fresh = replace(
            before,
            offset=W @ own.linear[which, k:],
            G=W @ own.precision[which, k:, :k],
            covariance=0.5 * (W + W.T),
        )
        others = [sum(v for n, v in each.items() if n != name) for each in (J, h)]
        found[name] = _averaged(fresh, own, *others)
        if fresh.states is not None:
            found[name] = _with_states(model, shared, fresh, rows[name])
    kept = {each.name: of_rows(_kept(model, each.name, sums[each.name]), each) for each in clients}
    return replace(model, shared=shared, clients=found, sums=kept)


def _dense(model: FittedModel, block: ClientBlock, jitter: float, rows: Rows) -> tuple:
    """Λ, η and the two scalars, with H (n, K) of one output after the other."""
    shared = on_numpy(model.shared.block)
    A = shared.basis(np.float64(model.jitter)).features(rows.X)
    layers = [(A, np.asarray(global_loadings(shared, block)))]
    B_dev = np.asarray(deviation_loadings(model.structure, shared, block))
    layers.append((A[: B_dev.shape[1]], B_dev))
    exact = model.structure.state_space
    if not exact:
        layers.append((block.basis(np.float64(jitter)).features(rows.X), block.loadings))
    variances = np.diagonal(block.noise.covariance(rows.Y.shape[1]))
    precision, linear, constant, residual = 0.0, 0.0, 0.0, 0.0
    for q, variance in enumerate(variances):
        seen = rows.mask[:, q] > 0
        H = np.concatenate(
            [
                np.stack([B[q, r] * a[r].T for r in range(len(a))], 1).reshape(len(rows.X), -1)
                if len(a)
                else np.zeros((len(rows.X), 0))
                for a, B in layers
            ],
            axis=1,
        )[seen]
        N = np.diag(np.full(int(seen.sum()), variance))
        if exact:
            local = jax.tree.map(lambda leaf, q=q: leaf[q], block.kernels)
            N = N + block.loadings[q, q] ** 2 * np.asarray(local(rows.X[seen], rows.X[seen]))
        y = rows.Y[seen, q]
        solved = np.linalg.solve(N, np.concatenate([H, y[:, None]], axis=1))
        precision, linear = precision + H.T @ solved[:, :-1], linear + H.T @ solved[:, -1]
        constant -= 0.5 * (len(y) * np.log(2 * np.pi) + np.linalg.slogdet(N)[1] + y @ solved[:, -1])
        for a, B in layers:
            left = np.maximum(1.0 - (a**2).sum(axis=1), 0.0)[:, seen]
            residual += float((B[q] ** 2 @ left).sum()) / variance
    return precision, linear, constant, residual


def _kept(model: FittedModel, name: str, sums: PointSums) -> KeptSums:
    none = np.zeros(0, np.uint64)
    best = model.sums[name].best if name in model.sums else None
    return KeptSums(packed(sums.precision), *sums[1:], inputs=none, rows=none, best=best)


def _averaged(own: ClientPosterior, sums: PointSums, J, h) -> ClientPosterior:
    t, k = own.tangents, len(np.atleast_1d(h))
    if t is None:
        return own

    def moments(p: int) -> tuple[np.ndarray, np.ndarray]:
        precision, linear = np.array(sums.precision[p]), np.array(sums.linear[p])
        precision[:k, :k] += J
        linear[:k] += h
        covariance = np.linalg.inv(precision + np.eye(len(linear)))
        return covariance @ linear, covariance

    mean, covariance = moments(1)
    ends = np.stack([moments(p)[0] for p in range(2, len(sums.linear))])
    up, down = ends[: len(ends) // 2], ends[len(ends) // 2 :]
    reached = np.asarray(t.reach)[:, None] > 0
    middle = replace(t.middle, weights=np.where(reached, 0.5 * (up + down) - mean, 0.0))
    return replace(
        own,
        shared_mean=mean[:k],
        shared_covariance=covariance[:k, :k],
        tangents=replace(t, weights=np.where(reached, 0.5 * (up - down), 0.0), middle=middle),
    )


def _with_states(
    model: FittedModel, shared: GlobalPosterior, own: ClientPosterior, rows: Rows
) -> ClientPosterior:
    options = StepOptions(model.structure, False, 1024, 0, True)
    extra = PADDED - len(rows.X)
    longer = Rows(
        np.pad(rows.X, ((0, extra), (0, 0)), mode="edge"),
        *(np.pad(each, ((0, extra), (0, 0))) for each in (rows.Y, rows.mask)),
    )
    stacked = jax.tree.map(lambda leaf: np.asarray(leaf)[None], (own.block, longer))
    weights = np.asarray(own.marginal(shared).mean)[None]
    means = batched_states(options, shared, jnp.asarray(model.jitter), weights, *stacked)
    n = len(rows.X)
    states = distinct_states(rows.X[:, 0], rows.mask, np.asarray(means)[0][:, :n])
    return replace(own, states=on_numpy(states))
