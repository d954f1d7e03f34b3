"""v → L⁻¹L₀v/√s: the shared functions that releases tell of, as a global block and its posterior.

Every output has a shared function of its own, with its own lengthscales: R = Q latents, B_g = diag(√s). One
client's part can be taken out again, so that its rows do not count twice when it fits its own layers at home.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.linalg import block_diag

from pfedhgp.errors import InputError
from pfedhgp.gp.kernels import RBF, stack
from pfedhgp.model.blocks import GlobalBlock
from pfedhgp.model.posterior import GlobalPosterior
from pfedhgp.privacy.denoising import cells_of
from pfedhgp.privacy.release import JITTER, PublicBasis, Release
from pfedhgp.privacy.row_density import PER_INPUT
from pfedhgp.privacy.twin import Found, Parameters, Twins, averaged, learned

START = {"variance": 0.25, "departure": 0.3, "noise": 0.1, "local": 1e-3}
"""Where learning starts, and the middle of its weak priors, in outputs scaled to ±2."""
LONGER = 1.5
"""Lengthscales at the start, in shortest ones."""


@dataclass(frozen=True, eq=False)
class SharedFunction:
    """What the server computes from releases: parameters and posterior of each output."""

    public: PublicBasis
    parameters: tuple[Parameters, ...]
    found: tuple[Found, ...]

    @property
    def evidence(self) -> float:
        """log p of all releases."""
        return sum(each.evidence for each in self.found)

    def block(self) -> GlobalBlock:
        """Kernels, public inducing inputs, B_g and φ; with several outputs φ is that of loadings, φs."""
        kernels = stack([RBF(lengthscale=each.lengthscales) for each in self.parameters])
        scales = np.sqrt([each.variance for each in self.parameters])
        departures = [each.departure for each in self.parameters]
        if len(self.parameters) > 1:
            departures = [each.departure * each.variance for each in self.parameters]
        return GlobalBlock(
            kernels, self.public.inputs, np.diag(scales), np.float64(np.mean(departures))
        )

    def moments(
        self, without: int | None = None
    ) -> list[tuple[Float[np.ndarray, " M"], Float[np.ndarray, "M M"]]]:
        """Mean and covariance of each output's v on the public basis, of all clients or of all but one."""
        return [_without(found, without) for found in self.found]

    def posterior(self, without: int | None = None) -> GlobalPosterior:
        """q(v_g) in the whitened weights of the learned kernels, of all clients or of all but one."""
        block = self.block()
        factors = np.asarray(block.basis(JITTER).factor)
        origin = np.asarray(self.public.basis().factor)[0]
        means, covariances = [], []
        moments = zip(self.parameters, self.moments(without), strict=True)
        for q, (parameters, (mean, covariance)) in enumerate(moments):
            T = np.linalg.solve(factors[q], origin) / np.sqrt(parameters.variance)
            means.append(T @ mean)
            covariances.append(T @ covariance @ T.T)
        covariance = block_diag(*covariances)
        return GlobalPosterior(block, np.concatenate(means), 0.5 * (covariance + covariance.T))


def _without(
    found: Found, client: int | None
) -> tuple[Float[np.ndarray, " M"], Float[np.ndarray, "M M"]]:
    """S⁻¹ − J_i and S⁻¹m − h_i at the best parameters, as much wider as with all clients."""
    if client is None:
        return found.mean, found.covariance
    # S(I − J_i S)⁻¹ needs no inverse of S, which may be nearly singular.
    J, h = found.J[client], found.h[client]
    wider = np.zeros_like(found.covariance) if found.wider is None else found.wider
    S = found.covariance - wider
    values, vectors = np.linalg.eigh(J)
    half = vectors * np.sqrt(np.maximum(values, 0.0))
    inner = np.eye(len(values)) - half.T @ S @ half
    smallest, turned = np.linalg.eigh(inner)
    inverse = (turned / np.maximum(smallest, 1e-9)) @ turned.T
    gain = S @ half
    covariance = S + gain @ inverse @ gain.T
    mean = found.mean + gain @ inverse @ half.T @ found.mean - covariance @ h
    return mean, covariance + wider


def shared_function(public: PublicBasis, releases: Sequence[Release]) -> SharedFunction:
    """Learned from all clients' releases, output by output, and averaged over its parameters."""
    if not releases:
        raise InputError("there is no release to learn from")
    cells = cells_of(public, PER_INPUT)
    start = Parameters(LONGER * public.lengthscales, **START)
    outputs = len(releases[0].linear)
    parameters, found = [], []
    for q in range(outputs):
        twins = Twins.of(releases, q, cells)
        search = learned(public, twins, start)
        parameters.append(search.parameters)
        found.append(averaged(public, twins, search))
    return SharedFunction(public, tuple(parameters), tuple(found))
