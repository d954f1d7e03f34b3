"""Freed memory is kept for the next array while we compute, and given back to the system afterwards.

A search makes and frees arrays of some megabytes thousands of times. By default glibc gives each back to the
system and asks for it again, page by page: that takes as long as the mathematics in them.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

TRIM, MMAP = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's mallopt"""
MIB = 2**20

_lock = threading.Lock()
_users = [0]


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keeps freed memory inside the block: up to 1 GiB, in arrays of at most 64 MiB. Only with glibc."""
    libc = _glibc()
    if libc is None:
        yield
        return
    with _lock:
        _users[0] += 1
        libc.mallopt(TRIM, 1024 * MIB)
        libc.mallopt(MMAP, 64 * MIB)
    try:
        yield
    finally:
        with _lock:
            _users[0] -= 1
            if not _users[0]:
                libc.mallopt(
                    TRIM, 64 * MIB
                )  # what glibc itself ends up at in a program of large arrays
                libc.mallopt(MMAP, 32 * MIB)
                libc.malloc_trim(0)


@cache
def _glibc() -> Any:
    """The C library if it is glibc, or None."""
    try:
        libc = ctypes.CDLL(None)
        return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
    except (OSError, TypeError):  # not a system with such a library
        return None
