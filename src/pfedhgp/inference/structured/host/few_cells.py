"""The same objective for clients with fewer cells than weights: one factorisation of the cells' covariance.

The others' evidence makes v_g ~ N(m₀, S₀), S₀⁻¹ = I + J and m₀ = S₀h, so that
    log p(y | ψ) = log N(y; H_g m₀, C) − ½ residual + a constant,
    C = H_g S₀ H_gᵀ + Σ_a (b_a b_aᵀ) ⊗ (A_aᵀA_a) + Σ
with the sum over deviations and local latents. The first term is the same for all ψ. A missing cell has a
row and a column of the identity in C. Where a client has an inducing input at each of its rows, A_aᵀA_a is
the kernel's matrix itself (but for the jitter), and nothing is factorised for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from pfedhgp.gp import linalg
from pfedhgp.gp.kernel_adjoints import evaluate
from pfedhgp.gp.kernels import Kernel
from pfedhgp.gp.leaf_adjoints import Evaluation, Geometry
from pfedhgp.gp.linalg import LOG_2PI
from pfedhgp.inference.structured.host import cells as cells_
from pfedhgp.inference.structured.host.cells import Cells, Precision
from pfedhgp.inference.structured.host.features import (
    Features,
    features_of,
    features_pullback,
    residual_pullback,
)
from pfedhgp.inference.structured.host.objective import AT_ONCE, Height, Objective
from pfedhgp.inference.structured.host.parameters import Parameters, Prior
from pfedhgp.model.blocks import Structure

Array = np.ndarray


SMALL_JITTER = 1e-6
"""With more jitter than this, a layer is not taken for exact."""


class LocalProducts(NamedTuple):
    """The local layer at one ψ: A_aᵀA_a, Σ_n m_g(n) res(n), and what they came from."""

    products: Float[Array, "c Rl nn"]
    residuals: Float[Array, "c g Rl"]
    source: Features | Evaluation | None

    def of_some(self, which: Array | slice) -> LocalProducts:
        return LocalProducts(self.products[which], self.residuals[which], None)


@dataclass(frozen=True)
class FewCells:
    """What is fixed while a batch of small clients searches."""

    whole: Objective
    """the same clients with all weights"""
    mask: Float[Array, "c Qn"]
    observed: Float[Array, "c Qn"]
    """y, zero where missing; ordered (output, row)"""
    among: Float[Array, "c R R nn"]
    """A_rᵀ S₀_rs A_s of the global latents"""
    means: Float[Array, "c R n"]
    """A_rᵀ m₀_r"""
    products: Float[Array, "c Rd nn"]
    """A_rᵀA_r of the global latents, for deviations"""
    scale: Float[Array, "c Q n"]
    """1/√count of each cell"""
    counts_beyond: Cells
    """what replicates add: counts less one a row, and their scatter"""
    prior_mean: Float[Array, "c k"]
    prior_covariance: Float[Array, "c k k"]
    constant: Float[Array, " c"]
    rows: Geometry | None
    """of the rows with themselves, where the local layer is exact"""
    known: LocalProducts | None = None
    fixed: GlobalCells | None = None
    """the global layer, where clients have no loadings of their own on it"""

    @staticmethod
    def of(whole: Objective) -> FewCells:
        cells, layout = whole.cells, whole.layout
        c, n, Q = cells.Y.shape
        R, M = layout.latents, layout.size
        A = whole.shared.reshape(c, R, M, n)
        each = (np.swapaxes(A, 2, 3) @ A).reshape(c, R, n * n)
        if whole.nothing_known():
            log, moments = np.zeros(c), _prior(c, R * M)
            among = np.zeros((c, R, R, n * n))
            among[:, range(R), range(R)] = each
        else:
            log, moments = linalg.integrate(whole.J, whole.h)
            S0 = moments.covariance.reshape(c, R, M, R, M)
            among = np.empty((c, R, R, n * n))
            for r in range(R):
                for s in range(R):
                    block = np.swapaxes(A[:, r], 1, 2) @ S0[:, r, :, s] @ A[:, s]
                    among[:, r, s] = block.reshape(c, n * n)
        means = (moments.mean.reshape(c, R, 1, M) @ A)[:, :, 0]
        weight = np.einsum("cgn,gq->cqn", cells.weights, cells.outputs)
        mask = (weight > 0).astype(np.float64)
        made = FewCells(
            whole=whole,
            mask=mask.reshape(c, Q * n),
            observed=np.swapaxes(cells.Y, 1, 2).reshape(c, Q * n) * mask.reshape(c, Q * n),
            among=among,
            means=means,
            products=each[:, : layout.deviations],
            scale=1.0 / np.sqrt(np.where(weight > 0, weight, 1.0)),
            counts_beyond=cells_.beyond_means(cells),
            prior_mean=moments.mean,
            prior_covariance=moments.covariance,
            constant=log - 0.5 * cells_.log_counts(cells),
            rows=_exact_rows(whole, mask),
        )
        if whole.structure.client_loadings:
            return made
        every = np.broadcast_to(whole.B_g, (c, Q, R))
        fixed = made.global_layer(every)
        return replace(made, fixed=fixed, among=among[:, :0], means=means[:, :0])

    def global_layer(self, B: Float[Array, "c Q R"]) -> GlobalCells:
        """H_g S₀ H_gᵀ and y − H_g m₀ with loadings B."""
        c, Q, R = B.shape
        pairs = (B[:, :, None, :, None] * B[:, None, :, None, :]).reshape(c, Q * Q, R * R)
        covariance = pairs @ self.among.reshape(c, R * R, self.among.shape[-1])
        fitted = (B @ self.means).reshape(c, -1)
        return GlobalCells(covariance, self.observed - fitted * self.mask)

    @property
    def h(self) -> Array:
        return self.whole.h

    @property
    def structure(self) -> Structure:
        return self.whole.structure

    @property
    def prior(self) -> Prior:
        return self.whole.prior

    def of_some(self, which: Array | slice) -> FewCells:
        """The same for some of the clients, in any order; a client may be there several times."""
        some = {
            name: getattr(self, name)[which]
            for name in (
                "mask", "observed", "among", "means", "products", "scale", "prior_mean",
                "prior_covariance", "constant",
            )
        }  # fmt: skip
        known = None if self.known is None else self.known.of_some(which)
        rows = None if self.rows is None else self.rows.of_some(which)
        beyond = self.counts_beyond.of(which)
        return replace(
            self,
            whole=self.whole.of_some(which),
            counts_beyond=beyond,
            rows=rows,
            known=known,
            fixed=None if self.fixed is None else self.fixed.of_some(which),
            **some,
        )

    def without_padding(self) -> FewCells:
        """The same density without inducing inputs that none of these clients has."""
        return self if self.rows is not None else replace(self, whole=self.whole.without_padding())

    def with_held_kernels(self, at: Parameters) -> FewCells:
        """For a search that holds the local kernels: their features are taken once."""
        local = self.local(at)
        return replace(self, known=local._replace(source=None))

    def local(self, at: Parameters) -> LocalProducts:
        """The local layer at ψ."""
        if self.known is not None:
            return self.known
        inputs, cells = self.whole.local_inputs, self.whole.cells
        c, n = cells.Y.shape[:2]
        if inputs is None:
            return LocalProducts(
                np.zeros((c, 0, n * n)), np.zeros((c, cells.weights.shape[1], 0)), None
            )
        if self.rows is not None:
            matrix = evaluate(at.natural_kernels(), self.rows)
            return LocalProducts(
                matrix.K, np.zeros((*cells.weights.shape[:2], matrix.K.shape[1])), matrix
            )
        found = features_of(at.natural_kernels(), inputs)
        products = np.swapaxes(found.A, 2, 3) @ found.A
        residuals = cells.weights @ np.swapaxes(found.residual, 1, 2)
        return LocalProducts(products.reshape(c, -1, n * n), residuals, found)

    def turns(self) -> int:
        return max(1, AT_ONCE // max(1, self.mask.shape[1] ** 2))

    def solved(
        self, at: Parameters, *, inverse: bool = False, layer: GlobalCells | None = None
    ) -> Solved:
        """C factorised at ψ, and inverted for a gradient. `layer`: another global layer than the client's."""
        local = self.local(at)
        c, n, Q = self.whole.cells.Y.shape
        every_B = self.whole.loadings(at)
        B = every_B[..., self.whole.layout.latents :]
        pairs = (B[:, :, None, :] * B[:, None, :, :]).reshape(c, Q * Q, -1)
        products = np.concatenate([self.products, local.products], axis=1)
        layer = layer or self.fixed or self.global_layer(every_B[..., : self.whole.layout.latents])
        C = (pairs @ products + layer.covariance).reshape(c, Q, Q, n, n)
        noise = cells_.covariance_of(at.noise, Q)
        index = np.arange(n)
        C[..., index, index] += noise[..., None] * self.scale[:, :, None] * self.scale[:, None]
        C = np.swapaxes(C, 2, 3).reshape(c, Q * n, Q * n)
        C *= self.mask[:, :, None] * self.mask[:, None, :]
        every = np.arange(Q * n)
        C[:, every, every] += 1.0 - self.mask
        log, alpha, inverted = linalg.log_normal(C, layer.data, inverse=inverse)
        precision = cells_.precision_of(at.noise, self.whole.cells)
        value = log + 0.5 * (1.0 - self.mask).sum(1) * LOG_2PI + self.constant
        value += self.counts_beyond.log_constant(precision)
        PB = precision.matrix @ every_B[:, None]
        W = (every_B[:, None] * PB).sum(2)
        residuals = np.concatenate(
            [
                self.whole.residuals,
                self.whole.residuals[..., : self.whole.layout.deviations],
                local.residuals,
            ],
            axis=2,
        )
        value -= 0.5 * (W * residuals).sum((1, 2))
        return Solved(
            local, every_B, PB, pairs, products, precision, alpha, inverted, value, residuals, W
        )

    def heights(self, rows: Float[Array, "c P"]) -> Height:
        """log p(y, ψ), and the weights' means."""
        at = self.whole.form.from_rows(rows)
        found = self.solved(at)
        value = found.value + self.whole.prior.value_and_gradient(at)[0]
        return Height(value, self._weights(at, found))

    def cavity(self, at: Parameters) -> Float[Array, " c"]:
        """The cavity bound at ψ, without the prior."""
        return self.solved(at).value

    def _weights(self, at: Parameters, found: Solved) -> Float[Array, "c K"]:
        """E[v_g] = m₀ + S₀H_gᵀα and E[w] = H_cᵀα"""
        layout = self.whole.layout
        c, n, Q = self.whole.cells.Y.shape
        alpha = found.alpha.reshape(c, Q, n)
        A = self.whole.shared.reshape(c, layout.latents, layout.size, n)
        along = np.swapaxes(found.every_B[..., : layout.latents], 1, 2) @ alpha
        shared = (A @ along[..., None])[..., 0].reshape(c, -1)
        mean = self.prior_mean + (self.prior_covariance @ shared[..., None])[..., 0]
        own = (np.swapaxes(found.every_B[..., layout.latents :], 1, 2) @ alpha)[..., None]
        d = layout.deviations
        parts = [mean, (A[:, :d] @ own[:, :d])[..., 0].reshape(c, -1)]
        if self.whole.local_inputs is not None:
            source = found.local.source
            local = source if isinstance(source, Features) else None
            local = local or features_of(at.natural_kernels(), self.whole.local_inputs)
            parts.append((local.A @ own[:, d:])[..., 0].reshape(c, -1))
        return np.concatenate(parts, axis=1)

    def value_and_gradient(
        self, rows: Float[Array, "c P"]
    ) -> tuple[Float[Array, " c"], Float[Array, "c P"]]:
        """log p(y, ψ) and its gradient in ψ."""
        at = self.whole.form.from_rows(rows)
        found = self.solved(at, inverse=True)
        assert found.inverse is not None
        layout, cells = self.whole.layout, self.whole.cells
        c, n, Q = cells.Y.shape
        R, d = layout.latents, layout.deviations
        bar = 0.5 * (found.alpha[:, :, None] * found.alpha[:, None, :] - found.inverse)
        bar *= self.mask[:, :, None] * self.mask[:, None, :]
        by_rows = np.swapaxes(bar.reshape(c, Q, n, Q, n), 2, 3)
        flat = by_rows.reshape(c, Q * Q, n * n)
        of_pairs = (flat @ np.swapaxes(found.products, 1, 2)).reshape(c, Q, Q, -1)
        of_B = 2.0 * (of_pairs * found.every_B[:, None, :, R:]).sum(2)
        of_B -= (found.PB[..., R:] * found.residuals[:, :, None, R:]).sum(1)
        diagonal = np.einsum("cqpnn->cqpn", by_rows)
        of_covariance = (diagonal * self.scale[:, :, None] * self.scale[:, None]).sum(3)
        prior, slope = self.whole.prior.value_and_gradient(at)
        if d and slope.deviation.shape[2]:
            slope.deviation[...] += self.whole.of_deviation(of_B[..., :d])
        of_own = slope.global_loadings
        if of_own is not None:
            of_own = of_own + self._of_global_loadings(found, flat)
        of_noise = cells_.covariance_pullback(at.noise, of_covariance)
        of_noise += self._of_precision(at, found)
        gradient = Parameters(
            self._of_kernels(found, flat, slope.kernels),
            slope.deviation,
            slope.loadings + of_B[..., d:],
            jax.tree.map(lambda leaf: leaf + of_noise.reshape(leaf.shape), slope.noise),
            of_own,
        )
        return found.value + prior, gradient.rows()

    def _of_global_loadings(
        self, found: Solved, flat: Float[Array, "c QQ nn"]
    ) -> Float[Array, "c Q R"]:
        """The gradient in B_g,i: through C, through y − H_g m₀ and through the residual."""
        R = self.whole.layout.latents
        B, (c, Q, n) = found.every_B[..., :R], self._shape
        pulled = (flat @ np.swapaxes(self.among.reshape(c, R * R, n * n), 1, 2)).reshape(
            c, Q, Q, R, R
        )
        slope = 2.0 * np.einsum("cqprs,cps->cqr", pulled, B, optimize=True)
        slope += found.alpha.reshape(c, Q, n) @ np.swapaxes(self.means, 1, 2)
        return slope - (found.PB[..., :R] * found.residuals[:, :, None, :R]).sum(1)

    @property
    def _shape(self) -> tuple[int, int, int]:
        """Clients, outputs, rows."""
        c, n, Q = self.whole.cells.Y.shape
        return c, Q, n

    def _of_precision(self, at: Parameters, found: Solved) -> Array:
        """The noise's gradient through the residual, and through replicates."""
        B = found.every_B[:, None]
        bar = -0.5 * ((B * found.residuals[:, :, None]) @ np.swapaxes(B, 2, 3))
        bar -= 0.5 * self.counts_beyond.squares
        return cells_.noise_pullback(at.noise, self.counts_beyond, found.precision, bar)

    def _of_kernels(self, found: Solved, flat: Array, slope: Kernel) -> Kernel:
        own, inputs = found.local.source, self.whole.local_inputs
        if own is None or inputs is None:
            return slope
        cells, d = self.whole.cells, self.whole.layout.deviations
        c, n = cells.Y.shape[:2]
        of_products = (np.swapaxes(found.pairs[..., d:], 1, 2) @ flat).reshape(c, -1, n, n)
        if not isinstance(own, Features):
            return jax.tree.map(np.add, slope, own.pullback(of_products))
        bar = own.A @ (of_products + np.swapaxes(of_products, 2, 3))
        each = found.W[..., self.whole.layout.latents + d :]
        bar += residual_pullback(own, each, cells.weights)
        return jax.tree.map(np.add, slope, features_pullback(own, inputs, bar))


