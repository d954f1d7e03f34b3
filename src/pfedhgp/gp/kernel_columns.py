"""The columns of the inputs that a kernel sees, as a user gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pfedhgp.base.checks import refusal


def checked_columns(dims: Any) -> tuple[int, ...] | None:
    """Returns `dims` as a tuple of different column numbers, or None for all columns."""
    if dims is None:
        return None
    listed = isinstance(dims, Sequence | np.ndarray) and not isinstance(dims, str)
    if not listed or np.ndim(dims) != 1 or not all(_is_column(v) for v in dims):
        raise refusal("dims", "column numbers like (0, 2)", dims)
    if len(dims) == 0 or len(set(dims)) != len(dims):
        raise refusal("dims", "different columns, and at least one", dims)
    return tuple(int(v) for v in dims)


def _is_column(value: Any) -> bool:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return whole and int(value) >= 0
