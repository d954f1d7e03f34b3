"""Hand-written derivatives of kernel matrices against JAX's of the same kernels."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from pfedhgp.errors import InputError
from pfedhgp.gp.kernel_adjoints import Geometry, evaluate, has_adjoints
from pfedhgp.gp.kernels import (
    RBF,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Product,
    RationalQuadratic,
    Scaled,
    Stacks,
    Sum,
    split_scale,
    stack,
)
from support import twins


def base(kind, rng, d: int, dims=None):
    options = {
        RationalQuadratic: {"alpha": rng.uniform(0.5, 2.0)},
        Periodic: {"period": rng.uniform(0.5, 1.5, d)},
    }
    return kind(rng.uniform(0.4, 1.3, d), dims=dims, **options.get(kind, {}))


def single(kind):
    return lambda rng, d: base(kind, rng, d)


def nested(rng, d):
    """A product of a sum and a wave, in a sum, in a scale, of which one sees the last column alone."""
    last = base(Matern32, rng, 1, dims=(d - 1,))
    mixed = Sum((base(RBF, rng, d), last, base(Matern12, rng, d)), rng.uniform(0.3, 2.0, 2))
    product = Product((mixed, base(Periodic, rng, 1, dims=(d - 1,)), base(Matern52, rng, d)))
    total = Sum((product, base(RationalQuadratic, rng, d)), rng.uniform(0.3, 2.0, 1))
    return Scaled(total, rng.uniform(0.5, 2.0))


def numbers(rng, d):
    """One number for all columns."""
    waves = Periodic(rng.uniform(0.5, 1.5), period=rng.uniform(0.5, 1.5))
    rough = RationalQuadratic(rng.uniform(0.5, 1.5), rng.uniform(0.5, 1.5))
    return split_scale(RBF(rng.uniform(0.4, 1.3)) * waves + 0.4 * rough * Matern32(0.8))[1]


MAKERS = {
    kind.__name__: single(kind)
    for kind in (RBF, Matern12, Matern32, Matern52, RationalQuadratic, Periodic)
} | {"seasonal": twins.seasonal, "wave": twins.wave, "nested": nested, "numbers": numbers}
LEADS = {"one": (), "latents": (2,), "clients": (3, 2)}


def problem(make, d: int, lead: tuple[int, ...], seed: int = 0):
    """A kernel with these leading axes, X and Z with two points in common, and K̄."""
    rng = np.random.default_rng(seed)

    def stacked(axes):
        return stack([stacked(axes[1:]) for _ in range(axes[0])]) if axes else make(rng, d)

    clients = lead[:-1]
    X, Z = rng.uniform(1.0, 2.5, (*clients, 6, d)), rng.uniform(1.0, 2.5, (*clients, 5, d))
    Z[..., :2, :] = X[..., :2, :]
    if clients:
        X, Z = X[:, None], Z[:, None]
    return stacked(lead), X, Z, rng.normal(size=(*lead, 6, 5))


@pytest.mark.parametrize("lead", LEADS.values(), ids=LEADS)
@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_values_and_pullbacks_equal_jaxs(make, d, lead):
    kernel, X, Z, K_bar = problem(make, d, lead)
    found = evaluate(kernel, Geometry(X, Z), stacked=len(lead))
    logs = jax.tree.map(jnp.log, kernel)

    def total(logs):
        kernel = jax.tree.map(jnp.exp, logs)
        return jnp.sum(kernel(jnp.asarray(X), jnp.asarray(Z), stacked=len(lead)) * K_bar)

    by_logs = twins.compiled(jax.grad(total))(logs)
    twins.assert_close(found.value, kernel(X, Z, stacked=len(lead)), 1e-12)
    slopes = found.pullback(K_bar)
    assert type(slopes) is type(kernel)
    assert jax.tree.structure(slopes) == jax.tree.structure(kernel)
    for own, wanted in zip(jax.tree.leaves(slopes), jax.tree.leaves(by_logs), strict=True):
        assert not isinstance(own, jax.Array)
        assert np.shape(own) == wanted.shape
        twins.assert_close(own, wanted, 1e-9)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_directions_equal_jaxs_in_ravels_order(make, d):
    kernel, X, Z, _ = problem(make, d, (3,), seed=1)
    flat, unravel = ravel_pytree(jax.tree.map(jnp.log, kernel))

    def matrices(flat):
        return jax.tree.map(jnp.exp, unravel(flat))(jnp.asarray(X), jnp.asarray(Z), stacked=1)

    expected = np.moveaxis(np.asarray(twins.compiled(jax.jacfwd(matrices))(flat)), -1, 0)
    found = evaluate(kernel, Geometry(X, Z)).directions()
    assert len(found) == len(flat)
    for (latent, moved), wanted in zip(found, expected, strict=True):
        whole = np.zeros_like(wanted)
        whole[latent] = moved
        twins.assert_close(whole, wanted, 1e-9)


def test_a_geometry_serves_other_parameters():
    """Nothing of one evaluation is left in the next, whose arrays are its own."""
    kernel, X, Z, K_bar = problem(nested, 2, (2,), seed=2)
    other = problem(nested, 2, (2,), seed=3)[0]
    geometry = Geometry(X, Z)
    first = evaluate(kernel, geometry)
    kept, slopes = first.value.copy(), jax.tree.leaves(first.pullback(K_bar))
    second = evaluate(other, geometry)
    np.testing.assert_array_equal(second.value, evaluate(other, Geometry(X, Z)).value)
    np.testing.assert_array_equal(first.value, kept)
    for one, two in zip(jax.tree.leaves(first.pullback(K_bar)), slopes, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_no_inputs_and_no_latents(make):
    kernel, X, Z, _ = problem(make, 2, (2,))
    empty = evaluate(kernel, Geometry(X, Z[:0]))
    assert empty.value.shape == (2, 6, 0)
    for leaf in jax.tree.leaves(empty.pullback(np.zeros((2, 6, 0)))):
        np.testing.assert_array_equal(leaf, 0.0)
    none = evaluate(jax.tree.map(lambda leaf: leaf[:0], kernel), Geometry(X, Z))
    assert none.value.shape == (0, 6, 5)
    assert all(leaf.shape[0] == 0 for leaf in jax.tree.leaves(none.pullback(np.zeros((0, 6, 5)))))
    assert none.directions() == []


def test_periods_far_from_zero_and_short_ones():
    """sin a cos b − cos a sin b loses digits if a and b are large: they are taken from one of the inputs."""
    rng = np.random.default_rng(4)
    X, Z = 1e6 + rng.uniform(0, 1, (6, 1)), 1e6 + rng.uniform(0, 1, (5, 1))
    kernel = stack([Periodic([0.7], period=[0.01])])
    twins.assert_close(evaluate(kernel, Geometry(X, Z)).value, kernel(X, Z), 1e-11)


def test_kernels_that_a_user_derived_have_no_adjoints():
    class Own(RBF):
        pass

    assert has_adjoints(2.0 * (RBF(1.0) * Periodic(period=1.0) + Matern12(1.0)))
    assert not has_adjoints(RBF(1.0) * Own(1.0))


def test_shapes_that_do_not_fit_are_refused():
    X = np.zeros((3, 2))
    with pytest.raises(InputError, match="sees 2 columns"):
        evaluate(RBF([[1.0], [1.0]]), Geometry(X, X))
    with pytest.raises(InputError, match="have 2 columns"):
        evaluate(RBF([[1.0]], dims=(2,)), Geometry(X, X))


def test_stacks_are_one_stack_after_the_other():
    """Values, slopes and directions of two stacks are those of each alone."""
    first, X, Z, _ = problem(single(RBF), 1, (2,))
    second = problem(nested, 1, (2,), seed=1)[0].kernel
    both = evaluate(Stacks((first, second)), Geometry(X, Z))
    alone = [evaluate(kernel, Geometry(X, Z)) for kernel in (first, second)]
    np.testing.assert_allclose(both.value, np.concatenate([each.value for each in alone]))
    np.testing.assert_allclose(both.value, Stacks((first, second))(X, Z, stacked=1), rtol=1e-12)
    K_bar = np.random.default_rng(2).normal(size=(4, 6, 5))
    expected = [each.pullback(K_bar[2 * i : 2 * i + 2]) for i, each in enumerate(alone)]
    np.testing.assert_allclose(
        ravel_pytree(both.pullback(K_bar))[0],
        np.concatenate([ravel_pytree(e)[0] for e in expected]),
    )
    directions = both.directions()
    assert [r for r, _ in directions] == [
        2 * i + r for i, each in enumerate(alone) for r, _ in each.directions()
    ]
