"""Cycle layers in predictions and in model files, without a fit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import safetensors.numpy

from pfedhgp.errors import InputError
from pfedhgp.model.cycle_layer import CycleBasis, CycleLayer, check_layer
from pfedhgp.model.files import load, save
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.prediction import predict
from pfedhgp.model.run_folder import client_file
from support import cycles as cy
from support.broken_runs import edit_arrays, refused, reseal
from support.posteriors import make

X = np.linspace(0.0, 1.0, 6)[:, None]


def layered(*, own: bool = True) -> FittedModel:
    """A model of two outputs whose first client has a cycle layer of its own."""
    model = make().model
    rng = np.random.default_rng(3)
    shared, other = cy.random_layer(rng), cy.random_layer(rng)
    name = next(iter(model.clients))
    return dataclasses.replace(
        model, cycle_layer=shared, client_layers={name: other} if own else {}
    )


def test_features_and_covariance_are_the_dense_ones():
    layer = cy.random_layer(np.random.default_rng(0), full=True)
    np.testing.assert_allclose(
        layer.basis.features(X).T, cy.dense_features(layer.basis, X), atol=1e-9
    )
    half = layer.half(X).reshape(12, -1)
    dense = cy.dense_covariance(layer, X)
    np.testing.assert_allclose(half @ half.T + np.kron(np.eye(6), layer.noise), dense, atol=1e-9)


def test_noise_of_a_prediction_is_that_of_a_new_cycle():
    """In sd, in both covariances and in samples; layers, and noise=False, are without it."""
    model = layered()
    spread = np.broadcast_to(model.scaling.spread, (2,))
    scale = np.tile(spread, 6)
    for client in (*model.clients, "nobody"):
        layer = model.layer_of(client)
        assert layer is not None
        Sigma = cy.dense_covariance(layer, model.scaling.inputs(X)) * np.outer(scale, scale)
        p = predict(model, client, X, chunk=4)
        without = p.covariance("joint", noise=False)
        np.testing.assert_allclose(p.covariance("joint"), without + Sigma, atol=1e-9)
        np.testing.assert_allclose(p.sd.ravel() ** 2, np.diag(without + Sigma), atol=1e-9)
        blocks = p.covariance("joint").reshape(6, 2, 6, 2)
        each = np.stack([blocks[i, :, i] for i in range(6)])
        np.testing.assert_allclose(p.covariance("outputs"), each, atol=1e-9)
        draws = p.sample(20_000, seed=0).reshape(20_000, -1)
        error = np.cov(draws.T) - without - Sigma
        assert np.abs(error).max() < 0.05 * np.diag(without + Sigma).max()
    bare = dataclasses.replace(model, cycle_layer=None, client_layers={})
    name = next(iter(model.clients))
    one, two = predict(model, name, X), predict(bare, name, X)
    np.testing.assert_array_equal(one.mean, two.mean)
    np.testing.assert_array_equal(one.layers["local"].sd, two.layers["local"].sd)


@pytest.mark.parametrize("own", [False, True])
def test_round_trip(tmp_path, own):
    model = layered(own=own)
    save(model, tmp_path / "run")
    back = load(tmp_path / "run")
    assert set(back.client_layers) == set(model.client_layers)
    for client in (*model.clients, "nobody"):
        one, two = model.layer_of(client), back.layer_of(client)
        assert one.form == two.form
        for name in ("factor", "noise"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
        for name in ("inputs", "lengthscale"):
            np.testing.assert_array_equal(getattr(one.basis, name), getattr(two.basis, name))
        p, q = predict(model, client, X), predict(back, client, X)
        np.testing.assert_array_equal(p.covariance("joint"), q.covariance("joint"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cycles.factor": lambda a: a * np.nan}, "cycles.factor is not finite"),
        ({"cycles.factor": lambda a: a[:-1]}, "cycles.factor has shape"),
        ({"cycles.noise": lambda a: -a}, "cycles.noise is not positive definite"),
        ({"cycles.noise": lambda a: a + np.eye(2, k=1)}, "cycles.noise is not symmetric"),
        ({"cycles.lengthscale": lambda a: 0 * a}, "cycles.lengthscale is not positive"),
        ({"cycles.inputs": None}, "cycles.inputs"),
    ],
)
def test_broken_layers_in_files_are_refused(tmp_path, changes, words):
    run = tmp_path / "run"
    save(layered(), run)
    edit_arrays(run / "global.safetensors", **changes)
    reseal(run)
    refused(run, "global.safetensors", words)


def test_a_clients_broken_layer_is_refused(tmp_path):
    run, model = tmp_path / "run", layered()
    save(model, run)
    file = client_file(next(iter(model.clients)))
    edit_arrays(run / file, **{"cycles.noise": lambda a: -a})
    reseal(run)
    refused(run, file, "cycles.noise is not positive definite")


def test_files_without_a_layer_have_no_such_arrays(tmp_path):
    save(make().model, tmp_path / "run")
    names = safetensors.numpy.load_file(tmp_path / "run" / "global.safetensors")
    assert not [name for name in names if name.startswith("cycles")]
    assert load(tmp_path / "run").cycle_layer is None


def test_a_broken_layer_is_not_saved(tmp_path):
    model = layered()
    broken = dataclasses.replace(model.cycle_layer, noise=-np.eye(2))
    with pytest.raises(InputError, match=r"cannot be saved: cycles.noise is not positive definite"):
        save(dataclasses.replace(model, cycle_layer=broken), tmp_path / "run")


def test_a_form_and_its_factor_agree():
    layer = cy.random_layer(np.random.default_rng(0))
    for bad in (
        dataclasses.replace(layer, form="white"),
        dataclasses.replace(layer, factor=np.zeros((10, 0))),
        dataclasses.replace(layer, form="smooth"),
    ):
        with pytest.raises(ValueError, match="white"):
            check_layer(bad, 2, 1)
    check_layer(layer, 2, 1)


def test_a_basis_of_several_inputs_follows_its_spacing():
    basis = CycleBasis.on(np.random.default_rng(0).uniform(size=(27, 3)))
    np.testing.assert_allclose(basis.lengthscale, 2.0 / 2.0)
    assert basis.features(np.random.default_rng(1).uniform(size=(5, 3))).shape == (27, 5)
    white = CycleLayer(basis, np.zeros((27, 0)), np.eye(1), "white")
    assert white.half(np.zeros((4, 3))).shape == (4, 1, 0)
