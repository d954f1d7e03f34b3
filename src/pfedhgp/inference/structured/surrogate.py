"""What the server knows between exchanges: the collapsed bound around the θ₀ of the last one.

With the shared function's values u = L₀v₀ held fixed, J, h and the evidence are expanded in Δ = θ − θ₀,
and the change of prior is exact:
    J(θ, B) = Tᵀ (J₀(B) + Σ_p Δ_p ∂_p J) T,   v₀ = T v,   T = L₀⁻¹ L(θ)
    F(θ, B) = c + Δᵀ∂c + ½ ΔᵀCΔ + ½ hᵀ(I+J)⁻¹h − ½ log|I+J|
F is exact in B_g at θ₀, and exact in θ up to second order. So its gradient and Hessian at θ₀ are those of the
ELBO. Further terms are not used: J is linear in θ and can reach |I+J| = 0, and there F has no upper bound.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pfedhgp.base.arrays_of import namespace
from pfedhgp.inference.grams import residual_of
from pfedhgp.inference.structured.bound import GlobalEvidence, Statistics, apply_loadings, elbo
from pfedhgp.model.blocks import GlobalBlock, Structure, Theta, theta_of, with_theta


class Surrogate(eqx.Module):
    """Sums of statistics, and the block at which they were taken. One client's or all clients'."""

    block: GlobalBlock
    sums: Statistics

    def carried(
        self, structure: Structure, target: GlobalBlock, jitter: Array | float
    ) -> GlobalEvidence:
        """(J, h) for the whitened weights of `target`, the evidence on u held as it is: Tᵀ J₀ T and Tᵀ h₀.

        Linear in the sums, so a client can subtract its own; J and h move together, so the mean that
        they imply stays; and J stays positive semi-definite.
        """
        T = self._transport_anywhere(structure, target, jitter)
        J, h = self.loaded(structure, target)
        return GlobalEvidence(T.T @ J @ T, h @ T)

    def elbo(self, structure: Structure, loadings: Array) -> Array:
        """F(θ₀, B): the ELBO at the block's own θ for any loadings."""
        sums, evidence = self.sums, self.sums.evidence
        if structure.client_loadings:
            return elbo(evidence, GlobalEvidence(sums.U, sums.y))
        if not structure.tied:
            before = residual_of(sums.shared_residual, self.block.loadings)
            evidence = evidence + 0.5 * (before - residual_of(sums.shared_residual, loadings))
        total = apply_loadings(sums.U, sums.y, loadings, self.block.loadings.shape[1])
        return elbo(evidence, total)

    def derivatives(self, structure: Structure, jitter: Array | float) -> tuple[Theta, Array]:
        """Gradient and Hessian of the ELBO in θ_g at the block, loadings held.

        By JAX; `surrogate_adjoints.derivatives` is the same in NumPy.
        """
        start = theta_of(structure, self.block)

        def bound(theta: Theta) -> Array:
            target = with_theta(structure, self.block, theta)
            delta = theta - start
            T = self._transport(structure, target, jitter)
            J, h = self.loaded(structure, self.block)
            J = J + jnp.tensordot(delta, self.sums.d_J, 1)
            h = h + delta @ self.sums.d_h
            evidence = jnp.dot(delta, self.sums.d_evidence)
            evidence += 0.5 * jnp.dot(delta, self.sums.curvature @ delta)
            return elbo(evidence, GlobalEvidence(T.T @ J @ T, T.T @ h))

        gradient = jax.grad(bound)
        return gradient(start), jax.jacfwd(gradient)(start)

    def loaded(self, structure: Structure, target: GlobalBlock) -> GlobalEvidence:
        """(J, h) with the loadings of `target`, still for the block's own whitened weights.

        With client loadings they come loaded.
        """
        if structure.client_loadings:
            return GlobalEvidence(self.sums.U, self.sums.y)
        loadings = self.block.loadings if structure.tied else target.loadings
        return apply_loadings(self.sums.U, self.sums.y, loadings, self.block.loadings.shape[1])

    def _transport(self, structure: Structure, target: GlobalBlock, jitter: Array | float) -> Array:
        """T for the same inducing inputs: v₀ = T v with equal function values."""
        old, new = self.block.basis(jitter), target.basis(jitter)
        return self._stacked(structure, target, new.carry_from(old))

    def _transport_anywhere(
        self, structure: Structure, target: GlobalBlock, jitter: Array | float
    ) -> Array:
        """T for any inducing inputs: exact if they are the same, or the conditional mean."""
        old, new = self.block.basis(jitter), target.basis(jitter)
        if target.inputs.shape != self.block.inputs.shape:
            return self._stacked(structure, target, new.project_from(old))
        same = (target.inputs == self.block.inputs).all()
        if isinstance(same, np.bool_):
            T = new.carry_from(old) if same else new.project_from(old)
        else:
            T = jnp.where(same, new.carry_from(old), new.project_from(old))
        return self._stacked(structure, target, T)

    def _stacked(self, structure: Structure, target: GlobalBlock, T: Array) -> Array:
        """The latents' matrices as blocks on the diagonal of one."""
        R, rows, columns = T.shape
        eye = namespace(T).eye(R, dtype=T.dtype)
        full = (eye[:, None, :, None] * T[:, :, None, :]).reshape(R * rows, R * columns)
        return full * (target.loadings / self.block.loadings) if structure.tied else full
