"""From releases to a global block and its posterior, and one client's part taken out again."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pfedhgp.errors import InputError
from pfedhgp.privacy.accounting import mu_for
from pfedhgp.privacy.denoising import cells_of
from pfedhgp.privacy.release import JITTER, PublicBasis, release
from pfedhgp.privacy.row_density import PER_INPUT
from pfedhgp.privacy.shared_function import SharedFunction, shared_function
from pfedhgp.privacy.twin import Parameters, Twins, posterior
from support.private_sites import GRID, made_up

PUBLIC = PublicBasis.over(np.array([0.3]))
PARAMETERS = (
    Parameters(np.array([0.35]), 0.8, 0.2, 0.09, 0.001),
    Parameters(np.array([0.5]), 0.3, 0.4, 0.05, 0.001),
)


def releases(clients: int, epsilon: float = 2.0):
    made, below = made_up(clients, 200, 3), random.Random(3).randrange
    return [
        release(
            PUBLIC, X, np.concatenate([Y, -Y], 1), bound=3.0, mu=mu_for(epsilon, 1e-6), below=below
        )
        for X, Y in zip(made.X, made.Y, strict=True)
    ]


def of(seen, left_out: int | None = None) -> SharedFunction:
    """Where rows lie is told by all releases; b̃ and Ŝ of the client that is left out are not used."""
    cells, found = cells_of(PUBLIC, PER_INPUT), []
    for q in range(2):
        all_of_them = Twins.of(seen, q, cells)
        kept = [i for i in range(len(seen)) if i != left_out]
        twins = Twins(
            all_of_them.gram[kept],
            all_of_them.linear[kept],
            all_of_them.linear_noise[kept],
            tuple(all_of_them.features[i] for i in kept),
            tuple(all_of_them.counts[i] for i in kept),
        )
        found.append(posterior(PUBLIC, twins, PARAMETERS[q]))
    return SharedFunction(PUBLIC, PARAMETERS, tuple(found))


def test_predictions_are_the_same_in_either_weights():
    """A*ᵀm of the public basis, and B_g a(x)ᵀm of the learned kernel's, at the inducing inputs."""
    shared = of(releases(3))
    q = shared.posterior()
    A = np.asarray(q.block.basis(JITTER).features(PUBLIC.inputs))
    F = PUBLIC.features(PUBLIC.inputs)
    M = len(PUBLIC.inputs)
    for each in range(2):
        part = slice(each * M, (each + 1) * M)
        scale = np.asarray(q.block.loadings)[each, each]
        mean = scale * A[each].T @ np.asarray(q.mean)[part]
        np.testing.assert_allclose(mean, F.T @ shared.found[each].mean, atol=1e-5)
        cov = scale**2 * A[each].T @ np.asarray(q.covariance)[part, part] @ A[each]
        np.testing.assert_allclose(cov, F.T @ shared.found[each].covariance @ F, atol=1e-5)


def test_without_a_client_it_is_what_the_others_say():
    seen = releases(4)
    F = PUBLIC.features(GRID[:, None])
    taken = of(seen).posterior(without=1)
    others = of(seen, left_out=1).posterior()
    A = np.asarray(taken.block.basis(JITTER).features(GRID[:, None]))[0]
    M = len(F)
    for name in ("mean", "covariance"):
        a, b = (np.asarray(getattr(each, name)) for each in (taken, others))
        if name == "mean":
            np.testing.assert_allclose(A.T @ a[:M], A.T @ b[:M], atol=1e-5)
        else:
            np.testing.assert_allclose(A.T @ a[:M, :M] @ A, A.T @ b[:M, :M] @ A, atol=1e-5)


def test_what_averaging_adds_is_not_taken_for_evidence_when_a_client_is_taken_out():
    """The others' moments at the best parameters, and as much wider as with all clients."""
    shared = of(releases(4))
    spread = 0.3 * np.eye(len(PUBLIC.inputs))
    wide = SharedFunction(
        PUBLIC,
        PARAMETERS,
        tuple(f._replace(covariance=f.covariance + spread, wider=spread) for f in shared.found),
    )
    for (mean, covariance), (m, S) in zip(wide.moments(2), shared.moments(2), strict=True):
        np.testing.assert_allclose(mean, m, atol=1e-9)
        np.testing.assert_allclose(covariance, S + spread, atol=1e-9)


def test_the_same_releases_give_the_same_shared_function_to_the_bit():
    """All that is learned is a function of the releases: there is no other way in for rows."""
    seen = releases(3)
    a, b = shared_function(PUBLIC, seen), shared_function(PUBLIC, [*seen])
    for x, y in zip(a.found, b.found, strict=True):
        assert x.mean.tobytes() == y.mean.tobytes()
        assert x.covariance.tobytes() == y.covariance.tobytes()
    assert a.evidence == b.evidence


def test_no_release_is_refused():
    with pytest.raises(InputError, match="no release"):
        shared_function(PUBLIC, [])
