"""Scenario A of the paper's study: how near a fit of 12 exchanges comes to the Bayes oracle."""

from __future__ import annotations

import numpy as np
import pytest

import scenarios
from pfedhgp import FederatedGP, metrics

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
    model = FederatedGP(domain=[(0.0, 10.0)], noise="scalar").fit(data)
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
