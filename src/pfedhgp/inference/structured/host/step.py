"""The structured client's step on the host: opening, search and sums, posteriors, averages, for a batch.

The functions mirror those of `structured.client_step`, `structured.posterior` and `structured.averaging`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Float

from pfedhgp.gp.kernel_adjoints import has_adjoints
from pfedhgp.gp.kernels import Kernel
from pfedhgp.gp.noise import FullNoise, Noise
from pfedhgp.inference.lbfgs import Pairs
from pfedhgp.inference.structured.averaging import Averaging
from pfedhgp.inference.structured.bound import GlobalEvidence, Statistics
from pfedhgp.inference.structured.client_step import LOUDER, Broadcast, Info, StepOptions
from pfedhgp.inference.structured.host import averaging
from pfedhgp.inference.structured.host.cells import Cells, cells_of
from pfedhgp.inference.structured.host.features import LayerInputs, SharedFeatures
from pfedhgp.inference.structured.host.few_cells import FewCells
from pfedhgp.inference.structured.host.objective import Objective
from pfedhgp.inference.structured.host.opening_sums import CellSums, opening_sums
from pfedhgp.inference.structured.host.parameters import Parameters, Prior
from pfedhgp.inference.structured.host.search import Density, Effort, in_turns, maximise, quickest
from pfedhgp.inference.structured.host.statistics import GlobalLayer, OwnFactor, statistics
from pfedhgp.inference.structured.host.sums import Layout, gather
from pfedhgp.inference.structured.host.trait_sites import trait_sites
from pfedhgp.inference.structured.traits import Expected, TraitCurvature, at_mean_variances
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows
from pfedhgp.model.posterior import ClientPosterior, Moved, Tangents

Array = np.ndarray
T = TypeVar("T")
MOST_ROWS = 2**16
"""A client with more rows (that cannot be merged) is for the compiled solver, which takes them in chunks."""


class HostClients(NamedTuple):
    """A batch of clients as the host takes them: rows, parameters, and what is expected of these."""

    options: StepOptions
    rows: Rows
    cells: Cells
    blocks: ClientBlock
    expected: Expected
    jitter: Float[Array, " c"]
    floor: Float[Array, "c d"] | None
    pairs: Pairs
    curvature: TraitCurvature | None = None


def supported(options: StepOptions, *kernels: Kernel) -> bool:
    """Whether the host can take such clients; their rows may still be for the compiled solver."""
    if options.structure.state_space or options.learn_inputs or options.probes:
        return False
    return all(has_adjoints(kernel) for kernel in kernels)


def host_cells(
    options: StepOptions, rows: Rows, blocks: ClientBlock, shared: Kernel
) -> Cells | None:
    """The rows in groups if the host can take these clients; None: they are for the compiled solver."""
    if not supported(options, blocks.kernels, shared):
        return None
    if rows.cycles is not None or rows.X.shape[1] > MOST_ROWS:
        return None
    return cells_of(rows, full=isinstance(blocks.noise, FullNoise))


@dataclass(frozen=True)
class HostBatch:
    """A batch of clients beside one global block: what every evaluation of theirs starts from."""

    options: StepOptions
    shared: GlobalLayer
    clients: ClientBlock
    objective: Objective
    start: Parameters
    pairs: Pairs
    """of the searches before"""
    curvature: TraitCurvature | None = None
    """in the traits, as it was last taken"""

    def of_some(self, which: Array) -> HostBatch:
        """The same for some of the clients."""
        return replace(
            self,
            shared=self.shared.of_some(which),
            clients=jax.tree.map(lambda leaf: leaf[which], self.clients),
            objective=self.objective.of_some(which),
            start=self.start.of_some(which),
            pairs=self.pairs.of_some(which),
            curvature=None if self.curvature is None else self.curvature.of_some(which),
        )


def batch_of(
    given: HostClients, shared: GlobalBlock, shared_jitter: float, others: GlobalEvidence
) -> HostBatch:
    """Global features of all rows, and their sums, once for a whole round."""
    X, structure = np.asarray(given.rows.X), given.options.structure
    cells, blocks = given.cells, given.blocks
    c, n = X.shape[:2]
    found = SharedFeatures.of(shared.kernels, np.asarray(shared.inputs), X, float(shared_jitter))
    latents, size = found.A.shape[1:3]
    F = found.A.reshape(c, latents * size, n)
    own = LayerInputs.of(np.asarray(blocks.inputs), X, np.asarray(blocks.active), given.jitter)
    start = Parameters.of(blocks)
    local = start.loadings.shape[2]
    layout = Layout(
        latents,
        size,
        latents if structure.deviation else 0,
        local,
        blocks.inputs.shape[1] if local else 0,
    )
    tied = structure.tied and structure.deviation
    objective = Objective(
        structure=structure,
        layout=layout,
        cells=cells,
        shared=F,
        fixed=gather(F, cells),
        residuals=cells.weights @ np.swapaxes(found.residual, 1, 2),
        B_g=np.asarray(shared.loadings),
        tied_deviation=np.sqrt(shared.phi) * shared.loadings if tied else None,
        J=np.asarray(others.J),
        h=np.asarray(others.h),
        local_inputs=own if local else None,
        prior=Prior(structure, given.expected, shared, given.floor),
        form=start,
    )
    layer = GlobalLayer(shared, X, float(shared_jitter), found.factor)
    return HostBatch(given.options, layer, blocks, objective, start, given.pairs, given.curvature)


def step(batch: HostBatch, broadcast: Broadcast) -> tuple[ClientBlock, Statistics, Info]:
    """One round of a batch: improve ψ on the cavity bound, then sum up."""
    at, state = maximise(batch.objective, batch.start, batch.pairs, Effort.of(broadcast))
    wanted = broadcast.derivatives is not None and bool(broadcast.derivatives)
    sums, nats = send(batch, at, derivatives=wanted)
    curvature = batch.curvature
    if batch.objective.prior.expected.asked is not None:
        free = bool(broadcast.kernels_free > 0)
        told = trait_sites(batch.objective, at, -state.gradient, curvature, kernels_free=free)
        sums, curvature = replace(sums, traits=told.sites), told.curvature
    info = Info(-state.first_value, -state.value, state.accepted, nats, state.pairs, curvature)
    return at.block(batch.clients), sums, info


def send(batch: HostBatch, at: Parameters, *, derivatives: bool) -> tuple[Statistics, Array]:
    """The sums at ψ, and the nats that local inducing inputs cost."""

    def one(part: Objective, turn: slice) -> Statistics:
        return statistics(
            part, at.of_some(turn), batch.shared.of_some(turn), derivatives=derivatives
        )

    return _told(batch, at, _joined(in_turns(batch.objective, one)))


def _joined(parts: list[T]) -> T:
    """What was computed in turns, as one batch."""
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *p: np.concatenate(p), *parts)


def _told(batch: HostBatch, at: Parameters, sums: Statistics) -> tuple[Statistics, Array]:
    """The sums without what is not learned, and the nats that local inducing inputs cost."""
    if not batch.options.learn_shared:
        sums = replace(
            sums,
            **{
                name: getattr(sums, name)[:, :0]
                for name in ("d_evidence", "d_h", "d_J", "curvature")
            },
        )
    B = batch.objective.loadings(at)
    R, d = batch.objective.layout.latents, batch.objective.layout.deviations
    of_shared = _residuals(sums.shared_residual, B[..., :R])
    of_shared = of_shared + _residuals(sums.shared_residual, B[..., R : R + d])
    return sums, 0.5 * (sums.residual - of_shared)


def _residuals(shared_residual: Float[Array, "c R Q Q"], B: Float[Array, "c Q r"]) -> Array:
    moved = np.einsum("crqp,cpr->crq", shared_residual[:, : B.shape[2]], B)
    return np.einsum("cqr,crq->c", B, moved)


class Opening(NamedTuple):
    """What clients say at the starting values."""

    noise: Noise
    sums: Statistics
    local_nats: Array
    cell_sums: CellSums | None
    """The large part of the sums in a small form; None: there are too many cells for it"""


def opening(batch: HostBatch) -> Opening:
    """Sums at the starting values, with the noise that fits the clients' own rows best."""

    def choose(part: Density, turn: slice) -> Array:
        start = batch.start.of_some(turn)
        held = part.with_held_kernels(start)
        values = [held.cavity(start._replace(noise=start.noise.louder(level))) for level in LOUDER]
        found = np.stack(values, axis=1)  # NaN throughout if a client's factorisation fails
        return LOUDER[np.where(np.isnan(found), -np.inf, found).argmax(axis=1)]

    density = quickest(batch.objective)
    best = np.concatenate(in_turns(density, choose))
    noise = _louder_each(batch.start.noise, best)
    at = batch.start._replace(noise=noise)
    own_loadings = batch.objective.structure.client_loadings
    if isinstance(density, Objective) or own_loadings or not batch.objective.nothing_known():
        return Opening(noise, *send(batch, at, derivatives=False), None)

    def one(part: FewCells, turn: slice) -> tuple[Statistics, CellSums]:
        return opening_sums(part, at.of_some(turn), batch.shared.of_some(turn))

    sums, small = _joined(in_turns(density, one))
    return Opening(noise, *_told(batch, at, sums), small)


