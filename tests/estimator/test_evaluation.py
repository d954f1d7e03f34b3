"""The table of scores against sums written out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from pfedhgp.estimator.evaluation import PIT_EDGES, summarise
from pfedhgp.gp.metrics import ECE_LEVELS, Scored

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


def _by_hand(cells: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """The scores of errors and sds of one output, written out: the mean over the given parts."""
    z = 1.959963984540054
    return {
        "rmse": np.mean([np.sqrt(np.mean(e**2)) for e, _ in cells]),
        "nll": np.mean([np.mean(-norm.logpdf(e, scale=s)) for e, s in cells]),
        "coverage": np.mean([np.mean(np.abs(e) <= z * s) for e, s in cells]),
        "width": np.mean([np.mean(2 * z * s) for _, s in cells]),
        "crps": np.mean([np.mean(_crps(e, s)) for e, s in cells]),
    }


def _crps(error: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """E|Y − y| − ½ E|Y − Y'| of a Gaussian"""
    z = error / sd
    return sd * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))


@pytest.mark.parametrize("q", [0, 1])
def test_each_output_has_scores_of_its_own_by_client_pooled_and_averaged(q):
    found = summarise(CASES, ["u", "v"])["outputs"]["uv"[q]]
    each = {name: _cells(case, q) for name, case in CASES.items()}
    whole = tuple(np.concatenate(parts) for parts in zip(*each.values(), strict=True))
    for scores, expected in (
        (found["client_mean"], _by_hand(list(each.values()))),
        (found["pooled"], _by_hand([whole])),
        *((found["clients"][name], _by_hand([cells])) for name, cells in each.items()),
    ):
        for metric, value in expected.items():
            assert scores[metric] == pytest.approx(value, rel=1e-12), metric
    assert found["pooled"]["rows"] == found["client_mean"]["rows"] == len(whole[0])
    assert found["pooled"]["rmse"] != pytest.approx(found["client_mean"]["rmse"], rel=1e-3)


def test_units_are_never_mixed():
    """Another unit of one output changes no score of the other, and there is no sum of the two."""
    found = summarise(CASES, ["u", "v"])
    scale = np.array([1.0, 1e6])
    scaled = {
        name: Scored(y=c.y * scale, mean=c.mean * scale, cov=c.cov * np.outer(scale, scale))
        for name, c in CASES.items()
    }
    other = summarise(scaled, ["u", "v"])
    assert other["outputs"]["u"] == found["outputs"]["u"]
    for tables in (found["overall"], found["clients"]):
        for table in tables.values():
            assert table.keys() == {"rows", "nll", "coverage", "ece"}
    for name in ("pooled", "client_mean"):
        assert other["overall"][name]["coverage"] == found["overall"][name]["coverage"]
        ratio = other["outputs"]["v"][name]["rmse"] / found["outputs"]["v"][name]["rmse"]
        assert ratio == pytest.approx(1e6)


def test_overall_is_pooled_over_rows_and_averaged_over_clients_each_by_name():
    found = summarise(CASES, ["u", "v"])
    assert found["averages"].keys() == found["overall"].keys() == {"pooled", "client_mean"}
    assert found["overall"]["pooled"]["rows"] == 13
    each = {name: table["nll"] for name, table in found["clients"].items()}
    assert {name: table["rows"] for name, table in found["clients"].items()} == {"a": 9, "b": 4}
    assert found["overall"]["client_mean"]["nll"] == pytest.approx(np.mean(list(each.values())))
    pooled = (9 * each["a"] + 4 * each["b"]) / 13
    assert found["overall"]["pooled"]["nll"] == pytest.approx(pooled, rel=1e-12)


def test_with_one_output_overall_is_that_outputs():
    one = {
        name: Scored(y=c.y[:, :1], mean=c.mean[:, :1], cov=c.cov[:, :1, :1])
        for name, c in CASES.items()
    }
    found = summarise(one, ["u"])
    assert found["overall"] == {k: v for k, v in found["outputs"]["u"].items() if k != "clients"}
    assert found["clients"] == found["outputs"]["u"]["clients"]


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
    assert found["outputs"]["u"]["pooled"]["rmse"] == pytest.approx(np.sqrt(2.5))
