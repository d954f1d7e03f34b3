"""Shares of variance against their definition, and when the report says that they are shaky."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.model.layers import shares
from pfedhgp.report.shares import Evidence, evidence, signs_of_uncertainty
from support.reported import case_of, estimator_of

SOUND = Evidence(
    clients=8,
    rows=dict.fromkeys("abcdefgh", 100),
    deviation_share=0.2,
    local_share=0.1,
    deviation_uncertainty=0.1,
    heterogeneity=0.3,
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
    e = evidence(predictions, found, clients=3, rows={"client 0": 5}, heterogeneity=0.7)
    square = np.mean([p.layers["deviation"].mean ** 2 for (p,) in predictions.values()])
    variance = np.mean([p.layers["deviation"].sd ** 2 for (p,) in predictions.values()])
    assert e.deviation_uncertainty == pytest.approx(variance / square)
    assert e.deviation_share == pytest.approx(np.mean([np.abs(f[:, 1]) for f in found.values()]))
    assert e.local_share == pytest.approx(np.mean([np.abs(f[:, 2]) for f in found.values()]))
    assert -1.0 <= e.correlation <= 1.0
    (p,) = predictions["client 0"]
    cross = p.cross_covariance("global", "deviation")[3, 1, 1]
    ratio = cross / (p.layers["global"].sd[3, 1] * p.layers["deviation"].sd[3, 1])
    assert abs(ratio) <= 1.0 + 1e-9


def test_nothing_is_said_where_nothing_is_wrong():
    assert signs_of_uncertainty(SOUND) == []


UNEVEN = {"a": 1001, **dict.fromkeys("bcdefgh", 100)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clients": 3}, "only 3 clients"),
        ({"clients": 1}, "only one client"),
        ({"rows": UNEVEN}, "the largest has 1001 observed cells, the smallest 100"),
        # (Σn)²/Σn² = 1600²/(900² + 7 · 100²) = 2.9, though no client has more than nine times another's
        (
            {"rows": {**UNEVEN, "a": 900}},
            "8 clients tell as much about the shared layer as 2.9",
        ),
        # 1/√(1 + φ/T) = .9 at φ = .2346 T
        ({"heterogeneity": 0.24 * 8}, "the global layer correlates 0.89 with what all share"),
        ({"deviation_share": 0.019, "local_share": 0.019}, "Clients are nearly identical"),
        ({"deviation_share": 0.019}, "local layers 10\u202f%: clients differ"),
        ({"deviation_uncertainty": 1.01}, "no larger than their uncertainty"),
    ],
)
def test_each_sign_is_said(change, words):
    (sign,) = signs_of_uncertainty(replace(SOUND, **change))
    assert words in sign


THREE = {"clients": 3, "rows": dict.fromkeys("abc", 100)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        # 1/√(1 + 1.2/3) = .845; 1/√(1 + .3/3) = .953; T_eff of UNEVEN is 2.70, 1/√(1 + .3/2.7) = .949
        (
            {**THREE, "heterogeneity": 1.2},
            "the global layer correlates 0.84 with what all share (0.9",
        ),
        (THREE, "correlates 0.95 with what all share, if the fitted size of the deviations"),
        ({"rows": UNEVEN}, "correlates 0.94 with what all share, if the fitted size"),
        (
            {"rows": UNEVEN, "heterogeneity": 1.0},
            "correlates 0.85 with what all share (0.9 would do)",
        ),
    ],
)
def test_few_or_unbalanced_clients_are_told_the_rules_figure(change, words):
    (sign,) = signs_of_uncertainty(replace(SOUND, **change))
    assert "By rule of thumb, " in sign
    assert words in sign


@pytest.mark.parametrize("change", [{"clients": 3}, {"rows": UNEVEN}])
def test_few_or_unbalanced_clients_are_not_called_identical(change):
    """A deviation that is not seen may be one that could not be seen."""
    small = replace(SOUND, deviation_share=0.001, local_share=0.001)
    assert "nearly identical:" in " ".join(signs_of_uncertainty(small))
    signs = signs_of_uncertainty(replace(small, **change))
    assert len(signs) == 2
    assert "These data cannot tell" in signs[1]
    assert "Clients are nearly identical" not in " ".join(signs)


@pytest.mark.parametrize(
    "change",
    [
        {"clients": 4},
        {"rows": {**UNEVEN, "a": 500}},
        {"rows": {}},
        {"rows": {**SOUND.rows, "z": 0}},
        {"heterogeneity": 0.23 * 8},
        {"deviation_share": 0.02},
        {"deviation_uncertainty": 1.0},
    ],
)
def test_the_limits_themselves_are_fine(change):
    assert signs_of_uncertainty(replace(SOUND, **change)) == []
