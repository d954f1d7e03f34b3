"""Priors of all lengthscales that are searched, from a few matrices."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.privacy.kernel_family import KernelFamily
from pfedhgp.privacy.release import PublicBasis
from pfedhgp.privacy.twin import LONGEST, Parameters, prior


@pytest.mark.parametrize(("scales", "near"), [((0.15,), 1e-8), ((0.5, 0.4), 1e-4)])
def test_a_prior_of_any_lengthscale_is_a_sum_of_the_components(scales, near):
    public = PublicBasis.over(np.array(scales))
    family = KernelFamily.of(public)
    matrices = family.matrices()
    assert len(matrices) < 64
    rng = np.random.default_rng(0)
    for _ in range(12):
        longer = np.exp(rng.uniform(0.0, np.log(LONGEST), len(scales)))
        P = prior(public, Parameters(public.lengthscales * longer, 0.7, 0.2, 0.1, 1e-3))
        again = np.einsum("j,jmk->mk", family.weights(P), matrices)
        assert np.linalg.norm(again - P) <= near * np.linalg.norm(P)
