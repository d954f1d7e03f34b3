"""A client's evidence beside the others against dense matrices, and Laplace's Gaussian against its own."""

from __future__ import annotations

import numpy as np
import pytest

import reference
from pfedhgp.inference.markov import cavity, knots
from pfedhgp.inference.markov.knots import Evidence
from pfedhgp.inference.markov.step import ExpectedLogs, LoadingsPrior, Series

M, LENGTHS, OUTPUTS = 9, np.array([0.3, 0.1]), 2
R = len(LENGTHS)


class Case:
    """Two clients of two outputs; rows skip knots, share knots, lack cells and are means of several."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self.places = np.linspace(0.0, 1.0, M)
        half = rng.normal(size=(2, M, R, R))
        self.others = [Evidence(h @ np.swapaxes(h, 1, 2), rng.normal(size=(M, R))) for h in half]
        self.which = np.array([[0, 1, 1, 4, 5, 8], [0, 2, 3, 3, 3, 7]])
        times = np.repeat(self.places[self.which], OUTPUTS, axis=0)
        times = times + 1e-3 * np.arange(6)
        weights = rng.choice([0.0, 1.0, 2.5], size=times.shape, p=[0.2, 0.5, 0.3])
        weights[:, 0] = 1.0
        self.series = Series(
            times,
            np.repeat(self.which, OUTPUTS, axis=0),
            rng.normal(size=times.shape),
            (weights > 0).astype(float),
            weights,
            np.zeros(len(times)),
        )
        self.loadings = rng.normal(size=(2, OUTPUTS, R))
        self.logs = np.log([0.4, 0.3, 0.2]) + 0.3 * rng.normal(size=(2, OUTPUTS, 3))
        self.beside = cavity.Beside(
            self.series,
            cavity.Chain.of(
                [knots.posterior(self.places, LENGTHS, each) for each in self.others], self.which
            ),
            LoadingsPrior(np.full((4, R), 0.2), np.tile(2.0 * np.eye(R), (4, 1, 1))),
            ExpectedLogs(np.full((4, 3), -1.0), np.full((4, 3), 1.5)),
        )

    def dense(self, i: int, loadings: np.ndarray, logs: np.ndarray) -> float:
        """log p(y | c, ψ, others) from whole matrices."""
        X, evidence = self.places[:, None], self.others[i]
        K, J = np.zeros((M, R, M, R)), np.zeros((M, R, M, R))
        for r in range(R):
            K[:, r, :, r] = reference.matern12(X, X, lengthscale=LENGTHS[r])
        for m in range(M):
            J[m, :, m] = evidence.J[m]
        size = M * R
        S = np.linalg.inv(np.linalg.inv(K.reshape(size, size)) + J.reshape(size, size))
        mean = (S @ evidence.h.reshape(-1)).reshape(M, R)
        S = S.reshape(M, R, M, R)
        own = [i * OUTPUTS + q for q in range(OUTPUTS)]
        seen = [self.series.weights[k] > 0 for k in own]
        places = np.searchsorted(0.5 * (self.places[1:] + self.places[:-1]), self.series.times)
        of_time = dict(zip(self.series.times.ravel(), places.ravel(), strict=True))
        at = lambda t: np.array([of_time[v] for v in t])  # noqa: E731
        variances = np.exp(logs)
        return reference.series_evidence(
            [self.series.times[k, w] for k, w in zip(own, seen, strict=True)],
            [self.series.values[k, w] for k, w in zip(own, seen, strict=True)],
            [
                variances[q, 2] / self.series.weights[k, w]
                for q, (k, w) in enumerate(zip(own, seen, strict=True))
            ],
            loadings,
            [(variances[q, 0], variances[q, 1]) for q in range(OUTPUTS)],
            lambda t: mean[at(t)],
            lambda t, s: S[at(t)][:, :, at(s)],
        )


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


def test_exact_evidence_beside_the_others_is_the_dense_one(case: Case) -> None:
    other = 0.7 * case.loadings
    c = np.stack([case.loadings, other], axis=1)
    logs = np.stack([case.logs, case.logs - 0.2], axis=1)
    found = case.beside.log_evidence(c, logs)
    expected = [[case.dense(i, c[i, p], logs[i, p]) for p in range(2)] for i in range(2)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_exact_evidence_of_some_clients_is_theirs(case: Case) -> None:
    both = case.beside.log_density(case.loadings[:, None], case.logs[:, None])
    last = case.beside.of_some(np.array([1])).log_density(
        case.loadings[1:, None], case.logs[1:, None]
    )
    np.testing.assert_allclose(last, both[1:], rtol=1e-12)


def test_laplace_is_at_a_maximum_with_the_inverse_curvature_there(case: Case) -> None:
    """In units of the prior no eigenvalue is below 1: rows are worth no less than nothing."""
    start = np.full((4, R), 0.2)
    found = cavity.laplace(
        case.beside, start, np.full((4, 3), -1.0), np.tile(4.0 * np.eye(R), (4, 1, 1)), 80
    )
    size = OUTPUTS * R

    def density(i: int, x: np.ndarray) -> float:
        c, logs = x[:size].reshape(OUTPUTS, R), x[size:].reshape(OUTPUTS, 3)
        value = case.dense(i, c, logs) - 0.5 * 2.0 * np.sum((c - 0.2) ** 2)
        return value - 0.5 * 1.5 * np.sum((logs + 1.0) ** 2)

    for i in range(2):
        own = slice(i * OUTPUTS, (i + 1) * OUTPUTS)
        x = np.concatenate([found.loadings[own].ravel(), found.logs[own].ravel()])
        slope = reference.finite_difference(lambda v, i=i: density(i, v), x, 1e-5)
        assert np.abs(slope).max() < 0.05
        hessian = np.stack(
            [
                (
                    reference.finite_difference(lambda v, i=i: density(i, v), x + h, 1e-4)
                    - reference.finite_difference(lambda v, i=i: density(i, v), x - h, 1e-4)
                )
                / 2e-3
                for h in 1e-3 * np.eye(len(x))
            ]
        )
        prior = np.sqrt(np.repeat([2.0, 1.5], [size, OUTPUTS * 3]))
        values, vectors = np.linalg.eigh(-0.5 * (hessian + hessian.T) / np.outer(prior, prior))
        half = vectors / np.sqrt(np.maximum(values, 1.0)) / prior[:, None]
        covariance = half @ half.T
        np.testing.assert_allclose(
            found.loadings_covariance[i], covariance[:size, :size], rtol=0.05, atol=2e-3
        )
        np.testing.assert_allclose(
            found.log_variances[own].ravel(), np.diagonal(covariance)[size:], rtol=0.05
        )


def test_rows_are_worth_no_less_than_nothing(case: Case) -> None:
    """Variances are at most those of the prior, wherever the search ended."""
    found = cavity.laplace(
        case.beside,
        case.loadings.reshape(4, R),
        case.logs.reshape(4, 3),
        np.tile(np.eye(R), (4, 1, 1)),
        1,
    )
    for covariance in found.loadings_covariance:
        assert np.linalg.eigvalsh(covariance).max() <= 0.5 + 1e-9
    assert found.log_variances.max() <= 1.0 / 1.5 + 1e-9
