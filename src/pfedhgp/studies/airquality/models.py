"""Settings of the air-quality study, and the models that it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pfedhgp.estimator import FederatedGP
from pfedhgp.gp.kernels import Matern12
from pfedhgp.inference.markov.settings import Markov
from pfedhgp.studies.airquality.imputation import Series

MOST_KNOTS = 2048
"""Most knots of the imputing model: one for each step of the series."""
SHARED_FUNCTIONS, START = 4, 0.5
"""Shared functions of the imputing model, and the lengthscale in days that they start from."""
ZONE_FUNCTIONS, ZONE_LENGTH, ZONE_ROUNDS = 5, 0.4, 40
"""For zones by loadings: shared functions, their lengthscale in steps of the series, and rounds."""
ZONE_TOLERANCE = 0.001
"""Nats a station: the bound hardly rises for some rounds before the last functions are told apart."""


@dataclass(frozen=True)
class AirQuality:
    """Settings of the study."""

    year: int
    raw: bool = False
    hours: tuple[int, ...] = (2, 14)
    seed: int = 0
    sketches: int = 5
    starts: int = 5
    """fits of the model for zones by loadings, whose stations start from other loadings"""
    zone_rounds: int = ZONE_ROUNDS
    inducing: int = 48
    rounds: int = 6
    impute_inducing: int | None = None
    """knots of the imputing model; by default one for each step of the series"""
    held_out: float = 0.1
    full: bool = False
    sparse: int = 0
    """stations of each zone that are left with 5% of their rows, one at a time; with `full` at least 4"""

    @property
    def splits(self) -> int:
        """How often imputation is repeated."""
        return 3 if self.full else 1


def loadings_model(
    study: AirQuality, sites: Mapping[str, Series], seed: int | None = None
) -> FederatedGP:
    """The model for zones by loadings: who moves with whom at the same time.

    The lengthscale of the shared functions is short and stays. A function that may be slow is soon taken up
    by the drift of a single station, and says nothing about the others.
    """
    times, steps = _steps(sites)
    return FederatedGP(
        kernel=Matern12(ZONE_LENGTH * float(np.ptp(times)) / (steps - 1)),
        layers=("global", "local"),
        local="state-space",
        local_kernel="matern12",
        latents=ZONE_FUNCTIONS,
        client_loadings=True,
        inducing=min(MOST_KNOTS, steps),
        domain=((float(times[0]), float(times[-1])),),
        inference=Markov(rounds=study.zone_rounds, evaluations=3, learn_shared=False),
        tolerance=ZONE_TOLERANCE,
        seed=study.seed if seed is None else seed,
    )


def _steps(sites: Mapping[str, Series]) -> tuple[np.ndarray, int]:
    """All times, and how many there would be without gaps."""
    times = np.unique(np.concatenate([t for t, _ in sites.values()]))
    return times, round(float(np.ptp(times) / np.median(np.diff(times)))) + 1


def zone_model(study: AirQuality) -> FederatedGP:
    """The model for finding zones by sketches."""
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
    """The model for imputation: shared functions at the rows' own times, which each station mixes for itself.

    Half a day later stations share little more than the mean, and at each time twelve stations determine
    what is shared. Slow drifts are local, and carry the deviations too. Logarithms of concentrations are
    noisier at low levels, and the model learns by how much.
    """
    times = np.unique(np.concatenate([t for t, _ in sites.values()]))
    steps = round(float(np.ptp(times) / np.median(np.diff(times)))) + 1
    return FederatedGP(
        kernel=Matern12(START),
        layers=("global", "local"),
        local="state-space",
        local_kernel="matern12",
        latents=SHARED_FUNCTIONS,
        client_loadings=True,
        noise="level",
        inducing=study.impute_inducing or min(MOST_KNOTS, steps),
        domain=((float(times[0]), float(times[-1])),),
        inference=Markov(rounds=12),
        seed=study.seed,
    )
