"""LAPACK and BLAS for large matrices without Python's lock, so that threads can use several cores.

SciPy's own wrappers hold the lock while they compute. The functions behind them are the same: their addresses
are public in `scipy.linalg.cython_lapack` and `cython_blas`, and ctypes gives the lock back while they run.
Matrices are by rows, so that LAPACK sees their transposes.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from scipy.linalg import cython_blas, cython_lapack


def _function(module: Any, name: str, arguments: int) -> Any:
    """A Fortran subroutine of so many arguments, all of which are pointers."""
    capsule, api = module.__pyx_capi__[name], ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = (
        ctypes.c_char_p,
        [ctypes.py_object],
    )
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(address)


_dpotrf = _function(cython_lapack, "dpotrf", 5)
_dpotri = _function(cython_lapack, "dpotri", 5)
_dtrsm = _function(cython_blas, "dtrsm", 11)


def factorise(K: np.ndarray) -> bool:
    """K = L Lᵀ in place, in the lower triangle alone; False if K is not positive definite."""
    return _square(_dpotrf, K)


def invert(L: np.ndarray) -> bool:
    """(L Lᵀ)⁻¹ in place of a factor L, in the lower triangle alone."""
    return _square(_dpotri, L)


def _square(function: Any, A: np.ndarray) -> bool:
    size, failed = ctypes.c_int(len(A)), ctypes.c_int(0)
    n = ctypes.byref(size)
    function(ctypes.c_char_p(b"U"), n, ctypes.c_void_p(_by_rows(A)), n, ctypes.byref(failed))
    return failed.value == 0


def solve(L: np.ndarray, B: np.ndarray, *, transpose: bool) -> None:
    """L⁻¹B, or L⁻ᵀB, in place of B (m, k)."""
    m, k = (ctypes.c_int(size) for size in B.shape)
    one, turned = ctypes.c_double(1.0), b"T" if transpose else b"N"
    letters = [ctypes.c_char_p(letter) for letter in (b"R", b"U", turned, b"N")]
    sizes = [ctypes.byref(k), ctypes.byref(m), ctypes.byref(one)]
    where = [ctypes.c_void_p(_by_rows(A)) for A in (L, B)]
    _dtrsm(*letters, *sizes, where[0], ctypes.byref(m), where[1], ctypes.byref(k))


def _by_rows(A: np.ndarray) -> int:
    """Where the numbers of A are."""
    assert A.flags.c_contiguous
    assert A.dtype == np.float64
    return int(A.ctypes.data)
