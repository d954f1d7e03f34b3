"""μ, ε and δ of Gaussian releases, against quadrature, published multipliers and another library."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate
from scipy.stats import norm

from pfedhgp.errors import InputError
from pfedhgp.privacy.accounting import (
    LARGEST_MU,
    composed,
    delta_of,
    epsilon_of,
    mu_for,
    of_rows,
    shown,
)


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.5])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 3.0])
def test_delta_is_the_hockey_stick_divergence(mu, epsilon):
    def excess(x):
        return max(norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x), 0.0)

    crossing = epsilon / mu + mu / 2
    dense, _ = integrate.quad(excess, crossing, crossing + 40, epsabs=1e-13, limit=400)
    assert delta_of(mu, epsilon) == pytest.approx(dense, abs=1e-10)


@pytest.mark.parametrize(
    ("epsilon", "multiplier"), [(0.5, 8.058), (1, 4.225), (2, 2.230), (4, 1.194), (8, 0.653)]
)
def test_multipliers_at_a_delta_of_1e_6(epsilon, multiplier):
    assert 1 / mu_for(epsilon, 1e-6) == pytest.approx(multiplier, abs=5e-4)


@settings(deadline=None, max_examples=60)
@given(st.floats(0.01, 20), st.sampled_from([1e-4, 1e-6, 1e-9]))
def test_the_reported_epsilon_is_never_below_the_truth(mu, delta):
    epsilon = epsilon_of(mu, delta)
    assert delta_of(mu, epsilon) <= delta
    if epsilon > 0:
        assert delta_of(mu, epsilon - 2.1e-4) > delta
    assert epsilon == 0 or mu_for(epsilon, delta) >= mu


@settings(deadline=None, max_examples=15)
@given(st.lists(st.floats(1.5, 40), min_size=1, max_size=12))
def test_compositions_agree_with_dp_accounting(multipliers):
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for each in multipliers:
        accountant.compose(dp_accounting.GaussianDpEvent(each))
    theirs = accountant.get_epsilon(1e-6)
    ours = epsilon_of(composed(1 / each for each in multipliers), 1e-6)
    assert theirs <= ours <= theirs + 1e-3


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_a_cost_that_is_not_finite_is_refused(wrong):
    with pytest.raises(InputError, match="μ"):
        composed([0.5, wrong])
    with pytest.raises(InputError, match="μ"):
        epsilon_of(wrong, 1e-6)
    with pytest.raises(InputError, match="ε"):
        delta_of(1.0, wrong)


def test_what_cannot_be_promised_is_refused():
    with pytest.raises(InputError, match="δ"):
        mu_for(1.0, 0.0)
    with pytest.raises(InputError, match="ε"):
        mu_for(0.0, 1e-6)
    assert mu_for(math.inf, 1e-6) == math.inf
    assert epsilon_of(0.0, 1e-6) == 0.0
    assert np.isinf(epsilon_of(5e3, 1e-6))


@pytest.mark.parametrize("epsilon", [1e2, 1e4, 1.4e5, 2e5, 4.9e5])
@pytest.mark.parametrize("delta", [1e-9, 1e-6, 0.5])
def test_a_large_epsilon_has_a_mu_that_keeps_it_or_is_refused(epsilon, delta):
    """As far as μ is counted, it is the largest one."""
    found = mu_for(epsilon, delta)
    assert found < LARGEST_MU
    assert delta_of(found, epsilon) <= delta
    assert delta_of(found * (1 + 1e-9), epsilon) > delta


@pytest.mark.parametrize("epsilon", [5.2e5, 1e6, 1e300])
def test_an_epsilon_beyond_what_is_counted_is_refused(epsilon):
    with pytest.raises(InputError, match="more than can be counted"):
        mu_for(epsilon, 1e-6)


def test_several_rows_have_several_mu_and_more_than_several_epsilon_at_the_same_delta():
    """k rows: kε holds at a larger δ only; at the same one ε grows faster."""
    assert of_rows(1.0, 1e-6, 1) == pytest.approx(1.0, abs=3e-4)
    for rows in (2, 5, 10):
        assert of_rows(1.0, 1e-6, rows) == epsilon_of(rows * mu_for(1.0, 1e-6), 1e-6)
        assert of_rows(1.0, 1e-6, rows) > rows


def test_what_is_shown_of_an_epsilon_is_not_below_it():
    for mu in np.linspace(0.05, 4.0, 200):
        assert float(shown(epsilon_of(mu, 1e-6))) >= epsilon_of(mu, 1e-6) - 1e-9
        assert delta_of(mu, float(shown(epsilon_of(mu, 1e-6)))) <= 1e-6
    assert shown(math.inf) == "∞"
