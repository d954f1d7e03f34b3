"""Algorithm 1 as a whole fit: the server's step as plain gradient, and what is said where it diverges."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp import FederatedGP, MeanField
from pfedhgp.errors import NumericsError
from pfedhgp.model.prediction import predict

X = np.linspace(0.0, 1.0, 20)
WAVE = np.sin(6.0 * X)
SITES = {
    name: (X, WAVE + shift + 0.1 * np.random.default_rng(seed).normal(size=20))
    for seed, (name, shift) in enumerate([("a", 0.0), ("b", 0.3)])
}
SMALL = {"inducing": 8, "local_inducing": 8, "rounds": 4}


def test_the_plain_gradient_trains_at_its_usual_rate():
    model = FederatedGP(**SMALL, inference=MeanField(server_optimizer="sgd")).fit(SITES)
    for name, shift in (("a", 0.0), ("b", 0.3)):
        p = model.predict(name, X)
        assert np.sqrt(np.mean((p.mean - WAVE - shift) ** 2)) < 0.35  # the wave's sd is 0.71
        assert np.all((p.sd > 0.02) & (p.sd < 1.0))
    shared = model.predict("a", X).layers["global"].mean
    assert np.corrcoef(shared, WAVE)[0, 1] > 0.9  # the server's steps have found what is shared


def test_the_usual_rate_follows_the_optimizer_and_the_cells():
    assert MeanField().for_cells(40).options(_spec()).server_rate == 0.1
    assert MeanField(server_optimizer="sgd").for_cells(40).server_rate == 0.1 / 40
    given = MeanField(server_optimizer="sgd", server_rate=0.01)
    assert given.for_cells(40).server_rate == 0.01


def test_a_step_of_the_server_that_diverges_is_named_and_no_client_is_blamed():
    wild = MeanField(server_optimizer="sgd", server_rate=100.0)
    with pytest.raises(NumericsError, match=r"`server_rate` below 100 ") as caught:
        FederatedGP(**SMALL, inference=wild).fit(SITES)
    assert (caught.value.client, caught.value.matrix) == (None, "the global block")


def _spec():
    from pfedhgp.gp.kernels import RBF
    from pfedhgp.model.spec import build_spec

    return build_spec(
        inputs=1,
        outputs=1,
        kernel=RBF(),
        local_kernel=RBF(),
        layers=("global", "deviation", "local"),
        latents=None,
        local_latents=None,
        noise="auto",
    )


def test_what_an_unseen_client_is_to_look_like_is_the_mean_square_of_the_clients_own_functions():
    """The population's local power against the local layers' own predictions at their inducing inputs."""
    both = {
        name: (x, np.stack([y, 0.5 * y[::-1] + 0.1 * np.sin(40.0 * x)], axis=1))
        for name, (x, y) in SITES.items()
    }
    model = FederatedGP(**SMALL, inference="mean-field").fit(both).model_
    low, extent = model.scaling.lower, model.scaling.extent
    squares = []
    for name, client in model.clients.items():
        inputs = np.asarray(client.block.inputs)[np.asarray(client.block.active) > 0]
        layer = predict(model, name, low + extent * inputs).layers["local"]
        second = layer.covariance() + layer.mean[:, :, None] * layer.mean[:, None, :]
        spread = np.asarray(model.scaling.spread)
        squares.append(second.mean(0) / np.outer(spread, spread))
    found = np.asarray(model.population.local_power)
    np.testing.assert_allclose(found, np.mean(squares, axis=0), rtol=1e-4, atol=1e-7)
