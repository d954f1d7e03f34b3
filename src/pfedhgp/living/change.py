"""Rows into a fitted model, and out of it again, at its own parameters: sums are added or subtracted.

    J_i, h_i from the client's new sums;   S⁻¹ ← S⁻¹ + ΔJ_i,   S⁻¹m ← S⁻¹m + Δh_i
and q(w | v_g) of that client. The result is what a fit with these parameters and all rows would give. Other
clients' q(w | v_g) stay; what depends on q(v_g) follows: views of v_g where parameters were averaged, and
states of local layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pfedhgp.base.batching import on_numpy
from pfedhgp.base.numerics import with_numerics
from pfedhgp.data.rows import ClientRows
from pfedhgp.gp import linalg
from pfedhgp.gp.noise import FullNoise
from pfedhgp.inference.rows import white_rows
from pfedhgp.inference.structured.bound import GlobalEvidence
from pfedhgp.inference.structured.kept import (
    PointSums,
    evidence_at,
    own_factor,
    points_of,
    sums_at,
)
from pfedhgp.inference.structured.posterior import evidence_of
from pfedhgp.living import states as of_states
from pfedhgp.model.blocks import ClientBlock, Rows
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.kept_sums import KeptSums
from pfedhgp.model.posterior import ClientPosterior, GlobalPosterior, Tangents


@with_numerics
def changed(
    model: FittedModel,
    rows: Sequence[ClientRows] = (),
    *,
    sign: float = 1.0,
    leaving: Sequence[str] = (),
    joining: Sequence[str] = (),
) -> FittedModel:
    """The model with `rows` added (`sign` 1) or taken out (−1).

    Clients that are `leaving` go with all their rows; those that are `joining` are in the model already, and
    from now on count in q(v_g). Rows are in the data's units and have been checked.
    """
    given = {each.name: each for each in rows}
    before = evidence_of(model.shared)
    J, h = np.array(before.J), np.array(before.h)
    k, sums, posteriors = len(h), dict(model.sums), dict(model.clients)
    own_rows: dict[str, Rows] = {}
    series: dict[str, tuple[of_states.Innovations, np.ndarray]] = {}
    for name in {*given, *leaving, *joining}:
        old = sums.get(name)
        if old is not None and old.counted:
            J, h = _minus(J, h, evidence_at(PointSums.of_kept(old), k))
        if name in leaving:
            del posteriors[name]
            sums.pop(name, None)
            continue
        assert old is not None
        if name in given:
            own_rows[name] = _scaled(model, given[name])
            if posteriors[name].states is not None:
                series[name] = _innovations(model, name, own_rows[name], sign)
            found = _of_rows(model, name, own_rows[name], series.get(name))
            sums[name] = replace(
                old.plus(*(sign * each for each in found)), counted=old.counted or sign > 0
            )
        else:
            sums[name] = replace(old, counted=True)
        if sums[name].counted:
            found_J, found_h = evidence_at(PointSums.of_kept(sums[name]), k)
            J, h = J + found_J, h + found_h
    shared = GlobalPosterior(model.shared.block, *linalg.posterior_moments(J, h))
    total = GlobalEvidence(J, h)
    for name, own in posteriors.items():
        error = series[name][1] if name in series else None
        posteriors[name] = _renewed(
            model, name, own, sums.get(name), shared, total, own_rows.get(name), error, sign
        )
    return replace(
        model,
        shared=shared,
        clients=posteriors,
        sums={name: own for name, own in sums.items() if name in posteriors},
        client_jitter={n: value for n, value in model.client_jitter.items() if n in posteriors},
        client_layers={n: layer for n, layer in model.client_layers.items() if n in posteriors},
    )


def _renewed(
    model: FittedModel,
    name: str,
    own: ClientPosterior,
    kept: KeptSums | None,
    shared: GlobalPosterior,
    total: GlobalEvidence,
    rows: Rows | None,
    error: np.ndarray | None,
    sign: float,
) -> ClientPosterior:
    """A client's posterior beside the new q(v_g), and with its new rows if it has any."""
    k = len(total.h)
    old = own
    if kept is None:
        return own
    points = PointSums.of_kept(kept)
    if rows is not None:
        which = 0 if own.tangents is None else 1
        here = PointSums(*(each[which : which + 1] for each in points))
        offset, G, covariance = (each[0] for each in own_factor(here, k).conditional())
        own = replace(own, offset=offset, G=G, covariance=covariance)
    if own.tangents is not None:
        own = _averaged(own, points, _others(kept, points, total))
    if own.states is not None:
        own = _with_states(model, old, own, shared, rows, error, sign)
    return own


def _others(kept: KeptSums, points: PointSums, total: GlobalEvidence) -> GlobalEvidence:
    """What all others know of v_g."""
    if not kept.counted:
        return total
    return GlobalEvidence(*_minus(*total, evidence_at(points, len(total.h))))


