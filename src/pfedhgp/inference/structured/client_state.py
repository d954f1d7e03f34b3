"""What a batch of clients must not forget between exchanges, as a checkpoint or a site's disk has it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pfedhgp.inference.arrays import (
    State,
    below,
    block_arrays,
    block_of,
    statistics_arrays,
    statistics_of,
    tree_from_arrays,
    tree_to_arrays,
)
from pfedhgp.inference.lbfgs import Pairs
from pfedhgp.inference.structured.traits import TraitCurvature

if TYPE_CHECKING:
    from pfedhgp.inference.structured.clients import StructuredClients


def state_of(clients: StructuredClients) -> State:
    """Blocks, what is expected of them, and the statistics last sent, which the cavity needs."""
    nats, curvature = clients.local_nats, clients.curvature
    return State(
        {
            **below("blocks", tree_to_arrays(clients.blocks)),
            **statistics_arrays("own", clients.own_sums()),
            **block_arrays("own_block", clients.own_block),
            **({} if nats is None else {"local_nats": np.asarray(nats)}),
            **below("pairs", clients.pairs._asdict()),
            **({} if curvature is None else below("curvature", curvature._asdict())),
            **below("expected", tree_to_arrays(clients.expected)),
            "jitter": np.asarray(clients.jitter),
        }
    )


def restore(clients: StructuredClients, state: State) -> None:
    """Puts it back; parts that an earlier version did not have, or had in another form, begin anew."""
    like = clients.blocks
    clients.blocks = tree_from_arrays(state.part("blocks"), like)
    if not clients.blocks.deviation.shape[-1]:  # an earlier version knew no φ_i
        clients.blocks = replace(clients.blocks, deviation=np.asarray(like.deviation))
    clients.own, clients.cell_sums = statistics_of(state, "own"), None
    if clients.own is not None and clients.own.traits is not None:
        fits = clients.own.traits.shape[-1] == clients.centre.shape[-1]
        clients.own = clients.own if fits else replace(clients.own, traits=None)
    clients.own_block = block_of(state, "own_block", clients.like)
    clients.local_nats = state.arrays.get("local_nats")
    clients.jitter = state.array("jitter")
    kept, none = state.part("pairs"), clients.no_pairs()
    fits = kept and kept["S"].shape[-1] == none.S.shape[-1]
    clients.pairs = Pairs(kept["S"], kept["Y"]) if fits else none
    known = state.part("curvature")
    fits = known and known["at"].shape[-1] == none.S.shape[-1]
    clients.curvature = TraitCurvature(known["at"], known["hessian"]) if fits else None
    if state.has("expected"):
        found = tree_from_arrays(state.part("expected"), clients.expected)
        fits = found.mean.shape == clients.expected.mean.shape
        clients.expected = found if fits else clients.expected
