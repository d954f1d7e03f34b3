"""A client's sums at the parameters that its model is made of: what `KeptSums` holds (see there)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Float

from pfedhgp.base.arrays_of import Array
from pfedhgp.base.batching import batchable, on_numpy
from pfedhgp.base.trees import ravel
from pfedhgp.gp.features import Basis
from pfedhgp.inference.grams import Grams, accumulate, on_host
from pfedhgp.inference.structured.bound import GlobalEvidence, design_of
from pfedhgp.inference.structured.client_step import StepOptions
from pfedhgp.inference.structured.host.statistics import OwnFactor
from pfedhgp.inference.structured.host.step import HostBatch
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows, Structure
from pfedhgp.model.kept_sums import KeptSums, packed
from pfedhgp.model.posterior import ClientPosterior, GlobalPosterior, Tangents

if TYPE_CHECKING:
    from pfedhgp.inference.structured.clients import StructuredClients

Tree = TypeVar("Tree")
TINY = np.finfo(np.float64).tiny
LARGEST = 4_000_000
"""The most numbers that a client keeps for updates (32 MB): beyond it, it keeps none."""


class PointSums(NamedTuple):
    """Λ, η and the scalars at each of `p` parameter values."""

    precision: Float[np.ndarray, "p K K"]
    linear: Float[np.ndarray, "p K"]
    constant: Float[np.ndarray, " p"]
    residual: Float[np.ndarray, " p"]

    @staticmethod
    def of(grams: Sequence[Grams]) -> PointSums:
        return PointSums(
            *(
                np.stack([np.asarray(getattr(each, name)) for each in grams])
                for name in PointSums._fields
            )
        )

    @staticmethod
    def of_kept(kept: KeptSums) -> PointSums:
        return PointSums(kept.matrices(), kept.linear, kept.constant, kept.residual)


def kept_sums(
    clients: StructuredClients,
    shared: GlobalPosterior,
    jitter: float,
    found: Sequence[ClientPosterior],
) -> list[KeptSums | None]:
    """Each client's sums over its rows; None if they would be too large, or with a cycle layer."""
    structure, rows = clients.spec.structure, on_numpy(clients.rows)
    if rows.cycles is not None:
        return [None] * len(found)
    block, blocks = on_numpy(shared.block), on_numpy(clients.blocks)
    if structure.state_space:
        grams: Grams = on_numpy(
            _batched_grams(clients.options(), block, blocks, rows, jitter, clients.jitter)
        )
        each = [PointSums.of([_part(grams, i)]) for i in range(len(found))]
        return [_kept(one, None) for one in each]
    if clients.rows_on_host is not None:  # on a GPU, too: one client at a time takes far longer
        return _on_host(clients, block, jitter, found)
    basis = on_numpy(block.basis(np.float64(jitter)))
    kept: list[KeptSums | None] = []
    for i, own in enumerate(found):
        best = _part(blocks, i)
        points = points_of(structure, block, on_numpy(own), ravel_block(best))
        K = basis.factor.shape[0] * basis.factor.shape[1] + np.size(own.offset)
        if points is None or len(points) * K * (K + 1) // 2 > LARGEST:
            kept.append(None)
            continue
        sums = sums_at(structure, block, basis, points, float(clients.jitter[i]), _part(rows, i))
        kept.append(_kept(sums, None if own.tangents is None else ravel_block(best)))
    return kept


def _on_host(
    clients: StructuredClients,
    shared: GlobalBlock,
    jitter: float,
    found: Sequence[ClientPosterior],
) -> list[KeptSums | None]:
    """The same for clients that the host computes: all of them at all their parameters together."""
    k = shared.loadings.shape[1] * shared.inputs.shape[0]
    nothing = GlobalEvidence(np.zeros((len(found), k, k)), np.zeros((len(found), k)))
    batch = clients.on_host(shared, np.float64(jitter), nothing, clients.jitter)
    structure, K = clients.spec.structure, batch.objective.layout.weights
    best = _raveled(on_numpy(clients.blocks))
    values = {
        i: each
        for i, own in enumerate(found)
        if (each := values_of(structure, shared, on_numpy(own), best[i])) is not None
        and len(each) * K * (K + 1) // 2 <= LARGEST
    }
    sums = _sums_at_values(batch, values)
    return [
        replace(sums[i], best=None if own.tangents is None else best[i]) if i in sums else None
        for i, own in enumerate(found)
    ]


def _sums_at_values(batch: HostBatch, values: Mapping[int, np.ndarray]) -> dict[int, KeptSums]:
    """The sums of some clients of a batch, each at its own parameters."""
    if not values:
        return {}
    counts = [len(each) for each in values.values()]
    which, rows = np.repeat(list(values), counts), np.concatenate(list(values.values()))
    kernels = sum(leaf[0].size for leaf in jax.tree.leaves(batch.start.kernels))
    rows[:, :kernels] = np.log(np.maximum(rows[:, :kernels], TINY))
    at, size = batch.start.from_rows(rows), batch.objective.turns()
    parts = []
    for first in range(0, len(which), size):
        turn = slice(first, first + size)
        objective = batch.objective.of_some(which[turn])
        local, noise, found = objective.all_sums(at.of_some(turn))
        constant, residual = objective.cells.log_constant(noise), found.residual(local.residuals)
        parts.append((packed(found.precision), found.linear, constant, residual))
    cuts = np.cumsum(counts)[:-1]
    whole = (np.split(np.concatenate(part), cuts) for part in zip(*parts, strict=True))
    each = zip(*whole, strict=True)
    return {i: _without_hashes(*own) for i, own in zip(values, each, strict=True)}


