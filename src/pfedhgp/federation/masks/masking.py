"""Masks: reply = encoded + Σ_{j>i} PRG(k_ij) − Σ_{j<i} PRG(k_ij) + PRG(b_i) mod 2⁶⁴.

In the sum over all sites that were asked, the masks of pairs cancel. Own masks b_i are taken off by shares.
"""

from __future__ import annotations

import numpy as np

from pfedhgp.federation.masks import keys
from pfedhgp.federation.masks.roster import Question, Scope


def own_mask(scope: Scope, question: Question, name: str, seed: bytes, count: int) -> np.ndarray:
    """PRG(b_i) of an exchange."""
    info = scope.statement("own mask", question.exchange, question.about, name)
    return keys.keystream(keys.hkdf(seed, salt=scope.roster.digest, info=info), count)


def pair_mask(
    scope: Scope, question: Question, secret: bytes, pair: tuple[str, str], count: int
) -> np.ndarray:
    """What the first of `pair`, whose secret key this is, adds for the second: + or −, by their names."""
    name, other = pair
    shared = keys.agreed(secret, question.publics[other])
    info = scope.statement("pair mask", question.exchange, question.about, *sorted(pair))
    stream = keys.keystream(keys.hkdf(shared, salt=scope.roster.digest, info=info), count)
    return stream if name < other else np.negative(stream)


def masked(
    scope: Scope, question: Question, name: str, values: np.ndarray, secrets: tuple[bytes, bytes]
) -> np.ndarray:
    """A reply behind its masks; `secrets` are the exchange's mask key and the seed of the own mask."""
    secret, seed = secrets
    total = values + own_mask(scope, question, name, seed, values.size)
    for other in question.publics:
        if other != name:
            total += pair_mask(scope, question, secret, (name, other), values.size)
    return total
