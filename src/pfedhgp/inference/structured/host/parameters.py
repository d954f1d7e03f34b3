"""ψ: what a client learns, as rows of numbers, and the prior of it with its gradient."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from pfedhgp.gp.kernels import Kernel, Periodic, leaves_of
from pfedhgp.gp.noise import DiagonalNoise, FullNoise, Noise
from pfedhgp.model.blocks import ClientBlock, Structure

Array = np.ndarray


class Parameters(NamedTuple):
    """ψ of a batch of clients: logarithms of the local kernels' parameters, B̃, B_l and the noise."""

    kernels: Kernel
    deviation: Float[Array, "c Q R"]
    loadings: Float[Array, "c Q Rl"]
    noise: Noise

    @staticmethod
    def of(blocks: ClientBlock) -> Parameters:
        logs = jax.tree.map(lambda leaf: np.log(np.asarray(leaf)), blocks.kernels)
        noise = jax.tree.map(np.asarray, blocks.noise)
        return Parameters(logs, np.asarray(blocks.deviation), np.asarray(blocks.loadings), noise)

    def rows(self) -> Float[Array, "c P"]:
        """One row of numbers for each client."""
        leaves = jax.tree.leaves(self)
        return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)

    def from_rows(self, rows: Float[Array, "k P"]) -> Parameters:
        """The inverse, for parameters of this form."""
        leaves, form = jax.tree.flatten(self)
        found, at = [], 0
        for leaf in leaves:
            size = int(np.prod(leaf.shape[1:]))
            found.append(rows[:, at : at + size].reshape(len(rows), *leaf.shape[1:]))
            at += size
        return jax.tree.unflatten(form, found)

    def of_some(self, which: Array | slice) -> Parameters:
        return jax.tree.map(lambda leaf: leaf[which], self)

    def natural_kernels(self) -> Kernel:
        return jax.tree.map(np.exp, self.kernels)

    def block(self, like: ClientBlock) -> ClientBlock:
        """Blocks with these parameters, and the inputs of `like`."""
        return ClientBlock(
            self.natural_kernels(),
            like.inputs,
            like.active,
            self.deviation,
            self.loadings,
            self.noise,
        )


class Prior(NamedTuple):
    """What `client_step.log_prior` says of ψ, for a batch of clients."""

    structure: Structure
    anchor: Parameters
    phi: float
    floor: Float[Array, "c d"] | None

    def of_some(self, which: Array | slice) -> Prior:
        floor = None if self.floor is None else self.floor[which]
        return Prior(self.structure, self.anchor.of_some(which), self.phi, floor)

    def value_and_gradient(self, at: Parameters) -> tuple[Float[Array, " c"], Parameters]:
        """log p(ψ) up to a constant, and its gradient."""
        gaps = jax.tree.map(lambda a, b: a - b, at.kernels, self.anchor.kernels)
        value = np.zeros(len(at.loadings))
        for gap in jax.tree.leaves(gaps):
            value -= 0.125 * _per_client(gap**2)
        of_kernels = jax.tree.map(lambda gap: -0.25 * gap, gaps)
        noise_value, of_noise = _noise_gap(at.noise, self.anchor.noise)
        value -= 0.125 * noise_value
        B, dev, tied = at.loadings, at.deviation, self.structure.tied
        if tied:
            gap = np.log(B**2 + 1e-12) - np.log(self.anchor.loadings**2 + 1e-12)
            value -= 0.125 * _per_client(gap**2)
            of_loadings = -0.5 * gap * B / (B**2 + 1e-12)
        else:
            value -= 0.5 * _per_client(B**2)
            of_loadings = -B
        of_deviation = np.zeros_like(dev)
        if self.structure.deviation and not tied:
            size = int(np.prod(dev.shape[1:]))
            value -= 0.5 * (_per_client(dev**2) / self.phi + size * np.log(self.phi))
            of_deviation = -dev / self.phi
        if self.floor is not None:
            value -= _below_floor(at.kernels, of_kernels, self.floor)
        return value, Parameters(of_kernels, of_deviation, of_loadings, of_noise)


def _per_client(values: Array) -> Float[Array, " c"]:
    return values.reshape(len(values), -1).sum(1)


def _noise_gap(noise: Noise, anchor: Noise) -> tuple[Array, Noise]:
    """|log σ² − log σ'²|², and −⅛ of its gradient."""
    if isinstance(noise, DiagonalNoise):
        assert isinstance(anchor, DiagonalNoise)
        gap = noise.log_variance - anchor.log_variance
        return _per_client(gap**2), DiagonalNoise(-0.25 * gap, noise.floor)
    assert isinstance(noise, FullNoise)
    assert isinstance(anchor, FullNoise)
    gap = np.tril(noise.log_factor - anchor.log_factor)
    weight = 1.0 + 3.0 * np.eye(gap.shape[1])
    return _per_client(weight * gap**2), FullNoise(-0.25 * weight * gap, noise.floor)


def _below_floor(logs: Kernel, gradient: Kernel, floor: Float[Array, "c d"]) -> Float[Array, " c"]:
    """½ Σ (log(floor/ℓ)/¼)² over lengthscales below it; takes its gradient from `gradient`."""
    cost = np.zeros(len(floor))
    for leaf, slope in zip(leaves_of(logs), leaves_of(gradient), strict=True):
        if isinstance(leaf, Periodic):
            continue
        own = floor if leaf.dims is None else floor[:, np.asarray(leaf.dims)]
        short = np.maximum(np.log(own)[:, None, :] - leaf.lengthscale, 0.0)
        cost += 8.0 * _per_client(short**2)
        slope.lengthscale[...] += 16.0 * short
    return cost
