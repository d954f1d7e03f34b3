"""Whether `inducing="auto"` is enough where it was not written for: many more inputs should gain little.

    python -m bench.budgets

Each case is simulated from the model (two clients), fitted with automatic budgets, and again with many more
global inducing inputs and a local one at every row. The figures that count are what the bound
gains by that, in nats a client, and how many inputs it took.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from pfedhgp import FederatedGP
from pfedhgp.errors import BudgetWarning

CLIENTS = 2


@dataclass(frozen=True)
class Case:
    """Global and local lengthscales as shares of the domain's width, which is in the data's own units."""

    name: str
    long: float
    short: float
    more: int
    """Global inducing inputs of the second fit"""
    width: float = 1.0
    rows: int = 120
    inputs: int = 1
    outputs: int = 1


CASES = (
    Case("long scales, domain 1e-6", 0.8, 0.3, 36, width=1e-6),
    Case("short scales, domain 1e5", 0.03, 0.012, 100, width=1e5),
    Case("two inputs, domain 7 × 7", 0.5, 0.2, 160, width=7.0, rows=80, inputs=2),
    Case("three outputs, domain 300", 0.1, 0.03, 60, width=300.0, rows=70, outputs=3),
)


def simulate(case: Case, *, seed: int = 0) -> dict[str, tuple]:
    """f_g + f_δ + f_i + noise of sd 0.05, with the case's kernels; several outputs mix two functions."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(CLIENTS * case.rows, case.inputs))
    gaps = np.sqrt(np.sum((X[:, None] - X[None]) ** 2, axis=2))

    def draw(scale: float, rows: slice) -> np.ndarray:
        K = np.exp(-0.5 * (gaps[rows, rows] / scale) ** 2)
        root = np.linalg.cholesky(K + 1e-8 * np.eye(len(K)))
        if case.outputs == 1:
            return root @ rng.normal(size=(len(K), 1))
        return root @ rng.normal(size=(len(K), 2)) @ rng.normal(size=(2, case.outputs))

    shared = draw(case.long, slice(None))
    data = {}
    for i in range(CLIENTS):
        own = slice(i * case.rows, (i + 1) * case.rows)
        Y = shared[own] + 0.7 * draw(case.long, own) + 0.7 * draw(case.short, own)
        data[f"client {i}"] = (case.width * X[own], Y + 0.05 * rng.normal(size=Y.shape))
    return data


def measured(case: Case) -> dict[str, Any]:
    """Both fits of a case: inducing inputs, bounds and what the automatic ones lose."""
    data, begin = simulate(case), time.perf_counter()
    settings = {"rounds": 6, "averaging": False}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", BudgetWarning)
        auto = FederatedGP(**settings).fit(data)
    M = len(auto.model_.shared.block.inputs)
    more = FederatedGP(**settings, inducing=case.more, local_inducing=case.rows).fit(data)
    return {
        "case": case.name,
        "rows": case.rows,
        "started": auto.history_[0]["inducing"],
        "inducing": M,
        "local_inducing": most_local_inputs(auto),
        "more": case.more,
        "bound": auto.bound_ / CLIENTS,
        "lost": (more.bound_ - auto.bound_) / CLIENTS,
        "warned": any(issubclass(w.category, BudgetWarning) for w in said),
        "seconds": time.perf_counter() - begin,
    }


def most_local_inputs(model: FederatedGP) -> int:
    """The largest M_i; in NumPy, because outside a fit JAX would sum float64 in float32."""
    return max(int(np.asarray(c.block.active).sum()) for c in model.model_.clients.values())


def table() -> list[dict[str, Any]]:
    """Prints the table of docs/notes/inference.md, and returns it."""
    print("\n(e) automatic inducing inputs, and many more (local: one a row)")
    print("| case | rows a client | M, start and end | M_i | bound a client | M given | gained |")
    print("|---|---|---|---|---|---|---|")
    found = []
    for case in CASES:
        row = measured(case)
        found.append(row)
        print(
            f"| {row['case']} | {row['rows']} | {row['started']}, {row['inducing']} | "
            f"{row['local_inducing']} | {row['bound']:.1f} | {case.more} | {row['lost']:+.2f} |"
            f"{' warned' if row['warned'] else ''} {row['seconds']:.0f} s",
            flush=True,
        )
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    table()
