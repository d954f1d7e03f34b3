"""A simulated press, not the real data: four tonnage channels of 1201 samples, normal and four faults.

It follows the published description of the press data: one pulse per channel with its peak near sample 750,
ripples before it and an undershoot after it; 305 normal cycles and 69 of each fault. Cycles differ in height,
in timing, and by a Gaussian process that channels share in part; the noise is small. Fault 1 lowers the peak,
fault 2 dips around samples 250 and 400, faults 3 and 4 are faint bumps: far smaller than the differences
between cycles of one class, but less smooth. `subtlety` divides the size of the faults. With `runs`, cycles
come in runs of equal length, and runs differ as cycles do, `run_sd` times as much.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pfedhgp.data.cycle_files import CycleSet

FloatArray = npt.NDArray[np.float64]
SAMPLES, NORMAL, FAULTY = 1201, 305, 69
PEAKS = (175.0, 145.0, 150.0, 152.0)
CLASSES = ("normal", "fault 1", "fault 2", "fault 3", "fault 4")
NOISE_SD, SMOOTH_SD, SMOOTH_SCALE = 0.4, 2.0, 120.0
HEIGHT_SD, SHIFT_SD = 0.015, 2.0


def simulate(
    seed: int,
    *,
    subtlety: float = 1.0,
    normal: int = NORMAL,
    faulty: int = FAULTY,
    samples: int = SAMPLES,
    runs: int | None = None,
    run_sd: float = 1.0,
) -> CycleSet:
    """All cycles, class by class. Fewer `samples` give the same curves on a coarser grid.

    `runs` is the number of runs of each class.
    """
    rng = np.random.default_rng([seed, 1201])
    grid = np.linspace(0.0, SAMPLES - 1.0, samples)
    root = _smooth_root(grid)
    channels = np.linalg.cholesky(0.6 * np.ones((4, 4)) + 0.4 * np.eye(4))
    cycles, labels, block = [], [], []

    def drawn(*shape: int) -> FloatArray:
        """What differs between cycles, and between runs `run_sd` times as much."""
        own = rng.standard_normal(shape)
        if runs is None:
            return own
        place = np.arange(shape[0]) * runs // shape[0]
        return own + run_sd * rng.standard_normal((runs, *shape[1:]))[place]

    for k, name in enumerate(CLASSES):
        count = normal if k == 0 else faulty
        shift = SHIFT_SD * drawn(count)
        height = 1.0 + HEIGHT_SD * drawn(count, 1)
        mean = np.stack([height * _curve(grid, q, k, shift, subtlety) for q in range(4)], axis=1)
        z = drawn(count, 4, root.shape[1])
        smooth = SMOOTH_SD * np.einsum("qp,cpk,nk->cqn", channels, z, root, optimize=True)
        noise = NOISE_SD * rng.standard_normal(mean.shape)
        cycles.append(mean + smooth + noise)
        labels += [name] * count
        if runs is not None:
            block += [f"{name}, run {c * runs // count}" for c in range(count)]
    names = tuple(f"tonnage {q + 1}" for q in range(4))
    owners = tuple(block) if runs is not None else None
    return CycleSet(np.concatenate(cycles), grid, names, tuple(labels), owners)


def _smooth_root(grid: FloatArray) -> FloatArray:
    """F with F Fᵀ the RBF covariance on the grid, (n, k), from its leading eigenvectors."""
    K = np.exp(-0.5 * (grid[:, None] - grid) ** 2 / SMOOTH_SCALE**2)
    values, vectors = np.linalg.eigh(K)
    kept = values > 1e-10 * values[-1]
    return vectors[:, kept] * np.sqrt(values[kept])


def _curve(
    grid: FloatArray, channel: int, fault: int, shift: FloatArray, subtlety: float
) -> FloatArray:
    """The curve of one channel under one fault, (C, n); `shift` delays each cycle."""
    t = grid[None, :] - shift[:, None]
    pulse = _bump(t, 750.0, np.where(t < 750.0, 110.0, 80.0))
    ripple = 4.0 * np.sin(2.0 * np.pi * (t - 200.0) / 85.0) * _bump(t, 325.0, 70.0)
    under = -18.0 * _bump(t, 1010.0, 60.0)
    curve = PEAKS[channel] * pulse + (1.0 + 0.1 * channel) * ripple + under
    size = 1.0 / subtlety
    if fault == 1:
        curve = curve - size * 70.0 * _bump(t, 750.0, 90.0)
    elif fault == 2:
        curve = curve - size * (8.0 * _bump(t, 250.0, 30.0) + 6.0 * _bump(t, 400.0, 30.0))
    elif fault == 3:
        curve = curve + size * (3.6, 2.7, 0.0, 1.8)[channel] * _bump(t, 560.0, 26.0)
    elif fault == 4:
        curve = curve - size * (0.0, 2.7, 3.6, 1.8)[channel] * _bump(t, 880.0, 26.0)
    return curve


def _bump(t: FloatArray, centre: float, width: float | FloatArray) -> FloatArray:
    return np.exp(-0.5 * ((t - centre) / width) ** 2)
