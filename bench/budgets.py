"""Whether `inducing="auto"` is enough where it was not written for: doubling it should gain little.

    python -m bench.budgets

Each case is simulated from the model (three clients, one output), fitted with automatic budgets, and fitted
again with twice as many inducing inputs. The figures that count are the gain in the bound, in nats a client,
and how many inputs it took.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from pfedhgp import FederatedGP
from pfedhgp.data.tables import clients_from


@dataclass(frozen=True)
class Case:
    """Global and local lengthscales as shares of the domain's width, which is in the data's own units."""

    name: str
    long: float
    short: float
    width: float = 1.0
    rows: int = 150
    inputs: int = 1
    kernel: str = "rbf"


CASES = (
    Case("long scales, domain 1e-6", 0.8, 0.3, width=1e-6),
    Case("the study's scales, domain 1e5", 0.2, 0.03, width=1e5),
    Case("short scales", 0.06, 0.012, rows=300),
    Case("Matérn 3/2, domain 40", 0.15, 0.04, width=40.0, kernel="matern32"),
    Case("two inputs, domain 7 × 7", 0.5, 0.2, width=7.0, rows=200, inputs=2),
)


def simulate(case: Case, *, clients: int = 3, seed: int = 0) -> dict[str, tuple]:
    """f_g + f_δ + f_i + noise of sd 0.05, with the case's kernels."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(clients * case.rows, case.inputs))
    gaps = np.sqrt(np.sum((X[:, None] - X[None]) ** 2, axis=2))

    def draw(scale: float, rows: slice) -> np.ndarray:
        r = gaps[rows, rows] / scale
        K = (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)
        K = np.exp(-0.5 * r**2) if case.kernel == "rbf" else K
        return np.linalg.cholesky(K + 1e-8 * np.eye(len(K))) @ rng.normal(size=len(K))

    shared = draw(case.long, slice(None))
    data = {}
    for i in range(clients):
        own = slice(i * case.rows, (i + 1) * case.rows)
        y = shared[own] + 0.7 * draw(case.long, own) + 0.7 * draw(case.short, own)
        data[f"client {i}"] = (case.width * X[own], y + 0.05 * rng.normal(size=case.rows))
    return data


def run(case: Case) -> None:
    data = simulate(case)
    settings = {"kernel": case.kernel, "rounds": 8, "averaging": False}
    first = FederatedGP(**settings).fit(data)
    M = len(first.model_.shared.block.inputs)
    local = [int(np.sum(c.block.active)) for c in first.model_.clients.values()]
    more = FederatedGP(
        **settings, inducing=2 * M, local_inducing=min(2 * max(local), case.rows)
    ).fit(data)
    gain = (more.bound_ - first.bound_) / len(clients_from(data)[0])
    print(
        f"| {case.name} | {case.rows} | {M} | {max(local)} | {first.bound_ / 3:.1f} | {gain:+.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("| case | rows a client | M | M_i | bound a client | gain by doubling, nats a client |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        run(case)
