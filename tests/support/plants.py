"""Made-up plants: hours and temperature in, power and vibration out, on scales far apart."""

from __future__ import annotations

import numpy as np


def plants(
    seed: int,
    *,
    sites: int,
    rows: int,
    days: float,
    scales: tuple[float, float] = (1e6, 1e-4),
    missing: tuple[float, float] = (0.0, 0.0),
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """(inputs, outputs) by site; `scales` are those of the outputs, `missing` their shares of NaN."""
    rng = np.random.default_rng(seed)
    found = {}
    for i in range(sites):
        hours = np.sort(rng.uniform(0.0, 24.0 * days, rows))
        phase = 2.0 * np.pi * hours / 24.0
        warm = 10.0 + 8.0 * np.sin((phase - 20.0 * np.pi) / 90.0) + 5.0 * np.sin(phase + 0.3)
        warm += rng.normal(0.0, 1.5, rows)
        load = 2.0 + 0.3 * np.sin(phase - 1.0) + 0.04 * np.abs(warm - 16.0)
        load += 0.2 * np.sin(phase / 7.0) + 0.1 * (i % 5 - 2) * np.sin(phase / 30.0)
        load += rng.normal(0.0, 0.05, rows)
        shake = 3.0 + np.cos(phase / 14.0 + 0.3 * i) + 0.4 * np.tanh((warm - 12.0) / 5.0)
        shake += rng.normal(0.0, 0.2, rows)
        Y = np.c_[load, shake] * scales
        Y[rng.uniform(size=Y.shape) < missing] = np.nan
        found[f"plant {i}"] = (np.c_[hours, warm], Y)
    return found
