"""The surroundings that our own numerical work needs, put back as they were afterwards.

JAX computes in float64 here whatever the host program's setting is, and BLAS is held to one thread: on the
CPU, JAX calls SciPy's OpenBLAS for small factorisations, and its threads make them 60 times slower.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import jax
import scipy.linalg  # noqa: F401  (its BLAS must be loaded to be capped; JAX would load it later)

from pfedhgp.errors import InputError

P = ParamSpec("P")
T = TypeVar("T")


class _Cap:
    """Who holds BLAS to one thread, and how to undo it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.limits: Any = None


_cap = _Cap()


@contextmanager
def numerics() -> Iterator[None]:
    """float64, and one BLAS thread, inside the block only."""
    with jax.enable_x64(True), one_blas_thread():
        yield


@contextmanager
def on_device(name: str | None) -> Iterator[None]:
    """JAX's default device inside the block: the first "cpu" or "gpu"; None leaves it as it is."""
    if name is None:
        yield
        return
    with jax.default_device(_first(name)):
        yield


def has_device(name: str) -> bool:
    """Whether JAX finds a device of this kind."""
    try:
        jax.devices(name)
    except RuntimeError:
        return False
    return True


def device_memory() -> float | None:
    """Bytes that the default device has free for us; None where it uses the machine's own memory."""
    device = getattr(jax.config, "jax_default_device") or jax.devices()[0]  # noqa: B009 (no type)
    found = device.memory_stats() if isinstance(device, jax.Device) else None
    if not found or "bytes_limit" not in found:
        return None
    return float(found["bytes_limit"] - found.get("bytes_in_use", 0))


def _first(name: str) -> jax.Device:
    if not has_device(name):
        raise InputError(
            f"`device`: no {name} was found by JAX: use device='cpu', or install JAX for your {name}"
        )
    return jax.devices(name)[0]


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """One BLAS thread inside the block; without threadpoolctl (a bare machine) as many as there were.

    The cap is the process's: the first of our threads to enter sets it, and the last to leave puts it back.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ModuleNotFoundError:
        yield
        return
    with _cap.lock:
        if _cap.users == 0:
            _cap.limits = threadpool_limits(1, user_api="blas")
        _cap.users += 1
    try:
        yield
    finally:
        with _cap.lock:
            _cap.users -= 1
            if _cap.users == 0:
                _cap.limits.restore_original_limits()


def with_numerics(function: Callable[P, T]) -> Callable[P, T]:
    """Runs `function` inside `numerics()`."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with numerics():
            return function(*args, **kwargs)

    return wrapped
