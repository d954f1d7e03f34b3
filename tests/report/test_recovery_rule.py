"""The rule of thumb for the recovery of the global layer, against simulation."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.errors import InputError
from pfedhgp.report.recovery_rule import effective_clients, expected_recovery, split_is_stable


def test_effective_clients_count_balanced_ones_fully():
    assert effective_clients([7] * 5) == pytest.approx(5.0)
    assert effective_clients([1000, 1, 1]) == pytest.approx(1.0, abs=0.01)
    assert effective_clients([10, 20]) == pytest.approx(900 / 500)
    with pytest.raises(InputError, match="positive numbers of rows"):
        effective_clients([3, 0])


@pytest.mark.parametrize(("rows", "phi"), [([50] * 6, 1.2), ([50] * 2, 4.0), ([10, 90], 0.5)])
def test_the_rule_is_the_correlation_of_the_weighted_mean_of_clients(rows, phi):
    """Monte Carlo: corr(g, g + Σ w_i δ_i) with weights n_i/Σn and Var δ = φ Var g."""
    rng = np.random.default_rng(0)
    g = rng.normal(size=200_000)
    weights = np.array(rows) / np.sum(rows)
    mean = g + np.sqrt(phi) * weights @ rng.normal(size=(len(rows), 200_000))
    assert np.corrcoef(g, mean)[0, 1] == pytest.approx(expected_recovery(rows, phi), abs=0.005)


def test_the_rule_of_thumb():
    """At .9 it asks for T ≥ φ/(1/.81 − 1) = 4.26 φ effective clients."""
    assert expected_recovery([50] * 24, 4.0) == pytest.approx(np.sqrt(6 / 7))
    assert expected_recovery([50] * 3, 1.2) == pytest.approx(np.sqrt(1 / 1.4))
    assert expected_recovery([50] * 6, 0.0) == 1.0
    assert split_is_stable([50] * 24, 4.0)
    assert not split_is_stable([50] * 3, 1.2)
    assert split_is_stable([50] * 18, 4.2)
    assert not split_is_stable([50] * 17, 4.0)
    assert not split_is_stable([95, 95, 95, 5, 5, 5], 1.2)
    assert split_is_stable([50] * 3, 1.2, wanted=0.84)
    with pytest.raises(InputError, match="`phi` must not be negative"):
        expected_recovery([1, 1], -0.1)
