"""What a host program finds after our calls: its settings, its device, its parameters."""

from __future__ import annotations

import inspect
from dataclasses import replace

import jax
import numpy as np
import pytest
from sklearn.base import clone
from threadpoolctl import threadpool_info

from pfedhgp import RBF, FederatedGP, Matern32
from pfedhgp.base.numerics import has_device, on_device
from pfedhgp.errors import InputError, PFedHGPWarning
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model import at_inputs

T = np.linspace(0.0, 1.0, 8)
SITES = {"a": (T, np.sin(6 * T)), "b": (T, np.cos(6 * T))}
SMALL = {"rounds": 1, "inducing": 4, "local_inducing": 3, "averaging": False}
NO_GPU = not has_device("gpu")


def blas_threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


class Oops(Exception):
    pass


@pytest.mark.parametrize("x64", [False, True])
def test_an_exception_in_a_callback_leaves_the_hosts_settings_as_they_were(x64):
    """In float32 and in float64 hosts, the error is the callback's own, and nothing of ours stays behind."""
    seen = []

    def fail(record):
        seen.append((jax.numpy.ones(()).dtype, set(blas_threads())))
        raise Oops

    device = jax.devices("cpu")[0]
    with jax.enable_x64(x64), jax.default_device(device):
        before = (jax.config.jax_enable_x64, jax.config.jax_default_device, blas_threads())
        model = FederatedGP(**SMALL, callbacks=[fail])
        with pytest.raises(Oops):
            model.fit(SITES)
        after = (jax.config.jax_enable_x64, jax.config.jax_default_device, blas_threads())
        assert jax.numpy.ones(()).dtype == (np.float64 if x64 else np.float32)
    assert after == before
    assert seen == [(np.float64, {1})]
    assert not hasattr(model, "model_")


OTHER = {
    "kernel": Matern32(2.0),
    "local_kernel": RBF(),
    "deviation_kernel": Matern32(0.5),
    "layers": ["global", "local"],
    "latents": 3,
    "local_latents": 2,
    "client_loadings": True,
    "noise": "full",
    "local": "state-space",
    "inducing": 7,
    "local_inducing": 5,
    "learn_inducing": True,
    "largest_inducing": 60,
    "largest_local_inducing": 80,
    "domain": [(0.0, 1.0)],
    "inference": Structured(rounds=3),
    "rounds": 4,
    "averaging": False,
    "tolerance": 0.5,
    "cycles": "free",
    "cycle_sharing": "mixed",
    "cycle_basis": 9,
    "restarts": 2,
    "batch": False,
    "device": "gpu",
    "seed": 5,
    "callbacks": [print],
    "masks": True,
    "robust": "test",
    "privacy": "local",
    "epsilon": 1.0,
    "delta": 1e-5,
    "output_bounds": [(0.0, 1.0)],
    "ledger": "ledger",
    "tolerated": 1,
    "privacy_unit": "client",
    "rows_per_client": 50,
}


def test_params_are_the_constructors_and_the_table_here_has_all_of_them():
    signature = inspect.signature(FederatedGP).parameters
    assert FederatedGP().get_params() == {name: p.default for name, p in signature.items()}
    assert set(OTHER) == set(signature)


@pytest.mark.parametrize("name", OTHER)
def test_get_set_and_clone_keep_every_parameter(name):
    """One at a time, so that none is lost or swapped with another."""
    usual = FederatedGP().get_params()
    assert usual[name] != OTHER[name]
    model = FederatedGP(**{name: OTHER[name]})
    expected = {**usual, name: OTHER[name]}
    assert model.get_params() == expected
    assert model.get_params()[name] is OTHER[name]
    assert FederatedGP().set_params(**{name: OTHER[name]}).get_params() == expected
    twin = clone(model).get_params()
    assert set(twin) == set(expected)
    others = {key: value for key, value in twin.items() if key != name}
    assert others == {key: value for key, value in usual.items() if key != name}
    assert repr(twin[name]) == repr(OTHER[name])
    assert f"{name}=" in repr(model)


def test_an_unknown_parameter_changes_nothing():
    model = FederatedGP()
    with pytest.raises(InputError, match="no parameter `depth`"):
        model.set_params(rounds=7, depth=2)
    assert model.rounds is None


# Devices ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> FederatedGP:
    return FederatedGP(**SMALL).fit(SITES)


def test_predictions_are_computed_on_the_device_of_the_fit(model, monkeypatch):
    """Covariances and samples too, which are computed when they are asked for."""
    entered = []
    plain = at_inputs.on_device

    def watched(name):
        entered.append(name)
        return plain(name)

    monkeypatch.setattr(at_inputs, "on_device", watched)
    p = model.predict("a", T)
    assert entered
    assert set(entered) == {"cpu"}
    for call in (lambda: p.covariance("joint"), lambda: p.sample(2, seed=0)):
        entered.clear()
        call()
        assert entered
        assert set(entered) == {"cpu"}


def test_on_device_is_jaxs_default_inside_and_not_after():
    before = jax.config.jax_default_device
    with on_device("cpu"):
        assert jax.numpy.ones(()).devices() == {jax.devices("cpu")[0]}
        assert jax.config.jax_default_device == jax.devices("cpu")[0]
    assert jax.config.jax_default_device == before


@pytest.mark.skipif(not NO_GPU, reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_one_clear_line(model, tmp_path):
    lacking = clone(model).set_params(device="gpu")
    for call in (
        lambda: lacking.fit(SITES),
        lambda: copy_of(model, device="gpu").predict("a", T),
        lambda: copy_of(model, device="gpu").adopt("c", T, T),
    ):
        with pytest.raises(InputError, match="`device`: no gpu was found by JAX") as caught:
            call()
        assert "\n" not in str(caught.value)
    settings = {**model.model_.settings, "device": "gpu"}
    fitted_there = copy_of(model, device="gpu")
    fitted_there.model_ = replace(model.model_, settings=settings)
    fitted_there.save(tmp_path / "run")
    with pytest.warns(PFedHGPWarning, match="fitted on a gpu"):
        here = FederatedGP.load(tmp_path / "run")
    assert here.device == "cpu"
    np.testing.assert_array_equal(here.predict("a", T).mean, model.predict("a", T).mean)


def copy_of(model: FederatedGP, **params) -> FederatedGP:
    other = clone(model).set_params(**params)
    other.model_ = model.model_
    return other


@pytest.mark.skipif(NO_GPU, reason="this machine has no GPU")
def test_a_gpu_predicts_what_the_cpu_predicts(model):
    there = copy_of(model, device="gpu").predict("a", T)
    here = model.predict("a", T)
    np.testing.assert_allclose(there.mean, here.mean, rtol=0, atol=1e-9)
    np.testing.assert_allclose(
        there.covariance("joint"), here.covariance("joint"), rtol=0, atol=1e-9
    )
