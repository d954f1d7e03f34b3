"""On a CPU predictions are NumPy's: the numbers of the compiled functions, and nothing is compiled."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from pfedhgp.base import batching
from pfedhgp.base.numerics import numerics
from pfedhgp.base.trees import ravel
from pfedhgp.model import at_inputs
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.posterior import ClientPosterior, Tangents, without_outputs
from pfedhgp.model.prediction import predict
from pfedhgp.model.predictor import (
    Predictor,
    latents,
    moments,
    own_covariance,
    prior_covariance,
    tilt,
)
from support.compiled import times_compiled
from support.posteriors import make

CASES = {
    "loaded": {},
    "tied": {"outputs": 1, "latents": 1, "local_latents": 1, "tied": True, "noise": "scalar"},
    "full noise, missing": {"outputs": 3, "noise": "full", "missing": 0.3},
    "two inputs, no deviation": {"d": 2, "deviation": False},
    "no local": {"local_latents": 0},
    "local only": {"latents": 0, "deviation": False},
}
UNSEEN = "somebody new"


def tangents_of(model: FittedModel, own: ClientPosterior, seed: int, size: float) -> Tangents:
    """Three directions in which everything moves a little."""
    rng = np.random.default_rng(seed)
    R, K = model.shared.mean.shape[0], own.offset.shape[0]
    Q, latents = model.shared.block.loadings.shape
    shapes = {
        "kernels": ravel(own.block.kernels)[0].shape,
        "deviation": (Q, latents if model.structure.deviation else 0),
        "loadings": own.block.loadings.shape,
        "weights": (R + K,),
    }
    moves = {name: size * rng.normal(size=(3, *shape)) for name, shape in shapes.items()}
    return Tangents(**moves)


def averaged(model: FittedModel, *, middle: bool = True, size: float = 0.02) -> FittedModel:
    """The model with parameters of client 0 averaged over."""
    own = model.clients["client 0"]
    found = tangents_of(model, own, 1, size)
    if middle:
        centre = tangents_of(model, own, 2, size**2)
        found = dataclasses.replace(found, reach=np.ones(3), middle=centre)
    own = dataclasses.replace(
        own,
        tangents=found,
        shared_mean=0.9 * np.asarray(model.shared.mean),
        shared_covariance=0.8 * np.asarray(model.shared.covariance),
    )
    return dataclasses.replace(model, clients={**model.clients, "client 0": own})


def points(model: FittedModel, n: int, seed: int = 9) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.1, 1.1, (n, model.inputs))


def close(found: object, expected: object) -> None:
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert isinstance(one, np.ndarray)
        assert isinstance(two, jax.Array)
        np.testing.assert_allclose(one, two, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_numpy_and_compiled_functions_agree(name):
    model = averaged(make(seed=3, **CASES[name]).model)
    X, Z = points(model, 7), points(model, 4, seed=8)
    Z[0] = X[0]
    with numerics():
        for client in ("client 0", "client 1", UNSEEN):
            p = Predictor.build(model, client)
            for function in (latents, moments):
                close(function(p, X), function.alone(p, X))
            close(own_covariance(p, X, Z), own_covariance.alone(p, X, Z))
            if client != "client 1":
                close(tilt(p, X), tilt.alone(p, X))
        close(prior_covariance(p, X, Z), prior_covariance.alone(p, X, Z))


def test_tangents_without_a_middle_are_derivatives():
    model, size = make(seed=3).model, 1e-5
    X = points(model, 5)
    slopes, ends = (
        np.asarray(tilt(Predictor.build(averaged(model, middle=middle, size=size), "client 0"), X))
        for middle in (False, True)
    )
    assert slopes.shape == ends.shape == (5, 3, 2, 3)
    assert np.abs(slopes).max() > size
    np.testing.assert_allclose(slopes, ends, rtol=1e-4, atol=1e-4 * size)


def test_other_devices_compile_and_batch(monkeypatch):
    """As on a GPU: for one program, and for two that are computed as one batch.

    Bases are factorised in both libraries here: a larger jitter keeps rounding small.
    """
    model = averaged(make(seed=3, jitter=1e-5).model)
    X = points(model, 11)

    def found(client: str) -> list[np.ndarray]:
        p = predict(model, client, X)
        layers = [part for layer in p.layers.values() for part in (layer.mean, layer.sd)]
        return [p.mean, p.sd, p.covariance("joint"), *layers]

    clients = ("client 0", "client 1")
    expected = [found(client) for client in clients]
    for module in (batching, at_inputs):
        monkeypatch.setattr(module, "on_host", lambda: False)
    monkeypatch.setattr(batching, "SMALL", 0)  # small calls would run in NumPy there too
    before = times_compiled(moments)
    alone = [found(client) for client in clients]
    assert times_compiled(moments) == before + 2  # with tangents and without
    together = batching.run_batched([lambda name=name: found(name) for name in clients])
    for one, two, three in zip(expected, alone, together, strict=True):
        for a, b, c in zip(one, two, three, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-10)
            np.testing.assert_allclose(c, a, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_compiled(name, compilations):
    model = averaged(make(seed=3, **CASES[name]).model)
    blind = without_outputs(model.clients["client 1"], np.eye(model.outputs)[0])
    model = dataclasses.replace(model, clients={**model.clients, "client 1": blind})
    before = len(compilations)
    for client in (*model.clients, UNSEEN):
        for n in (11, 300):
            p = predict(model, client, points(model, n))
            p.covariance()
        p = predict(model, client, points(model, 11), chunk=4)
        p.covariance("joint")
        p.cross_covariance("global", "deviation", "joint")
        p.layers["local"].covariance("joint")
        p.sample(2, seed=0)
    assert len(compilations) == before
