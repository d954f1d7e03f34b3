"""Fitted parameters in the data's units: against blocks and scaling, closed forms, and other units."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from pfedhgp import RBF, FederatedGP, Markov, Periodic
from pfedhgp.gp.noise import DiagonalNoise, FullNoise
from pfedhgp.model import parameters
from pfedhgp.model.estimates import Estimate
from pfedhgp.model.posterior import Tangents
from support.markov_stations import SETTINGS, stations
from support.reported import case_of

NOISE = 0.2


def sites(x_unit=1.0, y_unit=1.0, count=4, rows=60):
    rng = np.random.default_rng(3)
    x = np.sort(rng.uniform(0, 6, rows))
    found = {}
    for i in range(count):
        own = 0.5 * np.sin(0.7 * x + i)
        found[f"site {i}"] = np.sin(x) + own + NOISE * rng.normal(size=rows)
    return {name: (x * x_unit, y * y_unit) for name, y in found.items()}


@pytest.fixture(scope="module")
def odd():
    """x in thousands, y in millions."""
    return FederatedGP(rounds=8).fit(sites(1e3, 1e6))


def test_the_units_are_those_of_blocks_and_scaling(odd):
    data = sites(1e3, 1e6)
    model = odd.model_
    extent = (model.scaling.upper - model.scaling.lower)[0]
    assert extent == pytest.approx(np.ptp(data["site 0"][0]), rel=0.05)
    in_box = float(np.ravel(model.shared.block.kernels.lengthscale)[0])
    assert odd.kernel_.lengthscale == pytest.approx(in_box * extent, rel=1e-12)
    own = model.clients["site 2"].block
    local = float(np.ravel(own.kernels.lengthscale)[0])
    assert odd.kernel_["site 2"].lengthscale == pytest.approx(local * extent, rel=1e-12)
    spread = float(np.ravel(model.scaling.spread)[0])
    variance = np.exp(float(np.ravel(own.noise.log_variance)[0])) + own.noise.floor
    assert odd.noise_["site 2"] == pytest.approx(np.sqrt(variance) * spread, rel=1e-12)
    tau = float(np.ravel(model.shared.block.loadings)[0])
    assert np.asarray(odd.loadings_)[0, 0] == pytest.approx(tau * spread, rel=1e-12)
    assert float(odd.phi_) == float(model.shared.block.phi)


def test_noise_is_found_again_and_predictions_have_it(odd):
    for name in odd.clients_:
        assert odd.noise_[name] == pytest.approx(NOISE * 1e6, rel=0.3)
        p = odd.predict(name, [[2500.0]])
        function = p.covariance("outputs", noise=False)[0, 0, 0]
        assert odd.noise_[name] ** 2 == pytest.approx(p.sd[0] ** 2 - function, rel=1e-6)
    np.testing.assert_allclose(odd.noise_.sd[:, 0], [float(v) for v in odd.noise_.values()])


def test_other_units_give_other_numbers_by_the_same_factor():
    one = FederatedGP(rounds=4).fit(sites())
    other = FederatedGP(rounds=4).fit(sites(10.0, 3.0))
    factors = {
        10.0: lambda m: [m.kernel_.lengthscale, m.kernel_["site 1"].lengthscale],
        3.0: lambda m: [m.noise_["site 1"], m.loadings_["site 1"].local["y", 0]],
        1.0: lambda m: [m.phi_["site 1"], Estimate(float(m.phi_))],
    }
    for factor, values in factors.items():
        for a, b in zip(values(one), values(other), strict=True):
            assert b == pytest.approx(factor * a, rel=1e-4)
            assert (a.interval is None) == (b.interval is None)
            if a.interval is not None:
                np.testing.assert_allclose(b.interval, np.multiply(factor, a.interval), rtol=1e-3)


def test_an_interval_of_noise_is_as_wide_as_its_rows_say():
    """σ² of n rows is known to a relative √(2/n), if the function takes few of them."""
    rows = 150
    found = FederatedGP(rounds=4).fit(sites(rows=rows, count=3)).noise_
    for each in found.values():
        low, high = each.interval
        assert low < each < high
        wide = np.log(high / low) / (2 * 1.96 * 0.5)
        assert wide == pytest.approx(np.sqrt(2 / rows), rel=0.25)


def test_an_interval_of_a_local_lengthscale_is_that_of_its_logarithm():
    """Two directions that move log ℓ by 0.3 and by 0.4: its standard deviation is 0.5."""
    model = case_of().model
    own = model.clients["client 0"]
    length = float(np.ravel(own.block.kernels.lengthscale)[0])
    up = np.array([length * np.exp(0.3), length * np.exp(-0.4)])
    down = np.array([length * np.exp(-0.3), length * np.exp(0.4)])
    tangents = Tangents(
        kernels=(0.5 * (up - down))[:, None],
        deviation=np.zeros((2, 1, 1)),
        loadings=np.array([[[0.03]], [[0.04]]]),
        weights=np.zeros((2, 0)),
        reach=np.ones(2),
        noise=np.array([[0.6], [0.8]]),
    )
    own = replace(own, tangents=replace(tangents, middle=tangents))
    model = replace(model, clients={**model.clients, "client 0": own})
    found = parameters.kernels(model)["client 0"].lengthscale
    np.testing.assert_allclose(
        found.interval, 4.0 * length * np.exp([-0.5 * 1.959964, 0.5 * 1.959964]), rtol=1e-6
    )
    noise = parameters.noises(model)["client 0"]  # log σ² has sd 1 and mean log E[σ²] − ½
    mean = np.log(noise**2) - 0.5
    ends = mean + 1.959964 * np.array([-1, 1])
    np.testing.assert_allclose(2 * np.log(noise.interval), ends, rtol=1e-6)
    local = parameters.loadings(model)["client 0"].local["y0", 0]
    middle = np.sqrt(local**2 - (5.0 * 0.05) ** 2)  # a spread of 5, and B² = mean² + sd²
    ends = sorted(np.sign(local) * middle + 1.959964 * 5.0 * 0.05 * np.array([-1, 1]))
    np.testing.assert_allclose(local.interval, ends, rtol=1e-6)

    dropped = replace(own.tangents, reach=np.array([1.0, 0.0]))
    model = replace(
        model, clients={**model.clients, "client 0": replace(own, tangents=dropped)}
    )  # a direction without a length
    assert parameters.kernels(model)["client 0"].lengthscale.interval is None
    assert parameters.noises(model)["client 0"].interval is None


@pytest.mark.parametrize("kind", ["output", "full"])
def test_several_outputs_and_inputs_go_by_their_names(kind):
    model = case_of(outputs=2, latents=2, local_latents=2, tied=False, noise=kind, d=2).model
    noise = parameters.noises(model)
    covariance = np.asarray(model.clients["client 1"].block.noise.covariance(2)) * 25.0
    np.testing.assert_allclose(noise.covariance("client 1"), covariance)
    assert isinstance(
        model.clients["client 1"].block.noise, FullNoise if kind == "full" else DiagonalNoise
    )
    assert noise["client 1", "y1"] == pytest.approx(np.sqrt(covariance[1, 1]))
    assert list(noise["client 1"]) == ["y0", "y1"]
    kernel = parameters.kernels(model)
    scales = np.asarray(model.shared.block.kernels.lengthscale) * 4.0
    assert kernel.latents[1].lengthscale["x1"] == pytest.approx(scales[1, 1])
    with pytest.raises(AttributeError, match="2 latents: say which"):
        _ = kernel.lengthscale
    loadings = parameters.loadings(model)
    np.testing.assert_allclose(loadings, np.asarray(model.shared.block.loadings) * 5.0)
    own = model.clients["client 1"].block
    np.testing.assert_allclose(loadings["client 1"].deviation, np.asarray(own.deviation) * 5.0)
    share = np.sum(np.asarray(own.deviation) ** 2, 1) / np.sum(
        np.asarray(model.shared.block.loadings) ** 2, 1
    )
    np.testing.assert_allclose(list(parameters.phis(model)["client 1"].values()), share)


def test_a_datetime_has_lengths_in_words_and_as_timedelta():
    case = case_of()
    scaling = replace(case.model.scaling, lower=np.array([0.0]), upper=np.array([10 * 86_400.0]))
    name = case.model.input_names[0]
    settings = {"columns": {"inputs": [{"name": name, "kind": "datetime"}], "outputs": ["y0"]}}
    model = replace(case.model, scaling=scaling, settings=settings)
    days = 10 * float(np.ravel(model.shared.block.kernels.lengthscale)[0])
    found = parameters.kernels(model).lengthscale
    assert found.timedelta.total_seconds() == pytest.approx(days * 86_400, rel=1e-9)
    assert repr(found) == f"{days:.3g} days"
    assert repr(parameters.kernels(model)["client 0"]).startswith("Matérn 3/2 (lengthscale ")


def test_sums_have_parts_and_the_kernel_can_start_another_fit():
    data = sites()
    model = FederatedGP(rounds=2, kernel=RBF() + Periodic(1.0, period=2.0)).fit(data)
    kernel = model.kernel_
    trend, wave = kernel.parts
    assert sum(kernel.weights) == pytest.approx(1.0)
    extent = (model.model_.scaling.upper - model.model_.scaling.lower)[0]
    fitted = model.model_.shared.block.kernels
    assert trend.lengthscale == pytest.approx(
        float(np.ravel(fitted.kernels[0].lengthscale)[0]) * extent
    )
    assert wave.period == pytest.approx(float(np.ravel(fitted.kernels[1].period)[0]) * extent)
    assert wave.lengthscale == pytest.approx(float(np.ravel(fitted.kernels[1].lengthscale)[0]))
    with pytest.raises(AttributeError, match="look into its `parts`"):
        _ = kernel.lengthscale
    again = FederatedGP(kernel=kernel.kernel, rounds=1).fit(data)
    assert again.history_[0]["bound"] is not None
    assert "relative lengthscale" in repr(kernel)


def test_a_deviation_kernel_of_its_own_is_told_apart():
    model = FederatedGP(rounds=2, deviation_kernel="matern32").fit(sites())
    assert model.kernel_.shared[0].name == "RBF"
    assert model.kernel_.deviation[0].name == "Matérn 3/2"
    assert model.loadings_.shared.shape == (1, 1)
    own = model.loadings_["site 0"].deviation
    assert own.shape == (1, 1)
    half = np.asarray(model.model_.clients["site 0"].block.deviation)[:, 1:]
    np.testing.assert_allclose(own, half * float(np.ravel(model.model_.scaling.spread)[0]))


def test_adopted_clients_and_saved_models_have_them(odd, tmp_path):
    model = copy.copy(odd)
    model.adopt("new", *sites(1e3, 1e6, count=1)["site 0"])
    assert model.noise_["new"] == pytest.approx(NOISE * 1e6, rel=0.3)
    model.save(tmp_path / "run")
    again = FederatedGP.load(tmp_path / "run")
    assert repr(again.noise_) == repr(model.noise_)
    assert repr(again.kernel_["new"]) == repr(model.kernel_["new"])
    assert repr(again.loadings_["site 1"]) == repr(model.loadings_["site 1"])
    assert repr(again.phi_) == repr(model.phi_)


def test_markov_stations_have_loadings_with_intervals():
    rows, _, truth = stations()
    model = FederatedGP(inference=Markov(rounds=4), **SETTINGS).fit(rows)
    spread = np.ravel(model.model_.scaling.spread)
    for i, name in enumerate(model.clients_):
        own = model.loadings_[name].shared
        block = model.model_.clients[name].block
        np.testing.assert_allclose(own, np.asarray(block.global_loadings) * spread[0])
        assert np.all(own.lower < own.values)
        assert np.all(own.values < own.upper)
        assert np.abs(own.values).max() == pytest.approx(np.abs(truth[i]).max(), rel=0.6)
    assert model.noise_["s1"] == pytest.approx(0.2, rel=0.3)
    assert model.kernel_["s1"].lengthscale > 0
    assert repr(model.phi_).startswith("no deviations")


def test_with_a_cycle_layer_noise_is_what_varies_within_a_cycle():
    model = case_of().model
    layer = SimpleNamespace(noise=np.array([[0.04]]))
    model = replace(model, client_layers={"client 0": layer})
    assert parameters.noises(model)["client 0"] == pytest.approx(5.0 * 0.2)
    assert parameters.noises(model)["client 1"] != pytest.approx(5.0 * 0.2)


def test_a_repr_stays_short_and_a_wrong_name_says_so():
    model = case_of(sizes=(4,) * 14).model
    for text in (repr(parameters.noises(model)), repr(parameters.phis(model))):
        assert len(text.splitlines()) <= 12
        assert "and 4 more clients" in text
    with pytest.raises(KeyError, match="no client 'Dongsi'"):
        _ = parameters.noises(model)["Dongsi"]
    assert "Dongsi" not in parameters.noises(model)
    with pytest.raises(KeyError, match="no output 'z'"):
        _ = parameters.loadings(model).shared["z"]


def test_an_estimate_is_a_number_that_cannot_be_changed():
    found = Estimate(2.0, 1.0, 4.0)
    assert (found * 2, f"{found:.1f}", found.interval) == (4.0, "2.0", (1.0, 4.0))
    assert repr(copy.deepcopy(found)) == repr(found) == "2.00 (1.00 to 4.00)"
    with pytest.raises(AttributeError):
        found.lower = 0.0
    assert jax.tree.leaves(found) == [2.0]
