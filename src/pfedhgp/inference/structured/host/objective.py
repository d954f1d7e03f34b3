"""A client's cavity bound and prior with their gradient in ψ, for a batch of clients.

    −objective(ψ) = log p(y_i | ψ, the others' J and h) + log p(ψ)
One factorisation of I + Λ gives the value, and the weights' moments give the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from pfedhgp.gp import linalg
from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference.structured.host import cells as cells_
from pfedhgp.inference.structured.host.cells import Cells
from pfedhgp.inference.structured.host.features import (
    Features,
    LayerInputs,
    features_of,
    features_pullback,
    residual_pullback,
)
from pfedhgp.inference.structured.host.parameters import Parameters, Prior
from pfedhgp.inference.structured.host.sums import (
    Gathered,
    Layout,
    Totals,
    loadings_pullback,
    regathered,
    sums_pullback,
    totals,
)
from pfedhgp.model.blocks import Structure

Array = np.ndarray
AT_ONCE = 2**17
"""The most numbers that one array of a batch has: more clients are taken in turns, within the cache."""


class LocalSums(NamedTuple):
    """The local layer at one ψ: F with its features, and all sums over rows."""

    F: Float[Array, "c f n"]
    gathered: Gathered
    residuals: Float[Array, "c g r"]
    features: Features | None
    """None: the layer is not there, or its kernels are held"""

    def of_some(self, which: Array | slice) -> LocalSums:
        return LocalSums(self.F[which], self.gathered.of(which), self.residuals[which], None)


class Height(NamedTuple):
    """log p(y, ψ) of a batch up to a constant, and the weights' moments."""

    value: Float[Array, " c"]
    mean: Float[Array, "c K"]
    covariance: Float[Array, "c K K"] | None = None
    """None: nobody asked for it"""


