"""Whitened features a(x) = L⁻¹k(Z, x) of a layer for a batch of clients, and their adjoint."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from pfedhgp.gp import linalg
from pfedhgp.gp.kernel_adjoints import evaluate
from pfedhgp.gp.kernels import Kernel
from pfedhgp.gp.leaf_adjoints import Evaluation, Geometry

Array = np.ndarray


class LayerInputs(NamedTuple):
    """Where a layer is evaluated: what a search needs again and again of Z and X."""

    among: Geometry
    """Z and Z"""
    across: Geometry
    """Z and X"""
    active: Float[Array, "c 1 M"] | None
    """0 for padding among the inducing inputs; None: there is none"""
    jitter: Float[Array, "c 1 1"]

    @staticmethod
    def of(Z: Array, X: Array, active: Array | None, jitter: Array) -> LayerInputs:
        """For inputs Z (c, M, d), rows X (c, n, d), and the jitter of each client."""
        padded = active is not None and bool(np.any(active == 0.0))
        return LayerInputs(
            Geometry(Z[:, None], Z[:, None]),
            Geometry(Z[:, None], X[:, None]),
            np.asarray(active)[:, None, :] if padded else None,
            np.asarray(jitter).reshape(-1, 1, 1),
        )

    def of_some(self, which: Array | slice) -> LayerInputs:
        return LayerInputs(
            self.among.of_some(which),
            self.across.of_some(which),
            None if self.active is None else self.active[which],
            self.jitter[which],
        )

    def without_padding(self) -> LayerInputs:
        """The same without inducing inputs that are padding at every client; padding comes last."""
        if self.active is None:
            return self
        count = int(self.active.sum(2).max(initial=0.0))
        every = bool((self.active.sum(2) == count).all())
        among, across = self.among, self.across
        return LayerInputs(
            among.first(count, count),
            across.first(count, across.shape[1]),
            None if every else self.active[..., :count],
            self.jitter,
        )


class Features(NamedTuple):
    """A = L⁻¹k(Z, X) of each latent, and the residual k(x, x) − |a(x)|²."""

    factor: Float[Array, "c R M M"]
    A: Float[Array, "c R M n"]
    residual: Float[Array, "c R n"]
    among: Evaluation
    across: Evaluation


def features_of(kernels: Kernel, inputs: LayerInputs) -> Features:
    """The features of a batch; kernels have the leading axes clients (or 1) and latents."""
    among = evaluate(kernels, inputs.among)
    across = evaluate(kernels, inputs.across)
    K, k = among.value, across.value
    eye = np.eye(K.shape[-1])
    if inputs.active is None:
        gram = K + inputs.jitter[..., None] * eye
    else:
        on = inputs.active
        gram = K * (on[..., :, None] * on[..., None, :]) + (1.0 - on)[..., None] * eye
        gram += inputs.jitter[..., None] * eye
        k = k * on[..., None]
    factor = linalg.factorise(gram)
    A = linalg.solve_lower(factor, k)
    return Features(factor, A, residual_by(A), among, across)


class SharedFeatures(NamedTuple):
    """The same of a layer whose kernels and inputs all clients share: there is one factor."""

    factor: Float[Array, "R M M"]
    A: Float[Array, "c R M n"]
    residual: Float[Array, "c R n"]

    @staticmethod
    def of(kernels: Kernel, Z: Array, X: Float[Array, "c n d"], jitter: float) -> SharedFeatures:
        """All clients' rows as if they were one client's; kernels have the axis of latents."""
        c, n, d = X.shape
        one = jax.tree.map(lambda leaf: np.asarray(leaf)[None], kernels)
        inputs = LayerInputs.of(Z[None], X.reshape(1, c * n, d), None, np.array([jitter]))
        found = features_of(one, inputs)
        R, M = found.A.shape[1:3]
        A = np.ascontiguousarray(np.moveaxis(found.A[0].reshape(R, M, c, n), 2, 0))
        return SharedFeatures(found.factor[0], A, residual_by(A))


def residual_by(A: Float[Array, "c R M n"]) -> Float[Array, "c R n"]:
    """k(x, x) − |a(x)|², never below zero"""
    return np.maximum(1.0 - np.einsum("crmn,crmn->crn", A, A), 0.0)


def features_pullback(
    found: Features, inputs: LayerInputs, A_bar: Float[Array, "c R M n"]
) -> Kernel:
    """The gradient in log kernel parameters of what depends on A by AᵀA alone.

    k̄ = L⁻ᵀĀ and K̄ = −½ k̄ (K⁻¹k)ᵀ. Without that condition K̄ is −L⁻ᵀΦ(ĀAᵀ)L⁻¹, Φ the lower triangle with its
    diagonal halved. With it ĀAᵀ is symmetric and both are the same, but K is nearly singular, and L⁻ᵀ…L⁻¹
    loses 10⁴ times as much to rounding.
    """
    k_bar = linalg.solve_lower(found.factor, A_bar, transpose=True)
    weights = linalg.solve_lower(found.factor, found.A, transpose=True)
    return kernels_pullback(found, inputs, k_bar, -0.5 * k_bar @ np.swapaxes(weights, -1, -2))


def kernels_pullback(found: Features, inputs: LayerInputs, k_bar: Array, K_bar: Array) -> Kernel:
    """The gradient in log kernel parameters from adjoints of k(Z, X) and k(Z, Z)."""
    if inputs.active is not None:
        on = inputs.active
        k_bar, K_bar = k_bar * on[..., None], K_bar * (on[..., :, None] * on[..., None, :])
    first, second = found.across.pullback(k_bar), found.among.pullback(K_bar)
    return jax.tree.map(np.add, first, second)


def residual_pullback(
    found: Features, each: Float[Array, "c g R"], weights: Float[Array, "c g n"]
) -> Float[Array, "c R M n"]:
    """The adjoint of A in −½ Σ_g Σ_r each_gr Σ_n m_g(n) res_r(n), with the weights m_g(n)."""
    per_row = np.swapaxes(each, 1, 2) @ weights
    return (per_row * (found.residual > 0.0))[:, :, None, :] * found.A
