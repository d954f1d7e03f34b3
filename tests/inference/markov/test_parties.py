"""Whole fits of the Markov solver: series of stations that mix shared functions, each in its own way."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.errors import InputError
from pfedhgp.estimator import FederatedGP
from pfedhgp.inference.markov.settings import Markov

STEPS = 80
SETTINGS = {
    "kernel": "matern12",
    "local": "state-space",
    "local_kernel": "matern12",
    "layers": ("global", "local"),
    "latents": 2,
    "client_loadings": True,
    "inducing": STEPS,
    "domain": ((0.0, float(STEPS - 1)),),
}


def stations(noise=lambda level: 0.2 + 0.0 * level):
    """Six stations; two shared functions of the study's kind, the second with either sign."""
    rng = np.random.default_rng(0)
    t = np.arange(STEPS, dtype=float)
    rho = np.exp(-1 / 4.0)
    u = np.zeros((STEPS, 2))
    u[0] = rng.standard_normal(2)
    for j in range(1, STEPS):
        u[j] = rho * u[j - 1] + np.sqrt(1 - rho**2) * rng.standard_normal(2)
    loadings = np.array([[1.0, s * 0.7] for s in (1, -1, 1, -1, 1, -1)])
    rows, held = {}, {}
    for i, c in enumerate(loadings):
        f = u @ c
        y = f + noise(f) * rng.standard_normal(STEPS)
        out = rng.random(STEPS) < 0.15
        rows[f"s{i}"] = (t[~out, None], y[~out])
        held[f"s{i}"] = (t[out, None], y[out])
    return rows, held, loadings


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
