"""Starting values of the two blocks, from summed moments and from what a client sees alone."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from pfedhgp.gp.noise import DiagonalNoise, FullNoise, Noise
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.model.blocks import ClientBlock, GlobalBlock
from pfedhgp.model.spec import Spec, starting_kernels


def principal_loadings(
    second_moment: np.ndarray, rank: int, rng: np.random.Generator | None
) -> np.ndarray:
    """Leading eigenvectors of E[yyᵀ], scaled so that B Bᵀ is near it; turned at random on a restart."""
    outputs = len(second_moment)
    values, vectors = np.linalg.eigh(second_moment)
    values, vectors = values[::-1], vectors[:, ::-1]
    floor = 0.05 * max(float(np.trace(second_moment)) / outputs, 1e-3)
    columns = [
        vectors[:, r % outputs] * np.sqrt(max(values[r % outputs], floor)) for r in range(rank)
    ]
    B = np.stack(columns, axis=1) if rank else np.zeros((outputs, 0))
    if rng is not None and rank > 1:
        B = B @ np.linalg.qr(rng.normal(size=(rank, rank)))[0]
    return B


def second_moment(Y: np.ndarray) -> np.ndarray:
    """E[yyᵀ] over pairs of observed cells; the identity for pairs that were never observed together."""
    seen = np.isfinite(Y).astype(np.float64)
    filled = np.where(seen > 0, Y, 0.0)
    pairs = seen.T @ seen
    return np.where(pairs > 0, (filled.T @ filled) / np.maximum(pairs, 1.0), np.eye(Y.shape[1]))


def global_block(
    spec: Spec,
    start: Start,
    moment: np.ndarray,
    inputs: np.ndarray,
    extent: np.ndarray,
    seed: int | None,
) -> GlobalBlock:
    """Half of the shared scale's variance to the global layer, half to the deviations (φ = 1)."""
    rng = None if seed is None else np.random.default_rng([seed, 0])
    kernels = starting_kernels(spec.kernel, scale=start.shared, count=spec.latents, extent=extent)
    share = np.sqrt(0.5 * start.shared_variance)
    if spec.tied:
        loadings = np.full((spec.outputs, spec.latents), share)
        phi = 1.0
    else:
        loadings = principal_loadings(moment, spec.latents, rng) * share
        phi = 0.5 * start.shared_variance
    return GlobalBlock(
        kernels, jnp.asarray(inputs), jnp.asarray(loadings), jnp.asarray(np.float64(phi))
    )


def client_block(
    spec: Spec,
    start: Start,
    Y: np.ndarray,
    inputs: np.ndarray,
    extent: np.ndarray,
    seed: int | None,
) -> ClientBlock:
    """Directions from the client's own second moment; scales from the agreed start."""
    rng = None if seed is None else np.random.default_rng([seed, 1])
    kernels = starting_kernels(
        spec.local_kernel, scale=start.local, count=spec.local_latents, extent=extent
    )
    moment = second_moment(Y)
    width = spec.latents if spec.deviation and not spec.tied else 0
    deviation = principal_loadings(moment, width, rng) * np.sqrt(0.5 * start.shared_variance)
    if spec.state_space:
        local = np.sqrt(start.local_variance) * np.eye(spec.outputs)
    elif spec.tied:
        local = np.full((1, spec.local_latents), np.sqrt(start.local_variance))
    else:
        local = principal_loadings(moment, spec.local_latents, rng) * np.sqrt(start.local_variance)
    return ClientBlock(
        kernels,
        jnp.asarray(inputs),
        jnp.ones(len(inputs)),
        jnp.asarray(deviation),
        jnp.asarray(local),
        starting_noise(spec, start.noise_variance),
    )


def starting_noise(spec: Spec, variance: float) -> Noise:
    """Σ = variance · I in the form that the spec asks for."""
    if spec.noise == "full":
        return FullNoise(jnp.eye(spec.outputs) * (0.5 * np.log(variance)))
    size = 1 if spec.noise == "scalar" else spec.outputs
    return DiagonalNoise(jnp.full((size,), np.log(variance)))
