"""A state-space local layer in the sums, the bound and predictions, against dense matrices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import RBF, Matern12, Matern32, stack
from pfedhgp.gp.noise import DiagonalNoise
from pfedhgp.inference.grams import Design, accumulate
from pfedhgp.inference.structured.bound import cavity_bound
from pfedhgp.model.blocks import Rows
from support import reference_states as twin

LENGTHS = (0.1, 0.3)


def made(outputs: int = 2, latents: int = 2, n: int = 25) -> tuple[Rows, Design]:
    """Rows in order with missing cells and replicates, and a design with every layer."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(size=n))[:, None]
    mask = rng.choice([0.0, 1.0, 3.0], size=(n, outputs), p=[0.2, 0.6, 0.2])
    Y = np.where(mask > 0, rng.normal(size=(n, outputs)), 0.0)
    Z = np.linspace(0.0, 1.0, 5)[:, None]
    shared = Basis.build(
        stack([RBF([0.3 + 0.2 * r]) for r in range(latents)]), jnp.asarray(Z), 1e-8
    )
    design = Design(
        shared=shared,
        local=None,
        B_g=jnp.asarray(rng.normal(size=(outputs, latents))),
        B_dev=jnp.asarray(rng.normal(size=(outputs, latents))),
        B_loc=jnp.diag(jnp.asarray([0.8, 1.3][:outputs])),
        noise=DiagonalNoise(jnp.log(jnp.asarray([0.2, 0.05][:outputs]))),
        exact=stack([Matern32([length]) for length in LENGTHS[:outputs]]),
    )
    return Rows(jnp.asarray(X), jnp.asarray(Y), jnp.asarray(mask)), design


def dense(rows: Rows, design: Design, *, unloaded: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Λ, η and the constant from H, N and y written out cell by cell."""
    X, Y, mask = (np.asarray(v) for v in (rows.X, rows.Y, rows.mask))
    A = np.asarray(design.shared.features(rows.X))
    outputs, latents, M = Y.shape[1], A.shape[0], A.shape[1]
    sigma = np.asarray(design.noise.variances(outputs))
    turned = A
    if design.origin is not None:
        gram = np.asarray(design.shared.gram)
        weights = np.linalg.solve(gram, np.asarray(design.shared.cross(rows.X)))
        turned = np.swapaxes(np.asarray(design.origin), 1, 2) @ weights
    H, y, blocks, constant = [], [], [], 0.0
    for q in range(outputs):
        seen = mask[:, q] > 0
        t, c = X[seen, 0], mask[seen, q]
        if unloaded:
            shared = np.zeros((seen.sum(), latents, outputs, M))
            shared[:, :, q] = np.moveaxis(turned[:, :, seen], 2, 0)
        else:
            shared = np.einsum("r,rmn->nrm", np.asarray(design.B_g)[q], turned[:, :, seen])
        own = np.einsum("r,rmn->nrm", np.asarray(design.B_dev)[q], A[:, :, seen])
        H.append(np.concatenate([v.reshape(seen.sum(), -1) for v in (shared, own)], axis=1))
        y.append(Y[seen, q])
        b = float(design.B_loc[q, q])
        blocks.append(b**2 * twin.matern(t, t, LENGTHS[q], 2) + np.diag(sigma[q] / c))
        constant -= 0.5 * np.sum((c - 1) * np.log(2 * np.pi * sigma[q]) + np.log(c))
    N = np.zeros((sum(map(len, y)), sum(map(len, y))))
    start = 0
    for block in blocks:
        N[start : start + len(block), start : start + len(block)] = block
        start += len(block)
    tall, target = np.concatenate(H), np.concatenate(y)
    solved = np.linalg.solve(N, np.column_stack([tall, target]))
    constant -= 0.5 * (
        len(N) * np.log(2 * np.pi) + np.linalg.slogdet(N)[1] + target @ solved[:, -1]
    )
    return tall.T @ solved[:, :-1], tall.T @ solved[:, -1], float(constant)


@pytest.mark.parametrize("unloaded", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_sums_are_those_of_dense_matrices(unloaded: bool, turned: bool) -> None:
    rows, design = made()
    if turned:
        origin = design.shared.factor @ np.random.default_rng(1).normal(size=(2, 5, 5))
        design = Design(
            *(
                getattr(design, name)
                for name in ("shared", "local", "B_g", "B_dev", "B_loc", "noise")
            ),
            origin=origin,
            exact=design.exact,
        )
    found = jax.jit(lambda r, d: accumulate(r, d, unloaded=unloaded, chunk=8))(rows, design)
    precision, linear, constant = dense(rows, design, unloaded=unloaded)
    np.testing.assert_allclose(found.precision, precision, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.linear, linear, rtol=1e-9, atol=1e-9)
    assert float(found.constant) == pytest.approx(constant, rel=1e-10)
    A = np.asarray(design.shared.features(rows.X))
    left = np.maximum(1.0 - (A**2).sum(1), 0.0)
    power = np.asarray(design.B_g) ** 2 + np.asarray(design.B_dev) ** 2
    per_cell = np.asarray(rows.mask) / np.asarray(design.noise.variances(2))
    assert float(found.residual) == pytest.approx(
        float(np.einsum("rn,qr,nq->", left, power, per_cell)), rel=1e-9
    )


def test_bound_and_gradient_are_those_of_many_inducing_inputs() -> None:
    """With Z_i at every input the inducing layer is exact too: the same bound, the same slopes."""
    rows, design = made(outputs=1, latents=1)
    J, h = jnp.eye(5) * 2.0, jnp.arange(5.0) * 0.1

    def bound(free: jax.Array, exact: bool) -> jax.Array:
        length, scale, noise = jnp.exp(free)
        kernels = jax.tree.map(lambda v: v[None], Matern12(length[None]))
        local = None if exact else Basis.build(kernels, rows.X, 1e-12)
        changed = Design(
            design.shared,
            local,
            design.B_g,
            design.B_dev,
            scale.reshape(1, 1),
            DiagonalNoise(jnp.log(noise)[None]),
            exact=kernels if exact else None,
        )
        return cavity_bound(accumulate(rows, changed), J, h)

    point = jnp.log(jnp.asarray([0.2, 0.9, 0.1]))
    value = jax.jit(jax.value_and_grad(bound), static_argnums=1)
    (a, slope_a), (b, slope_b) = value(point, True), value(point, False)
    assert float(a) == pytest.approx(float(b), abs=1e-6)
    np.testing.assert_allclose(slope_a, slope_b, rtol=1e-5, atol=1e-5)
