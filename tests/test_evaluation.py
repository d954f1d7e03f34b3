"""The table of scores against sums written out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from pfedhgp.evaluation import PIT_EDGES, summarise
from pfedhgp.metrics import ECE_LEVELS, Scored

RNG = np.random.default_rng(0)


def _case(n: int) -> Scored:
    half = RNG.normal(size=(n, 2, 2))
    y = RNG.normal(size=(n, 2))
    y[0, 1] = np.nan
    return Scored(
        y=y, mean=0.3 * RNG.normal(size=(n, 2)), cov=half @ half.swapaxes(1, 2) + 0.5 * np.eye(2)
    )


CASES = {"a": _case(9), "b": _case(4)}


def _cells(case: Scored, q: int) -> tuple[np.ndarray, np.ndarray]:
    """(error, sd) of the observed cells of an output"""
    y, sd = np.asarray(case.y)[:, q], np.sqrt(np.asarray(case.cov)[:, q, q])
    seen = np.isfinite(y)
    return (y - np.asarray(case.mean)[:, q])[seen], sd[seen]


def test_scores_by_output_client_and_overall():
    found = summarise(CASES, ["u", "v"])
    assert found["overall"]["rows"] == 13
    assert {name: each["rows"] for name, each in found["clients"].items()} == {"a": 9, "b": 4}
    assert found["outputs"]["v"]["rows"] == 11
    for q, name in enumerate(["u", "v"]):
        each = [_cells(case, q) for case in CASES.values()]
        rmse = np.mean([np.sqrt(np.mean(e**2)) for e, _ in each])
        nll = np.mean([np.mean(-norm.logpdf(e, scale=s)) for e, s in each])
        inside = np.mean([np.mean(np.abs(e) <= 1.959963984540054 * s) for e, s in each])
        assert found["outputs"][name]["rmse"] == pytest.approx(rmse, rel=1e-12)
        assert found["outputs"][name]["nll"] == pytest.approx(nll, rel=1e-12)
        assert found["outputs"][name]["coverage"] == pytest.approx(inside)
    mean = np.mean([found["clients"][name]["nll"] for name in CASES])
    assert found["overall"]["nll"] == pytest.approx(mean, rel=1e-12)


def test_calibration_counts_every_observed_cell():
    found = summarise(CASES, ["u", "v"])["calibration"]
    every = [_cells(case, q) for case in CASES.values() for q in range(2)]
    pit = np.concatenate([norm.cdf(e / s) for e, s in every])
    assert sum(found["pit"]["counts"]) == len(pit) == 24
    for low, high, count in zip(PIT_EDGES, PIT_EDGES[1:], found["pit"]["counts"], strict=False):
        assert count == np.sum((pit >= low) & (pit < high))
    assert found["levels"] == list(ECE_LEVELS)
    by_client = [
        np.concatenate(
            [np.abs(norm.cdf(e / s) - 0.5) for e, s in (_cells(case, 0), _cells(case, 1))]
        )
        for case in CASES.values()
    ]
    for level, covered in zip(found["levels"], found["coverage"], strict=True):
        assert covered == pytest.approx(np.mean([np.mean(v <= level / 2) for v in by_client]))


def test_an_output_that_was_never_observed_has_no_scores():
    y = np.array([[1.0, np.nan], [2.0, np.nan]])
    case = Scored(y=y, mean=np.zeros((2, 2)), cov=np.tile(np.eye(2), (2, 1, 1)))
    found = summarise({"a": case}, ["u", "v"])
    assert list(found["outputs"]) == ["u"]
    assert found["overall"]["rmse"] == pytest.approx(np.sqrt(2.5))