def _louder_each(noise: Noise, levels: Float[Array, " c"]) -> Noise:
    each = [
        jax.tree.map(lambda leaf, i=i: leaf[i], noise).louder(level)
        for i, level in enumerate(levels)
    ]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *each)


def refined(batch: HostBatch, final: Broadcast) -> HostBatch:
    """The batch after one more search, at the final θ_g; a client whose search fails keeps what it has.

    A curvature means something only at the best parameters, and the last round's were found before the last
    step in B_g.
    """
    found, state = maximise(batch.objective, batch.start, batch.pairs, Effort.of(final))
    fine = np.isfinite(state.value)[:, None]
    rows = np.where(fine, found.rows(), batch.start.rows())
    return replace(batch, start=batch.start.from_rows(rows))


def posteriors(batch: HostBatch, at: Parameters) -> ClientPosterior:
    """q(w | v_g) of each client at ψ."""
    k = batch.objective.layout.shared_weights

    def one(part: Objective, turn: slice) -> tuple[Array, Array, Array]:
        _, _, found = part.all_sums(at.of_some(turn))
        own = OwnFactor.of(
            found.precision[:, k:, k:], found.precision[:, k:, :k], found.linear[:, k:]
        )
        return own.conditional()

    parts = in_turns(batch.objective, one)
    offset, G, covariance = (np.concatenate(each) for each in zip(*parts, strict=True))
    return ClientPosterior(at.block(batch.clients), offset, G, covariance)


