"""Whole fits of the Markov solver: series of stations that mix shared functions, each in its own way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import reference
from pfedhgp.errors import InputError
from pfedhgp.estimator import FederatedGP
from pfedhgp.inference.markov.settings import Markov
from pfedhgp.model.prediction import predict
from support.markov_stations import SETTINGS, STEPS, stations


@pytest.fixture(scope="module")
def fitted():
    rows, held, loadings = stations()
    return rows, held, loadings, FederatedGP(inference=Markov(rounds=8), **SETTINGS).fit(rows)


def error(model, held) -> float:
    gaps = [model.predict(n, t).mean.ravel() - y for n, (t, y) in held.items()]
    return float(np.sqrt(np.mean(np.concatenate(gaps) ** 2)))


def test_missing_values_are_found_from_the_other_stations(fitted):
    """The noise's sd is .2: an error near it is as good as can be; a station alone knows half as much."""
    _rows, held, _, model = fitted
    assert error(model, held) < 0.45
    inside = [
        np.mean((y > low.ravel()) & (y < high.ravel()))
        for (t, y), (low, high) in (
            (held[n], model.predict(n, held[n][0]).interval(0.95)) for n in held
        )
    ]
    assert 0.85 < np.mean(inside) <= 1.0
    others_mean = np.concatenate([y for _, y in held.values()]).std()
    assert error(model, held) < 0.5 * others_mean


def test_predictions_average_over_loadings_as_draws_do(fitted):
    """Mean and variance of cᵀg(x) + l(x) over draws of c and g, l given both, from dense matrices."""
    rows, *_, model = fitted
    rng = np.random.default_rng(4)
    wide = 0.15 * np.eye(2)[:, None, :]
    posterior = replace(model.model_.clients["s0"], loadings_half=wide)
    fit = replace(model.model_, clients={"s0": posterior})
    x = np.array([3.0, 20.5, 41.0, 66.0])
    found = predict(fit, "s0", x[:, None])

    shared, block = fit.shared, posterior.block
    X, y = (fit.scaling.inputs(rows["s0"][0]), (rows["s0"][1] - fit.scaling.centre))
    y, at = y / fit.scaling.spread, fit.scaling.inputs(x[:, None])
    both = np.concatenate([X, at])
    basis = shared.block.basis(fit.jitter)
    A = np.asarray(basis.features(both))
    R, M = A.shape[:2]
    count = 20_000
    half = np.linalg.cholesky(np.asarray(shared.covariance) + 1e-12 * np.eye(R * M))
    v = np.asarray(shared.mean)[:, None] + half @ rng.standard_normal((R * M, count))
    g = np.einsum("rmn,rmk->nrk", A, v.reshape(R, M, count), optimize=True)
    left = np.asarray(basis.residual(np.asarray(basis.features(both))))
    g += np.sqrt(np.maximum(left.T, 0.0))[:, :, None] * rng.standard_normal(g.shape)
    c = np.asarray(block.global_loadings)[0][:, None] + 0.15 * rng.standard_normal((R, count))
    f = np.einsum("nrk,rk->nk", g, c)
    length, b2 = float(np.ravel(block.kernels.lengthscale)[0]), float(block.loadings[0, 0] ** 2)
    K = b2 * reference.matern12(both, both, lengthscale=length)
    n = len(X)
    N = K[:n, :n] + float(block.noise.covariance(1)[0, 0]) * np.eye(n)
    gain = np.linalg.solve(N, K[:n, n:]).T
    l = gain @ (y[:, None] - f[:n])
    within = np.diagonal(K[n:, n:] - gain @ K[:n, n:])
    total = f[n:] + l
    centre, spread = (float(np.ravel(v)[0]) for v in (fit.scaling.centre, fit.scaling.spread))
    mean = total.mean(1) * spread + centre
    variance = (total.var(1) + within) * spread**2
    np.testing.assert_allclose(found.mean.ravel(), mean, atol=0.02)
    function = np.diagonal(found.covariance("joint", noise=False))
    np.testing.assert_allclose(function, variance, rtol=0.06)
    drawn = found.sample(4000, seed=1, noise=False).var(0).ravel()
    np.testing.assert_allclose(drawn, function, rtol=0.1)


