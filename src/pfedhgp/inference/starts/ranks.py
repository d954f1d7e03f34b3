"""How many latents a model has: which numbers are worth training, and what a latent costs.

    λ_1 ≥ λ_2 ≥ … of E[yyᵀ],  r = number of λ_k > share · Σλ

Outputs whose second moment has r directions that count need no more than r latents in a layer. So the
numbers that are trained side by side are 1, the usual 2 and r, but at most 4. Their bounds are compared
(`contest`), and a loading pays for itself: ½ log(cells) of all clients if it is shared, of one client if it
is the client's own.

If clients mix shared functions with loadings of their own, a single output may have many of them: then 1, 2,
…, 5 functions are trained, but fewer than there are series (clients × outputs).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pfedhgp.model.spec import Spec

USUAL, MOST = 2, 4
"""Messages have (R Q M)² numbers: one model with twice the usual latents is what a contest may add."""
MOST_MIXED = 5
"""With client loadings, where messages have (R M)² numbers, or R² M at knots."""
LEAST_SHARE = 0.005
"""Of the outputs' variance in all, that a direction must have to count."""

Pair = tuple[int, int]
"""Latents of the shared layers, and of the local ones."""


def pairs(
    outputs: int, shared: int | None, local: int | None, *, mixed: bool = False
) -> tuple[Pair, ...]:
    """The pairs that training may choose from, the usual one first; None: that number is open.

    `mixed`: clients have loadings of their own.
    """
    usual = min(USUAL, outputs)
    few = range(1, min(outputs, MOST) + 1)
    shared_numbers = range(1, MOST_MIXED + 1) if mixed else few
    each = (shared_numbers if shared is None else [shared], few if local is None else [local])
    found = [(R, L) for R in each[0] for L in each[1]]
    first = tuple(usual if given is None else given for given in (shared, local))
    return tuple(sorted(found, key=lambda pair: pair != first))


def directions(moment: np.ndarray) -> int:
    """How many directions of E[yyᵀ] have a share of the variance that counts; fewer than outputs."""
    values = np.linalg.eigvalsh(moment)
    count = int(np.sum(values > LEAST_SHARE * max(float(np.trace(moment)), 1e-300)))
    return max(min(count, len(moment) - 1), 1)


def worth_training(
    choices: Sequence[Pair], moment: np.ndarray, most_shared: int, *, mixed_by: int | None = None
) -> list[int]:
    """Numbers of the pairs that are trained side by side, the usual one first.

    Open numbers are 1, 2 and the number of directions, at most 4. If both are open, more than two shared
    latents go with two local ones alone. `most_shared` limits what is sent. `mixed_by` as many series, each
    with loadings of its own, shared functions may be any number below that.
    """
    top = min(directions(moment), MOST)
    tried: Sequence[int] = (1, USUAL, top)
    if mixed_by is not None:
        tried = range(1, max(mixed_by, 2))
    shared, local = (sorted({pair[k] for pair in choices}) for k in (0, 1))
    both_open = len(shared) > 1 and len(local) > 1
    found = [
        (R, L)
        for R, L in choices
        if (len(shared) == 1 or (R in tried and max(most_shared, USUAL) >= R))
        and (len(local) == 1 or L in (1, USUAL, top))
        and (not both_open or R <= USUAL or L == USUAL)
    ]
    return [choices.index(pair) for pair in dict.fromkeys([choices[0], *found])]


def price(spec: Spec, cells: float, clients: int) -> float:
    """½ log(cells) for each shared loading, ½ log(cells of a client) for each number of a client's own."""
    if spec.tied:
        return 0.0
    mixing = spec.outputs * spec.latents
    shared = 0 if spec.client_loadings else mixing
    own = mixing * (spec.deviation + spec.client_loadings) + (
        spec.local_latents * (spec.outputs + spec.inputs)
    )
    a_client = max(cells / max(clients, 1), 2.0)
    return 0.5 * (shared * float(np.log(max(cells, 2.0))) + clients * own * float(np.log(a_client)))
