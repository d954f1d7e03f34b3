"""The surroundings that our own numerical work needs, put back as they were afterwards.

JAX computes in float64 here whatever the host program's setting is, and BLAS is held to one thread: on the
CPU, JAX calls SciPy's OpenBLAS for small factorisations, and its threads make them 60 times slower.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import jax
import scipy.linalg  # noqa: F401  (its BLAS must be loaded to be capped; JAX would load it later)
from threadpoolctl import threadpool_limits

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def numerics() -> Iterator[None]:
    """float64, and one BLAS thread, inside the block only."""
    with jax.enable_x64(True), threadpool_limits(1, user_api="blas"):
        yield


def with_numerics(function: Callable[P, T]) -> Callable[P, T]:
    """Runs `function` inside `numerics()`."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with numerics():
            return function(*args, **kwargs)

    return wrapped
