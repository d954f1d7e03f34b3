"""Batches of clients with everything that a step depends on, small enough for exact comparisons."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import numpy as np

from pfedhgp.gp import kernels
from pfedhgp.gp.noise import DiagonalNoise, FullNoise
from pfedhgp.inference.structured.bound import GlobalEvidence
from pfedhgp.inference.structured.client_step import Broadcast, StepOptions
from pfedhgp.inference.structured.traits import Expected, traits_of
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows, Structure, to_free

JITTER = 1e-8


@dataclass(frozen=True)
class Batch:
    """The arguments of the solvers' functions."""

    options: StepOptions
    broadcast: Broadcast
    others: GlobalEvidence
    blocks: ClientBlock
    expected: Expected
    rows: Rows
    jitter: np.ndarray
    floor: np.ndarray


def rbf(rng: np.random.Generator, lead: tuple[int, ...], inputs: int) -> kernels.Kernel:
    return kernels.RBF(rng.uniform(0.2, 0.6, (*lead, inputs)))


def wavy(rng: np.random.Generator, lead: tuple[int, ...], inputs: int) -> kernels.Kernel:
    """A sum with a product in it, which has every kind of parameter."""
    wave = kernels.Periodic(
        rng.uniform(0.5, 1.0, (*lead, inputs)), period=rng.uniform(0.3, 0.5, (*lead, inputs))
    )
    slow = kernels.Matern52(rng.uniform(0.4, 0.8, (*lead, inputs)))
    rough = kernels.RationalQuadratic(
        rng.uniform(0.2, 0.5, (*lead, inputs)), rng.uniform(0.5, 2.0, lead)
    )
    product = kernels.Product((wave, slow))
    return kernels.Sum((product, rough), rng.uniform(0.3, 2.0, (*lead, 1)))


def two_layers(rng: np.random.Generator, lead: tuple[int, ...], inputs: int) -> kernels.Kernel:
    """Shared kernels in two stacks, of the global and of the deviation layer; local ones in one."""
    if len(lead) > 1:
        return rbf(rng, lead, inputs)
    half = (lead[0] // 2,)
    return kernels.Stacks((rbf(rng, half, inputs), wavy(rng, half, inputs)))


def batch(
    seed: int = 0,
    *,
    kernel=rbf,
    structure: Structure = Structure(),  # noqa: B008
    noise: str = "output",
    clients: int = 3,
    rows: int = 14,
    inputs: int = 1,
    outputs: int = 2,
    latents: int = 2,
    local: int = 2,
    size: int = 5,
    local_size: int = 4,
    missing: bool = False,
    replicates: bool = False,
    padding: bool = False,
    evaluations: int = 12,
) -> Batch:
    """Clients with rows from nowhere in particular: solvers must agree on any."""
    rng = np.random.default_rng(seed)
    Q, R, c = outputs, latents, clients
    if structure.tied:
        Q, R, local = 1, min(R, 1), 1
    Z = rng.uniform(size=(size, inputs))
    shared = GlobalBlock(kernel(rng, (R,), inputs), Z, rng.normal(size=(Q, R)), np.asarray(0.4))
    if structure.tied:
        shared = GlobalBlock(shared.kernels, Z, np.full((1, R), 1.3), np.asarray(0.4))
    if structure.client_loadings:
        half = rng.normal(size=(Q * R, Q * R))
        shared = replace(shared, loadings_covariance=half @ half.T + np.eye(Q * R))

    def blocks() -> ClientBlock:
        active = np.ones((c, local_size))
        if padding:
            active[1, -2:] = 0.0
        if noise == "full":
            form = FullNoise(np.tril(rng.normal(size=(c, Q, Q)) * 0.1) - 1.5 * np.eye(Q))
        else:
            form = DiagonalNoise(rng.uniform(-4, -2, (c, Q if noise == "output" else 1)))
        return ClientBlock(
            kernel(rng, (c, local), inputs),
            rng.uniform(size=(c, local_size, inputs)),
            active,
            rng.normal(size=(c, Q, R)) * 0.5,
            rng.normal(size=(c, Q, local)) * 0.7,
            form,
            rng.normal(size=(c, Q, R)) if structure.client_loadings else None,
        )

    mask = np.ones((c, rows, Q))
    if missing:
        mask = (rng.uniform(size=mask.shape) > 0.3).astype(float)
        mask[0, :, 0] = 0.0
    scatter = seen = None
    if replicates:
        counts = rng.integers(1, 4, (c, rows, 1)).astype(float)
        mask = mask * counts
        half = rng.normal(size=(c, 1, Q, Q))
        scatter, seen = half @ np.swapaxes(half, 2, 3), np.ones((c, 1, Q))
    if padding:
        mask[2, -3:] = 0.0
    Y = np.where(mask > 0, rng.normal(size=(c, rows, Q)), 0.0)
    X = rng.uniform(size=(c, rows, inputs))
    k = R * size
    half = rng.normal(size=(c, k, k))
    others = GlobalEvidence(half @ np.swapaxes(half, 1, 2), rng.normal(size=(c, k)) * 3.0)
    broadcast = Broadcast(
        shared, others.J[0], others.h[0], kernels_free=1.0, jitter=JITTER,
        evaluations=evaluations, derivatives=1,
    )  # fmt: skip
    return Batch(
        StepOptions(structure),
        broadcast,
        others,
        blocks(),
        expected_of(structure, blocks(), np.random.default_rng([seed, 1])),
        Rows(X, Y, mask, scatter, None, seen),
        np.array([1e-8, 1e-6, 1e-8, 1e-8])[:c],
        np.full((c, inputs), 0.3),
    )


def expected_of(structure: Structure, blocks: ClientBlock, rng: np.random.Generator) -> Expected:
    """A prior around the traits of other blocks."""
    free = to_free(blocks)
    mean = traits_of(structure, free)
    return Expected(mean, rng.uniform(0.2, 2.0, mean.shape))


def on_jax(tree):
    """The same with JAX's arrays."""
    return jax.tree.map(jax.numpy.asarray, tree)
