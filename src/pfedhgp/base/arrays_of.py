"""Which array library a computation runs in: NumPy on the host, where nothing is compiled, or JAX."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

Array = Any
"""An array of either library, in annotations: `Float[Array, "n d"]`."""


def namespace(*arrays: Any) -> Any:
    """`jax.numpy` if one of the arrays is JAX's (or traced), else `numpy`."""
    jax = sys.modules.get("jax")  # not imported: no array is JAX's
    if jax is not None and any(isinstance(array, jax.Array) for array in arrays):
        return jax.numpy
    return np
