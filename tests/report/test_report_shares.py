"""Shares of variance against their definition, and when the report says that they are shaky."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.report.shares import Evidence, evidence, shares, signs_of_shakiness
from reported import case_of, estimator_of

SOUND = Evidence(
    clients=8,
    rows={"a": 100, "b": 90},
    deviation_share=0.2,
    deviation_uncertainty=0.1,
    correlation=-0.5,
)
X = np.linspace(10.0, 14.0, 25)[:, None]


@pytest.fixture(scope="module")
def predictions():
    case = case_of(outputs=2, latents=2, local_latents=1, tied=False, noise="output")
    model = estimator_of(case)
    return {name: [model.predict(name, X)] for name in model.clients_}


def test_shares_add_up_to_one_and_are_projections(predictions):
    (p,) = predictions["client 0"]
    found = shares([p], np.array([50.0, 50.0]))
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-12)
    for q in (0, 1):
        total = p.mean[:, q] - 50.0
        noise = p.covariance()[0, q, q] - p.covariance(noise=False)[0, q, q]
        whole = np.mean(total**2) + noise
        assert found[q, 0] == pytest.approx(
            np.mean((p.layers["global"].mean[:, q] - 50) * total) / whole
        )
        assert found[q, 1] == pytest.approx(
            np.mean(p.layers["deviation"].mean[:, q] * total) / whole
        )
        assert found[q, 3] == pytest.approx(noise / whole)


def test_evidence_is_computed_from_the_layers(predictions):
    found = {name: shares(several, np.full(2, 50.0)) for name, several in predictions.items()}
    e = evidence(predictions, found, clients=3, rows={"client 0": 5})
    square = np.mean([p.layers["deviation"].mean ** 2 for (p,) in predictions.values()])
    variance = np.mean([p.layers["deviation"].sd ** 2 for (p,) in predictions.values()])
    assert e.deviation_uncertainty == pytest.approx(variance / square)
    assert e.deviation_share == pytest.approx(np.mean([f[:, 1] for f in found.values()]))
    assert -1.0 <= e.correlation <= 1.0
    (p,) = predictions["client 0"]
    cross = p.cross_covariance("global", "deviation")[3, 1, 1]
    ratio = cross / (p.layers["global"].sd[3, 1] * p.layers["deviation"].sd[3, 1])
    assert abs(ratio) <= 1.0 + 1e-9


def test_nothing_is_said_where_nothing_is_wrong():
    assert signs_of_shakiness(SOUND) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clients": 3}, "only 3 clients"),
        ({"clients": 1}, "only one client"),
        ({"rows": {"a": 101, "b": 10}}, "unbalanced"),
        ({"deviation_share": 0.019}, "nearly identical"),
        ({"deviation_uncertainty": 1.01}, "no larger than their own uncertainty"),
    ],
)
def test_each_sign_is_said(change, words):
    (sign,) = signs_of_shakiness(replace(SOUND, **change))
    assert words in sign


@pytest.mark.parametrize(
    "change",
    [
        {"clients": 4},
        {"rows": {"a": 100, "b": 10}},
        {"rows": {}},
        {"rows": {"a": 100, "b": 0}},
        {"deviation_share": 0.02},
        {"deviation_uncertainty": 1.0},
    ],
)
def test_the_limits_themselves_are_fine(change):
    assert signs_of_shakiness(replace(SOUND, **change)) == []
