"""Masks of pairs cancel in the sum, and a masked reply looks like noise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

from support.masked_sites import needs_cryptography, scope_of

needs_cryptography()
from pfedhgp.federation.masks import keys  # noqa: E402
from pfedhgp.federation.masks.masking import masked, own_mask, pair_mask  # noqa: E402
from pfedhgp.federation.masks.roster import Question  # noqa: E402

pytestmark = pytest.mark.flower
COUNT = 20_000


def test_masks_of_pairs_cancel_and_own_masks_are_left():
    scope, identities = scope_of(5)
    secrets = {name: (keys.new_secret(), keys.new_secret()) for name in identities}
    publics = {name: keys.public_of(secret) for name, (secret, _) in secrets.items()}
    question = Question(3, "round 2", publics)
    rng = np.random.default_rng(0)
    values = {name: rng.integers(0, 2**64, 50, dtype=np.uint64) for name in identities}
    total = np.zeros(50, np.uint64)
    for name, own in secrets.items():
        total += masked(scope, question, name, values[name], own)
        total -= own_mask(scope, question, name, own[1], 50)
    np.testing.assert_array_equal(total, np.sum(list(values.values()), axis=0, dtype=np.uint64))


def test_masks_of_other_exchanges_questions_and_runs_are_others():
    scope, identities = scope_of(3)
    one, two = sorted(identities)[:2]
    secret, public = keys.new_secret(), keys.public_of(keys.new_secret())
    publics = {one: keys.public_of(secret), two: public}
    asked = [Question(1, "a", publics), Question(2, "a", publics), Question(1, "b", publics)]
    masks = [pair_mask(scope, q, secret, (one, two), 4).tobytes() for q in asked]
    masks += [own_mask(scope, q, one, secret, 4).tobytes() for q in asked]
    assert len(set(masks)) == 6


def test_a_masked_reply_passes_a_chi_squared_test_on_bytes():
    """Of zeros, the plainest reply there is: all 256 bytes are alike, in every place of the number."""
    scope, identities = scope_of(3)
    secrets = {name: (keys.new_secret(), keys.new_secret()) for name in identities}
    publics = {name: keys.public_of(secret) for name, (secret, _) in secrets.items()}
    name = sorted(identities)[0]
    zeros = np.zeros(COUNT, np.uint64)
    found = masked(scope, Question(1, "q", publics), name, zeros, secrets[name])
    by_place = found.astype("<u8").view(np.uint8).reshape(COUNT, 8)
    for column in (by_place.reshape(-1), *by_place.T):
        counts = np.bincount(column, minlength=256)
        expected = column.size / 256
        statistic = np.sum((counts - expected) ** 2) / expected
        assert 1e-6 < chi2.sf(statistic, 255) < 1 - 1e-6
    plain = np.bincount(zeros.view(np.uint8), minlength=256)  # the test tells zeros from noise
    assert chi2.sf(np.sum((plain - 8 * COUNT / 256) ** 2) / (8 * COUNT / 256), 255) < 1e-300
