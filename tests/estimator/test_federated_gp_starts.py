"""Fits from the data alone: whose the short scale is, what small clients know, and odd data."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.errors import BudgetWarning, PFedHGPWarning
from pfedhgp.gp import kernels

SMALL = {"inducing": 12, "local_inducing": 10, "rounds": 2, "averaging": False}


def waves(outputs: int = 1, *, offset: float = 0.0, seed: int = 0):
    """Three clients of 24 rows on [0, 10]: a common wave and a shift of their own."""
    rng = np.random.default_rng(seed)
    x = np.linspace(0.0, 10.0, 24)
    return {
        f"site {i}": (
            x.copy(),
            offset
            + np.stack([np.sin(x + q) + 0.5 * i for q in range(outputs)], axis=1)
            + 0.1 * rng.normal(size=(24, outputs)),
        )
        for i in range(3)
    }


@pytest.mark.slow
def test_a_fast_wave_that_all_share_is_found_in_the_global_layer():
    """Six periods over the domain under slow drifts of the clients' own."""
    rng = np.random.default_rng(3)
    data, x = {}, np.linspace(0.0, 1.0, 60)
    for i in range(3):
        t = np.sort(rng.uniform(size=60))
        drift = 4.0 * np.cos(3.0 * t + 2.0 * i)
        data[f"site {i}"] = (t, 20.0 * np.sin(12.0 * np.pi * t) + drift + rng.normal(size=60))
    model = FederatedGP(rounds=4, averaging=False, domain=[(0.0, 1.0)]).fit(data)
    layers = model.predict("site 0", x).layers
    wave = np.sin(12.0 * np.pi * x)
    shared, own = (layers[name].mean for name in ("global", "local"))
    assert np.corrcoef(shared, wave)[0, 1] > 0.95
    assert shared @ wave / (wave @ wave) > 10.0  # of 20; the deviation has most of the rest
    assert abs(own @ wave / (wave @ wave)) < 1.0  # the local layer has the drift
    assert model.exchanges_ == 1 + 1 + 4


@pytest.mark.filterwarnings("ignore::pfedhgp.errors.ExtrapolationWarning")
@pytest.mark.parametrize("inference", ["structured", "mean-field"])
def test_an_output_that_a_client_never_observed_has_the_populations_variance(inference):
    data = waves(2)
    data["site 0"][1][:, 1] = np.nan
    model = FederatedGP(inference=inference, **SMALL).fit(data)
    x = np.linspace(0.0, 10.0, 5)
    p, population = model.predict("site 0", x), model.model_.population
    scaling = model.model_.scaling
    spread = scaling.spread[1]
    for layer, power in (
        ("deviation", population.deviation_power),
        ("local", population.local_power),
    ):
        expected = np.sqrt(np.asarray(power)[1, 1]) * spread
        np.testing.assert_allclose(p.layers[layer].sd[:, 1], expected, rtol=1e-9)
        np.testing.assert_allclose(p.layers[layer].mean[:, 1], 0.0, atol=1e-12)
    assert np.all(p.sd[:, 1] > np.sqrt(np.asarray(population.noise)[1, 1]) * spread)
    assert np.all(p.sd[:, 1] > 1.2 * model.predict("site 1", x).sd[:, 1])
    joint = p.covariance("joint")
    np.testing.assert_allclose(np.diag(joint).reshape(5, 2), p.sd**2, rtol=1e-8)
    assert np.linalg.eigvalsh(joint).min() > 0.0
    np.testing.assert_allclose(np.diagonal(p.covariance(), axis1=1, axis2=2), p.sd**2, rtol=1e-8)
    draws = p.sample(4000, seed=1)
    np.testing.assert_allclose(draws.std(axis=0), p.sd, rtol=0.1)
    for i in (0, 1):  # the mean over the clients that observed the output, of E[f²] at their Z_i
        squares = []
        for name in ("site 0", "site 1", "site 2")[i:]:
            Z = np.asarray(model.model_.clients[name].block.inputs)
            local = model.predict(name, scaling.lower + Z * scaling.extent).layers["local"]
            squares.append(np.mean(local.mean[:, i] ** 2 + local.sd[:, i] ** 2))
        found = np.asarray(population.local_power)[i, i] * scaling.spread[i] ** 2
        assert found == pytest.approx(np.mean(squares), rel=1e-3)


