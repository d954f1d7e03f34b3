"""Deviations with a kernel of their own: exact where inducing inputs are the inputs."""

from __future__ import annotations

import numpy as np
import pytest

import reference
from pfedhgp.base.numerics import numerics
from pfedhgp.gp.kernels import RBF, Matern32, Stacks
from pfedhgp.gp.noise import DiagonalNoise
from pfedhgp.inference.structured.bound import ClientModel, GlobalEvidence, elbo
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows, Structure

LENGTHS, OWN_LENGTHS, LOCAL, NOISE = (0.3, 0.6), (0.25, 0.4), 0.2, (0.05, 0.08)
JITTER = 1e-12


def matern32(X: np.ndarray, Z: np.ndarray, lengthscale: float) -> np.ndarray:
    r = np.sqrt(3.0) * np.abs(X[:, None, 0] - Z[None, :, 0]) / lengthscale
    return (1.0 + r) * np.exp(-r)


def federation(seed: int = 0):
    """Three clients of two outputs; two global latents, then two of the deviations."""
    rng = np.random.default_rng(seed)
    Xs = [np.sort(rng.uniform(size=(n, 1)), axis=0) for n in (7, 5, 6)]
    Ys = [rng.normal(size=(len(X), 2)) for X in Xs]
    nothing = np.zeros((2, 2))
    kernels = Stacks((RBF(np.array(LENGTHS)[:, None]), Matern32(np.array(OWN_LENGTHS)[:, None])))
    B_g = rng.normal(size=(2, 2))
    shared = GlobalBlock(
        kernels, np.concatenate(Xs), np.concatenate([B_g, nothing], axis=1), np.asarray(0.4)
    )
    clients = [
        ClientBlock(
            RBF(np.array([[LOCAL]])),
            X,
            np.ones(len(X)),
            np.concatenate([nothing, rng.normal(size=(2, 2)) * 0.5], axis=1),
            rng.normal(size=(2, 1)),
            DiagonalNoise(np.log(np.array(NOISE))),
        )
        for X in Xs
    ]
    return Xs, Ys, shared, clients


def dense_covariance(Xs, B_g, clients) -> np.ndarray:
    """Σ_r b_r b_rᵀ k_r + δ_ij (Σ_r b̃_ir b̃_irᵀ k_δ,r + local + noise) of cells (row, output)."""
    blocks = [[None] * len(Xs) for _ in Xs]
    for i, (X, client) in enumerate(zip(Xs, clients, strict=True)):
        for j, W in enumerate(Xs):
            total = sum(
                np.kron(reference.rbf(X, W, lengthscale=length), np.outer(b, b))
                for length, b in zip(LENGTHS, B_g.T, strict=True)
            )
            if i == j:
                for length, b in zip(OWN_LENGTHS, client.deviation[:, 2:].T, strict=True):
                    total = total + np.kron(matern32(X, X, length), np.outer(b, b))
                K = reference.rbf(X, X, lengthscale=LOCAL)
                total = total + np.kron(K, client.loadings @ client.loadings.T)
                total = total + np.kron(np.eye(len(X)), np.diag(np.array(NOISE) + 1e-8))
            blocks[i][j] = total
    return np.block(blocks)


def test_exact_bound_with_a_deviation_kernel_is_the_dense_joint_gaussian():
    Xs, Ys, shared, clients = federation()
    with numerics():
        basis = shared.basis(JITTER)
        parts = [
            ClientModel(
                Structure(),
                shared,
                basis,
                client,
                Rows(X, Y, np.ones_like(Y)),
                JITTER,
                JITTER,
                1024,
            ).summary()
            for X, Y, client in zip(Xs, Ys, clients, strict=True)
        ]
        total = GlobalEvidence(sum(p.J for p in parts), sum(p.h for p in parts))
        found = float(elbo(sum(p.c for p in parts), total))
    y = np.concatenate([Y.reshape(-1) for Y in Ys])
    covariance = dense_covariance(Xs, shared.loadings[:, :2], clients)
    assert found == pytest.approx(reference.log_gaussian(y, 0.0, covariance), rel=1e-6)
