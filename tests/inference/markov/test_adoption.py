"""New clients of a Markov model: their evidence against dense matrices, and what they predict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import reference
from pfedhgp.data.rows import ClientRows
from pfedhgp.estimator import FederatedGP
from pfedhgp.inference.markov import adoption
from pfedhgp.inference.markov.settings import Markov
from pfedhgp.inference.structured import adoption as dense_adoption
from pfedhgp.inference.structured.settings import Structured
from support.markov_stations import SETTINGS, stations


@pytest.fixture(scope="module")
def fitted():
    """Five of six stations; the last one comes later."""
    rows, held, _ = stations()
    known = {name: rows[name] for name in list(rows)[:5]}
    return FederatedGP(inference=Markov(rounds=8), **SETTINGS).fit(known), rows["s5"], held["s5"]


def newcomer(rows) -> ClientRows:
    X, y = rows
    return ClientRows("s5", np.asarray(X), np.asarray(y)[:, None])


def test_exact_evidence_of_a_new_client_is_that_of_the_models_dense_matrices(fitted) -> None:
    model, rows, _ = fitted
    party = adoption.newcomer(model.model_, newcomer(rows), noise="output", averaging=True)
    shared = model.model_.shared
    c, logs = np.array([0.8, -0.5]), np.log([0.2, 0.05, 0.06])
    found = party.beside(shared).log_evidence(c[None, None, None], logs[None, None, None])
    own = model.model_.scaling.rows(newcomer(rows))
    t, y = own.X[:, 0], own.Y[:, 0]
    basis = shared.block.basis(model.model_.jitter)
    R, M = basis.factor.shape[:2]
    S = np.asarray(shared.covariance).reshape(R, M, R, M)
    at = lambda x: np.asarray(basis.features(x[:, None]))  # noqa: E731
    length, variance, noise = np.exp(logs)
    expected = reference.series_evidence(
        [t],
        [y],
        [np.full(len(t), noise)],
        c[None],
        [(length, variance)],
        lambda x: np.einsum("rmn,rm->nr", at(x), np.asarray(shared.mean).reshape(R, M)),
        lambda x, z: np.einsum("rmn,rmsk,skp->nrps", at(x), S, at(z), optimize=True),
    )
    assert found[0, 0] == pytest.approx(expected, rel=1e-5)


def test_a_new_client_is_predicted_as_by_dense_matrices(fitted) -> None:
    """The dense path has other priors and the same evidence: means are nearly the same."""
    model, rows, (t, y) = fitted
    before = model.model_
    means = []
    for settings in ("markov", "dense"):
        if settings == "markov":
            found = adoption.adopt(before, newcomer(rows), noise="output", averaging=True)
        else:
            plain = replace(before, population=replace(before.population, traits=None))
            found = dense_adoption.adopt(
                plain, newcomer(rows), noise="output", settings=Structured(averaging=None)
            )
        own = FederatedGP(**SETTINGS)
        own.model_ = replace(before, clients={"s5": found[0]})
        means.append(own.predict("s5", t).mean.ravel())
    errors = [float(np.sqrt(np.mean((mean - y) ** 2))) for mean in means]
    assert errors[0] < 1.15 * errors[1]
    assert np.sqrt(np.mean((means[0] - means[1]) ** 2)) < 0.5 * errors[1]


def test_a_client_with_few_rows_is_less_sure_of_its_loadings(fitted) -> None:
    model, (X, y), (t, truth) = fitted
    model.adopt("s5", X, y).adopt("few", X[::10], y[::10])
    spread = {
        name: float(np.sum(np.asarray(model.model_.clients[name].loadings_half) ** 2))
        for name in ("s5", "few")
    }
    assert spread["few"] > 4.0 * spread["s5"]
    low, high = model.predict("few", t).interval(0.95)
    assert np.mean((truth > low.ravel()) & (truth < high.ravel())) > 0.8
    few, many = (model.predict(name, t).covariance(noise=False).mean() for name in ("few", "s5"))
    assert few > many
