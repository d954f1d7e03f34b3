"""`python -m bench.small_federations KIND`: 95% intervals where three clients have 20 rows and one has one.

    gp        the three layers, lengthscales and noise drawn at random
    other     sums of steps, kinks, cusps, waves and peaks
    jumps     sums of steps, saturations, sawtooths and chirps; noise Gaussian, of heavy tails or uniform, its
              size different at each client

Prints coverage, the mean of z² and NLL by the number of rows, over `--seeds FIRST LAST`.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

Rows = dict[str, tuple[np.ndarray, np.ndarray]]
NEW = 60
SIZES = (20, 20, 20, 1)
WITHIN = 1.96


def between(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def jumps(seed: int, sizes: tuple[int, ...] = SIZES) -> tuple[Rows, Rows]:
    """({client: rows}, {client: new rows}) of functions with jumps."""
    rng = np.random.default_rng([seed, 79])

    def piece(width: float) -> Callable[[np.ndarray], np.ndarray]:
        kind, at, sign = rng.integers(4), rng.uniform(), rng.choice([-1, 1])
        phase, rate = rng.uniform(), rng.uniform(1.0, 3.0)
        shapes: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
            lambda x: np.where(x > at, 1.0, -1.0),
            lambda x: 1.0 - np.exp(-np.maximum(x - at, 0.0) / width),
            lambda x: 2.0 * np.mod(x / (4.0 * width) + phase, 1.0) - 1.0,
            lambda x: np.sin(2.0 * np.pi * (phase + x**rate / (5.0 * width))),
        )
        return lambda x: sign * shapes[kind](x)

    def function(width: float, count: int) -> Callable[[np.ndarray], np.ndarray]:
        pieces = [piece(width * between(rng, 0.7, 1.4)) for _ in range(count)]
        weights, grid = rng.exponential(size=count) + 0.2, np.linspace(0, 1, 400)

        def raw(x: np.ndarray) -> np.ndarray:
            return np.asarray(sum(w * each(x) for w, each in zip(weights, pieces, strict=True)))

        scale, mean = max(float(np.std(raw(grid))), 0.05), np.mean(raw(grid))
        return lambda x: (raw(x) - mean) / scale

    shared, usual = function(between(rng, 0.15, 0.4), 3), between(rng, 0.05, 0.4)
    deviation, local = rng.uniform(0.2, 0.7, 2)
    kind = rng.integers(3)
    rows: Rows = {}
    new: Rows = {}
    for i, n in enumerate(sizes):
        own, detail = function(between(rng, 0.15, 0.4), 2), function(between(rng, 0.05, 0.15), 2)
        x = rng.uniform(size=n + NEW)
        count, noise = len(x), usual * between(rng, 0.6, 1.6)
        error = (
            rng.normal(size=count),
            rng.standard_t(4, size=count) / np.sqrt(2.0),
            rng.uniform(-np.sqrt(3.0), np.sqrt(3.0), count),
        )[kind]
        y = shared(x) + deviation * own(x) + local * detail(x) + noise * error
        rows[str(i)], new[str(i)] = (x[:n], y[:n]), (x[n:], y[n:])
    return rows, new


def kinds() -> dict[str, Callable[[int], tuple[Rows, Rows]]]:
    from tests.estimator.test_federated_gp_small_data import federation, other_functions

    return {"gp": federation, "other": other_functions, "jumps": jumps}


def errors(made: tuple[Rows, Rows], **settings: Any) -> list[dict[str, Any]]:
    """z and sd at the new rows of each client."""
    from pfedhgp import FederatedGP

    rows, new = made
    warnings.simplefilter("ignore")
    model = FederatedGP(domain=[(0.0, 1.0)], inducing=20, **settings).fit(rows)
    found = []
    for name, (x, y) in new.items():
        p = model.predict(name, x)
        sd = p.sd[:, 0]
        z = (y - p.mean[:, 0]) / sd
        found.append({"rows": len(rows[name][0]), "z": z, "sd": sd})
    return found


def summary(found: list[dict[str, Any]], rows: int) -> str:
    z = np.concatenate([each["z"] for each in found if each["rows"] == rows])
    sd = np.concatenate([each["sd"] for each in found if each["rows"] == rows])
    nll = np.mean(0.5 * z**2 + np.log(sd * np.sqrt(2.0 * np.pi)))
    inside = np.mean(np.abs(z) < WITHIN)
    return f"{rows} rows: coverage {inside:.3f}, z² {np.mean(z**2):.2f}, NLL {nll:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("gp", "other", "jumps"))
    parser.add_argument("--seeds", type=int, nargs=2, default=[200, 223])
    asked = parser.parse_args()
    draw, first, last = kinds()[asked.kind], *asked.seeds
    found = [each for seed in range(first, last + 1) for each in errors(draw(seed))]
    for rows in (20, 1):
        print(f"{asked.kind}, seeds {first} to {last}: {summary(found, rows)}", flush=True)


if __name__ == "__main__":
    main()
