"""Row precisions against the dense inverse of the observed block."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfedhgp.gp.noise import DiagonalNoise, FullNoise, Noise
from support import twins

Q = 3
MASK = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 0, 0], [0, 1, 0]], float)
KINDS = ["scalar", "outputs", "full"]


def noise_of(kind: str, scale: float = 0.2) -> tuple[Noise, np.ndarray]:
    noise = twins.make_noise(kind, np.random.default_rng(0), Q, scale)
    return noise, twins.covariance(noise, Q)


def dense_rows(Sigma: np.ndarray) -> tuple[np.ndarray, float]:
    """P_n by inverting each row's observed block, and Σ_n log|block|."""
    P, log_det = np.zeros((len(MASK), Q, Q)), 0.0
    for n, row in enumerate(MASK):
        seen = np.flatnonzero(row)
        if len(seen):
            block = Sigma[np.ix_(seen, seen)]
            P[n][np.ix_(seen, seen)] = np.linalg.inv(block)
            log_det += np.linalg.slogdet(block)[1]
    return P, log_det


@pytest.mark.parametrize("scale", [0.2, 1e-6])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_equal_the_inverse_of_the_observed_block(kind, scale):
    noise, Sigma = noise_of(kind, scale)
    rng = np.random.default_rng(1)
    a, b, Y = rng.normal(size=(Q, 2)), rng.normal(size=(Q, 4)), rng.normal(size=(len(MASK), Q))
    P, log_det = dense_rows(Sigma)
    rows = noise.rows(jnp.asarray(MASK))
    twins.assert_close(
        rows.weigh(jnp.asarray(a), jnp.asarray(b)), np.einsum("qa,nqp,pb->abn", a, P, b), 1e-12
    )
    twins.assert_close(rows.apply(jnp.asarray(Y)), np.einsum("nqp,np->nq", P, Y), 1e-12)
    assert float(rows.log_determinant) == pytest.approx(log_det, rel=1e-12)
    np.testing.assert_allclose(noise.covariance(Q), Sigma, rtol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_in_a_missing_cell_does_not_matter(kind):
    noise, _ = noise_of(kind)
    rows = noise.rows(jnp.asarray(MASK))
    Y = np.random.default_rng(2).normal(size=MASK.shape)
    changed = np.where(MASK > 0, Y, 1e6)
    np.testing.assert_array_equal(rows.apply(jnp.asarray(Y)), rows.apply(jnp.asarray(changed)))
    np.testing.assert_array_equal(np.asarray(rows.apply(jnp.asarray(Y)))[MASK == 0], 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_cells_add_nothing(kind):
    noise, _ = noise_of(kind)
    more = np.concatenate([MASK, np.zeros((4, Q))])
    plain, padded = noise.rows(jnp.asarray(MASK)), noise.rows(jnp.asarray(more))
    assert float(padded.log_determinant) == float(plain.log_determinant)
    eye = jnp.eye(Q)
    np.testing.assert_array_equal(padded.weigh(eye, eye)[:, :, : len(MASK)], plain.weigh(eye, eye))
    np.testing.assert_array_equal(padded.weigh(eye, eye)[:, :, len(MASK) :], 0.0)


def test_the_three_forms_agree_where_they_mean_the_same():
    one = DiagonalNoise(jnp.log(jnp.asarray([0.3])))
    each = DiagonalNoise(jnp.log(jnp.full(Q, 0.3)))
    full = FullNoise(jnp.diag(jnp.full(Q, 0.5 * np.log(0.3))))
    eye, mask = jnp.eye(Q), jnp.asarray(MASK)
    for noise in (each, full):
        np.testing.assert_allclose(noise.covariance(Q), one.covariance(Q), rtol=1e-14)
        rows, expected = noise.rows(mask), one.rows(mask)
        np.testing.assert_allclose(rows.weigh(eye, eye), expected.weigh(eye, eye), rtol=1e-12)
        log_det = float(expected.log_determinant)
        assert float(rows.log_determinant) == pytest.approx(log_det, rel=1e-13)


def test_the_floor_holds_when_an_optimiser_runs_away():
    for noise in (DiagonalNoise(jnp.full(1, -1e3)), FullNoise(jnp.diag(jnp.full(Q, -1e3)))):
        np.testing.assert_allclose(noise.covariance(Q), 1e-8 * np.eye(Q), rtol=1e-12)
        assert np.isfinite(float(noise.rows(jnp.asarray(MASK)).log_determinant))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_with_missing_cells_equal_finite_differences(kind):
    noise, _ = noise_of(kind)
    leaves, tree = jax.tree.flatten(noise)
    shape = leaves[0].shape
    Y = jnp.asarray(np.random.default_rng(3).normal(size=MASK.shape))

    @jax.jit
    def total(raw):
        rows = jax.tree.unflatten(tree, [raw.reshape(shape)]).rows(jnp.asarray(MASK))
        return rows.log_determinant + jnp.sum(rows.apply(Y) * Y)

    start = np.asarray(leaves[0]).ravel()
    expected = twins.five_point(total, start)
    np.testing.assert_allclose(
        twins.compiled(jax.grad(total))(start), expected, rtol=1e-8, atol=1e-9
    )
    if kind == "full":  # what stands above the diagonal is not used
        unused = np.triu(np.ones((Q, Q)), 1).ravel() > 0
        np.testing.assert_array_equal(jax.grad(total)(start)[unused], 0.0)


@pytest.mark.parametrize("form", ["scalar", "output", "full"])
def test_noise_of_given_variances_and_louder(form):
    made = {
        "scalar": DiagonalNoise(jnp.zeros(1)),
        "output": DiagonalNoise(jnp.zeros(2)),
        "full": FullNoise(jnp.array([[0.3, 0.0], [0.4, -0.2]])),
    }[form]
    at = np.asarray(made.at(jnp.array([0.04, 0.09])).covariance(2))
    expected = np.diag([0.06, 0.06]) if form == "scalar" else np.diag([0.04, 0.09])
    np.testing.assert_allclose(at, expected, rtol=1e-6)
    four = np.asarray(made.louder(jnp.log(4.0)).covariance(2))
    np.testing.assert_allclose(four, 4.0 * np.asarray(made.covariance(2)), rtol=1e-6, atol=1e-7)


def test_levels_are_log_variances_in_every_form():
    variances = jnp.array([0.01, 0.04])
    for made in (DiagonalNoise(jnp.zeros(2)), FullNoise(jnp.zeros((2, 2)))):
        at = made.at(variances)
        np.testing.assert_allclose(at.levels(), np.log(variances), rtol=1e-12)
        moved = at.shifted(jnp.array([0.3, -0.2])).covariance(2)
        np.testing.assert_allclose(
            jnp.diagonal(moved), [0.01 * np.exp(0.3), 0.04 * np.exp(-0.2)], rtol=1e-5
        )
        assert at.mixing() == 0.0
    assert FullNoise(jnp.array([[0.0, 9.0], [2.0, 0.0]])).mixing() == 4.0


def test_noise_at_its_mean_is_the_mean_of_its_variances():
    """Against draws of the coordinates: E[σ²] = exp(mean + ½ variance) of log σ²."""
    spread, rng = np.array([0.5, 0.3]), np.random.default_rng(0)
    draws = rng.normal(size=(200_000, 2)) * spread
    logs = DiagonalNoise(np.array([-2.0, 1.0])).at_mean(DiagonalNoise(spread**2))
    np.testing.assert_allclose(
        logs.variances(2), np.exp(np.array([-2.0, 1.0]) + draws).mean(axis=0) + 1e-8, rtol=0.01
    )
    factor = FullNoise(np.diag([-1.0, 0.5])).at_mean(FullNoise(np.diag(spread**2)))
    found = np.exp(2.0 * (np.array([-1.0, 0.5]) + draws)).mean(axis=0)
    np.testing.assert_allclose(np.diagonal(factor.covariance(2)), found + 1e-8, rtol=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_gives_what_jax_gives(kind):
    noise, _ = noise_of(kind)
    other, rng = noise.louder(0.3), np.random.default_rng(4)
    own, theirs = (jax.tree.map(to, (noise, other)) for to in (np.asarray, jnp.asarray))
    a, b, Y = rng.normal(size=(Q, 2)), rng.normal(size=(Q, 4)), rng.normal(size=(len(MASK), Q))
    scatter = rng.normal(size=(len(MASK), Q, Q)) * MASK[:, :, None] * MASK[:, None, :]
    twice = np.concatenate([MASK, 3.0 * MASK])

    def everything(pair, mask, scatter, a, b, Y):
        first, second = pair
        rows = first.rows(mask)
        return (
            *(rows.log_determinant, rows.weigh(a, b), rows.apply(Y)),
            *(first.covariance(Q), first.at(Y[0] ** 2), first.louder(0.7), first.at_mean(second)),
            *(first.levels(), first.mixing(), first.shifted(first.levels())),
            first.scatter_trace(scatter, (mask[: len(MASK)] > 0).astype(mask.dtype)),
        )

    arguments = (twice, scatter, a, b, np.concatenate([Y, -Y]))
    found = jax.tree.leaves(everything(own, *arguments))
    expected = jax.tree.leaves(everything(theirs, *(jnp.asarray(v) for v in arguments)))
    assert not any(isinstance(leaf, jax.Array) for leaf in found)
    for one, two in zip(found, expected, strict=True):
        twins.assert_close(one, two, 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_leading_axis_of_clients(kind):
    """Every method with a clients' axis equals client after client."""
    rng = np.random.default_rng(5)
    each = [jax.tree.map(np.asarray, noise_of(kind, s)[0]) for s in (0.1, 0.2, 0.5)]
    every = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
    mask = rng.integers(0, 2, (3, 6, Q)).astype(float) * rng.integers(1, 4, (3, 6, 1))
    a, b, Y = rng.normal(size=(3, Q, 2)), rng.normal(size=(3, Q, 4)), rng.normal(size=(3, 6, Q))
    scatter, seen = rng.normal(size=(3, 6, Q, Q)), (mask > 0).astype(float)
    rows = every.rows(mask)
    found = (
        *(rows.log_determinant, rows.weigh(a, b), rows.apply(Y), every.covariance(Q)),
        *(every.levels(), every.mixing(), every.scatter_trace(scatter, seen)),
    )
    for c, one in enumerate(each):
        rows = one.rows(mask[c])
        expected = (
            *(rows.log_determinant, rows.weigh(a[c], b[c]), rows.apply(Y[c]), one.covariance(Q)),
            *(one.levels(), one.mixing(), one.scatter_trace(scatter[c], seen[c])),
        )
        for many, single in zip(found, expected, strict=True):
            twins.assert_close(many[c], single, 1e-12)