def test_the_average_over_loadings_can_be_left_out(fitted):
    rows, _, _, model = fitted
    plain = FederatedGP(inference=Markov(rounds=8), averaging=False, **SETTINGS).fit(rows)
    assert all(own.loadings_half is None for own in plain.model_.clients.values())
    t = np.arange(STEPS, dtype=float)[:, None]
    assert plain.predict("s0", t).sd.mean() < model.predict("s0", t).sd.mean()


def test_loadings_tell_the_two_kinds_of_stations_apart(fitted):
    *_, model = fitted
    C = np.array([np.asarray(c.block.global_loadings)[0] for c in model.model_.clients.values()])
    split = np.sign(C[:, 1] - C[:, 1].mean())
    assert set(split[::2]) | set(split[1::2]) == {1.0, -1.0}
    assert len(set(split[::2])) == len(set(split[1::2])) == 1


def test_the_bound_rises_round_by_round(fitted):
    *_, model = fitted
    bounds = [h["bound"] for h in model.history_ if h["kind"] == "round"]
    assert min(np.diff(bounds)) > -0.5


def test_messages_have_a_few_numbers_for_each_knot(fitted):
    """J in R (R + 1)/2 and h in R numbers a knot: no matrix of all knots crosses."""
    *_, model = fitted
    sizes = [m["bytes"] / 8 for m in model.messages_ if m["kind"] == "round"]
    assert max(sizes) < STEPS * 6 + 60


def test_files_bring_the_model_back(fitted, tmp_path):
    _rows, held, _, model = fitted
    model.save(tmp_path / "m")
    again = FederatedGP.load(tmp_path / "m")
    for name in ("s0", "s3"):
        a, b = (m.predict(name, held[name][0]) for m in (model, again))
        np.testing.assert_allclose(a.mean, b.mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(a.sd, b.sd, rtol=1e-9)


def test_one_client_at_a_time_gives_the_same(fitted):
    rows, held, _, model = fitted
    alone = FederatedGP(inference=Markov(rounds=8), batch=False, **SETTINGS).fit(rows)
    for name in ("s0", "s5"):
        a, b = (m.predict(name, held[name][0]) for m in (model, alone))
        np.testing.assert_allclose(a.mean, b.mean, atol=2e-3)


def test_noise_that_depends_on_the_level_is_found():
    """sd .1 at low levels and .6 at high ones: γ₁ > 0, and intervals are narrow where the level is low."""
    rows, _held, _ = stations(lambda f: 0.1 + 0.5 / (1.0 + np.exp(-2.0 * f)))
    model = FederatedGP(inference=Markov(rounds=10), noise="level", **SETTINGS).fit(rows)
    gamma = np.asarray(model.model_.shared.block.noise_levels)
    assert gamma[0] > 0.3
    t = np.arange(STEPS, dtype=float)[:, None]
    p = model.predict("s0", t)
    level, sd = p.mean.ravel(), p.sd.ravel()
    order = np.argsort(level)
    assert sd[order[-15:]].mean() > 1.5 * sd[order[:15]].mean()
    covariance = p.covariance("joint")
    np.testing.assert_allclose(np.sqrt(np.diagonal(covariance)), sd, rtol=1e-8)
    draws = p.sample(4000, seed=1)
    np.testing.assert_allclose(draws.std(axis=0).ravel(), sd, rtol=0.1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kernel": "rbf"}, "needs kernel='matern12'"),
        ({"local": "inducing"}, "local='state-space'"),
        ({"client_loadings": False}, "client_loadings=True"),
        ({"inducing": "auto"}, "the number of knots"),
    ],
)
def test_what_it_needs_is_said_in_one_line(change, said):
    rows, _, _ = stations()
    with pytest.raises(InputError, match=said):
        FederatedGP(inference="markov", **(SETTINGS | change)).fit(rows)


def test_noise_by_level_is_refused_elsewhere():
    rows, _, _ = stations()
    with pytest.raises(InputError, match="noise='level' needs inference='markov'"):
        FederatedGP(noise="level").fit(rows)
