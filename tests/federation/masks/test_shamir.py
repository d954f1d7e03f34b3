"""Shares over a prime field: any t give the secret, fewer fit any other secret as well."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfedhgp.federation.masks import shamir

SECRETS = st.binary(min_size=32, max_size=32)


def test_the_field_is_a_prime_field():
    """Miller and Rabin's test with 40 bases; and none below it is prime down to 2²⁵⁶."""

    def is_prime(n: int) -> bool:
        odd, twos = n - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        for base in range(2, 42):
            x = pow(base, odd, n)
            if x in (1, n - 1):
                continue
            if all((x := x * x % n) != n - 1 for _ in range(twos - 1)):
                return False
        return True

    assert is_prime(shamir.PRIME)
    assert not any(is_prime(n) for n in range(2**256 + 1, shamir.PRIME, 2))


@given(secret=SECRETS, data=st.data())
def test_any_t_shares_give_the_secret_back(secret, data):
    holders = data.draw(st.integers(1, 12))
    threshold = data.draw(st.integers(1, holders))
    places = data.draw(
        st.lists(st.integers(1, 200), min_size=holders, max_size=holders, unique=True)
    )
    shares = shamir.split(secret, places, threshold)
    assert all(len(share) == shamir.SHARE_BYTES for share in shares.values())
    chosen = data.draw(st.permutations(places))[:threshold]
    assert shamir.combine({x: shares[x] for x in chosen}, threshold) == secret


@given(secret=SECRETS, other=SECRETS)
def test_fewer_than_t_shares_fit_every_other_secret(secret, other):
    """Through t − 1 shares and any f(0) there is a polynomial, so a missing share can be made for it."""
    shares = shamir.split(secret, range(1, 6), 3)
    known = {x: int.from_bytes(shares[x], "big") for x in (2, 4)}
    points = {0: int.from_bytes(other, "big"), **known}
    third = 0
    for x, y in points.items():
        above = below = 1
        for z in points:
            if z != x:
                above, below = above * (5 - z), below * (x - z)
        third += y * above * pow(below, -1, shamir.PRIME)
    made = (third % shamir.PRIME).to_bytes(shamir.SHARE_BYTES, "big")
    assert shamir.combine({2: shares[2], 4: shares[4], 5: made}, 3) == other


def test_every_subset_of_a_small_case():
    secret = bytes(range(32))
    shares = shamir.split(secret, range(1, 6), 3)
    for places in itertools.combinations(shares, 3):
        assert shamir.combine({x: shares[x] for x in places}, 3) == secret
    with pytest.raises(ValueError, match="fewer than the threshold"):
        shamir.combine({1: shares[1], 2: shares[2]}, 3)


def test_a_changed_share_gives_something_else():
    """Lagrange's weight of the middle of three places is −3: the secret moves by it."""
    secret = (1000).to_bytes(32, "big")
    shares = shamir.split(secret, range(1, 4), 3)
    shares[2] = ((int.from_bytes(shares[2], "big") + 1) % shamir.PRIME).to_bytes(33, "big")
    assert int.from_bytes(shamir.combine(shares, 3), "big") == 997


def test_shares_that_are_of_no_secret_are_refused():
    """f(0) = 2²⁵⁶ is in the field, and is no secret of 32 bytes."""
    share = (2**256).to_bytes(33, "big")
    with pytest.raises(ValueError, match="not of one secret"):
        shamir.combine({1: share, 2: share}, 2)


@pytest.mark.parametrize(
    ("secret", "places", "threshold"),
    [(bytes(31), [1, 2], 2), (bytes(32), [1, 1], 2), (bytes(32), [0, 1], 2), (bytes(32), [1], 2)],
)
def test_what_cannot_be_shared_is_refused(secret, places, threshold):
    with pytest.raises(ValueError, match=r"secret|places|threshold"):
        shamir.split(secret, places, threshold)
