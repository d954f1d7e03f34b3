"""The cycle-level layer: y_c(x) = f(x) + e_c(x) + ε, what one cycle does that its client's mean does not.

    e_c(x) = A_e(x)ᵀ w_c,  A_e = I_Q ⊗ a_e(x),  w_c ~ N(0, Ψ),  Σ_e(x, x') = A_e(x)ᵀ Ψ A_e(x') + [x = x'] Σ_ε

on a fixed basis a_e, so that every form of the residual is a Ψ, and none leaves a residual variance:

| form       | Ψ |
|------------|---|
| white      | 0: cells of a cycle differ from the mean function on their own |
| stationary | Γ ⊗ L⁻¹ k_θ(Z_e, Z_e) L⁻ᵀ: a kernel times a channel covariance Γ |
| free       | any PSD matrix, shrunk towards the fitted stationary one |
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from pfedhgp.base.choices import FORMS
from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import Matern52

BASIS_JITTER = 1e-8
NOISE_FLOOR = 2e-8
"""Added to every variance of Σ_ε (scaled units): twice what a client's `Noise` adds to its own."""
OVERLAP = 2.0
"""Lengthscale of the basis in spacings of Z_e: smooth between them, and still well conditioned."""


@dataclass(frozen=True)
class CycleChoice:
    """What the user asks of the layer: its form, who shares it, and how many basis functions it has."""

    form: str
    sharing: str = "shared"
    basis: int | str = "auto"


@dataclass(frozen=True, eq=False)
class CycleBasis:
    """a_e(x) = L⁻¹ k(Z_e, x), a Matérn 5/2 kernel, L Lᵀ = k(Z_e, Z_e) + jitter; inputs in the unit box."""

    inputs: np.ndarray
    """Z_e, (M, d)"""
    lengthscale: np.ndarray
    """(d,)"""

    @staticmethod
    def on(inputs: Any) -> CycleBasis:
        """The basis of a set Z_e that fills the unit box: its lengthscale follows the spacing."""
        Z = np.asarray(inputs, np.float64)
        spacing = 1.0 / max(len(Z) ** (1.0 / Z.shape[1]) - 1.0, 1.0)
        return CycleBasis(Z, np.full(Z.shape[1], OVERLAP * spacing))

    def features(self, X: Any) -> np.ndarray:
        """a_e(x) at the rows of X, (M, n)."""
        return np.asarray(self._built.features(np.asarray(X, np.float64))[0])

    def weights_covariance(self, K: Any) -> np.ndarray:
        """L⁻¹ K L⁻ᵀ: what covariance K of the values at Z_e is for the weights."""
        half = np.linalg.solve(self.factor, K)
        return np.linalg.solve(self.factor, half.T).T

    @property
    def factor(self) -> np.ndarray:
        """L"""
        return np.asarray(self._built.factor[0])

    @functools.cached_property
    def _built(self) -> Basis:
        kernels = Matern52(np.asarray(self.lengthscale, np.float64)[None])
        return Basis.build(kernels, np.asarray(self.inputs, np.float64), BASIS_JITTER)


@dataclass(frozen=True, eq=False)
class CycleLayer:
    """(Ψ, Σ_ε) of one client, or of all: Ψ = F Fᵀ, weights ordered (output, basis function); scaled units."""

    basis: CycleBasis
    factor: np.ndarray
    """F, (Q M, k); no columns where the form is white."""
    noise: np.ndarray
    """Σ_ε, (Q, Q)"""
    form: str
    worth: float = 0.0
    """Degrees of freedom that a free layer is a mean over, including those that its target counts for.
    0 if that is not known; it is not kept in files."""

    @property
    def outputs(self) -> int:
        """Q"""
        return int(np.shape(self.noise)[0])

    def half(self, X: Any) -> np.ndarray:
        """E(x) = A_e(x)ᵀ F, (n, Q, k): the covariance of e_c between x and x' is E(x) E(x')ᵀ."""
        A = self.basis.features(X)
        F = self.factor.reshape(self.outputs, len(A), self.factor.shape[1])
        return np.einsum("mn,qmk->nqk", A, F, optimize=True)


def check_layer(layer: CycleLayer, outputs: int, inputs: int) -> None:
    """Shapes agree, numbers are finite, Σ_ε is a covariance; Ψ is PSD by its factor. Raises ValueError."""
    M = len(layer.basis.inputs)
    shapes = {
        "cycles.inputs": (layer.basis.inputs, (M, inputs)),
        "cycles.lengthscale": (layer.basis.lengthscale, (inputs,)),
        "cycles.noise": (layer.noise, (outputs, outputs)),
        "cycles.factor": (layer.factor, (outputs * M, np.shape(layer.factor)[-1])),
    }
    if layer.form not in FORMS:
        raise ValueError(f"a cycle layer is one of {', '.join(FORMS)}, not {layer.form!r}")
    for name, (array, shape) in shapes.items():
        if np.shape(array) != shape:
            raise ValueError(f"{name} has shape {np.shape(array)}, expected {shape}")
        if not np.all(np.isfinite(array)):
            raise ValueError(f"{name} is not finite")
    if np.any(np.asarray(layer.basis.lengthscale) <= 0):
        raise ValueError("cycles.lengthscale is not positive")
    noise = np.asarray(layer.noise)
    if np.max(np.abs(noise - noise.T)) > 1e-8 * np.max(np.abs(noise)):
        raise ValueError("cycles.noise is not symmetric")
    if np.linalg.eigvalsh(noise)[0] <= 0:
        raise ValueError("cycles.noise is not positive definite")
    if (layer.form == "white") != (np.shape(layer.factor)[1] == 0):
        raise ValueError(
            "cycles.factor does not fit the form: white has no columns, others have some"
        )
