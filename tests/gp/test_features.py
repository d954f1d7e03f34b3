"""Whitened features against the naive twins, padding, and moves between bases."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference as ref
from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import stack, unstack
from support import twins

build = twins.compiled(Basis.build)
features = twins.compiled(lambda basis, X: basis.features(X))
project = twins.compiled(lambda basis, old: basis.project_from(old))
carry = twins.compiled(lambda basis, old: basis.carry_from(old))
residual = twins.compiled(lambda basis, A: basis.residual(A))


def basis_and_points(make, d: int = 2, R: int = 2, M: int = 5, jitter: float = 1e-8, seed: int = 0):
    rng = np.random.default_rng(seed)
    kernels = stack([make(rng, d) for _ in range(R)])
    Z, X = twins.spread(rng, M, d, 3.0), rng.uniform(0, 3, (7, d))
    return kernels, build(kernels, jnp.asarray(Z), jitter), Z, X


MAKERS = [twins.rbf, twins.matern52, twins.matern32, twins.wave]


@pytest.mark.parametrize("jitter", [1e-8, 1e-3])
@pytest.mark.parametrize("make", MAKERS)
def test_features_and_residual_equal_the_naive_twins(make, jitter):
    kernels, basis, Z, X = basis_and_points(make, jitter=jitter)
    A = features(basis, jnp.asarray(X))
    res = residual(basis, A)
    assert A.shape == (2, 5, 7)
    for r in range(2):
        k = twins.dense_kernel(unstack(kernels, r))
        twins.assert_close(A[r].T, ref.features(k, Z, X, jitter))
        twins.assert_close(res[r], ref.residual(k, Z, X, jitter))
        L = np.asarray(basis.factor[r])
        twins.assert_close(L @ L.T, ref.inducing_covariance(k, Z, jitter), 1e-13)


def test_residual_is_zero_at_the_inducing_inputs_and_one_far_away():
    _, basis, Z, _ = basis_and_points(twins.matern32, jitter=1e-12)
    at_Z = residual(basis, features(basis, jnp.asarray(Z)))
    assert np.all(np.asarray(at_Z) >= 0.0)
    np.testing.assert_allclose(at_Z, 0.0, atol=1e-11)
    far = residual(basis, features(basis, jnp.full((1, 2), 1e3)))
    np.testing.assert_allclose(far, 1.0, rtol=1e-15)


@pytest.mark.parametrize("active", [[1, 1, 1, 0, 0], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0]])
def test_padding_changes_nothing(active):
    """Inactive inputs, wherever they stand and whatever they hold, have features zero."""
    kernels, _, Z, X = basis_and_points(twins.wave)
    mask = np.array(active, float)
    held = np.where(mask[:, None] > 0, Z, Z[1])  # padding on top of a real input
    padded = build(kernels, jnp.asarray(held), 1e-8, jnp.asarray(mask))
    A = np.asarray(features(padded, jnp.asarray(X)))
    np.testing.assert_array_equal(A[:, mask == 0], 0.0)
    short = build(kernels, jnp.asarray(Z[mask > 0]), 1e-8)
    small = np.asarray(features(short, jnp.asarray(X)))
    np.testing.assert_allclose(A[:, mask > 0], small, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(
        residual(padded, jnp.asarray(A)), residual(short, jnp.asarray(small)), rtol=1e-11
    )


def test_padding_has_no_gradient():
    kernels, _, Z, X = basis_and_points(twins.matern32)
    mask = jnp.asarray([1.0, 1.0, 1.0, 0.0, 0.0])
    held = jnp.asarray(np.where(np.asarray(mask)[:, None] > 0, Z, Z[1]))

    @twins.compiled
    @jax.grad
    def by_inputs(Z):
        basis = Basis.build(kernels, Z, 1e-8, mask)
        A = basis.features(jnp.asarray(X))
        return jnp.sum(jnp.sin(A)) + jnp.sum(basis.residual(A))

    gradient = np.asarray(by_inputs(held))
    np.testing.assert_array_equal(gradient[3:], 0.0)
    assert np.all(np.isfinite(gradient))
    assert np.all(gradient[:3] != 0.0)


def test_a_basis_without_inputs_or_latents():
    kernels, _, _, X = basis_and_points(twins.rbf)
    empty = Basis.build(kernels, jnp.zeros((0, 2)), 1e-8)
    A = empty.features(jnp.asarray(X))
    assert A.shape == (2, 0, 7)
    np.testing.assert_array_equal(empty.residual(A), np.ones((2, 7)))
    none = jax.tree.map(lambda leaf: leaf[:0], kernels)
    nothing = Basis.build(none, jnp.zeros((3, 2)), 1e-8)
    assert nothing.features(jnp.asarray(X)).shape == (0, 3, 7)
    assert nothing.residual(jnp.zeros((0, 3, 7))).shape == (0, 7)


def test_carry_from_keeps_the_functions_values_at_the_inducing_inputs():
    """u = L₀ v_old = L v, with v_old = T v"""
    rng = np.random.default_rng(3)
    _, old, Z, _ = basis_and_points(twins.rbf, seed=1)
    new = build(stack([twins.rbf(rng, 2) for _ in range(2)]), jnp.asarray(Z), 1e-8)
    v = rng.normal(size=(2, 5, 1))
    T = np.asarray(carry(new, old))
    np.testing.assert_allclose(
        np.asarray(old.factor) @ T @ v, np.asarray(new.factor) @ v, rtol=1e-9, atol=1e-10
    )
    np.testing.assert_allclose(np.asarray(carry(old, old)), np.stack([np.eye(5)] * 2), atol=1e-12)


def test_project_from_equal_inputs_is_the_carried_prior_mean():
    """E[u | u] = u: for the same kernels and inputs T is the identity, up to jitter."""
    _, old, _, _ = basis_and_points(twins.matern32, jitter=1e-10)
    T = np.asarray(project(old, old))
    np.testing.assert_allclose(T, np.stack([np.eye(5)] * 2), atol=1e-8)


def test_project_from_equals_the_conditional_mean():
    """v_old = L₀⁻¹ k(Z₀, Z) k(Z, Z)⁻¹ u for u = L v"""
    kernels, old, Z0, _ = basis_and_points(twins.matern52, seed=4)
    rng = np.random.default_rng(5)
    Z = twins.spread(rng, 8, 2, 3.0)
    new = build(kernels, jnp.asarray(Z), 1e-8)
    T = np.asarray(project(new, old))
    assert T.shape == (2, 5, 8)
    for r in range(2):
        k = twins.dense_kernel(unstack(kernels, r))
        u = rng.normal(size=8)
        expected = k(Z0, Z) @ np.linalg.solve(ref.inducing_covariance(k, Z, 1e-8), u)
        L0, L = np.asarray(old.factor[r]), np.asarray(new.factor[r])
        np.testing.assert_allclose(L0 @ T[r] @ np.linalg.solve(L, u), expected, rtol=1e-8)


def test_project_from_nested_inputs_is_exact():
    """Where Z holds all of Z₀, the old features are a projection of the new: a₀(x) = T a(x)."""
    kernels, old, Z0, X = basis_and_points(twins.matern32, jitter=1e-12, seed=6)
    more = np.random.default_rng(7).uniform(0, 3, (4, 2))
    new = build(kernels, jnp.asarray(np.concatenate([more, Z0])), 1e-12)
    T = np.asarray(project(new, old))
    # Rows are orthonormal: T Tᵀ = I says that nothing of v_old is lost.
    np.testing.assert_allclose(T @ np.swapaxes(T, 1, 2), np.stack([np.eye(5)] * 2), atol=1e-9)
    twins.assert_close(T @ np.asarray(features(new, jnp.asarray(X))), features(old, jnp.asarray(X)))


def test_project_from_ignores_padding():
    kernels, old, _, _ = basis_and_points(twins.matern52, seed=8)
    rng = np.random.default_rng(9)
    Z = twins.spread(rng, 6, 2, 3.0)
    mask = np.array([1.0, 1, 1, 1, 0, 0])
    padded = build(kernels, jnp.asarray(Z), 1e-8, jnp.asarray(mask))
    T = np.asarray(project(padded, old))
    np.testing.assert_array_equal(T[:, :, 4:], 0.0)
    short = build(kernels, jnp.asarray(Z[:4]), 1e-8)
    twins.assert_close(T[:, :, :4], project(short, old))
    back = np.asarray(project(old, padded))
    np.testing.assert_array_equal(back[:, 4:], 0.0)
    twins.assert_close(back[:, :4], project(old, short))


# ------------------------------------------------------------------------------ NumPy beside JAX


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("make", MAKERS)
def test_clients_at_once_in_numpy_equal_each_in_jax(make, padded):
    """One basis of three clients and two latents; each client's own, built by JAX."""
    rng = np.random.default_rng(10)
    each = [stack([make(rng, 2) for _ in range(2)]) for _ in range(3)]
    others = [stack([make(rng, 2) for _ in range(2)]) for _ in range(3)]
    Z = np.stack([twins.spread(rng, 5, 2, 3.0) for _ in range(3)])
    X, Z0 = rng.uniform(0, 3, (3, 7, 2)), np.stack([twins.spread(rng, 4, 2, 3.0) for _ in range(3)])
    mask = np.array([[1.0] * 5, [1, 1, 1, 0, 0], [0, 1, 1, 1, 1]]) if padded else np.ones((3, 5))
    active = mask[:, None] if padded else None
    every = Basis.build(stack(each), Z[:, None], 1e-8, active)
    moved = Basis.build(stack(others), Z[:, None], 1e-8, active)
    old = Basis.build(stack(others), Z0[:, None], 1e-8)
    A = every.features(X[:, None])
    res, carried, projected = every.residual(A), every.carry_from(moved), every.project_from(old)
    assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves((every, A, res, carried)))
    for c in range(3):
        on_jax = (jnp.asarray(v) for v in (Z[c], mask[c], X[c], Z0[c]))
        Zc, mask_c, Xc, Z0c = on_jax
        one = build(each[c], Zc, 1e-8, mask_c)
        two, before = build(others[c], Zc, 1e-8, mask_c), build(others[c], Z0c, 1e-8)
        for found, expected in [
            (every.factor[c], one.factor),
            (every.gram[c], one.gram),
            (A[c], features(one, Xc)),
            (res[c], residual(one, features(one, Xc))),
            (carried[c], carry(one, two)),
            (projected[c], project(one, before)),
        ]:
            twins.assert_close(found, expected, 1e-9)
