"""The population of drifts and noise: what clients say of their own, and what is then expected of them."""

from __future__ import annotations

import numpy as np
import pytest

import reference
from pfedhgp.inference.markov import population, step
from pfedhgp.inference.structured import traits

OUTPUTS, CLIENTS, ROWS = 2, 3, 14


def problem() -> step.Problem:
    rng = np.random.default_rng(0)
    k = OUTPUTS * CLIENTS
    times = np.sort(rng.uniform(size=(k, ROWS)), axis=1)
    return step.Problem(
        step.Series(
            times,
            np.zeros((k, ROWS), int),
            rng.normal(size=(k, ROWS)),
            np.ones((k, ROWS)),
            np.ones((k, ROWS)),
            np.zeros(k),
        ),
        rng.normal(size=(k, ROWS, 1)),
        np.full((k, ROWS, 1, 1), 0.1),
        step.LoadingsPrior(np.ones((k, 1)), np.full((k, 1, 1), 10.0)),
        step.ExpectedLogs(np.full((k, 3), -1.0), np.full((k, 3), 2.0)),
    )


def test_series_and_clients_are_the_same_numbers() -> None:
    rows = np.arange(OUTPUTS * CLIENTS * 3.0).reshape(-1, 3)
    by_client = population.by_client(rows, OUTPUTS)
    np.testing.assert_array_equal(by_client[0], [0, 3, 1, 4, 2, 5])
    np.testing.assert_array_equal(population.by_series(by_client, OUTPUTS), rows)


def test_slope_and_curvature_are_those_of_the_bound() -> None:
    own = problem()
    rows = np.full((OUTPUTS * CLIENTS, 3), -1.2)
    found = population.Curvature.at(own, rows)
    for i in (0, 4):
        part = own.of_some(np.array([i]))
        value = lambda x, part=part: float(part.solved(x[None]).value[0])  # noqa: E731
        slope = reference.finite_difference(value, rows[i], 1e-5)
        np.testing.assert_allclose(found.slope[i], slope, rtol=1e-3, atol=1e-3)
        steps = 1e-3 * np.eye(3)
        hessian = [
            (
                reference.finite_difference(value, rows[i] + h, 1e-4)
                - reference.finite_difference(value, rows[i] - h, 1e-4)
            )
            / 2e-3
            for h in steps
        ]
        np.testing.assert_allclose(found.hessian[i], hessian, rtol=1e-2, atol=1e-2)


def test_a_client_s_own_part_is_not_in_what_is_expected_of_it() -> None:
    """Two others say the same of it whether it has replied or not."""
    count = population.LOGS * OUTPUTS
    at, centre = traits.Population.unknown(count), np.zeros((OUTPUTS * CLIENTS, 3))
    sites = np.random.default_rng(1).uniform(0.5, 1.0, size=(CLIENTS, traits.SUMS, count))
    with_it = population.Asked.of(centre, OUTPUTS, sites.sum(0), at, sites, 3.0)
    without = population.Asked.of(centre, OUTPUTS, sites[1:].sum(0), at, np.zeros_like(sites), 3.0)
    for a, b in zip(with_it.expected, without.expected, strict=True):
        np.testing.assert_allclose(a[:OUTPUTS], b[:OUTPUTS], rtol=1e-12)


def test_heavy_tails_make_rows_say_less_of_the_noise_and_as_much_of_the_drift() -> None:
    count = population.LOGS * OUTPUTS
    at, centre = traits.Population.unknown(count), np.full((OUTPUTS * CLIENTS, 3), -1.0)
    rows = np.full((OUTPUTS * CLIENTS, 3), -1.2)
    said = []
    for tails in (3.0, 11.0):
        asked = population.Asked.of(
            centre, OUTPUTS, np.zeros((traits.SUMS, count)), at, None, tails
        )
        own = problem()._replace(expected=asked.expected)
        w = asked.sites(own, rows, OUTPUTS, drifts_free=True)[:, 0]
        tau2 = population.by_client(asked.reference.variance, OUTPUTS)
        said.append(w / (1.0 - w * tau2))  # the sites' precisions r, from w = r/(1 + r τ²)
    noise = slice(2 * OUTPUTS, None)
    assert (said[1][:, noise] < 0.45 * said[0][:, noise]).all()
    assert (said[1][:, :OUTPUTS] > 0.5 * said[0][:, :OUTPUTS]).all()


@pytest.mark.parametrize(("fourth", "cells", "found"), [(3e6, 1e6, 3.0), (9e6, 1e6, 9.0)])
def test_kurtosis_is_that_of_the_residuals(fourth: float, cells: float, found: float) -> None:
    assert population.kurtosis(np.float64(fourth), np.float64(cells)) == pytest.approx(
        found, rel=1e-3
    )
    assert population.kurtosis(np.float64(0.0), np.float64(0.0)) == population.GAUSSIAN
