"""Sums of clients' own evidences tell the forms of kernels apart."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from pfedhgp.gp.kernels import KERNELS
from pfedhgp.inference.starts import forms
from pfedhgp.inference.starts.forms import FORMS, Background, by_form


def client(seed: int, long: str, short: str, n: int = 60):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 1))
    K = KERNELS[long](0.2)(X, X) + KERNELS[short](0.04)(X, X) + 0.001 * np.eye(n)
    return X, rng.multivariate_normal(np.zeros(n), K, size=2).T


def test_smooth_and_rough_detail_are_told_apart():
    smooth, rough = (
        dict(zip(FORMS, sum(by_form(*client(s, "rbf", form)) for s in range(6))[0], strict=True))
        for form in ("rbf", "matern32")
    )
    assert smooth["rbf"] - max(smooth["matern52"], smooth["matern32"]) > 30.0
    assert min(rough["matern52"], rough["matern32"]) - rough["rbf"] > 15.0


def test_an_evidence_is_that_of_a_dense_gaussian_at_its_best_scale():
    X, Y = client(1, "rbf", "matern32", n=12)
    gaps = forms.distances(X)
    at = Background(long=0.3, short=0.05, share=0.25, noise=0.01)
    (found,) = forms.log_evidences([at], gaps, Y, ("matern52", "matern32"))
    K = 0.75 * KERNELS["matern52"](0.3)(X, X) + 0.25 * KERNELS["matern32"](0.05)(X, X)
    K = K + 0.01 * np.eye(12)
    for y, own in zip(Y.T, found, strict=True):
        tried = [multivariate_normal.logpdf(y, cov=s * K) for s in np.geomspace(1e-2, 1e2, 4001)]
        assert own - 6.0 * (1.0 + np.log(2 * np.pi)) == pytest.approx(max(tried), abs=1e-4)


def test_few_rows_and_constant_outputs_say_nothing():
    X, Y = client(2, "rbf", "rbf")
    assert not by_form(X[:5], Y[:5]).any()
    assert not by_form(X, np.full_like(Y, np.nan)).any()
    assert not by_form(X, np.ones_like(Y)).any()
    with_constant = np.column_stack([Y, np.ones(len(Y))])
    np.testing.assert_allclose(by_form(X, with_constant), by_form(X, Y), rtol=1e-9)


def test_many_rows_are_thinned_to_neighbours_and_others():
    X = np.random.default_rng(0).uniform(size=(5000, 2))
    few = forms.few_rows(X)
    assert len(few) <= forms.MOST_ROWS
    x = np.sort(X[few, 0])
    assert x[0] < 0.01
    assert x[-1] > 0.99
    assert np.median(np.diff(x)) < 0.01
