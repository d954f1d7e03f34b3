"""The search at q(v_g) and draws from what inducing inputs leave out, against dense matrices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.errors import InputError
from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import RBF, Matern12, Matern32, Periodic, stack
from pfedhgp.gp.noise import DiagonalNoise
from pfedhgp.inference.grams import Design, accumulate
from pfedhgp.inference.structured import long_series
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows
from support import reference_states as twin

LENGTHS, SCALES = (0.1, 0.3), (0.8, 1.3)
QUIET = DiagonalNoise(jnp.log(jnp.asarray([0.2, 0.05])))
NOISE = np.asarray(QUIET.variances(2))


def rows_of(n: int = 17) -> Rows:
    """Two outputs in order of time, with missing cells and cells seen three times."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(size=n))[:, None]
    mask = rng.choice([0.0, 1.0, 3.0], size=(n, 2), p=[0.2, 0.6, 0.2])
    Y = np.where(mask > 0, rng.normal(size=(n, 2)), 0.0)
    return Rows(jnp.asarray(X), jnp.asarray(Y), jnp.asarray(mask))


def block_of() -> ClientBlock:
    return ClientBlock(
        kernels=stack([Matern12([length]) for length in LENGTHS]),
        inputs=jnp.zeros((0, 1)),
        active=jnp.zeros(0),
        deviation=jnp.zeros((2, 0)),
        loadings=jnp.diag(jnp.asarray(SCALES)),
        noise=QUIET,
    )


def dense(rows: Rows, q: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where output q was seen, how often, and N_q there."""
    t, count = np.asarray(rows.X)[:, 0], np.asarray(rows.mask)[:, q]
    seen = count > 0
    t, count = t[seen], count[seen]
    N = SCALES[q] ** 2 * twin.matern(t, t, LENGTHS[q], 1) + np.diag(NOISE[q] / count)
    return seen, count, N


def test_the_expected_bound_is_that_of_dense_matrices() -> None:
    rows = rows_of()
    rng = np.random.default_rng(1)
    each, B = rng.normal(size=(17, 3, 5)), rng.normal(size=(2, 3))
    columns = np.einsum("qr,nrk->nqk", B, each)
    columns[:, :, 0] = np.asarray(rows.Y) - columns[:, :, 0]
    found = long_series.expected_bound(
        long_series.SearchColumns(jnp.asarray(each), 2), jnp.asarray(B), block_of(), rows
    )
    total = 0.0
    for q in range(2):
        seen, count, N = dense(rows, q)
        squares = np.einsum(
            "nk,nk->k", columns[seen, q], np.linalg.solve(N, columns[seen, q]), optimize=True
        )
        total -= 0.5 * (len(N) * np.log(2 * np.pi) + np.linalg.slogdet(N)[1])
        total -= 0.5 * (squares[0] + squares[1:].sum() / 2)
        total -= 0.5 * np.sum((count - 1) * np.log(2 * np.pi * NOISE[q]) + np.log(count))
    assert float(found) == pytest.approx(total, rel=1e-10)


def test_points_are_the_mean_and_have_the_posteriors_length() -> None:
    rng = np.random.default_rng(2)
    A, h = rng.normal(size=(6, 4)), rng.normal(size=6)
    precision = np.eye(6) + A @ A.T
    found = np.asarray(long_series.mean_and_probes(3, 0, jnp.asarray(A @ A.T), jnp.asarray(h)))
    np.testing.assert_allclose(found[:, 0], np.linalg.solve(precision, h), rtol=1e-10)
    lengths = np.einsum("ik,ij,jk->k", found[:, 1:], precision, found[:, 1:])
    np.testing.assert_allclose(lengths, 6.0, rtol=1e-10)


def shared_block() -> GlobalBlock:
    kernel = 0.7 * Matern32([0.3]) + 0.3 * Periodic([1.0], period=[0.4])
    return GlobalBlock(
        kernels=jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], kernel.kernel),
        inputs=jnp.linspace(0.0, 1.0, 6)[:, None],
        loadings=jnp.asarray([[0.7], [-0.4]]),
        phi=jnp.ones(()),
    )


def test_draws_have_the_covariance_that_inducing_inputs_leave_out() -> None:
    block, many = shared_block(), 4_000
    X = jnp.asarray([[0.0], [0.2 / 3], [0.2], [0.2 + 0.4 / 3], [0.6 + 0.2 / 3]])  # of the finer set
    drawn = np.asarray(long_series.residual_draws(block, X, many, 0, jnp.asarray(1e-10), 2))[:, 0]
    basis = block.basis(1e-10)
    A = np.asarray(basis.features(X))[0]
    k = np.asarray(jax.vmap(lambda kernel: kernel(X, X))(block.kernels))[0]
    left = k - A.T @ A
    assert left.max() > 0.02
    np.testing.assert_allclose(drawn @ drawn.T / many, left, atol=5.0 * left.max() / many**0.5)
    np.testing.assert_allclose(drawn[[0, 2]], 0.0, atol=1e-5)


def test_with_draws_the_residual_is_their_length_under_local_functions() -> None:
    rows, client = rows_of(), block_of()
    drawn = np.random.default_rng(3).normal(size=(17, 2, 3))
    design = Design(
        shared=Basis.build(stack([RBF([0.3]), RBF([0.6])]), jnp.linspace(0, 1, 4)[:, None], 1e-8),
        local=None,
        B_g=jnp.asarray([[0.5, 0.1], [-0.2, 0.9]]),
        B_dev=jnp.zeros((2, 0)),
        B_loc=client.loadings,
        noise=client.noise,
        exact=client.kernels,
    )
    plain = accumulate(rows, design, chunk=5)
    sharp = accumulate(
        rows,
        Design(**{**vars(design), "residual_draws": jnp.asarray(drawn)}),
        chunk=5,
    )
    for name in ("precision", "linear", "constant"):
        np.testing.assert_allclose(getattr(sharp, name), getattr(plain, name), rtol=1e-12)
    expected_left = np.zeros((2, 2))
    for q in range(2):
        seen, _, N = dense(rows, q)
        for r in range(2):
            Z = drawn[seen, r]
            expected_left[r, q] = np.mean(np.sum(Z * np.linalg.solve(N, Z), axis=0))
    found = np.diagonal(np.asarray(sharp.shared_residual), axis1=1, axis2=2)
    np.testing.assert_allclose(found, expected_left, rtol=1e-9)
    B = np.asarray(design.B_g)
    assert float(sharp.residual) == pytest.approx(float(np.sum(B.T**2 * expected_left)), rel=1e-9)


@pytest.mark.parametrize(
    ("model", "settings", "words"),
    [
        ({"local": "state-space"}, {"learn_shared": False}, "layers="),
        ({"layers": ("global", "local")}, {"learn_shared": False}, "state-space"),
        ({"layers": ("global", "local"), "local": "state-space"}, {}, "learn_shared=False"),
    ],
)
def test_probes_are_refused_where_they_do_not_hold(model: dict, settings: dict, words: str) -> None:
    x = np.linspace(0.0, 1.0, 6)
    with pytest.raises(InputError, match=words):
        FederatedGP(inference=Structured(probes=2, **settings), **model).fit(
            {"a": (x, x), "b": (x, -x)}
        )
