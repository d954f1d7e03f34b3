"""Time and memory of two large fits that a new user tried: many rows with two inputs, and many clients.

taskset -c 0,1 python -m bench.first_day rows      # 30 sites x 2,000 rows x 2 inputs x 2 outputs, 6 rounds
taskset -c 0,1 python -m bench.first_day clients   # 10,000 clients x 1 row
"""

from __future__ import annotations

import json
import resource
import sys
import time
import warnings

import numpy as np

from pfedhgp import FederatedGP


def many_rows(rng: np.random.Generator, sites: int = 30, rows: int = 2000) -> dict[str, tuple]:
    """Sites with two inputs and two outputs of a smooth function, a shift of their own, and noise."""
    found = {}
    for i in range(sites):
        X = rng.uniform(0.0, 10.0, (rows, 2))
        f = np.sin(X[:, 0]) + np.cos(0.7 * X[:, 1])
        Y = np.stack([f + 0.3 * rng.normal(), 0.5 * f - 0.2 * X[:, 0]], 1)
        found[f"site {i}"] = (X, Y + 0.2 * rng.normal(size=Y.shape))
    return found


def many_clients(rng: np.random.Generator, clients: int = 10_000) -> dict[str, tuple]:
    """One row each of a sine with noise."""
    x = rng.uniform(0.0, 10.0, clients)
    y = np.sin(x) + 0.2 * rng.normal(size=clients)
    return {f"client {i}": (x[i : i + 1], y[i : i + 1]) for i in range(clients)}


def main() -> None:
    what, rng = sys.argv[1], np.random.default_rng(7)
    warnings.simplefilter("ignore")
    data = many_rows(rng) if what == "rows" else many_clients(rng)
    model = FederatedGP(rounds=6) if what == "rows" else FederatedGP()
    wall, used = time.time(), time.process_time()
    model.fit(data)
    found = {"wall": time.time() - wall, "processor": time.process_time() - used}
    name, (X, _) = next(iter(data.items()))
    began = time.time()
    model.predict(name, X)
    found["first_prediction"] = time.time() - began
    found["gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({what: found, "rounds": len(model.history_)}), flush=True)


if __name__ == "__main__":
    main()