def _prior(clients: int, weights: int) -> linalg.Moments:
    """v_g ~ N(0, I), one matrix for all clients."""
    eye = np.broadcast_to(np.eye(weights), (clients, weights, weights))
    return linalg.Moments(np.zeros((clients, weights)), eye)


class GlobalCells(NamedTuple):
    """The global layer at the cells, given the others."""

    covariance: Float[Array, "c QQ nn"]
    """H_g S₀ H_gᵀ"""
    data: Float[Array, "c Qn"]
    """y − H_g m₀, zero where missing"""

    def of_some(self, which: Array | slice) -> GlobalCells:
        return GlobalCells(*(array[which] for array in self))


class Solved(NamedTuple):
    """C at one ψ, and what its adjoint needs."""

    local: LocalProducts
    every_B: Float[Array, "c Q r"]
    PB: Float[Array, "c g Q r"]
    """Π_g B"""
    pairs: Float[Array, "c QQ a"]
    products: Float[Array, "c a nn"]
    precision: Precision
    alpha: Float[Array, "c Qn"]
    """C⁻¹(y − H_g m₀)"""
    inverse: Float[Array, "c Qn Qn"] | None
    value: Float[Array, " c"]
    residuals: Float[Array, "c g r"]
    W: Float[Array, "c g r"]
    """the diagonal of BᵀΠ_gB"""


def _exact_rows(whole: Objective, mask: Float[Array, "c Q n"]) -> Geometry | None:
    """The rows with themselves if each client has an inducing input at every row that it observed."""
    inputs = whole.local_inputs
    if inputs is None or np.any(inputs.jitter > SMALL_JITTER):
        return None
    gaps = inputs.across.differences
    c, _, cells = gaps.shape
    n = mask.shape[2]
    there = (gaps == 0.0).all(1).reshape(c, cells // n, n)
    if inputs.active is not None:
        there &= inputs.active[:, 0, :, None] > 0
    if not np.all(there.any(1) | ~(mask > 0).any(1)):
        return None
    X = inputs.across.Z[:, None]
    return Geometry(X, X)
