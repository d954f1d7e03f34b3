"""The best linear guess at rows from a sketch, and the paper's operators, by dense inverses."""

from __future__ import annotations

import numpy as np

from pfedhgp.model.fitted import FittedModel


def rbf(x: np.ndarray, z: np.ndarray, length: float) -> np.ndarray:
    return np.exp(-0.5 * ((x[:, None] - z[None, :]) / length) ** 2)


def through(
    x: np.ndarray, z: np.ndarray, Z: np.ndarray, length: float, jitter: float
) -> np.ndarray:
    """k(x, Z) (k(Z, Z) + jitter)⁻¹ k(Z, z)"""
    K = rbf(Z, Z, length) + jitter * np.eye(len(Z))
    return rbf(x, Z, length) @ np.linalg.solve(K, rbf(Z, z, length))


def own_covariance(model: FittedModel, client: str, x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Deviation + local of a model with one input, one output and one RBF latent a layer; scaled inputs."""
    shared, block = model.shared.block, model.clients[client].block
    total = np.zeros((len(x), len(z)))
    own = float(np.asarray(block.deviation)[0, 0]) ** 2  # φ_i/φ
    deviation = own * float(shared.phi) * float(np.asarray(shared.loadings)[0, 0]) ** 2
    layers = (
        (shared.kernels, shared.inputs, deviation, model.jitter),
        (
            block.kernels,
            np.asarray(block.inputs)[np.asarray(block.active) > 0],
            float(np.asarray(block.loadings)[0, 0]) ** 2,
            model.jitter_of(client),
        ),
    )
    for kernels, Z, variance, jitter in layers:
        length = float(np.asarray(kernels.lengthscale)[0, 0])
        total += variance * through(x, z, np.asarray(Z)[:, 0], length, jitter)
    return total


def best_linear_guess(
    K_xx: np.ndarray,
    K_gx: np.ndarray,
    noise: np.ndarray,
    left: np.ndarray,
    omega: np.ndarray,
    step: float,
) -> tuple[np.ndarray, np.ndarray]:
    """m = W left, W = K_gx C⁻¹, and the guess at `left`: Cov(y, s) Var(s)⁻¹ s with Cov(y) = C and s = ΩᵀW y,
    rounded to `step`."""
    C = K_xx + noise
    W = K_gx @ np.linalg.inv(C)
    A = omega.T @ W
    mean = W @ left
    sent = step * np.round(omega.T @ mean / step)
    noisy = A @ C @ A.T + step**2 / 12.0 * np.eye(len(A))
    return mean, C @ A.T @ np.linalg.inv(noisy) @ sent


def papers_operator(model: FittedModel, client: str, X: np.ndarray) -> np.ndarray:
    """blockdiag(A_δ, A_loc)/trace, A = K(Z, X)(K(X, X) + σ²I)⁻¹K(X, Z); one input, one RBF latent a layer."""
    shared, block = model.shared.block, model.clients[client].block
    noise = float(np.asarray(block.noise.covariance(1))[0, 0])
    t, parts = model.scaling.inputs(X)[:, 0], []
    for layer in (shared, block):
        length = float(np.asarray(layer.kernels.lengthscale)[0, 0])
        variance = float(np.asarray(layer.loadings)[0, 0]) ** 2
        cross = variance * rbf(np.asarray(layer.inputs)[:, 0], t, length)
        K = variance * rbf(t, t, length) + noise * np.eye(len(t))
        parts.append(cross @ np.linalg.inv(K) @ cross.T)
    whole = np.zeros((sum(len(A) for A in parts),) * 2)
    whole[: len(parts[0]), : len(parts[0])], whole[len(parts[0]) :, len(parts[0]) :] = parts
    return whole / np.trace(whole)
