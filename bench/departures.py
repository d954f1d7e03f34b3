"""`python -m bench.departures`: how often a client is said to depart, by the probability that a claim needs.

Federations of ten clients with one output, four of which do not depart (φ_i = 0); two each have φ_i of .2, 1
and 4. Lengthscales, noise and local sizes are drawn at random.
"""

from __future__ import annotations

import argparse
import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

SIZES = (0.0, 0.0, 0.2, 1.0, 4.0)
CLIENTS = 10
NEEDED = (0.95, 0.97, 0.98, 0.99)


def federation(
    seed: int, rows: int
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], list[float]]:
    """Rows by client, and each client's φ_i."""
    rng = np.random.default_rng([seed, 5])

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    def draw(x: np.ndarray, scale: float) -> np.ndarray:
        K = np.exp(-0.5 * ((x[:, None] - x[None]) / scale) ** 2) + 1e-8 * np.eye(len(x))
        return np.asarray(np.linalg.cholesky(K) @ rng.normal(size=len(x)))

    long, short = between(0.12, 0.35), between(0.03, 0.08)
    noise, local = between(0.05, 0.3), between(0.15, 0.6)
    X = [rng.uniform(size=rows) for _ in range(CLIENTS)]
    shared = np.split(draw(np.concatenate(X), long), CLIENTS)
    found, sizes = {}, []
    for i, (x, f) in enumerate(zip(X, shared, strict=True)):
        phi = SIZES[i % len(SIZES)]
        y = f + np.sqrt(phi) * draw(x, long) + local * draw(x, short)
        found[f"{i:02d}"] = (x, y + noise * rng.normal(size=rows))
        sizes.append(phi)
    return found, sizes


def probabilities(seed: int, rows: int) -> list[tuple[float, float]]:
    """(φ_i, the probability that the client departs) of each client."""
    from pfedhgp import FederatedGP

    warnings.simplefilter("ignore")
    data, sizes = federation(seed, rows)
    found = FederatedGP(domain=[(0.0, 1.0)], inducing=20).fit(data).departures()
    return [(phi, found[name].probability) for phi, name in zip(sizes, sorted(data), strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seeds", type=int, nargs=2, default=[2000, 2050], help="first, and past the last"
    )
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    pairs: list[tuple[float, float]] = []
    with ProcessPoolExecutor(asked.processes) as pool:
        for found in pool.map(partial(probabilities, rows=asked.rows), range(*asked.seeds)):
            pairs += found
            none = np.array([p for phi, p in pairs if phi == 0.0])
            said = ", ".join(f"{int((none >= need).sum())} at {need}" for need in NEEDED)
            print(f"of {len(none)} clients that do not depart: {said}", flush=True)
    for size in sorted(set(SIZES)):
        own = np.array([p for phi, p in pairs if phi == size])
        said = ", ".join(f"{np.mean(own >= need):.3f} at {need}" for need in NEEDED)
        print(f"φ_i = {size}: {len(own)} clients, said to depart {said}; least {own.min():.3f}")


if __name__ == "__main__":
    main()
