"""Faults of the libraries below us that would look like ours."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import pytest

# With jaxlib 0.10.x this hangs: batched solves block both threads of a pool of two. It is a race,
# which a single solve a step rarely loses; with 16 independent ones it has been lost every time.
SCAN_OF_SOLVES = """
import os

if hasattr(os, "sched_setaffinity"):  # XLA sizes its pool by the processors it may use
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])

import jax
import numpy as np
from jax.scipy.linalg import solve_triangular

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)
STEPS = 30
factor = np.eye(100) + np.tril(np.full((6, 100, 100), 1e-3))
rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 100, 100)))[0]
starts = [rotation * (1.0 + i) for i in range(16)]


@jax.jit
def solve_often(factor, rotation, starts):
    def step(state, _):
        return [solve_triangular(factor, s, lower=True) @ rotation for s in state], None

    return jax.lax.scan(step, starts, length=STEPS)[0]


power = np.linalg.matrix_power
for start, found in zip(starts, solve_often(factor, rotation, starts)):
    expected = power(np.linalg.inv(factor), STEPS) @ start @ power(rotation, STEPS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
print("returned")
"""


def test_scan_of_batched_triangular_solves_returns_on_two_threads():
    try:
        run = subprocess.run(
            [sys.executable, "-c", SCAN_OF_SOLVES],
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # or it takes ten times as long
            capture_output=True,
            text=True,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"a scan of batched triangular solves hangs with jax {jax.__version__}")
    assert run.returncode == 0, run.stderr
    assert run.stdout == "returned\n"


def test_tests_run_in_float64_with_strict_promotion():
    single, double = jax.numpy.ones(2, "float32"), jax.numpy.ones(2)
    assert double.dtype == "float64"
    with pytest.raises(ValueError, match="dtype_promotion=strict"):
        single + double
    with pytest.raises(ValueError, match="rank_promotion"):
        double + jax.numpy.ones((2, 2))
