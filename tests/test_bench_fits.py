"""The bench's whole fits, on tiny federations: scores, goals, peers and fresh processes."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from bench import ours, peers, whole_fits
from bench.federations import CASES, Case, alike, ragged, readme, study_cell, weather
from bench.problem import Sizes, make_problem

from pfedhgp.base.numerics import numerics

TINY = Case(partial(alike, 2, 8), {"first fit": 1e9, "next fit": 0.0, "adopt": 1e9}, {"rounds": 2})


def test_scores_are_those_of_a_gaussian():
    """Means 1 and 3 off with sd 2: RMSE √5, NLL log 2 + ½ log 2π + ½ (¼ + 9/4)/2."""
    found = whole_fits.score(
        lambda name, X: (np.zeros((2, 1)), np.full((2, 1), 2.0)),
        {"a": (np.zeros((2, 1)), np.array([[1.0], [3.0]]))},
    )
    assert found["RMSE"] == pytest.approx(np.sqrt(5.0))
    assert found["NLL"] == pytest.approx(np.log(2.0) + 0.5 * np.log(2 * np.pi) + 0.625)


def test_a_case_has_its_steps_and_misses_its_goals():
    found = whole_fits.ours(TINY)
    steps = ("import", "first fit", "first predict", "next fit", "adopt", "import to prediction")
    assert tuple(found["steps"]) == steps
    assert whole_fits.missed(TINY, found) == ["next fit"]
    whole = sum(found["steps"][s]["seconds"] for s in steps[:3])
    assert found["steps"]["import to prediction"]["seconds"] == pytest.approx(whole)
    assert 0.0 < found["RMSE"] < 2.0


def test_a_command_is_timed_with_its_processes():
    work = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}], check=True)"
    found = whole_fits.timed_command([sys.executable, "-c", nested])
    assert found["processor"] >= 0.2
    assert found["seconds"] >= 0.2


def test_scikit_learn_fits_the_same_clients():
    """In units of the data: noise of sd 0.1 around functions of 60 rows."""
    found = whole_fits.peer("scikit-learn", replace(TINY, make=partial(alike, 2, 60)))
    assert found["RMSE"] < 0.25
    assert found["NLL"] < 0.0


def test_pooled_rows_are_one_fit():
    """A mean over all clients' rows, in the outputs' own units."""
    seen = []

    def fit(X, y):
        seen.append(X.shape)
        return lambda at: (np.zeros(len(at)), np.ones(len(at)))

    data = alike(3, 5, 0)
    mean, sd = peers.pooled(fit, data)("site 1", np.zeros((4, 1)))
    every = np.concatenate([Y for _, Y in data.train.values()])
    assert seen == [(15, 1)]
    np.testing.assert_allclose(mean, np.full((4, 1), every.mean()))
    np.testing.assert_allclose(sd, np.full((4, 1), every.std()))


def test_a_fresh_process_answers_and_a_failure_is_a_line(capsys):
    found = whole_fits.in_fresh_process("README's example, 4 × 40 rows", "scikit-learn")
    assert found["NLL"] < 0.0
    assert whole_fits.ratio(found, found) == 1.0
    assert whole_fits.in_fresh_process("README's example, 4 × 40 rows", "nobody") is None
    assert "nobody: KeyError" in capsys.readouterr().out


def test_federations_have_the_sizes_that_they_say():
    def sizes(data):
        return [len(X) for X, _ in data.train.values()]

    assert sizes(readme(0)) == [40] * 4
    assert sizes(readme(1)) == [37] * 4
    assert sizes(ragged(0)) == [15, 25, 40, 40, 50, 60]
    assert sizes(ragged(1)) != sizes(ragged(0))
    assert [Y.shape for _, Y in weather(0, stations=2).train.values()] == [(292, 2)] * 2
    assert [Y.shape for _, Y in study_cell(0).train.values()] == [(50, 4)] * 6
    for case in CASES.values():
        assert set(case.goals) <= {
            "import to prediction", "first fit", "next fit", "first predict", "adopt", "save", "GiB",
        }  # fmt: skip
        assert set(case.peers) <= set(peers.FITS)


@pytest.mark.parametrize("clients", [1, 3])
def test_the_host_and_the_compiled_program_are_timed_on_one_gradient(clients):
    sizes = Sizes(rows=6, outputs=2, shared=4, local=5, latents=1, clients=clients)
    with numerics():
        problem = make_problem(sizes)
        expected = ours.as_numpy(ours.compiled(problem, batched=clients > 1)()[1])
        found = ours.host_gradient(problem, batched=clients > 1)
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-7, atol=1e-8)


def test_a_search_on_the_host_raises_the_bounds():
    problem = make_problem(Sizes(rows=6, outputs=2, shared=4, local=5, latents=1, clients=3))
    with numerics():
        start = ours.search_on_host(problem, evaluations=1)()
        found = ours.search_on_host(problem, evaluations=40)()
    assert np.all(found > start)
