"""The paper's projection operators ("Clustering via pFedHGP"): what clients' inputs and kernels span.

A_δ,i = K_g(Z_g, X_i)(K_g(X_i, X_i) + σ²I)⁻¹K_g(X_i, Z_g), A_loc,i the same with its own kernel and Z_i;
A_i = blockdiag(A_δ,i, A_loc,i), Â_i = A_i/tr(A_i), and ρ(i, j) = |Â_i − Â_j|²_F.

Targets count only through σ² and the kernels' parameters: two clients with the same times and kernels have
ρ = 0, whatever their functions look like.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from pfedhgp.base.numerics import with_numerics
from pfedhgp.errors import InputError
from pfedhgp.gp.kernels import Kernel, unstack
from pfedhgp.model.fitted import FittedModel


@with_numerics
def operator(model: FittedModel, client: str, X: np.ndarray) -> np.ndarray:
    """Â_i at the inputs X (n, d) of a client, in the data's units."""
    shared, block = model.shared.block, model.clients[client].block
    if not model.structure.tied:
        raise InputError(
            "distance='operator' needs a model with one output and one latent per layer"
        )
    if model.structure.state_space or not len(block.inputs):
        raise InputError(
            f"distance='operator' needs local inducing inputs, but client {client!r} has none: fit with "
            "local='inducing'"
        )
    inputs = jnp.asarray(np.asarray(model.scaling.inputs(X), np.float64))
    noise = float(np.asarray(block.noise.covariance(1))[0, 0])
    own = np.asarray(block.inputs)[np.asarray(block.active) > 0]
    parts = [
        _operator(
            unstack(kernels, 0), jnp.asarray(Z), inputs, float(np.asarray(B)[0, 0]) ** 2, noise
        )
        for kernels, Z, B in (
            (shared.kernels, shared.inputs, shared.loadings),
            (block.kernels, own, block.loadings),
        )
    ]
    sizes = [len(part) for part in parts]
    A = np.zeros((sum(sizes), sum(sizes)))
    A[: sizes[0], : sizes[0]], A[sizes[0] :, sizes[0] :] = parts
    return A / np.trace(A)


@jax.jit
def _operator(
    kernel: Kernel, Z: jax.Array, X: jax.Array, variance: float, noise: float
) -> jax.Array:
    K = variance * kernel(X, X) + noise * jnp.eye(X.shape[0])
    cross = variance * kernel(X, Z)
    half = jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(K), cross, lower=True)
    return half.T @ half


def operator_distances(model: FittedModel, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """ρ of all pairs, in the order of `inputs`; all clients must have equally many inducing inputs."""
    found = [operator(model, name, X) for name, X in inputs.items()]
    sizes = {len(A) for A in found}
    if len(sizes) > 1:
        raise InputError(
            "distance='operator' needs the same number of local inducing inputs at every client, but they "
            f"have from {min(sizes)} to {max(sizes)} in all: fit with a number for `local_inducing`"
        )
    stacked = np.stack(found)
    return np.array([[float(np.sum((A - B) ** 2)) for B in stacked] for A in stacked])