def _averaged(own: ClientPosterior, points: PointSums, others: GlobalEvidence) -> ClientPosterior:
    """The client's view of v_g, and the weights at both ends of each direction."""
    t, k = own.tangents, len(others.h)
    assert t is not None
    assert t.middle is not None
    precision, linear = np.array(points.precision[1:]), np.array(points.linear[1:])
    precision[:, :k, :k] += others.J
    linear[:, :k] += others.h
    mean, covariance = linalg.posterior_moments(precision[0], linear[0])
    _, ends = linalg.log_partition_and_mean(precision[1:], linear[1:])
    up, down = ends[: len(ends) // 2], ends[len(ends) // 2 :]
    reached = np.asarray(t.reach)[:, None] > 0
    middle = np.where(reached, 0.5 * (up + down) - mean, 0.0)
    tangents: Tangents = replace(
        t,
        weights=np.where(reached, 0.5 * (up - down), 0.0),
        middle=replace(t.middle, weights=middle),
    )
    view = {"shared_mean": mean[:k], "shared_covariance": covariance[:k, :k]}
    return replace(own, tangents=tangents, **view)


# ------------------------------------------------------------------------------------- sums of rows


def _of_rows(
    model: FittedModel,
    name: str,
    rows: Rows,
    series: tuple[of_states.Innovations, np.ndarray] | None,
) -> PointSums:
    """What the rows add to the client's sums, at each of its points."""
    own, kept = on_numpy(model.clients[name]), model.sums[name]
    if series is None:
        block = on_numpy(model.shared.block)
        basis = on_numpy(block.basis(np.float64(model.jitter)))
        points = points_of(model.structure, block, own, kept.best)
        assert points is not None
        return sums_at(model.structure, block, basis, points, model.jitter_of(name), rows)
    found, error = series
    weights = _joint_mean(model.shared, own)
    return of_states.sums_of(_layers(model, own.block), found, error, weights, rows)


def _layers(model: FittedModel, client: ClientBlock) -> of_states.Layers:
    block = on_numpy(model.shared.block)
    basis = on_numpy(block.basis(np.float64(model.jitter)))
    return of_states.Layers.of(model.structure, block, basis, on_numpy(client))


def _innovations(
    model: FittedModel, name: str, rows: Rows, sign: float
) -> tuple[of_states.Innovations, np.ndarray]:
    """E, V and e of rows that come, or of rows that are in the states and leave."""
    own = on_numpy(model.clients[name])
    states, X, layers = own.states, np.asarray(rows.X)[:, 0], _layers(model, own.block)
    assert states is not None
    left = np.asarray(rows.Y) - layers.fitted(X, _joint_mean(model.shared, own)).T
    if sign > 0:
        found = of_states.innovations(layers, own.block, states, rows)
        return found, left - found.expected
    found = of_states.innovations(layers, own.block, of_states.without(states, rows), rows)
    after = left - of_states.expected_at(own.block, states, X)
    after = np.where(np.asarray(rows.mask) > 0, after, 0.0)
    return found, np.einsum("qnm,mq->nq", found.covariance, after / found.noise.T)


def _with_states(
    model: FittedModel,
    old: ClientPosterior,
    own: ClientPosterior,
    shared: GlobalPosterior,
    rows: Rows | None,
    error: np.ndarray | None,
    sign: float,
) -> ClientPosterior:
    """The states at the new weights' mean, with the new rows in the series."""
    layers = _layers(model, own.block)
    before, now = _joint_mean(model.shared, old), _joint_mean(shared, own)
    block, states = on_numpy(own.block), on_numpy(old.states)
    assert states is not None
    if rows is not None:
        assert error is not None
        change = of_states.joined if sign > 0 else of_states.parted
        states = change(block, states, rows, error)
    return replace(own, states=of_states.moved(layers, block, states, now - before))


def _joint_mean(shared: GlobalPosterior, own: ClientPosterior) -> np.ndarray:
    """E[v_g | w]"""
    return np.concatenate([np.asarray(shared.mean), np.asarray(own.marginal(shared).mean)])


def _scaled(model: FittedModel, client: ClientRows) -> Rows:
    """The rows with an observed output, in scaled units."""
    there = np.isfinite(client.Y).any(axis=1)
    seen = replace(client, X=client.X[there], Y=client.Y[there])
    full = isinstance(model.clients[client.name].block.noise, FullNoise)
    rows = white_rows(model.scaling.rows(seen), full_noise=full)
    return Rows(np.asarray(rows.X), np.asarray(rows.Y), np.asarray(rows.mask))


def _minus(J: np.ndarray, h: np.ndarray, less: GlobalEvidence) -> tuple[np.ndarray, np.ndarray]:
    return J - np.asarray(less.J), h - np.asarray(less.h)
