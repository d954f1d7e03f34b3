"""Shamir's shares: a secret is f(0) of a random polynomial of degree t − 1, and a share is f(x).

secret = Σ_x f(x) Π_{z≠x} z/(z − x)   mod p,   over any t shares; fewer say nothing about it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from functools import lru_cache

PRIME = 2**256 + 297
"""The smallest prime above 2²⁵⁶: every secret of 32 bytes is a number of the field."""
SECRET_BYTES, SHARE_BYTES = 32, 33


def split(secret: bytes, places: Iterable[int], threshold: int) -> dict[int, bytes]:
    """A share for each of `places`, numbers from 1 on; any `threshold` of them give the secret back."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, this one has {len(secret)}")
    found = list(places)
    if len(set(found)) != len(found) or not all(0 < x < PRIME for x in found):
        raise ValueError("places of shares are different numbers from 1 on")
    if not 1 <= threshold <= len(found):
        raise ValueError(f"{len(found)} shares cannot have the threshold {threshold}")
    rest = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    coefficients = [*reversed(rest), int.from_bytes(secret, "big")]
    return {x: _value(coefficients, x).to_bytes(SHARE_BYTES, "big") for x in found}


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, from the first `threshold` shares by place. Raises ValueError if they cannot be shares."""
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares are fewer than the threshold, {threshold}")
    places = tuple(sorted(shares)[:threshold])
    total = 0
    for x, weight in zip(places, _weights(places), strict=True):
        total += weight * int.from_bytes(shares[x], "big")
    secret = total % PRIME
    if secret >= 2 ** (8 * SECRET_BYTES):
        raise ValueError("these shares are not of one secret")
    return secret.to_bytes(SECRET_BYTES, "big")


def _value(coefficients: list[int], x: int) -> int:
    """Horner's rule, the highest coefficient first."""
    found = 0
    for coefficient in coefficients:
        found = (found * x + coefficient) % PRIME
    return found


@lru_cache(maxsize=64)
def _weights(places: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's Π z/(z − x) at each place; the same for all secrets of an exchange."""
    found = []
    for x in places:
        above, below = 1, 1
        for z in places:
            if z != x:
                above, below = above * z % PRIME, below * (z - x) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(found)
