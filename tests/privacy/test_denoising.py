"""The gram matrix that rows can have, found from a noisy one."""

from __future__ import annotations

import random

import numpy as np
from scipy.optimize import lsq_linear

from pfedhgp.privacy.accounting import mu_for
from pfedhgp.privacy.denoising import cells_of, denoised
from pfedhgp.privacy.release import PublicBasis, exact_sums, release
from support.private_sites import made_up

PUBLIC = PublicBasis.over(np.array([0.25]))
CELLS = cells_of(PUBLIC)


def test_it_is_the_nearest_matrix_that_counts_of_cells_can_make():
    rng = np.random.default_rng(0)
    noisy = rng.normal(size=(len(PUBLIC.inputs),) * 2)
    noisy = 3 * (noisy + noisy.T) + 5 * np.eye(len(noisy))
    found = denoised(noisy, 1.0, CELLS).gram
    design = np.einsum("mg,kg->mkg", CELLS.features, CELLS.features)
    design = design.reshape(noisy.size, -1)
    best = lsq_linear(design, noisy.ravel(), bounds=(0, np.inf), tol=1e-12)
    nearest = (design @ best.x).reshape(noisy.shape)
    gap = np.linalg.norm(found - noisy) - np.linalg.norm(nearest - noisy)
    assert abs(gap) < 1e-4 * np.linalg.norm(noisy)
    assert np.linalg.eigvalsh(found).min() > -1e-9


def test_its_error_is_smaller_than_that_of_clipped_eigenvalues_and_as_large_as_it_says():
    mu, below = mu_for(1.0, 1e-6), random.Random(0).randrange
    clipped, found, said = [], [], []
    for seed in range(12):
        made = made_up(1, 300, seed)
        exact, _ = exact_sums(PUBLIC, made.X[0], made.Y[0], 2.0)
        seen = release(PUBLIC, made.X[0], made.Y[0], bound=2.0, mu=mu, below=below)
        values, vectors = np.linalg.eigh(seen.gram[0])
        clipped.append(np.sum(((vectors * np.maximum(values, 0)) @ vectors.T - exact[0]) ** 2))
        it = denoised(seen.gram[0], seen.scales.gram, CELLS)
        found.append(np.sum((it.gram - exact[0]) ** 2))
        overlap = (it.features.T @ it.features) ** 2
        said.append(np.trace(it.counts @ overlap))
    assert np.mean(found) < 0.5 * np.mean(clipped)
    assert 0.5 < np.mean(said) / np.mean(found) < 2.0


def test_without_noise_nothing_is_changed_and_no_rows_give_nothing():
    gram = np.diag(np.arange(1.0, 1 + len(PUBLIC.inputs)))
    assert denoised(gram, 0.0, CELLS).gram is gram
    assert not denoised(-gram, 1.0, CELLS).gram.any()