def sums_at(
    structure: Structure,
    shared: GlobalBlock,
    basis: Basis,
    points: Sequence[ClientBlock],
    jitter: float,
    rows: Rows,
) -> PointSums:
    """The sums over some rows at each of the parameters; all in NumPy."""
    return PointSums.of(
        [
            on_host(rows, design_of(structure, shared, basis, point, np.float64(jitter)))
            for point in points
        ]
    )


def points_of(
    structure: Structure,
    shared: GlobalBlock,
    own: ClientPosterior,
    best: Float[np.ndarray, " k"] | None,
) -> list[ClientBlock] | None:
    """The parameters that a client's posterior is made of, see `values_of`."""
    values = values_of(structure, shared, own, best)
    return None if values is None else [with_raveled(own.block, each) for each in values]


def values_of(
    structure: Structure,
    shared: GlobalBlock,
    own: ClientPosterior,
    best: Float[np.ndarray, " k"] | None,
) -> Float[np.ndarray, "p k"] | None:
    """The parameters that a client's posterior is made of, raveled: the best ones first.

    With averaging then the mean ones, the upper ends of all directions, and the lower ends. None if the
    posterior does not know its ends: files of earlier versions.
    """
    mean = ravel_block(own.block)
    if own.tangents is None:
        return mean[None]
    half, middle = own.tangents, own.tangents.middle
    if middle is None or half.noise is None or middle.noise is None or best is None:
        return None
    centre, step = (_moves(structure, shared, own.block, t) for t in (middle, half))
    return np.concatenate([[best, mean], mean + centre + step, mean + centre - step])


def _moves(
    structure: Structure, shared: GlobalBlock, block: ClientBlock, tangents: Tangents
) -> Float[np.ndarray, "P k"]:
    """How far the raveled parameters move, direction by direction."""
    deviation = np.asarray(tangents.deviation)[..., : block.deviation.shape[-1]]
    if structure.tied and deviation.shape[-1]:  # the tangents are those of B̃ = √(φφ_i) B_g
        deviation = deviation / (np.sqrt(shared.phi) * shared.loadings)
    parts = [tangents.kernels, deviation, tangents.loadings, tangents.noise]
    parts += [] if block.global_loadings is None else [tangents.global_loadings]
    return np.concatenate([np.reshape(part, (len(deviation), -1)) for part in parts], axis=1)


def ravel_block(block: ClientBlock) -> np.ndarray:
    """Kernels, loadings and noise as one vector."""
    return np.asarray(ravel(_learned(block))[0])


def _raveled(blocks: ClientBlock) -> Float[np.ndarray, "c k"]:
    """The same for a batch of clients."""
    leaves = jax.tree.leaves(_learned(blocks))
    return np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in leaves], axis=1)


def with_raveled(block: ClientBlock, values: np.ndarray) -> ClientBlock:
    """The block with other kernels, loadings and noise."""
    kernels, deviation, loadings, noise, own = ravel(_learned(block))[1](values)
    return replace(
        block,
        kernels=kernels,
        deviation=deviation,
        loadings=loadings,
        noise=noise,
        global_loadings=own,
    )


def _learned(block: ClientBlock) -> tuple:
    return (block.kernels, block.deviation, block.loadings, block.noise, block.global_loadings)


def own_factor(sums: PointSums, k: int) -> OwnFactor:
    """W = I + Λ_cc at each point; the first `k` weights are v_g."""
    return OwnFactor.of(sums.precision[:, k:, k:], sums.precision[:, k:, :k], sums.linear[:, k:])


def evidence_at(sums: PointSums, k: int) -> GlobalEvidence:
    """(J, h) at the best parameters: the client's part of q(v_g)."""
    first = PointSums(*(each[:1] for each in sums))
    constant = first.constant - 0.5 * first.residual
    found = own_factor(first, k).summary(constant, first.precision[:, :k, :k], first.linear[:, :k])
    return GlobalEvidence(found.J[0], found.h[0])


def _kept(sums: PointSums, best: np.ndarray | None) -> KeptSums:
    return replace(_without_hashes(packed(sums.precision), *sums[1:]), best=best)


def _without_hashes(
    precision: np.ndarray, linear: np.ndarray, constant: np.ndarray, residual: np.ndarray
) -> KeptSums:
    none = np.zeros(0, np.uint64)
    return KeptSums(precision, linear, constant, residual, inputs=none, rows=none)


def _part(tree: Tree, i: int) -> Tree:
    found: Tree = jax.tree.map(lambda leaf: np.asarray(leaf)[i], tree)
    return found


@batchable(static=1, effort="lowest")
def _batched_grams(
    options: StepOptions,
    shared: GlobalBlock,
    blocks: ClientBlock,
    rows: Rows,
    jitter: Array,
    local_jitter: Array,
) -> Grams:
    """Sums of clients with state-space local layers."""
    basis = shared.basis(jitter)

    def one(block: ClientBlock, rows: Rows, own: Array) -> Grams:
        design = design_of(options.structure, shared, basis, block, own)
        return accumulate(rows, design, chunk=options.chunk)

    return jax.vmap(one)(blocks, rows, local_jitter)
