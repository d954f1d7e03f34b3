"""What crosses in a private run by totals between machines: four questions, and then the delivery.

    1 totals   2 spread   3 scales   4 scales   5 deliver

Which question a request is follows from its exchange. Sites get the totals with their noise, and what the
server learned from them: so each site can take its own part out again, at home.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pfedhgp.federation.envelope import Refused
from pfedhgp.federation.message_checks import Expected, Sent
from pfedhgp.federation.totals_fit import (
    SCALES,
    SPREAD,
    TOTALS,
    Learned,
    Terms,
    outputs_of,
)
from pfedhgp.inference.arrays import State, below
from pfedhgp.inference.messages import COUNT, FINITE, FLAG, POSITIVE
from pfedhgp.privacy.from_totals import symmetric
from pfedhgp.privacy.twin import Parameters

QUESTIONS = (TOTALS, SPREAD, SCALES, SCALES)
"""By the number of the exchange, from 1."""
DELIVERY = len(QUESTIONS) + 1
ROUNDING = 1e-6
"""Of sums in fixed point."""
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Shapes:
    """The shapes of all messages: all of them public."""

    terms: Terms

    def of_question(self, question: str) -> Expected:
        """What the server asks."""
        Q, M, d = self._sizes
        centre: Expected = {"centre": Sent((Q, M), FINITE)}
        about = {
            "parameters": Sent((Q, d + 4), FINITE),
            "gain": Sent((Q, M, M), FINITE),
            "error": Sent((Q, M, M), FINITE),
        }
        return {TOTALS: {}, SPREAD: centre, SCALES: about}[question]

    def of_answer(self, question: str) -> Expected:
        """One site's answer, and the total of all."""
        Q, M, _ = self._sizes
        G, J = self.terms.cells.features.shape[1], len(self.terms.family.components)
        triangle, cells = M * (M + 1) // 2, G * (G + 1) // 2
        shapes: dict[str, dict[str, tuple[int, ...]]] = {
            TOTALS: {
                **dict.fromkeys(("missing", "known", "weight"), (Q, M, M)),
                "linear": (Q, M),
                **dict.fromkeys(("noise", "local"), (Q, triangle)),
                "departure": (Q, J, triangle),
                "cells": (Q, cells),
            },
            SPREAD: {"spread": (Q, M)},
            SCALES: {"expected": (Q, M)},
        }
        return {name: Sent(shape, FINITE) for name, shape in shapes[question].items()}

    def of_delivery(self) -> Expected:
        Q, M, d = self._sizes
        return {
            **{f"totals.{name}": each for name, each in self.of_answer(TOTALS).items()},
            "parameters": Sent((Q, d + 4), FINITE),
            "wider": Sent((Q, M, M), FINITE),
            "evidence": Sent((), FINITE),
            "clients": Sent((), POSITIVE),
            "sites": Sent((), COUNT),
            "within": Sent((), FLAG),
        }

    @property
    def _sizes(self) -> tuple[int, int, int]:
        """Q, M and d"""
        return (self.terms.outputs, *self.terms.public.inputs.shape)


def delivery_arrays(
    terms: Terms, learned: Learned, totals: Arrays, count: int, *, within: bool
) -> dict[str, np.ndarray]:
    """For one site; `within`: whether it is one of the `count` clients of these totals."""
    found = {
        **below("totals", totals),
        "parameters": np.stack([each.to_log() for each in learned.parameters]),
        "wider": np.stack(learned.wider),
        "evidence": learned.evidence,
        "clients": count,
        "sites": terms.clients,
        "within": within,
    }
    return {name: np.asarray(array, np.float64) for name, array in found.items()}


class Delivered(NamedTuple):
    """What a site reads from a delivery."""

    learned: Learned
    clients: int
    within: bool


def read_delivery(terms: Terms, mu: float, arrays: Arrays) -> Delivered:
    """The inverse; arrays were checked, and totals must be those of matrices that can be."""
    totals, count = State(arrays).part("totals"), int(arrays["clients"])
    learned = Learned(
        public=terms.public,
        parameters=tuple(Parameters.from_log(each) for each in arrays["parameters"]),
        outputs=outputs_of(terms, mu, totals, count),
        wider=tuple(arrays["wider"]),
        evidence=float(arrays["evidence"]),
        mu=mu,
    )
    M = len(terms.public.inputs)
    for each in (*symmetric(totals["noise"], M), *learned.wider):
        if np.min(np.linalg.eigvalsh(each)) < -ROUNDING * max(float(np.trace(each)), 1.0):
            raise Refused("out-of-range", "a covariance is not one")
    return Delivered(learned, count, bool(arrays["within"]))
