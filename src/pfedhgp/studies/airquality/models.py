"""Settings of the air-quality study, and the models that it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pfedhgp.estimator import FederatedGP
from pfedhgp.gp.kernels import RBF
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.studies.airquality.imputation import Series

MOST_INPUTS = 730
"""Most inducing inputs of the imputing model: two per day over a year."""
RESOLVED = 0.8
"""Lengthscale of its global layer, in spacings of the inducing inputs. It had the highest bound in 2014,
compared with .4, .6, .9, 1, 1.1, 1.5 and Matérn kernels."""


@dataclass(frozen=True)
class AirQuality:
    """Settings of the study."""

    year: int
    raw: bool = False
    hours: tuple[int, ...] = (2, 14)
    seed: int = 0
    sketches: int = 5
    inducing: int = 48
    rounds: int = 6
    impute_inducing: int | None = None
    """global inducing inputs of the imputing model; by default one per time, at most 730"""
    held_out: float = 0.1
    full: bool = False
    sparse: int = 0
    """stations of each zone that are left with 5% of their rows, one at a time; with `full` at least 4"""

    @property
    def splits(self) -> int:
        """How often imputation is repeated."""
        return 3 if self.full else 1


def zone_model(study: AirQuality) -> FederatedGP:
    """The model for finding zones."""
    return FederatedGP(
        kernel="rbf",
        local="state-space",
        local_kernel="matern12",
        inducing=study.inducing,
        rounds=study.rounds,
        seed=study.seed,
    )


def paper_model(study: AirQuality) -> FederatedGP:
    """M = 30 and M_i = 12, as in the paper."""
    return FederatedGP(inducing=30, local_inducing=12, rounds=study.rounds, seed=study.seed)


def imputing_model(study: AirQuality, sites: Mapping[str, Series]) -> FederatedGP:
    """The model for imputation: a global layer as fine as the rows, and state-space local layers.

    The local layers also carry the deviations. The global lengthscale is fixed at 0.8 of the spacing: half a
    day later the stations share little more than the mean, and at each time twelve stations determine it.
    """
    times = np.unique(np.concatenate([t for t, _ in sites.values()]))
    extent, step = float(np.ptp(times)), float(np.median(np.diff(times)))
    inducing = study.impute_inducing or min(MOST_INPUTS, round(extent / step) + 1)
    return FederatedGP(
        kernel=RBF(RESOLVED * extent / (inducing - 1)),
        layers=("global", "local"),
        local="state-space",
        local_kernel="matern12",
        inducing=inducing,
        inference=Structured(
            rounds=4,
            evaluations=15,
            first_evaluations=25,
            frozen_rounds=1,
            averaging=None,
            probes=4,
            learn_shared=False,
        ),
        seed=study.seed,
    )
