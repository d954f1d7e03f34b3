"""A state-space layer at new rows by banded solves: what the compiled smoother gives."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.base.numerics import numerics
from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import RBF, Matern32
from pfedhgp.gp.noise import DiagonalNoise
from pfedhgp.model import local_states
from pfedhgp.model.blocks import ClientBlock
from pfedhgp.model.posterior import LocalStates
from support.compiled import times_compiled

Q, R, M = 2, 2, 5


@pytest.fixture(scope="module")
def layer() -> tuple:
    """Two outputs, one of them with missing cells; a deviation of one latent."""
    rng = np.random.default_rng(0)
    states = LocalStates(
        np.sort(rng.uniform(size=20)),
        rng.integers(0, 3, (20, Q)).astype(float),
        rng.normal(size=(Q, 20, 2)),
    )
    block = ClientBlock(
        kernels=Matern32(np.array([[0.2], [0.05]])),
        inputs=np.zeros((0, 1)),
        active=np.zeros(0),
        deviation=rng.normal(size=(Q, 1)),
        loadings=np.diag([1.3, 0.6]),
        noise=DiagonalNoise(np.zeros(Q)),
    )
    basis = Basis.build(RBF(np.array([[0.4], [0.2]])), np.linspace(0, 1, M)[:, None], 1e-8)
    noise = np.diag([0.02, 0.3])
    halves = rng.normal(size=(R * M + M, 7)), rng.normal(size=(M, 4))
    loadings = rng.normal(size=(Q, R)), rng.normal(size=(Q, 1))
    return states, block, noise, basis, *loadings, *halves


X = np.array([[0.5], [-0.3], [1.4], [0.501], [0.5]])


def test_latents_and_covariances_are_the_compiled_ones(layer):
    states, block, noise = layer[:3]
    at = np.concatenate([X, states.times[[3]][:, None]])
    with numerics():
        for found, expected in [
            (local_states.latents(*layer, at), local_states.compiled_latents(*layer, at)),
            (
                [local_states.covariance(states, block, noise, at, X)],
                [local_states.compiled_covariance(states, block, noise, at, X)],
            ),
        ]:
            for one, other in zip(found, expected, strict=True):
                assert isinstance(one, np.ndarray)
                np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_few_rows_compile_nothing_and_many_are_left_to_the_smoother(layer, monkeypatch):
    counts = [times_compiled(local_states.compiled_latents)]
    with numerics():
        local_states.latents(*layer, X[:2])
        counts.append(times_compiled(local_states.compiled_latents))
        monkeypatch.setattr(local_states, "BANDED", 43)
        local_states.latents(*layer, X[:2])
        counts.append(times_compiled(local_states.compiled_latents))
    assert counts[0] == counts[1] == counts[2] - 1
