"""What clients keep for prediction after training: q(w | v_g), averaged over ψ if their rows are few."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from pfedhgp.base.batching import on_numpy
from pfedhgp.base.trees import stack_trees
from pfedhgp.inference.structured.averaging import batched_average, with_averages
from pfedhgp.inference.structured.bound import GlobalEvidence
from pfedhgp.inference.structured.client_step import Broadcast
from pfedhgp.inference.structured.coordinates import parameters
from pfedhgp.inference.structured.departures import departures
from pfedhgp.inference.structured.host import departures as of_sizes
from pfedhgp.inference.structured.host import step as host
from pfedhgp.inference.structured.posterior import (
    batched_posteriors,
    batched_states,
    distinct_states,
    evidence_of,
)
from pfedhgp.model.blocks import ClientBlock
from pfedhgp.model.posterior import ClientPosterior, GlobalPosterior, without_unseen

if TYPE_CHECKING:
    from pfedhgp.inference.structured.clients import StructuredClients


def final_posteriors(
    clients: StructuredClients,
    shared: GlobalPosterior,
    jitter: float,
    others: GlobalEvidence | None,
) -> list[ClientPosterior]:
    """Each client's posterior. `others`: their J and h, by default all but its own."""
    of = _on_host if clients.cells is not None else _compiled
    found = of(clients, shared, jitter, others)
    if clients.spec.state_space:
        return _with_states(clients, shared, found, jitter)
    return without_unseen(found, np.asarray(clients.rows.mask))


def final_others(
    clients: StructuredClients, shared: GlobalPosterior, jitter: float
) -> GlobalEvidence:
    """What all others know of v_g after the last step, for each client."""
    return clients.others(_final(clients, shared, jitter))


def _on_host(
    clients: StructuredClients,
    shared: GlobalPosterior,
    jitter: float,
    others: GlobalEvidence | None,
) -> list[ClientPosterior]:
    """In NumPy; only clients with few rows are averaged."""
    final = _final(clients, shared, jitter)
    others = clients.others(final) if others is None else others
    batch = clients.on_host(shared.block, jitter, others, clients.jitter)
    found = _each(host.posteriors(batch, batch.start), len(clients.jitter))
    settings, few = clients.settings.averaging, np.flatnonzero(_short_of_rows(clients))
    rest = np.setdiff1d(np.arange(len(found)), few)
    found = _with_departures(found, rest, batch.of_some(rest), shared, searched=False)
    if settings is None or not len(few):
        return found
    best = host.refined(batch.of_some(few), final)
    averaged = host.average(best, settings)
    names = [_name(clients, int(i)) for i in few]
    own = with_averages([found[i] for i in few], averaged, np.ones(len(few), bool), names)
    for i, posterior in zip(few, own, strict=True):
        found[i] = posterior
    return _with_departures(found, few, best, shared, searched=True)


def _with_departures(
    found: list[ClientPosterior],
    which: np.ndarray,
    batch: host.HostBatch,
    shared: GlobalPosterior,
    *,
    searched: bool,
) -> list[ClientPosterior]:
    """How far the clients `which` depart, in a model without loadings."""
    objective = batch.objective
    known = objective.structure.tied and objective.layout.deviations and batch.start.deviation.size
    if not len(which) or not known:
        return found
    told = departures(of_sizes.evidence(batch, searched=searched), shared)
    found = list(found)
    for i, departure in zip(which, told, strict=True):
        if np.isfinite(departure).all():
            found[i] = replace(found[i], departure=departure)
    return found


def _compiled(
    clients: StructuredClients,
    shared: GlobalPosterior,
    jitter: float,
    others: GlobalEvidence | None,
) -> list[ClientPosterior]:
    """By compiled code, all clients at once."""
    options, blocks, rows = clients.options(), clients.blocks, clients.rows
    plain = batched_posteriors(options, shared.block, blocks, rows, jitter, clients.jitter)
    found = _each(plain, len(clients.jitter))
    settings, few = clients.settings.averaging, _short_of_rows(clients)
    if settings is None or clients.spec.state_space or not few.any():
        return found
    final = _final(clients, shared, jitter)
    others = clients.others(final) if others is None else others
    averaged = batched_average(
        options,
        settings,
        shared.block,
        jitter,
        others,
        refined(clients, final, others),
        clients.expected,
        rows,
        clients.jitter,
        clients.floor,
    )
    names = [_name(clients, i) for i in range(len(found))]
    return with_averages(found, on_numpy(averaged), few, names)


def _each(stacked: ClientPosterior, count: int) -> list[ClientPosterior]:
    own = on_numpy(stacked)  # on a device each part of each array would be a program's call
    return [jax.tree.map(lambda leaf, i=i: leaf[i], own) for i in range(count)]


def _with_states(
    clients: StructuredClients,
    shared: GlobalPosterior,
    found: list[ClientPosterior],
    jitter: float,
) -> list[ClientPosterior]:
    """Adds the local functions' states at each client's times; parameters are not averaged."""
    means = np.asarray(
        batched_states(
            clients.options(),
            shared,
            jnp.asarray(jitter),
            stack_trees([p.marginal(shared)[0] for p in found]),
            clients.blocks,
            clients.rows,
        )
    )
    X, mask = np.asarray(clients.rows.X), np.asarray(clients.rows.mask)
    return [
        replace(posterior, states=distinct_states(X[i, :, 0], mask[i], means[i]))
        for i, posterior in enumerate(found)
    ]


def _name(clients: StructuredClients, i: int) -> str:
    """Client `i`'s name, if it is known: a resumed party may not have been asked yet."""
    return clients.names[i] if clients.names else str(i)


def _short_of_rows(clients: StructuredClients) -> np.ndarray:
    """Which clients have so few cells for their parameters that averaging over these matters."""
    settings, count = clients.settings.averaging, len(clients.jitter)
    if settings is None:
        return np.zeros(count, bool)
    learned = jax.tree.leaves(parameters(clients.blocks, noise=clients.rows.cycles is None))
    each = sum(leaf.size for leaf in learned) / count
    cells = np.asarray(clients.rows.mask).sum(axis=(1, 2))
    return (cells <= settings.cells * each) & (each > 0)


def refined(clients: StructuredClients, final: Broadcast, others: GlobalEvidence) -> ClientBlock:
    """Blocks after one more search, at the final θ_g.

    A curvature means something only at the best parameters, and the last round's were found before the
    last step in B_g. If the search fails, a client keeps what it has.
    """
    found, sums, _ = clients.step(final, others, clients.jitter)
    fine = np.isfinite(np.asarray(sums.evidence))

    def keep(new: jax.Array, old: jax.Array) -> np.ndarray:
        return np.where(fine.reshape(-1, *[1] * (np.ndim(old) - 1)), new, old)

    return jax.tree.map(keep, found, clients.blocks)


def _final(clients: StructuredClients, shared: GlobalPosterior, jitter: float) -> Broadcast:
    """What the server would broadcast after its last step."""
    J, h = evidence_of(shared)
    settings = clients.settings
    return Broadcast(
        block=shared.block,
        J=J,
        h=h,
        kernels_free=1.0,
        jitter=jitter,
        evaluations=settings.evaluations,
        derivatives=0 if settings.learn_shared else None,
        share=0.0,
    )