def test_values_far_from_zero_are_scaled_by_their_own_spread():
    near, far = waves(), waves(offset=1e12)
    models = [FederatedGP(**SMALL).fit(data) for data in (near, far)]
    spreads = [model.model_.scaling.spread[0] for model in models]
    assert spreads[1] == pytest.approx(spreads[0], rel=1e-3)
    x = np.linspace(0.0, 10.0, 9)
    means = [model.predict("site 1", x).mean for model in models]
    np.testing.assert_allclose(means[1] - 1e12, means[0], atol=5e-3)


def test_a_stray_row_is_said_with_its_client_and_without_its_value():
    data = waves()
    data["site 1"][0][3] = 4321.0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        FederatedGP(**SMALL).fit(data)
    words = [str(w.message) for w in said if issubclass(w.category, PFedHGPWarning)]
    stretched = [text for text in words if "stretch the domain" in text]
    assert len(stretched) == 1
    assert stretched[0].startswith("client 'site 1' has 1 of 24 rows")
    assert "4321" not in stretched[0]


@pytest.mark.slow
def test_a_periodic_kernel_starts_at_the_datas_period():
    rng = np.random.default_rng(0)
    x = np.linspace(0.0, 10.0, 24)
    data = {
        f"site {i}": (x, np.sin(2 * np.pi * x / 2.7 + 0.4 * i) + 0.1 * rng.normal(size=24))
        for i in range(3)
    }
    model = FederatedGP(kernel="periodic", local_kernel="rbf", **SMALL).fit(data)
    assert model.model_.kernel.period[0] == pytest.approx(2.7, rel=0.08)
    given = kernels.Periodic(period=5.0)
    model = FederatedGP(kernel=given, local_kernel="rbf", **SMALL).fit(data)
    assert model.model_.kernel.period == 5.0


@pytest.mark.slow
def test_the_local_layer_follows_the_kernel_that_was_given():
    model = FederatedGP(kernel=kernels.Matern52(2.0), **SMALL).fit(waves())
    assert isinstance(model.model_.local_kernel, kernels.Matern52)
    assert model.model_.local_kernel.lengthscale is None


@pytest.mark.slow
def test_given_local_inducing_inputs_lie_among_the_clients_own_rows():
    data = waves()
    x, y = data["site 2"]
    data["site 2"] = (x[12:], y[12:])
    model = FederatedGP(**SMALL, domain=[(0.0, 10.0)]).fit(data)
    block = model.model_.clients["site 2"].block
    Z = np.asarray(block.inputs)[np.asarray(block.active) > 0]
    assert len(Z) == 10
    assert np.isin(Z.round(12), (x[12:] / 10.0).round(12)).all()


def test_a_local_cap_that_is_too_low_is_said():
    rng = np.random.default_rng(2)
    t = [np.sort(rng.uniform(size=80)) for _ in range(2)]
    data = {
        f"site {i}": (x, np.sin(60.0 * x) + np.cos(95.0 * x + i) + 0.05 * rng.normal(size=80))
        for i, x in enumerate(t)
    }
    with pytest.warns(BudgetWarning) as said:
        FederatedGP(largest_inducing=8, largest_local_inducing=8, rounds=2, averaging=False).fit(
            data
        )
    words = " ".join(str(w.message) for w in said)
    assert "raise `largest_local_inducing`" in words


def test_a_client_of_one_row_is_not_sure_of_its_noise():
    """Its noise is the others', and its own layers keep their prior: no sd near zero."""
    data = waves()
    x, y = data["site 2"]
    data["site 2"] = (x[4:5], y[4:5])
    model = FederatedGP(inducing=12, local_inducing=10, rounds=4).fit(data)
    noise = np.sqrt(np.asarray(model.model_.population.noise)[0, 0]) * model.model_.scaling.spread
    sd = model.predict("site 2", x).sd
    assert sd.min() > 0.5 * noise
    assert np.median(sd) > 2.0 * np.median(model.predict("site 0", x).sd)


@pytest.mark.slow
def test_few_even_rows_of_a_wave_are_fitted_as_a_wave():
    """Twelve rows at two clients; the exact evidence of both at hand-picked values is −3.2."""
    x = np.linspace(0.0, 10.0, 12)
    data = {
        f"site {i}": (x, np.sin(x) + 0.2 * i + 0.05 * np.random.default_rng(i + 1).normal(size=12))
        for i in range(2)
    }
    model = FederatedGP().fit(data)
    at = np.linspace(0.0, 10.0, 101)
    assert model.bound_ > -3.2
    assert np.sqrt(np.mean((model.predict("site 0", at).mean - np.sin(at)) ** 2)) < 0.06