def average(batch: HostBatch, settings: Averaging) -> ClientPosterior:
    """The clients' posteriors at ψ̄, their own views of v_g, and how both move with ψ."""

    def one(part: Density, turn: slice) -> tuple:
        rows = batch.start.of_some(turn).rows()
        spread = averaging.gaussian(part, rows, settings.reach)
        spread = spread._replace(centre=_at_mean_variances(batch, spread))
        height = batch.objective.of_some(turn).heights(spread.centre, covariance=True)
        return spread.centre, height, averaging.ends(part, spread, height.value)

    found = in_turns(quickest(batch.objective), one)
    centre = np.concatenate([each[0] for each in found])
    mean, covariance = (
        np.concatenate([getattr(each[1], name) for each in found])
        for name in ("mean", "covariance")
    )
    ends = averaging.Ends(
        *(np.concatenate(parts) for parts in zip(*(e[2] for e in found), strict=True))
    )
    at = batch.start.from_rows(centre)
    own = posteriors(batch, at)
    k = batch.objective.layout.shared_weights
    return replace(
        own,
        shared_mean=mean[:, :k],
        shared_covariance=covariance[:, :k, :k],
        tangents=_tangents(batch, at, mean, ends),
    )


def _at_mean_variances(batch: HostBatch, spread: averaging.Spread) -> Float[Array, "c P"]:
    """ψ̄ with variances at their means."""
    at, v = (batch.start.from_rows(v) for v in (spread.centre, (spread.factor**2).sum(2)))
    structure = batch.objective.structure
    return at._replace(**at_mean_variances(structure, at, v)._asdict()).rows()


def _tangents(batch: HostBatch, at: Parameters, mean: Array, ends: averaging.Ends) -> Tangents:
    """Half the difference between both ends of each direction, and their middle over ψ̄."""
    up = _made_of(batch, ends.up, ends.up_weights)
    down = _made_of(batch, ends.down, ends.down_weights)
    here = _made_of(batch, at.rows()[:, None], mean[:, None])

    def kept(values: Array) -> Array:
        allowed = ends.reach.reshape(*ends.reach.shape, *[1] * (values.ndim - 2)) > 0
        return np.where(allowed, values, 0.0)

    half = Moved(*(kept(0.5 * (a - b)) for a, b in zip(up, down, strict=True)))
    pairs = zip(up, down, here, strict=True)
    middle = Moved(*(kept(0.5 * (a + b) - now) for a, b, now in pairs))
    a, b, now = (_noise_at(batch, z) for z in (ends.up, ends.down, at.rows()[:, None]))
    noises = replace(middle.tangents(), noise=kept(0.5 * (a + b) - now))
    return replace(half.tangents(), reach=ends.reach, middle=noises, noise=kept(0.5 * (a - b)))


def _noise_at(batch: HostBatch, points: Float[Array, "c N P"]) -> Float[Array, "c N k"]:
    """The noise's coordinates at each ψ, raveled."""
    c, N, P = points.shape
    leaves = jax.tree.leaves(batch.start.from_rows(points.reshape(-1, P)).noise)
    return np.concatenate([leaf.reshape(c, N, -1) for leaf in leaves], axis=2)


def _made_of(batch: HostBatch, points: Float[Array, "c N P"], weights: Array) -> Moved:
    """What predictions at ψ are made of: kernel parameters, B̃, B_l and the weights' means."""
    c, N, P = points.shape
    each = batch.start.from_rows(points.reshape(-1, P))
    leaves = [leaf.reshape(c, N, -1) for leaf in jax.tree.leaves(each.natural_kernels())]
    kernels = np.concatenate(leaves, axis=2) if leaves else np.zeros((c, N, 0))
    B = batch.objective.loadings(each)
    layout = batch.objective.layout
    cut = layout.latents + layout.deviations
    shape = (c, N, B.shape[1])
    own = B[..., : 0 if each.global_loadings is None else layout.latents]
    return Moved(
        kernels,
        B[..., layout.latents : cut].reshape(*shape, -1),
        B[..., cut:].reshape(*shape, -1),
        weights,
        own.reshape(*shape, -1),
    )
