"""What an attacker has of one client in a private run by totals, if everything else is known.

Taking all other clients' parts from a total leaves this client's part, with the noise that nobody knows: all
of τ², for whoever gets the model; a share of it, or none, for the server of privacy="central". With it comes
S̃, the client's own noisy matrix, from which W follows.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pfedhgp.attacks.channels import others_of, relative_precision, unknown_output, with_output
from pfedhgp.data.rows import ClientRows
from pfedhgp.data.scaling import Scaling
from pfedhgp.federation.private_fit import BOUND
from pfedhgp.federation.totals_fit import Terms
from pfedhgp.privacy.discrete_gaussian import Below
from pfedhgp.privacy.from_totals import lower, symmetric
from pfedhgp.privacy.release import PublicBasis, exact_sums, noisy_gram
from pfedhgp.privacy.totals import (
    OwnGram,
    Scales,
    kappa_of,
    part_of_spread,
    part_of_totals,
    residuals,
)

NO_NOISE = Scales(0.0, 0.0, 0.0, 0.0)
ROUNDING = 1e-6
"""Of exact numbers, as a share of their size: far more than there is, and far less than noise."""
LEAST_NOISE = 1e-3
"""Of the rows' own noise in a client's function, as a variance."""


class Seen(NamedTuple):
    """A message by its parts, each by output."""

    own: np.ndarray
    missing: np.ndarray
    linear: np.ndarray
    spread: np.ndarray


@dataclass(frozen=True)
class NoisyTotals:
    """By the terms of the noise: `Terms.shares` is what the attacker does not know of it."""

    terms: Terms
    scaling: Scaling
    mu: float
    below: Below = secrets.randbelow

    @property
    def public(self) -> PublicBasis:
        return self.terms.public

    @property
    def _noise(self) -> Scales:
        return self.terms.shares(self.mu)

    def sent(self, rows: ClientRows) -> np.ndarray:
        S, b = self._sums(rows)
        shares, own = self._noise, self.terms.scales(self.mu).own
        noisy = noisy_gram(S, own, self.below) if own else S
        grams = self.grams(noisy)
        parts = part_of_totals(grams, (S, b), shares, self.below)
        spread = part_of_spread(grams, self._residual(rows), self.terms.modes, shares, self.below)
        return _flat(Seen(noisy, parts["missing"], parts["linear"], spread["spread"]))

    def expected(self, rows: ClientRows, seen: np.ndarray) -> np.ndarray:
        """By the matrix that was seen: W follows from it."""
        S, b = self._sums(rows)
        grams = self.grams(self.parts(seen).own)
        parts = part_of_totals(grams, (S, b), NO_NOISE)
        spread = part_of_spread(grams, self._residual(rows), self.terms.modes, NO_NOISE)
        return _flat(Seen(S, parts["missing"], parts["linear"], spread["spread"]))

    def precision(self, seen: np.ndarray) -> np.ndarray:
        """What is promised of the noise; where there is none, numbers are exact."""
        parts, noise = self.parts(seen), self._noise
        M = parts.linear.shape[1]
        rows, columns = np.tril_indices(M)
        beside = np.where(rows == columns, 1.0, np.sqrt(0.5)) * self.terms.scales(self.mu).own
        sd = [np.tile(beside, len(parts.own))]
        sd += [
            np.full(part.size, tau)
            for part, tau in zip(parts[1:], (noise.gram, noise.linear, noise.spread), strict=True)
        ]
        given = np.concatenate(sd)
        exact = relative_precision(seen) / ROUNDING**2
        return np.where(given > 0.0, 1.0 / np.maximum(given, 1e-100) ** 2, exact)

    def function(self, seen: np.ndarray, x: np.ndarray) -> np.ndarray:
        """v with the least |WSv − Wb|²/(τ_b² + least) + |v|², at each of the points."""
        parts, found = self.parts(seen), []
        A = self.terms.public.features(x)
        for own, missing, linear in zip(self.grams(parts.own), *parts[1:3], strict=True):
            G = own.weight @ own.gram + missing
            ridge = (self._noise.linear**2 + LEAST_NOISE) * np.eye(len(linear))
            found.append(A.T @ np.linalg.solve(G.T @ G + ridge, G.T @ linear))
        return np.stack(found, axis=1)

    def output(self, rows: ClientRows, row: int, q: int, seen: np.ndarray) -> float:
        """Wb less the others' part is Way + noise: its posterior mean, by the others' outputs as prior."""
        parts = self.parts(seen)
        weight = self.grams(parts.own)[q].weight
        without = with_output(rows, row, q, np.nan)
        left = parts.linear[q] - weight @ self._sums(without)[1][q]
        scaled = self.scaling.rows(rows)
        a = weight @ self.terms.public.features(scaled.X[row : row + 1])[:, 0]
        value = unknown_output(others_of(scaled, row, q), a, left, self._noise.linear)
        return float(self.scaling.centre[q] + self.scaling.spread[q] * value)

    def grams(self, noisy: np.ndarray) -> tuple[OwnGram, ...]:
        """Ŝ and W of each output."""
        own = self.terms.scales(self.mu).own
        about = (own, kappa_of(own), self.terms.cells)
        return tuple(OwnGram.of(each, *about) for each in noisy)

    def gram(self, seen: np.ndarray) -> np.ndarray:
        """S of each output, as far as the message tells it: Ŝ + W⁻¹(W(S − Ŝ))."""
        parts = self.parts(seen)
        pairs = zip(self.grams(parts.own), parts.missing, strict=True)
        return np.stack([own.gram + np.linalg.solve(own.weight, miss) for own, miss in pairs])

    def parts(self, seen: np.ndarray) -> Seen:
        """The parts of a message."""
        M = len(self.terms.public.inputs)
        sizes = np.array([M * (M + 1) // 2, M * M, M, M])
        Q = seen.size // int(sizes.sum())
        own, missing, linear, spread = np.split(seen, np.cumsum(Q * sizes)[:-1])
        return Seen(
            symmetric(own.reshape(Q, -1), M),
            missing.reshape(Q, M, M),
            linear.reshape(Q, M),
            spread.reshape(Q, M),
        )

    def _sums(self, rows: ClientRows) -> tuple[np.ndarray, np.ndarray]:
        scaled = self.scaling.rows(rows)
        return exact_sums(self.terms.public, scaled.X, scaled.Y, BOUND)

    def _residual(self, rows: ClientRows) -> np.ndarray:
        """About zero: any function that is known does as well."""
        scaled = self.scaling.rows(rows)
        centre = np.zeros((scaled.Y.shape[1], len(self.terms.public.inputs)))
        return residuals(self.terms.public, scaled.X, scaled.Y, BOUND, centre)


def _flat(seen: Seen) -> np.ndarray:
    """All numbers, of a symmetric matrix the lower triangle."""
    return np.concatenate([lower(seen.own).ravel(), *(part.ravel() for part in seen[1:])])
