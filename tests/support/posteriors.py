"""Fitted models without a fit: random parameters and rows, solved, beside their dense twins."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import reference as ref
from pfedhgp.data.scaling import Scaling
from pfedhgp.gp import kernels as kn
from pfedhgp.gp import linalg
from pfedhgp.gp.features import Basis
from pfedhgp.gp.noise import DiagonalNoise, FullNoise, Noise
from pfedhgp.inference.grams import accumulate
from pfedhgp.inference.structured.bound import design_of, summary
from pfedhgp.inference.structured.posterior import client_posterior
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows, Structure, deviation_loadings
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.posterior import ClientPosterior, GlobalPosterior, Population

Pair = tuple[kn.Kernel, ref.Kernel]


@dataclass(frozen=True)
class Case:
    """A fitted model and its dense twin; the twin works in scaled units."""

    model: FittedModel
    Xs: list[np.ndarray]  # in the unit box
    Ys: list[np.ndarray]  # scaled, NaN where missing
    twin: ref.Model
    inducing: ref.Inducing

    def expected(self, client: int, X_scaled: np.ndarray) -> ref.Layers:
        return ref.sparse_posterior(client, X_scaled, self.Xs, self.Ys, self.twin, self.inducing)

    def exact(self, client: int, X_scaled: np.ndarray) -> ref.Layers:
        return ref.exact_posterior(client, X_scaled, self.Xs, self.Ys, self.twin)


def rbf(lengthscale: Any) -> Pair:
    return kn.RBF(np.asarray(lengthscale)), partial(ref.rbf, lengthscale=lengthscale)


def matern(lengthscale: Any) -> Pair:
    return kn.Matern32(np.asarray(lengthscale)), partial(ref.matern32, lengthscale=lengthscale)


def stacked(kernels: list[kn.Kernel], template: kn.Kernel) -> kn.Kernel:
    if kernels:
        return kn.stack(kernels)
    return jax.tree.map(lambda leaf: np.zeros((0, *np.shape(leaf))), template)


def identity(d: int, Q: int) -> Scaling:
    return Scaling(np.zeros(d), np.ones(d), np.zeros(Q), np.ones(Q))


def make(
    *,
    seed: int = 0,
    sizes: tuple[int, ...] = (7, 5, 9),
    d: int = 1,
    outputs: int = 2,
    latents: int = 2,
    local_latents: int = 2,
    deviation: bool = True,
    tied: bool = False,
    noise: str = "output",
    missing: float = 0.0,
    inducing: tuple[int, int] = (6, 5),
    everywhere: bool = False,
    jitter: float = 1e-8,
    local_jitter: float | None = None,
    scaling: Scaling | None = None,
) -> Case:
    """A model with random parameters, solved on random rows; `everywhere` puts Z on all inputs."""
    rng = np.random.default_rng(seed)
    Q = outputs
    Xs = [rng.uniform(0, 1, (n, d)) for n in sizes]
    Ys = [rng.normal(size=(n, Q)) for n in sizes]
    for Y in Ys:
        Y[rng.uniform(size=Y.shape) < missing] = np.nan
    pairs = [rbf(rng.uniform(0.2, 0.5, d)) for _ in range(latents)]
    structure = Structure(deviation=deviation, tied=tied)
    Z_g = np.concatenate(Xs) if everywhere else rng.uniform(0, 1, (inducing[0], d))
    B_g = np.abs(rng.normal(size=(Q, latents))) + 0.3 if tied else rng.normal(size=(Q, latents))
    shared = GlobalBlock(
        stacked([k for k, _ in pairs], rbf(np.ones(d))[0]),
        jnp.asarray(Z_g),
        jnp.asarray(B_g),
        jnp.asarray(0.6),
    )
    basis = jax.jit(GlobalBlock.basis)(shared, jitter)
    K = latents * len(Z_g)
    own = jitter if local_jitter is None else local_jitter
    blocks, local_pairs, posteriors, J, h = [], [], [], np.zeros((K, K)), np.zeros(K)
    for X, Y in zip(Xs, Ys, strict=True):
        local = [matern(rng.uniform(0.1, 0.3, d)) for _ in range(local_latents)]
        Z = X if everywhere else rng.uniform(0, 1, (inducing[1], d))
        drawn = 0.7 * rng.normal(size=(Q, latents))
        block = ClientBlock(
            kernels=stacked([k for k, _ in local], matern(np.ones(d))[0]),
            inputs=jnp.asarray(Z),
            active=jnp.ones(len(Z)),
            deviation=jnp.ones((Q, latents)) if tied else jnp.asarray(drawn),  # tied: √(φ_i/φ)
            loadings=jnp.asarray(rng.normal(size=(Q, local_latents))),
            noise=random_noise(noise, Q, rng),
        )
        h_i, J_i, posterior = solve_client(
            structure, shared, basis, block, padded_rows(X, Y, max(sizes)), own
        )
        J, h = J + J_i, h + h_i
        blocks.append(block)
        local_pairs.append(local)
        posteriors.append(posterior)
    mean, covariance = linalg.posterior_moments(jnp.asarray(J), jnp.asarray(h))
    B_dev = [np.asarray(deviation_loadings(structure, shared, b)) for b in blocks]
    B_loc = [np.asarray(b.loadings) for b in blocks]
    Sigma = [np.asarray(b.noise.covariance(Q)) for b in blocks]
    names = [f"client {i}" for i in range(len(sizes))]
    model = FittedModel(
        structure=structure,
        inference="structured",
        kernel=kn.RBF(),
        local_kernel=kn.Matern32(),
        shared=GlobalPosterior(shared, mean, covariance),
        clients=dict(zip(names, posteriors, strict=True)),
        population=Population(
            deviation_power=np.mean([B @ B.T for B in B_dev], axis=0),
            local_power=np.mean([B @ B.T for B in B_loc], axis=0),
            noise=np.mean(Sigma, axis=0),
            clients=np.float64(len(sizes)),
            division=np.zeros((Q, Q)),
        ),
        scaling=identity(d, Q) if scaling is None else scaling,
        input_names=tuple(f"x{i}" for i in range(d)),
        output_names=tuple(f"y{i}" for i in range(Q)),
        jitter=jitter,
        client_jitter={} if local_jitter is None else dict.fromkeys(names, local_jitter),
        settings={"rounds": 3, "layers": ["global", "local"], "tolerance": 1e-3},
        history=[{"round": 0, "bound": -12.5}],
        messages=[{"round": 0, "from": "server", "to": "client 0", "arrays": {"J": [2, 2]}}],
    )
    twin = ref.Model(
        k_g=[k for _, k in pairs],
        k_l=[[k for _, k in local] for local in local_pairs],
        B_g=B_g,
        B_dev=B_dev,
        B_l=B_loc,
        noise=Sigma,
    )
    Z_l = [np.asarray(b.inputs) for b in blocks]
    return Case(model, Xs, Ys, twin, ref.Inducing(Z_g, Z_l, jitter))


@partial(jax.jit, static_argnums=0)
def solve_client(
    structure: Structure,
    shared: GlobalBlock,
    basis: Basis,
    block: ClientBlock,
    rows: Rows,
    jitter: float,
) -> tuple[jax.Array, jax.Array, ClientPosterior]:
    """h, J and q(w | v_g)."""
    K = basis.factor.shape[0] * basis.factor.shape[1]
    sums = accumulate(rows, design_of(structure, shared, basis, block, jitter))
    _, h, J = summary(sums, K)
    return h, J, client_posterior(sums, block, K)


def padded_rows(X: np.ndarray, Y: np.ndarray, length: int) -> Rows:
    """Rows with a mask for missing cells, and rows that count for nothing up to `length`."""
    pad = ((0, length - len(X)), (0, 0))
    seen = np.isfinite(Y)
    parts = (X, np.where(seen, Y, 0.0), seen.astype(float))
    return Rows(*(jnp.asarray(np.pad(part, pad)) for part in parts))


def random_noise(kind: str, outputs: int, rng: np.random.Generator) -> Noise:
    if kind == "full":
        raw = 0.3 * rng.normal(size=(outputs, outputs)) - np.eye(outputs)
        return FullNoise(jnp.asarray(raw))
    count = 1 if kind == "scalar" else outputs
    return DiagonalNoise(jnp.asarray(np.log(rng.uniform(0.02, 0.2, count))))
