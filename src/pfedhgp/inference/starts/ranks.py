"""How many latents a model has: which numbers are worth training, and what a latent costs.

    λ_1 ≥ λ_2 ≥ … of E[yyᵀ],  r = number of λ_k > share · Σλ

Outputs whose second moment has r directions that count need no more than r latents in a layer. So the
numbers that are trained side by side are 1, the usual 2, r and one between them. Their bounds are compared
(`contest`), and a loading pays for itself: ½ log(cells) of all clients if it is shared, of one client if it
is the client's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pfedhgp.model.spec import Spec

LADDER = (1, 2, 3, 4, 6, 8, 12, 16)
USUAL = 2
MOST_SHARED = 4
"""The most shared latents that are tried: messages have (R Q M)² numbers, and four of the usual length are
what a contest may add in its first exchanges."""
LEAST_SHARE = 0.005
"""Of the outputs' variance in all, that a direction must have to count."""

Pair = tuple[int, int]
"""Latents of the shared layers, and of the local ones."""


def pairs(outputs: int, shared: int | None, local: int | None) -> tuple[Pair, ...]:
    """The pairs that training may choose from, the usual one first; None: that number is open."""
    open_numbers = [number for number in LADDER if number <= outputs]
    each = [open_numbers if given is None else [given] for given in (shared, local)]
    found = [(R, L) for R in each[0] for L in each[1]]
    usual = tuple(USUAL if given is None else given for given in (shared, local))
    return tuple(sorted(found, key=lambda pair: pair != usual))


def directions(moment: np.ndarray) -> int:
    """How many directions of E[yyᵀ] have a share of the variance that counts; fewer than there are outputs."""
    values = np.linalg.eigvalsh(moment)
    count = int(np.sum(values > LEAST_SHARE * max(float(np.trace(moment)), 1e-300)))
    return max(min(count, len(moment) - 1), 1)


def worth_training(choices: Sequence[Pair], moment: np.ndarray, most_shared: int) -> list[int]:
    """Numbers of the pairs that are trained side by side, the usual one first.

    Open numbers are 1, 2, the number of directions and one between. `most_shared` limits what is sent.
    """
    shared, local = (sorted({pair[k] for pair in choices}) for k in (0, 1))
    count = directions(moment)
    wanted = [1, USUAL, round(float(np.sqrt(USUAL * count))), count]
    most_shared = min(most_shared, MOST_SHARED)
    found = [choices[0]]
    for number in wanted:
        pair = (_up_to(shared, min(number, most_shared)), _up_to(local, number))
        found += [] if pair in found else [pair]
    return [choices.index(pair) for pair in found]


def _up_to(numbers: Sequence[int], most: int) -> int:
    """The largest of the numbers that is not above `most`; the smallest if all are."""
    return max((n for n in numbers if n <= most), default=numbers[0])


def price(spec: Spec, cells: float, clients: int) -> float:
    """½ log(cells) for each shared loading, ½ log(cells of a client) for each number of a client's own."""
    if spec.tied:
        return 0.0
    shared = spec.outputs * spec.latents
    own = spec.outputs * spec.latents * spec.deviation + (
        spec.local_latents * (spec.outputs + spec.inputs)
    )
    a_client = max(cells / max(clients, 1), 2.0)
    return 0.5 * (shared * float(np.log(max(cells, 2.0))) + clients * own * float(np.log(a_client)))
