"""How many latents are worth training, and what they cost."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.federation.planning import make_plan
from pfedhgp.inference.starts import ranks
from pfedhgp.settings.table import ModelSettings


def moment(*shares: float) -> np.ndarray:
    """E[yyᵀ] with such eigenvalues, turned at random."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(len(shares), len(shares))))[0]
    return turn @ np.diag(shares) @ turn.T


def test_open_numbers_go_up_to_the_outputs_and_the_usual_pair_is_first():
    found = ranks.pairs(5, None, None)
    assert found[0] == (2, 2)
    assert set(found) == {(R, L) for R in (1, 2, 3, 4) for L in (1, 2, 3, 4)}
    assert ranks.pairs(5, 3, None) == ((3, 2), (3, 1), (3, 3), (3, 4))
    assert ranks.pairs(17, None, 2)[-1] == (16, 2)


def test_directions_are_those_with_a_share_that_counts():
    assert ranks.directions(moment(3.0, 1.0, 0.03, 0.01, 0.0)) == 3
    assert ranks.directions(np.eye(4)) == 3
    assert ranks.directions(np.zeros((3, 3))) == 1


def test_one_two_all_directions_and_one_between_are_trained():
    pairs = ranks.pairs(17, None, None)
    shares = moment(*[1.0] * 8, *[1e-4] * 9)

    def trained(most: int) -> list[tuple[int, int]]:
        return [pairs[n] for n in ranks.worth_training(pairs, shares, most)]

    assert trained(100) == [(2, 2), (1, 1), (4, 4), (4, 8)]  # messages would be too long with 8
    assert trained(3) == [(2, 2), (1, 1), (3, 4), (3, 8)]
    given = ranks.pairs(17, 3, None)
    assert [given[n] for n in ranks.worth_training(given, shares, 5)] == [
        (3, 2),
        (3, 1),
        (3, 4),
        (3, 8),
    ]


def test_a_latent_pays_for_its_loadings_and_lengthscales():
    """Counted by hand: 4 outputs, 6 clients, 1200 cells."""
    two, three = (make_plan(ModelSettings(latents=n), 1, 4).spec for n in (2, 3))
    more = ranks.price(three, 1200.0, 6) - ranks.price(two, 1200.0, 6)
    assert more == pytest.approx(0.5 * (4 * np.log(1200.0) + 6 * 4 * np.log(200.0)))
    local = make_plan(ModelSettings(local_latents=3), 1, 4).spec
    more = ranks.price(local, 1200.0, 6) - ranks.price(two, 1200.0, 6)
    assert more == pytest.approx(0.5 * 6 * 5 * np.log(200.0))
    assert ranks.price(make_plan(ModelSettings(), 1, 1).spec, 1200.0, 6) == 0.0
