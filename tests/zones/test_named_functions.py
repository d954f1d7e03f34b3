"""Names of shared functions do not depend on how a fit happened to order, sign or turn them."""

from __future__ import annotations

import numpy as np

from pfedhgp.gp.kernels import Matern12
from pfedhgp.zones.loadings import Loadings, LoadingsComparison
from pfedhgp.zones.named_functions import named, plane

R, CLIENTS = 3, 6


def made(lengths: tuple[float, ...] = (0.2, 0.2, 0.5)) -> tuple[Loadings, Matern12]:
    """Two functions with the same kernel, and one with another."""
    rng = np.random.default_rng(5)
    numbers = rng.normal(size=(CLIENTS, 1, R)) * [0.3, 1.0, 0.6] + [0.2, 1.0, -0.4]
    half = 0.1 * rng.normal(size=(CLIENTS, R, R))
    functions = rng.normal(size=(R, 40)) * [[1.0], [0.9], [0.7]]
    found = Loadings(
        tuple("abcdef"),
        numbers,
        half @ np.swapaxes(half, 1, 2),
        numbers.mean(0),
        np.cov(numbers.reshape(CLIENTS, R).T),
        np.cov(functions),
    )
    return found, Matern12(np.array(lengths)[:, None])


def changed(loadings: Loadings, T: np.ndarray) -> Loadings:
    """The same model with other functions, g' = Tᵀg, for an orthogonal T."""
    return Loadings(
        loadings.names,
        loadings.numbers @ T,
        T.T @ loadings.covariances @ T,
        loadings.mean @ T,
        T.T @ loadings.spread @ T,
        T.T @ loadings.gram @ T,
    )


def turned() -> np.ndarray:
    """Turns the two functions of one kernel, exchanges them, and changes signs."""
    c, s = np.cos(0.7), np.sin(0.7)
    return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]]) @ np.diag([-1.0, 1.0, -1.0])


def test_order_sign_and_rotation_do_not_matter() -> None:
    one, kernels = made()
    two = changed(one, turned())
    a, b = named(one, kernels), named(two, kernels)
    np.testing.assert_allclose(one.numbers @ a.turn, two.numbers @ b.turn, atol=1e-10)
    np.testing.assert_allclose(a.shares, b.shares)
    here, there = plane(one, a), plane(two, b)
    np.testing.assert_allclose(here.places, there.places, atol=1e-10)
    np.testing.assert_allclose(here.covariances, there.covariances, atol=1e-10)
    assert here.most == there.most


def test_functions_of_other_kernels_change_places_alone() -> None:
    one, kernels = made((0.2, 0.3, 0.5))
    order = np.eye(R)[:, [2, 0, 1]]
    moved = Matern12(np.asarray(kernels.lengthscale)[[2, 0, 1]])
    a, b = named(one, kernels), named(changed(one, order), moved)
    np.testing.assert_allclose(order @ b.turn, a.turn, atol=1e-12)
    assert np.all(np.isin(np.abs(a.turn), (0.0, 1.0)))
    lengths = np.asarray(kernels.lengthscale)[:, 0]
    np.testing.assert_allclose(
        np.asarray(moved.lengthscale)[b.first, 0], lengths[np.argmax(np.abs(a.turn), axis=0)]
    )


def test_the_first_explains_most_and_mean_loadings_are_positive() -> None:
    found, kernels = made()
    names = named(found, kernels)
    own = (found.numbers @ names.turn)[:, 0]
    variances = np.diagonal(names.turn.T @ found.gram @ names.turn)
    explained = (own**2).sum(0) * variances
    np.testing.assert_allclose(names.shares, explained / explained.sum())
    assert list(names.shares) == sorted(names.shares, reverse=True)
    assert np.all(own.mean(0) > 0)
    np.testing.assert_allclose(names.turn.T @ names.turn, np.eye(R), atol=1e-12)


def test_the_plane_keeps_the_distances_that_its_directions_explain() -> None:
    found, kernels = made()
    shown = plane(found, named(found, kernels))
    gaps = shown.places[:, None] - shown.places[None]
    squared = (gaps**2).sum(-1)
    between = LoadingsComparison(found, 2).between
    assert np.all(squared <= between + 1e-10)
    np.testing.assert_allclose(squared.sum() / between.sum(), shown.shares.sum())
    # Draws of a client's loadings lie in its ellipse as often as they should.
    rng = np.random.default_rng(0)
    draws = rng.multivariate_normal(np.zeros(R), found.covariances[0], size=4000)
    values, vectors = np.linalg.eigh(found.gram)
    moved = draws @ ((vectors * np.sqrt(values)) @ vectors.T)
    points = found.numbers[:, 0] @ ((vectors * np.sqrt(values)) @ vectors.T)
    axes = np.linalg.svd(points - points.mean(0))[2][:2]
    inside = np.einsum(
        "ni,ij,nj->n",
        moved @ axes.T,
        np.linalg.inv(shown.covariances[0] * _signs(shown, points, axes)),
        moved @ axes.T,
    )
    assert abs(np.mean(inside < 2.4477**2) - 0.95) < 0.015


def _signs(shown, points: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """Directions may point the other way: the products of signs that turn one covariance into the other."""
    here = (points - points.mean(0)) @ axes.T
    sign = np.sign(np.sum(here * shown.places, axis=0))
    return np.outer(sign, sign)


def test_one_function_is_a_line() -> None:
    found, _ = made()
    one = Loadings(
        found.names,
        found.numbers[:, :, :1],
        found.covariances[:, :1, :1],
        found.mean[:, :1],
        found.spread[:1, :1],
        found.gram[:1, :1],
    )
    kernel = Matern12(np.array([[0.2]]))
    shown = plane(one, named(one, kernel))
    np.testing.assert_allclose(shown.shares, [1.0, 0.0])
    np.testing.assert_allclose(shown.places[:, 1], 0.0, atol=1e-12)
