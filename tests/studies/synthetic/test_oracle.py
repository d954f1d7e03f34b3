"""Scenario A of the paper's study: how near a fit of 12 exchanges comes to the Bayes oracle."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.gp import metrics
from pfedhgp.studies.synthetic import algorithm1
from support import scenarios

SEEDS = range(10)


def scores(truth: scenarios.Simulation, predictions) -> dict[str, float]:
    return metrics.evaluate(
        [
            metrics.Scored(y=y, mean=mean, cov=cov, clean=clean, noise=truth.noise_sd**2)
            for y, (mean, cov), clean in zip(
                truth.Y_test, predictions, truth.clean_test, strict=True
            )
        ]
    )


def fitted(truth: scenarios.Simulation) -> dict[str, float]:
    data = {str(i): (X, Y) for i, (X, Y) in enumerate(zip(truth.X, truth.Y, strict=True))}
    model = FederatedGP(domain=[(0.0, 10.0)], noise="scalar", rounds=10).fit(data)
    assert model.exchanges_ <= 12
    predictions = [model.predict(name, truth.X_test) for name in data]
    return scores(truth, [(p.mean, p.covariance()) for p in predictions])


@pytest.mark.slow
def test_twelve_exchanges_come_near_the_oracle():
    """NLL ≤ −4.1 and CRPS ≤ .100, near the same seeds' oracle, and honest intervals."""
    truths = [scenarios.simulate("A", seed) for seed in SEEDS]
    ours = [fitted(truth) for truth in truths]
    oracle = [scores(truth, scenarios.oracle(truth)) for truth in truths]
    mean = {name: np.mean([run[name] for run in ours]) for name in ours[0]}
    limit = {name: np.mean([run[name] for run in oracle]) for name in oracle[0]}
    assert mean["nll"] <= -4.1
    assert mean["crps"] <= 0.100
    assert mean["nll"] - limit["nll"] <= 0.2
    assert mean["crps"] - limit["crps"] <= 0.005
    assert 0.935 <= mean["coverage"] <= 0.965


FEW_SEEDS = range(6)


@pytest.mark.slow
def test_mean_field_lands_near_algorithm_1_as_written():
    """The independent simulator's row: RMSE .482, NLL +1.985, CRPS .243, width 2.03, coverage .966.

    That row had √φ in the mean; here φ is in the prior (v_δ ~ N(0, φI)), which by itself moves the NLL by
    .01. What is left between the two is the start of the loadings, which the paper does not give, and chance:
    one seed's NLL is 0.5, another's 2.0.
    """
    found = []
    for seed in FEW_SEEDS:
        truth = scenarios.simulate("A", seed)
        data = {str(i): (X, Y) for i, (X, Y) in enumerate(zip(truth.X, truth.Y, strict=True))}
        model = algorithm1.Algorithm1(**algorithm1.settings(rounds=None, seed=seed)).fit(data)
        assert model.bound_ is None
        assert len(model.history_) == 20
        predictions = [model.predict(name, truth.X_test) for name in data]
        found.append(scores(truth, [(p.mean, p.covariance()) for p in predictions]))
    mean = {name: np.mean([run[name] for run in found]) for name in found[0]}
    assert 0.38 <= mean["rmse"] <= 0.55
    assert 0.7 <= mean["nll"] <= 2.6
    assert 0.19 <= mean["crps"] <= 0.27
    assert 1.6 <= mean["width"] <= 2.3
    assert 0.95 <= mean["coverage"] <= 0.985
