"""Where a client's local inducing inputs are: chosen by a budget, or as many as were asked for."""

from __future__ import annotations

import warnings

import numpy as np

from pfedhgp.errors import BudgetWarning
from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference.starts import budget


def local_inputs(
    name: str,
    kernels: Kernel,
    X: np.ndarray,
    wanted: int | str,
    *,
    tolerance: float,
    largest: int,
    say: bool = True,
) -> np.ndarray:
    """Z_i in the unit box: "auto" for so many that the residual is below `tolerance`, or a number."""
    if isinstance(wanted, str):
        return budget.local_inputs(kernels, X, tolerance, largest)
    distinct = np.unique(X, axis=0)
    if wanted > len(distinct):
        if say:
            _warn_of_fewer(name, len(distinct), wanted)
        return distinct
    return budget.spread_rows(kernels, X, wanted)


def _warn_of_fewer(name: str, distinct: int, wanted: int) -> None:
    plural = "" if distinct == 1 else "s"
    warnings.warn(
        f"client {name!r} has {distinct} distinct input{plural}: "
        f"{distinct} local inducing input{plural} instead of {wanted}",
        BudgetWarning,
        stacklevel=3,
    )
