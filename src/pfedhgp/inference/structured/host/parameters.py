"""ψ: what a client learns, as rows of numbers, and the prior of it with its gradient."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from pfedhgp.gp.kernels import Kernel, Periodic, leaves_of
from pfedhgp.gp.linalg import diagonal_matrix
from pfedhgp.gp.noise import DiagonalNoise, FullNoise, Noise
from pfedhgp.inference.structured.traits import TINY, Expected, traits_of
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Structure, deviation_variances

Array = np.ndarray


class Parameters(NamedTuple):
    """ψ of a batch of clients: logarithms of the local kernels' parameters, B̃, B_l, the noise and B_g,i."""

    kernels: Kernel
    deviation: Float[Array, "c Q R"]
    loadings: Float[Array, "c Q Rl"]
    noise: Noise
    global_loadings: Float[Array, "c Q R"] | None = None
    """None: those of the global block are everybody's"""

    @staticmethod
    def of(blocks: ClientBlock) -> Parameters:
        logs = jax.tree.map(lambda leaf: np.log(np.asarray(leaf)), blocks.kernels)
        noise = jax.tree.map(np.asarray, blocks.noise)
        own = blocks.global_loadings
        return Parameters(
            logs,
            np.asarray(blocks.deviation),
            np.asarray(blocks.loadings),
            noise,
            None if own is None else np.asarray(own),
        )

    def rows(self) -> Float[Array, "c P"]:
        """One row of numbers for each client."""
        leaves = jax.tree.leaves(self)
        return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)

    def from_rows(self, rows: Float[Array, "k P"]) -> Parameters:
        """The inverse, for parameters of this form."""
        leaves, form = jax.tree.flatten(self)
        found, at = [], 0
        for leaf in leaves:
            size = math.prod(leaf.shape[1:])
            found.append(rows[:, at : at + size].reshape(len(rows), *leaf.shape[1:]))
            at += size
        return jax.tree.unflatten(form, found)

    def of_some(self, which: Array | slice) -> Parameters:
        return jax.tree.map(lambda leaf: leaf[which], self)

    def traits(self, structure: Structure) -> Float[Array, "c t"]:
        """The logarithms of scales that have a population."""
        return traits_of(structure, self)

    def places(self, structure: Structure) -> Array:
        """Which number of a row each trait belongs to."""
        sizes = [_each(self.kernels), _each(self.deviation), _each(self.loadings)]
        noise = np.arange(_each(self.noise))
        if isinstance(self.noise, FullNoise):
            noise = noise[:: self.noise.log_factor.shape[1] + 1]
        scales = np.arange(sizes[0] + sum(sizes[1:] if structure.tied else ()))
        return np.concatenate([scales, noise + sum(sizes)])

    def turns(self, structure: Structure) -> Float[Array, "c t"]:
        """How fast each trait moves with its number."""
        count, own = len(self.loadings), self.noise.levels().shape[1]
        of_noise = 2.0 if isinstance(self.noise, FullNoise) else 1.0
        parts = [np.ones((count, _each(self.kernels)))]
        for B in (self.deviation, self.loadings) if structure.tied else ():
            parts.append(_log_slope(B).reshape(count, -1))
        return np.concatenate([*parts, np.full((count, own), of_noise)], axis=1)

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
            self.global_loadings,
        )


class Prior(NamedTuple):
    """What `client_step.log_prior` says of ψ, for a batch of clients."""

    structure: Structure
    expected: Expected
    shared: GlobalBlock
    floor: Float[Array, "c d"] | None

    def of_some(self, which: Array | slice) -> Prior:
        floor = None if self.floor is None else self.floor[which]
        expected = jax.tree.map(lambda leaf: leaf[which], self.expected)
        return self._replace(expected=expected, floor=floor)

    def value_and_gradient(self, at: Parameters) -> tuple[Float[Array, " c"], Parameters]:
        """log p(ψ) up to a constant, and its gradient."""
        tied, B, dev = self.structure.tied, at.loadings, at.deviation
        gap = at.traits(self.structure) - self.expected.mean
        slope = -self.expected.precision * gap
        value = 0.5 * np.einsum("ct,ct->c", slope, gap)
        if isinstance(at.noise, FullNoise):
            value -= 0.125 * at.noise.mixing()
        of_kernels, start = _cut(at.kernels, slope)
        of_deviation = np.zeros_like(dev)
        if tied:
            d, end = start + dev.shape[2], start + dev.shape[2] + B.shape[2]
            of_deviation = slope[:, start:d].reshape(dev.shape) * _log_slope(dev)
            of_loadings = slope[:, d:end].reshape(B.shape) * _log_slope(B)
            start = end
        else:
            value -= 0.5 * _per_client(B**2)
            of_loadings = -B
        of_noise = slope[:, start:]
        if self.structure.deviation and not tied:
            size, phi = int(np.prod(dev.shape[1:])), float(self.shared.phi)
            of_deviation = -dev / deviation_variances(self.shared)
            value += 0.5 * (_per_client(dev * of_deviation) - size * np.log(phi))
        if self.floor is not None:
            value -= _below_floor(at.kernels, of_kernels, self.floor)
        own, spread = at.global_loadings, self.shared.loadings_covariance
        of_own = None
        if own is not None and spread is not None:
            gaps_of_own = (own - self.shared.loadings).reshape(len(own), -1)
            pulled = -np.linalg.solve(spread, gaps_of_own.T).T
            value += 0.5 * (gaps_of_own * pulled).sum(1)
            of_own = pulled.reshape(own.shape)
        return value, Parameters(
            of_kernels, of_deviation, of_loadings, _noise_slope(at.noise, of_noise), of_own
        )


def _cut(like: Kernel, columns: Float[Array, "c t"]) -> tuple[Kernel, int]:
    """The first columns in the form of `like`, and how many they are."""
    leaves, form = jax.tree.flatten(like)
    found, start = [], 0
    for leaf in leaves:
        stop = start + leaf[0].size
        found.append(columns[:, start:stop].reshape(leaf.shape).copy())
        start = stop
    return jax.tree.unflatten(form, found), start


def _noise_slope(noise: Noise, of_levels: Float[Array, "c K"]) -> Noise:
    """The gradient of the prior in the noise's coordinates, from that in its levels."""
    if isinstance(noise, DiagonalNoise):
        return jax.tree.unflatten(jax.tree.structure(noise), [of_levels])
    assert isinstance(noise, FullNoise)
    below = -0.25 * np.tril(noise.log_factor, -1)
    return FullNoise(below + diagonal_matrix(2.0 * of_levels), noise.floor)


def _each(tree: Any) -> int:
    """How many numbers a client has in it."""
    return sum(int(np.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(tree))


def _log_slope(B: Array) -> Array:
    """∂ log B²/∂B"""
    return 2.0 * B / (B**2 + TINY)


def _per_client(values: Array) -> Float[Array, " c"]:
    return values.reshape(len(values), -1).sum(1)


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
