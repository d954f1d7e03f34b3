"""P(ℓ) ≈ s Σ_j c_j(ℓ)B_j: the priors of all lengthscales that are searched, by a few public matrices.

ΣW_iS_iPS_iW_i is linear in P. So clients need to be asked for a few totals, one for each B_j, and the server
has that sum for every lengthscale. The B_j are the principal components of priors on a ladder of them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pfedhgp.privacy.release import PublicBasis
from pfedhgp.privacy.twin import LONGEST, Parameters, prior

LADDER = (24, 8, 5, 3)
"""Lengthscales along an axis, with one, two, three or more inputs."""
KEPT = 1e-11
"""Components with a smaller share of the largest one are left out."""


@dataclass(frozen=True, eq=False)
class KernelFamily:
    """Orthonormal B_j, each a symmetric matrix as one row."""

    public: PublicBasis
    components: Float[np.ndarray, "J MM"]

    @staticmethod
    def of(public: PublicBasis) -> KernelFamily:
        """From the shortest lengthscales to the longest that are searched."""
        d = len(public.lengthscales)
        steps = np.linspace(0.0, np.log(LONGEST), LADDER[min(d, len(LADDER)) - 1])
        ladder = [
            prior(public, _with(public.lengthscales * np.exp(step))).reshape(-1)
            for step in itertools.product(steps, repeat=d)
        ]
        _, sizes, components = np.linalg.svd(np.stack(ladder), full_matrices=False)
        return KernelFamily(public, components[sizes > KEPT * sizes[0]])

    def matrices(self) -> Float[np.ndarray, "J M M"]:
        """B_j"""
        size = len(self.public.inputs)
        found = self.components.reshape(-1, size, size)
        return 0.5 * (found + np.swapaxes(found, 1, 2))

    def weights(self, P: Float[np.ndarray, "M M"]) -> Float[np.ndarray, " J"]:
        """s c(ℓ) of a prior."""
        return np.asarray(self.components @ P.reshape(-1))


def _with(lengthscales: Float[np.ndarray, " d"]) -> Parameters:
    return Parameters(lengthscales, 1.0, 1.0, 1.0, 1.0)
