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


def test_open_numbers_go_up_to_four_and_the_usual_pair_is_first():
    found = ranks.pairs(5, None, None)
    assert found[0] == (2, 2)
    assert set(found) == {(R, L) for R in (1, 2, 3, 4) for L in (1, 2, 3, 4)}
    assert ranks.pairs(5, 6, None) == ((6, 2), (6, 1), (6, 3), (6, 4))
    assert ranks.pairs(3, None, 2) == ((2, 2), (1, 2), (3, 2))


def test_clients_may_mix_more_functions_than_there_are_outputs():
    found = ranks.pairs(1, None, 1, mixed=True)
    assert found == ((1, 1), (2, 1), (3, 1), (4, 1), (5, 1))
    assert ranks.pairs(3, None, 2, mixed=True)[0] == (2, 2)

    def trained(most: int, series: int) -> list[int]:
        return [found[n][0] for n in ranks.worth_training(found, np.eye(1), most, mixed_by=series)]

    assert trained(100, 12) == [1, 2, 3, 4, 5]
    assert trained(100, 4) == [1, 2, 3]  # four series cannot tell four functions apart
    assert trained(100, 1) == [1]
    assert trained(3, 12) == [1, 2, 3]  # messages would be too long


def test_directions_are_those_with_a_share_that_counts():
    assert ranks.directions(moment(3.0, 1.0, 0.03, 0.01, 0.0)) == 3
    assert ranks.directions(np.eye(4)) == 3
    assert ranks.directions(np.zeros((3, 3))) == 1


def test_one_two_and_the_number_of_directions_are_trained():
    def trained(pairs, moment: np.ndarray, most: int = 100) -> list[tuple[int, int]]:
        return [pairs[n] for n in ranks.worth_training(pairs, moment, most)]

    both, many = ranks.pairs(17, None, None), moment(*[1.0] * 8, *[1e-4] * 9)
    few = [(2, 2), (1, 1), (1, 2), (1, 4), (2, 1), (2, 4)]
    assert trained(both, many) == [*few, (4, 2)]
    assert trained(both, many, most=3) == few  # messages would be too long
    three = moment(1.0, 1.0, 1.0, 1e-4)
    assert trained(ranks.pairs(4, None, None), three)[-1] == (3, 2)
    assert trained(ranks.pairs(17, 3, None), many) == [(3, 2), (3, 1), (3, 4)]
    assert trained(ranks.pairs(17, None, 3), many) == [(2, 3), (1, 3), (4, 3)]


def test_a_latent_pays_for_its_loadings_and_lengthscales():
    """Counted by hand: 4 outputs, 6 clients, 1200 cells."""
    two, three = (make_plan(ModelSettings(latents=n), 1, 4).spec for n in (2, 3))
    more = ranks.price(three, 1200.0, 6) - ranks.price(two, 1200.0, 6)
    assert more == pytest.approx(0.5 * (4 * np.log(1200.0) + 6 * 4 * np.log(200.0)))
    local = make_plan(ModelSettings(local_latents=3), 1, 4).spec
    more = ranks.price(local, 1200.0, 6) - ranks.price(two, 1200.0, 6)
    assert more == pytest.approx(0.5 * 6 * 5 * np.log(200.0))
    assert ranks.price(make_plan(ModelSettings(), 1, 1).spec, 1200.0, 6) == 0.0


def test_a_function_that_clients_mix_pays_at_each_client():
    """6 clients of 200 cells: a loading of its own, and one of its deviation."""
    one, two = (
        make_plan(ModelSettings(latents=n, client_loadings=True), 1, 1).spec for n in (1, 2)
    )
    more = ranks.price(two, 1200.0, 6) - ranks.price(one, 1200.0, 6)
    assert more == pytest.approx(0.5 * 6 * 2 * np.log(200.0))