@dataclass(frozen=True)
class Objective:
    """What is fixed while a batch of clients searches: rows, global features, others' evidence, priors."""

    structure: Structure
    layout: Layout
    cells: Cells
    shared: Float[Array, "c k n"]
    """the global layer's features"""
    fixed: Gathered
    """their sums"""
    residuals: Float[Array, "c g R"]
    """Σ_n m_g(n) res(n) of the global layer"""
    B_g: Float[Array, "Q R"]
    tied_deviation: Float[Array, "Q R"] | None
    """√φ B_g in a model without loadings, of which each client has its own multiple"""
    J: Float[Array, "c k k"]
    h: Float[Array, "c k"]
    local_inputs: LayerInputs | None
    """of the local layer; None: it is not there"""
    prior: Prior
    form: Parameters
    known: LocalSums | None = None
    """The local layer's sums, where its kernels are held"""

    def of_some(self, which: Array | slice) -> Objective:
        """The same for some of the clients, in any order; a client may be there several times."""
        return replace(
            self,
            cells=self.cells.of(which),
            shared=self.shared[which],
            fixed=self.fixed.of(which),
            residuals=self.residuals[which],
            J=self.J[which],
            h=self.h[which],
            local_inputs=None if self.local_inputs is None else self.local_inputs.of_some(which),
            prior=self.prior.of_some(which),
            form=self.form.of_some(which),
            known=None if self.known is None else self.known.of_some(which),
        )

    def nothing_known(self) -> bool:
        """Whether the others have said nothing, as at the start."""
        return not self.J.any() and not self.h.any()

    def without_padding(self) -> Objective:
        """The same density without inducing inputs that none of these clients has: with fewer weights."""
        if self.local_inputs is None or self.known is not None:
            return self
        inputs = self.local_inputs.without_padding()
        layout = self.layout._replace(local_size=inputs.among.shape[0])
        return replace(self, local_inputs=inputs, layout=layout)

    def with_held_kernels(self, at: Parameters) -> Objective:
        """For a search that holds the local kernels: their sums are taken once, none is pulled back."""
        return replace(self, known=self.local_sums(at)._replace(features=None))

    def local_sums(self, at: Parameters) -> LocalSums:
        """Sums over rows with the local features at ψ."""
        if self.known is not None:
            return self.known
        cells, layout = self.cells, self.layout
        if self.local_inputs is None:
            rest = np.zeros((*self.residuals.shape[:2], 0))
            residuals = self._all_residuals(rest)
            return LocalSums(self.shared, self.fixed, residuals, None)
        found = features_of(at.natural_kernels(), self.local_inputs)
        c, n = len(found.A), self.shared.shape[2]
        F = np.concatenate([self.shared, found.A.reshape(c, -1, n)], axis=1)
        new = slice(layout.shared_weights, layout.features)
        weighted = F[:, None, new] * cells.weights[:, :, None, :]
        gathered = regathered(self.fixed, F, weighted, cells.Y, new)
        residuals = self._all_residuals(cells.weights @ np.swapaxes(found.residual, 1, 2))
        return LocalSums(F, gathered, residuals, found)

    def _all_residuals(self, local: Float[Array, "c g Rl"]) -> Float[Array, "c g r"]:
        return np.concatenate(
            [self.residuals, self.residuals[..., : self.layout.deviations], local], axis=2
        )

    def loadings(self, at: Parameters) -> Float[Array, "c Q r"]:
        """[B_g | B̃ | B_l]"""
        count = len(at.loadings)
        own = at.global_loadings
        B_g = np.broadcast_to(self.B_g, (count, *self.B_g.shape)) if own is None else own
        dev = at.deviation[..., : self.layout.deviations]
        if self.tied_deviation is not None and self.layout.deviations:
            tied = np.broadcast_to(self.tied_deviation, (count, *self.tied_deviation.shape))
            dev = tied * dev if dev.shape[2] else tied
        return np.concatenate([B_g, dev, at.loadings], axis=2)

    def of_deviation(self, of_B: Float[Array, "c Q R"]) -> Float[Array, "c Q R"]:
        """The slope in what a client has for its deviation, from that in B̃."""
        return of_B if self.tied_deviation is None else of_B * self.tied_deviation

    def all_sums(self, at: Parameters) -> tuple[LocalSums, cells_.Precision, Totals]:
        """The local layer, Π and Λ, η at ψ."""
        local = self.local_sums(at)
        precision = cells_.precision_of(at.noise, self.cells)
        return (
            local,
            precision,
            totals(self.layout, local.gathered, self.loadings(at), precision.matrix),
        )

    def _integral(
        self, local: LocalSums, precision: cells_.Precision, found: Totals
    ) -> tuple[Float[Array, " c"], Float[Array, "c K K"], Float[Array, "c K"]]:
        """The cavity bound is a constant and the log integral of Λ and η, to which the others' are added."""
        k = self.layout.shared_weights
        Lambda, eta = found.precision.copy(), found.linear.copy()
        Lambda[:, :k, :k] += self.J
        eta[:, :k] += self.h
        constant = self.cells.log_constant(precision) - 0.5 * found.residual(local.residuals)
        return constant, Lambda, eta

    def cavity(self, at: Parameters) -> Float[Array, " c"]:
        """The cavity bound at ψ, without the prior."""
        constant, Lambda, eta = self._integral(*self.all_sums(at))
        return constant + linalg.log_partition(Lambda, eta)

    def heights(self, rows: Float[Array, "c P"], *, covariance: bool = False) -> Height:
        """log p(y, ψ), and the weights' moments, without a gradient."""
        at = self.form.from_rows(rows)
        constant, Lambda, eta = self._integral(*self.all_sums(at))
        constant += self.prior.value_and_gradient(at)[0]
        if not covariance:
            log, mean = linalg.log_partition_and_mean(Lambda, eta)
            return Height(constant + log, mean)
        log, moments = linalg.integrate(Lambda, eta)
        return Height(constant + log, *moments)

    def value_and_gradient(
        self, rows: Float[Array, "c P"]
    ) -> tuple[Float[Array, " c"], Float[Array, "c P"]]:
        """log p(y, ψ) and its gradient in ψ."""
        at = self.form.from_rows(rows)
        local, precision, found = self.all_sums(at)
        constant, Lambda, eta = self._integral(local, precision, found)
        log, moments = linalg.integrate(Lambda, eta)
        mean, second = moments.mean, moments.second
        adjoints = loadings_pullback(found, mean, second, local.residuals, self.cells.squares)
        prior, slope = self.prior.value_and_gradient(at)
        R, d = self.layout.latents, self.layout.deviations
        if d and slope.deviation.shape[2]:
            of_dev = adjoints.B[..., R : R + d]
            slope.deviation[...] += self.of_deviation(of_dev)
        of_noise = cells_.noise_pullback(at.noise, self.cells, precision, adjoints.Pi)
        of_own = slope.global_loadings
        gradient = Parameters(
            self._of_kernels(local, found, mean, second, slope.kernels),
            slope.deviation,
            slope.loadings + adjoints.B[..., R + d :],
            jax.tree.map(lambda leaf: leaf + of_noise.reshape(leaf.shape), slope.noise),
            None if of_own is None else of_own + adjoints.B[..., :R],
        )
        return constant + log + prior, gradient.rows()

    def _of_kernels(
        self, local: LocalSums, found: Totals, mean: Array, second: Array, slope: Kernel
    ) -> Kernel:
        if local.features is None or self.local_inputs is None:
            return slope
        own, layout, cells = local.features, self.layout, self.cells
        weights = slice(layout.weights - layout.local_weights, layout.weights)
        bar = sums_pullback(found, cells, local.F, mean, second, weights).reshape(own.A.shape)
        each = np.einsum("cgaa->cga", found.W)[:, :, layout.latents + layout.deviations :]
        bar += residual_pullback(own, each, cells.weights)
        pulled = features_pullback(own, self.local_inputs, bar)
        return jax.tree.map(np.add, slope, pulled)

    def turns(self) -> int:
        """How many clients are computed at once."""
        f, n = self.layout.features, self.shared.shape[2]
        largest = max(f * n, self.layout.weights**2) * len(self.cells.outputs)
        return max(1, AT_ONCE // max(largest, 1))
