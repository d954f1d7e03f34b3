"""What the sites of a diagnosis agree on, and what each of them has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedhgp.diagnosis.candidates import Candidate
from pfedhgp.diagnosis.coordinates import MOST
from pfedhgp.diagnosis.decision import FALSE_ALARMS, check_class_name
from pfedhgp.diagnosis.held_out_runs import FOLDS
from pfedhgp.errors import InputError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
LARGEST_SAMPLES, LARGEST_SIZE = 20_000, 2_600
"""The most samples of a cycle, and the most coordinates: a message has matrices of that size squared."""


@dataclass(frozen=True)
class Terms:
    """The classes, in their order, and how training goes."""

    classes: tuple[str, ...]
    channels: tuple[str, ...] = ()
    """their names, for warnings"""
    blocks: bool = True
    """whether sites name the run of each cycle"""
    rank: int | None = None
    """coordinates of a channel; None: one a sample, and at most 81"""
    folds: int = FOLDS
    false_alarms: float = FALSE_ALARMS
    thresholds: bool = True
    candidates: tuple[Candidate, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if len(set(self.classes)) < max(len(self.classes), 2):
            raise InputError("`classes` must name at least two classes, each once")
        for name in self.classes:
            check_class_name(name)

    @property
    def largest_rank(self) -> int:
        return MOST if self.rank is None else self.rank


@dataclass(frozen=True, eq=False)
class SiteCycles:
    """The cycles of one site, of any classes, on its grid."""

    grid: FloatArray
    """(n, d)"""
    cycles: FloatArray
    """(C, Q, n), NaN where missing"""
    labels: IntArray
    """by the order of `Terms.classes`"""
    runs: tuple[str, ...] | None
    """the run of each cycle; the same name under two classes, or at two sites, is two runs"""

    @staticmethod
    def of(
        terms: Terms, grid: FloatArray, cycles: FloatArray, names: Sequence[str], runs: Any = None
    ) -> SiteCycles:
        """From the class of each cycle by its name."""
        number = {name: k for k, name in enumerate(terms.classes)}
        strange = next((name for name in names if name not in number), None)
        if strange is not None:
            raise InputError(
                f"there is a class {strange!r} that is not one of the agreed ones: "
                f"{', '.join(terms.classes[:12])}"
            )
        labels = np.asarray([number[name] for name in names], np.int64)
        return SiteCycles(grid, cycles, labels, None if runs is None else tuple(map(str, runs)))
