"""Features of a layer that clients share, against those of each client by itself."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from pfedhgp.gp.kernels import RBF, Matern32, Periodic
from pfedhgp.inference.structured.host.features import LayerInputs, SharedFeatures, features_of

KERNELS = {
    "rbf": RBF(np.array([[0.3, 0.5], [0.1, 0.9]])),
    "sum": (
        Matern32(np.array([[0.3, 0.5], [0.1, 0.9]]))
        + Periodic(np.array([[0.7, 0.7], [1.0, 2.0]]), period=np.array([[0.3, 0.4], [1.0, 0.5]]))
    ).kernel,
}


@pytest.mark.parametrize("name", KERNELS)
def test_shared_features_are_each_clients_own(name):
    rng = np.random.default_rng(0)
    Z, X, kernels = rng.uniform(size=(6, 2)), rng.uniform(size=(3, 5, 2)), KERNELS[name]
    if name == "sum":
        kernels = type(kernels)(kernels.kernels, np.array([[0.4], [2.0]]))
    found = SharedFeatures.of(kernels, Z, X, 1e-8)
    assert found.A.shape == (3, 2, 6, 5)
    for i, rows in enumerate(X):
        inputs = LayerInputs.of(Z[None], rows[None], None, np.array([1e-8]))
        leaves = jax.tree.map(lambda leaf: leaf[None], kernels)
        own = features_of(leaves, inputs)
        np.testing.assert_allclose(found.A[i], own.A[0], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(found.residual[i], own.residual[0], rtol=0, atol=1e-9)
        np.testing.assert_array_equal(found.factor, own.factor[0])
