"""Kernels against tinygp and the naive twins, their algebra, and what they refuse."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from pfedhgp.errors import InputError
from pfedhgp.gp.kernels import (
    RBF,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Product,
    RationalQuadratic,
    Scaled,
    Sum,
    leaves_of,
    map_leaves,
    split_scale,
    stack,
    unstack,
)
from support import twins

STATIONARY = [RBF, Matern12, Matern32, Matern52, RationalQuadratic]
BASE = [*STATIONARY, Periodic]
LENGTHS = np.array([0.6, 1.7, 0.9])
PERIODS = np.array([2.1, 0.8, 1.3])


def base(kind, d: int, *, lengths=LENGTHS, dims=None):
    """One kernel of a kind in d dimensions."""
    options = {RationalQuadratic: {"alpha": 0.7}, Periodic: {"period": PERIODS[:d]}}
    return kind(lengths[:d], dims=dims, **options.get(kind, {}))


value = twins.compiled(lambda kernel, X, Z: kernel(X, Z))


def points(seed: int, n: int, d: int) -> np.ndarray:
    """Points with one repeated, so that k(x, x) is met off the diagonal too."""
    X = np.random.default_rng(seed).uniform(-1.5, 1.5, (n, d))
    X[-1] = X[0]
    return X


# ------------------------------------------------------------------------------------------- values


def tinygp_kernel(tinygp, kind, d: int):
    """The same kernel in tinygp: Euclidean distance, and lengthscales as a linear map."""
    kernels, transforms = tinygp.kernels, tinygp.transforms
    if kind is Periodic:  # tinygp's adds |x_j − z_j| inside the sine: take the dimensions' product
        parts = [
            transforms.Subspace(
                j, kernels.ExpSineSquared(scale=PERIODS[j], gamma=2.0 / LENGTHS[j] ** 2)
            )
            for j in range(d)
        ]
        product = parts[0]
        for part in parts[1:]:
            product = product * part
        return product
    distance = kernels.distance.L2Distance()
    made = {
        RBF: lambda: kernels.ExpSquared(distance=distance),
        Matern12: lambda: kernels.Exp(distance=distance),
        Matern32: lambda: kernels.Matern32(distance=distance),
        Matern52: lambda: kernels.Matern52(distance=distance),
        RationalQuadratic: lambda: kernels.RationalQuadratic(alpha=0.7, distance=distance),
    }[kind]()
    return transforms.Linear(np.diag(1.0 / LENGTHS[:d]), made)


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", BASE)
def test_values_equal_tinygps_and_the_naive_twins(require, kind, d):
    tinygp = require("tinygp")
    X, Z = points(0, 6, d), points(1, 5, d)
    found = value(base(kind, d), X, Z)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, twins.dense_kernel(base(kind, d))(X, Z), rtol=1e-13)
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        theirs = value(tinygp_kernel(tinygp, kind, d), X, Z)
    np.testing.assert_allclose(found, theirs, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kind", BASE)
def test_dims_selects_columns(kind):
    X, Z = points(4, 6, 3), points(5, 5, 3)
    expected = value(base(kind, 2), X[:, [2, 0]], Z[:, [2, 0]])
    np.testing.assert_allclose(value(base(kind, 2, dims=(2, 0)), X, Z), expected, rtol=1e-15)


@pytest.mark.parametrize("kind", BASE)
def test_one_number_is_the_same_lengthscale_in_every_dimension(kind):
    X = jnp.asarray(points(6, 5, 3))
    wave = {"period": 1.3} if kind is Periodic else {}
    one, each = kind(0.8, **wave), kind([0.8, 0.8, 0.8], **wave)
    np.testing.assert_allclose(value(one, X, X), value(each, X, X), rtol=1e-14)


def test_limits_and_closed_forms():
    X, Z = jnp.asarray([[0.0]]), jnp.asarray([[0.5], [1.0]])
    np.testing.assert_allclose(RBF(2.0)(X, Z)[0], np.exp([-1 / 32, -1 / 8]), rtol=1e-15)
    np.testing.assert_allclose(Matern12(2.0)(X, Z)[0], np.exp([-1 / 4, -1 / 2]), rtol=1e-15)
    np.testing.assert_allclose(RationalQuadratic(1.0, 1.0)(X, Z)[0], [8 / 9, 2 / 3], rtol=1e-15)
    np.testing.assert_allclose(Periodic(1.0, period=1.0)(X, Z)[0], [np.exp(-2), 1.0], rtol=1e-14)


def test_rational_quadratic_of_a_huge_alpha_is_an_rbf():
    """(1 + r²/2α)^(−α) as a power is off by 1e-4 at α = 1e12, which no jitter survives."""
    X = jnp.asarray(np.linspace(0.0, 3.0, 7)[:, None])
    for alpha in (1e8, 1e12, 1e15):
        off = value(RationalQuadratic(2.0, alpha), X, X) - value(RBF(2.0), X, X)
        np.testing.assert_allclose(off, 0.0, atol=1.0 / alpha + 1e-15)


def test_compiled_and_batched_values_are_the_same():
    X = jnp.asarray(points(7, 5, 2))
    kernel = 1.3 * (base(RBF, 2) * base(Periodic, 2)) + 0.4 * base(Matern52, 2)
    plain = kernel(X, X)
    np.testing.assert_allclose(twins.compiled(lambda k, x: k(x, x))(kernel, X), plain, rtol=1e-14)
    two = jax.vmap(lambda k: k(X, X))(stack([kernel, kernel]))
    np.testing.assert_allclose(two, np.stack([plain, plain]), rtol=1e-14)


# -------------------------------------------------------------------------- random trees: properties


def positive(low: float, high: float):
    return st.floats(low, high, allow_nan=False)


@st.composite
def base_kernels(draw):
    kind = draw(st.sampled_from(BASE))
    lengths = draw(st.one_of(positive(0.2, 5.0), st.tuples(*[positive(0.2, 5.0)] * 2)))
    dims = None
    if not isinstance(lengths, tuple):
        dims = draw(st.sampled_from([None, (0,), (1,), (1, 0)]))
    options = {}
    if kind is RationalQuadratic:
        options["alpha"] = draw(positive(0.2, 5.0))
    if kind is Periodic:
        options["period"] = draw(positive(0.5, 4.0))
    return kind(lengths, dims=dims, **options)


def trees():
    """Kernel expressions as (kernel, its value built by hand from the leaves' values)."""
    leaf = base_kernels().map(lambda k: (k, twins.dense_kernel(k)))

    def grow(inner):
        both = st.tuples(inner, inner)
        add = both.map(lambda p: (p[0][0] + p[1][0], lambda X, Z: p[0][1](X, Z) + p[1][1](X, Z)))
        multiply = both.map(
            lambda p: (p[0][0] * p[1][0], lambda X, Z: p[0][1](X, Z) * p[1][1](X, Z))
        )
        scale = st.tuples(positive(0.1, 3.0), inner).map(
            lambda p: (p[0] * p[1][0], lambda X, Z: p[0] * p[1][1](X, Z))
        )
        return st.one_of(add, multiply, scale)

    return st.recursive(leaf, grow, max_leaves=4)


@settings(max_examples=60, deadline=None)
@given(tree=trees(), seed=st.integers(0, 1000))
def test_random_trees_are_symmetric_psd_and_evaluate_as_written(tree, seed):
    kernel, by_hand = tree
    X = points(seed, 7, 2)
    K = np.asarray(kernel(jnp.asarray(X), jnp.asarray(X)))
    variance, unit = split_scale(kernel)
    np.testing.assert_array_equal(K, K.T)
    assert np.linalg.eigvalsh(K / variance).min() > -1e-10
    np.testing.assert_allclose(K, by_hand(X, X), rtol=1e-12, atol=1e-14)
    # The scale is outermost and there once: what is left has unit variance.
    np.testing.assert_allclose(np.diag(K), variance, rtol=1e-13)
    np.testing.assert_allclose(kernel.diagonal(jnp.asarray(X)), np.diag(K), rtol=1e-13)
    np.testing.assert_array_equal(unit.diagonal(jnp.asarray(X)), np.ones(7))
    for node in nodes(unit):
        assert not isinstance(node, Scaled)
        if isinstance(node, Sum):
            assert np.all(node.weights > 0)
            assert node.weights.sum() == pytest.approx(1.0, rel=1e-14)
            assert len(node.weights) == len(node.kernels)
            assert not any(isinstance(part, Sum) for part in node.kernels)
        if isinstance(node, Product):
            assert not any(isinstance(part, Product) for part in node.kernels)


def nodes(kernel):
    """Every node of a tree."""
    yield kernel
    children = [kernel.kernel] if isinstance(kernel, Scaled) else getattr(kernel, "kernels", ())
    for child in children:
        yield from nodes(child)


# ------------------------------------------------------------------------------------------ algebra


def test_a_weighted_sum_is_a_simplex_times_its_variance():
    kernel = 0.65 * RBF(2.0) + 0.35 * Periodic(0.8, period=3.0)
    assert isinstance(kernel, Scaled)
    assert isinstance(kernel.kernel, Sum)
    assert float(kernel.variance) == pytest.approx(1.0, rel=1e-15)
    np.testing.assert_allclose(kernel.kernel.weights, [0.65, 0.35], rtol=1e-15)
    three = kernel + 3.0 * Matern32(1.0)
    assert float(three.variance) == pytest.approx(4.0, rel=1e-15)
    np.testing.assert_allclose(three.kernel.weights, [0.1625, 0.0875, 0.75], rtol=1e-15)
    assert [type(leaf) for leaf in leaves_of(three)] == [RBF, Periodic, Matern32]


def test_sums_and_products_are_associative_and_distribute():
    a, b, c = 0.5 * RBF(1.1), 2.0 * Matern32(0.7), 1.5 * Periodic(0.9, period=1.7)
    X, Z = jnp.asarray(points(8, 5, 1)), jnp.asarray(points(9, 4, 1))
    for left, right in [
        ((a + b) + c, a + (b + c)),
        ((a * b) * c, a * (b * c)),
        (a * (b + c), a * b + a * c),
        (2.0 * (a + b), 2.0 * a + 2.0 * b),
        ((a + b) * (a + c), a * a + a * c + b * a + b * c),
    ]:
        np.testing.assert_allclose(value(left, X, Z), value(right, X, Z), rtol=1e-14)


def test_numbers_of_every_kind_scale_from_both_sides():
    X = jnp.asarray(points(10, 4, 1))
    expected = 2.0 * value(RBF(0.8), X, X)
    for two in (2, 2.0, np.float64(2.0), np.float32(2.0), jnp.asarray(2.0)):
        for kernel in (two * RBF(0.8), RBF(0.8) * two):
            assert isinstance(kernel, Scaled)
            np.testing.assert_allclose(value(kernel, X, X), expected, rtol=1e-15)


def test_a_product_of_plain_kernels_has_no_scale_and_a_scaled_one_has_one():
    plain = RBF(1.0) * Matern52(2.0) * Periodic()
    assert isinstance(plain, Product)
    assert len(plain.kernels) == 3
    scaled = (2.0 * RBF(1.0)) * (3.0 * Matern52(2.0))
    variance, unit = split_scale(scaled)
    assert float(variance) == 6.0
    assert isinstance(unit, Product)


def test_map_leaves_keeps_the_tree():
    tree = 2.0 * (RBF(1.0) * Periodic(0.5, period=2.0) + 0.5 * Matern12(3.0))
    doubled = map_leaves(lambda leaf: jax.tree.map(lambda v: 2.0 * v, leaf), tree)
    assert jax.tree.structure(doubled) == jax.tree.structure(tree)
    assert float(doubled.variance) == float(tree.variance)
    np.testing.assert_array_equal(doubled.kernel.ratios, tree.kernel.ratios)
    old = [float(leaf.lengthscale) for leaf in leaves_of(tree)]
    assert [float(leaf.lengthscale) for leaf in leaves_of(doubled)] == [2 * v for v in old]


# ---------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("kind", BASE)
def test_gradients_equal_finite_differences(kind):
    d = 2
    X, Z = points(11, 4, d), points(12, 3, d)
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))
    start, unravel = ravel_pytree(jax.tree.map(jnp.log, base(kind, d)))

    def total(log_parameters, X, Z):
        kernel = jax.tree.map(jnp.exp, unravel(log_parameters))
        return jnp.sum(weights * kernel(X, Z))

    # Off the diagonal: values. (Points differ, so Matérn's kink is not met.)
    compiled = twins.compiled(total)
    by_parameters, by_inputs = twins.compiled(jax.grad(total, (0, 1)))(start, X, Z)
    expected = twins.five_point(lambda v: compiled(v, X, Z), start)
    np.testing.assert_allclose(by_parameters, expected, rtol=1e-8, atol=1e-9)
    expected = twins.five_point(lambda v: compiled(start, v.reshape(4, d), Z), X.ravel())
    np.testing.assert_allclose(by_inputs.ravel(), expected, rtol=1e-8, atol=1e-8)
    # Second derivatives in the parameters, which the server's surrogate uses.
    gradient = twins.compiled(jax.grad(total))
    hessian = twins.compiled(jax.jacfwd(jax.grad(total)))(start, X, Z)
    expected = twins.five_point(lambda v: gradient(v, X, Z), start, 2e-4)
    np.testing.assert_allclose(hessian, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", BASE)
def test_derivatives_on_the_diagonal_are_zero_not_nan(kind):
    """k(x, x) = 1 whatever x and the parameters: a Matérn by a plain sqrt has NaN here."""
    X = jnp.asarray(points(13, 3, 2))
    start, unravel = ravel_pytree(jax.tree.map(jnp.log, base(kind, 2)))

    def diagonal(log_parameters, X, Z):
        kernel = jax.tree.map(jnp.exp, unravel(log_parameters))
        return jnp.sum(jax.vmap(lambda x, z: kernel(x[None], z[None]))(X, Z))

    first = twins.compiled(jax.grad(diagonal, (0, 1, 2)))(start, X, X)
    second = twins.compiled(jax.jacfwd(jax.grad(diagonal)))(start, X, X)
    for derivative in (*first, second):
        np.testing.assert_array_equal(derivative, np.zeros_like(derivative))


# --------------------------------------------------------------------------------- stacks of latents


def test_stack_and_unstack_are_inverse():
    made = [0.4 * RBF([1.0, 2.0]) + 0.8 * Periodic(0.5, period=p) for p in (1.0, 2.0, 3.0)]
    stacked = stack(made)
    assert all(leaf.shape[0] == 3 for leaf in jax.tree.leaves(stacked))
    X = jnp.asarray(points(14, 4, 2))
    together = twins.compiled(jax.vmap(lambda kernel: kernel(X, X)))(stacked)
    for r, kernel in enumerate(made):
        again = unstack(stacked, r)
        assert jax.tree.structure(again) == jax.tree.structure(kernel)
        for one, two in zip(jax.tree.leaves(again), jax.tree.leaves(kernel), strict=True):
            np.testing.assert_array_equal(one, two)
        np.testing.assert_allclose(together[r], value(kernel, X, X), rtol=1e-14)


@pytest.mark.parametrize("kind", BASE)
def test_leading_axes_of_parameters_are_those_of_the_matrix(kind):
    """(R, d) lengthscales give R matrices, (clients, R, d) with inputs of each client clients × R of them."""
    rng = np.random.default_rng(16)
    X, Z = rng.uniform(0, 2, (3, 5, 2)), rng.uniform(0, 2, (3, 4, 2))

    def made(c: int, r: int):
        one = base(kind, 2, lengths=LENGTHS * (1 + 0.3 * c + 0.1 * r))
        return split_scale(one * Matern32(1.0 + r) + (0.5 + 0.2 * c) * base(RBF, 1, dims=(1,)))[1]

    each = [[made(c, r) for r in range(2)] for c in range(3)]
    every = stack([stack(row) for row in each])
    both, first = every(X[:, None], Z[:, None], stacked=2), stack(each[0])(X[0], Z[0], stacked=1)
    assert isinstance(both, np.ndarray)
    assert isinstance(first, np.ndarray)
    for c, row in enumerate(each):
        for r, kernel in enumerate(row):
            np.testing.assert_allclose(
                both[c, r], twins.dense_kernel(kernel)(X[c], Z[c]), rtol=1e-13
            )
    np.testing.assert_allclose(first, both[0], rtol=1e-14)
    by_jax = every(jnp.asarray(X[:, None]), jnp.asarray(Z[:, None]), stacked=2)
    assert isinstance(by_jax, jax.Array)
    np.testing.assert_allclose(by_jax, both, rtol=1e-14)


def test_stacked_numbers_are_told_from_a_number_for_each_column():
    """Two stacked lengthscales on two columns: `stacked` says which they are."""
    X = points(17, 4, 2)
    two = stack([RBF(0.5), RBF(2.0)])
    np.testing.assert_array_equal(two(X, X), RBF([0.5, 2.0])(X, X))
    expected = np.stack([RBF(0.5)(X, X), RBF(2.0)(X, X)])
    np.testing.assert_array_equal(two(X, X, stacked=1), expected)
    np.testing.assert_array_equal(stack([RBF([0.5, 0.5]), RBF([2.0, 2.0])])(X, X), expected)
    for bad in (RBF([1.0]), RBF([[1.0], [1.0]])):
        with pytest.raises(InputError, match="sees 2 columns"):
            bad(X, X)
    with pytest.raises(InputError, match="sees 2 columns"):
        RBF([[1.0, 1.0]])(X, X, stacked=2 + 1)


# ------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, [1.0, -2.0], [1.0, np.nan], "one", {}])
@pytest.mark.parametrize(
    ("make", "name"),
    [(kind, "lengthscale") for kind in BASE]
    + [
        (lambda v: RationalQuadratic(1.0, v), "alpha"),
        (lambda v: Periodic(1.0, period=v), "period"),
        (lambda v: Scaled(RBF(1.0), v), "variance"),
        (lambda v: v * RBF(1.0), "variance"),
        (lambda v: RBF(1.0) * v, "variance"),
    ],
)
def test_parameters_that_are_not_positive_are_refused(make, name, bad):
    with pytest.raises(InputError, match=f"`{name}`"):
        make(bad)


@pytest.mark.parametrize("bad", [[1.0, 2.0], None])
def test_a_kernel_is_scaled_by_one_number(bad):
    with pytest.raises(InputError, match="one positive number"):
        RBF(1.0) * bad


@pytest.mark.parametrize("bad", [0, (), (0, 0), (-1,), (0.5,), "01", ("a",)])
def test_dims_must_be_different_columns(bad):
    with pytest.raises(InputError, match="`dims`"):
        RBF(1.0, dims=bad)


@pytest.mark.parametrize("good", [[1, 0], np.array([1, 0]), (np.int64(1), 0)])
def test_dims_may_be_any_sequence_of_integers(good):
    X = jnp.asarray(points(15, 4, 2))
    compiled = value(RBF([1.0, 2.0], dims=good), X, X)
    np.testing.assert_allclose(compiled, value(RBF([2.0, 1.0]), X, X), rtol=1e-14)


@pytest.mark.parametrize("kind", BASE)
def test_dims_beyond_the_inputs_are_refused(kind):
    """jax would clamp the index and answer with another column."""
    X = jnp.zeros((3, 2))
    with pytest.raises(InputError, match="have 2 columns"):
        kind(1.0, dims=(2,))(X, X)


@pytest.mark.parametrize("kind", BASE)
def test_lengthscales_of_another_number_of_dimensions_are_refused(kind):
    """Two lengthscales on one column would broadcast and answer with the wrong kernel."""
    wave = {"period": 1.3} if kind is Periodic else {}
    for d, lengths in [(1, [1.0, 2.0]), (3, [1.0, 2.0]), (2, [1.0])]:
        X = jnp.zeros((3, d))
        with pytest.raises(InputError, match=rf"`lengthscale` .* sees {d} columns"):
            kind(lengths, **wave)(X, X)
    with pytest.raises(InputError, match=r"`period` .* sees 1 columns"):
        Periodic(1.0, period=[1.0, 2.0])(jnp.zeros((3, 1)), jnp.zeros((3, 1)))


def test_a_lengthscale_to_be_filled_in_cannot_be_evaluated():
    X = jnp.zeros((2, 1))
    with pytest.raises(InputError, match="`lengthscale` is not set"):
        RBF()(X, X)


def test_a_scale_inside_is_refused():
    scaled = 2.0 * RBF(1.0)
    for make in (
        lambda: Sum((scaled, RBF(1.0)), np.ones(1)),
        lambda: Product((RBF(1.0), scaled)),
        lambda: Scaled(scaled, 3.0),
    ):
        with pytest.raises(InputError, match="outermost"):
            make()


def test_adding_what_is_not_a_kernel_is_a_type_error():
    with pytest.raises(TypeError):
        RBF(1.0) + 1.0
