"""`python -m bench.private_modes CLIENTS ROWS`: the shared function under each mode of differential privacy.

Made-up clients as in docs/notes/differential_privacy.md, draws 100 to 123. One line for each mode and kind of
parameters: RMSE and coverage of 95% intervals over the whole domain, and their standard errors.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.federation.private_fit import BOUND, Promise
from pfedhgp.federation.totals_fit import Terms, TotalsClient, learned_from_totals
from pfedhgp.privacy import from_totals, twin
from pfedhgp.privacy.accounting import mu_for
from pfedhgp.privacy.denoising import cells_of
from pfedhgp.privacy.noise_shares import tolerated
from pfedhgp.privacy.release import PublicBasis, release
from pfedhgp.privacy.row_density import PER_INPUT
from pfedhgp.privacy.shared_function import LONGER, START
from pfedhgp.privacy.twin import Found, Parameters, Twins

GRID = np.linspace(0.0, 1.0, 120)
SCALE, PHI, NOISE, CLIP, DELTA = 0.15, 0.2, 0.3, 3.0, 1e-6
UNIT = CLIP / BOUND


class Made(NamedTuple):
    shared: np.ndarray
    rows: list[ClientRows]


def made_up(clients: int, rows: int, seed: int) -> Made:
    """A shared function, deviations from it, and windows of half the domain; outputs scaled to ±BOUND."""
    rng = np.random.default_rng(seed)
    K = np.exp(-0.5 * (GRID[:, None] - GRID) ** 2 / SCALE**2) + 1e-8 * np.eye(len(GRID))
    L = np.linalg.cholesky(K)
    shared, found = L @ rng.normal(size=len(GRID)), []
    for i in range(clients):
        own = shared + np.sqrt(PHI) * (L @ rng.normal(size=len(GRID)))
        low = rng.uniform(0.0, 0.5)
        X = np.sort(rng.uniform(low, low + 0.5, rows))[:, None]
        y = np.interp(X[:, 0], GRID, own) + NOISE * rng.normal(size=rows)
        found.append(ClientRows(f"s{i}", X, y[:, None] / UNIT))
    return Made(shared, found)


def by_totals(made: Made, public: PublicBasis, epsilon: float, missing: int) -> tuple[Found, Found]:
    """With known parameters, and with learned ones."""
    promise = Promise(epsilon, DELTA, ((0.0, 1.0),), ((-CLIP, CLIP),))
    terms, mu = Terms(promise, public, len(made.rows), missing), mu_for(epsilon, DELTA)
    clients = [TotalsClient(terms, rows) for rows in made.rows]

    def ask(question: str, asked: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], int]:
        parts = [client.answer(question, asked, mu) for client in clients]
        return {name: np.sum([p[name] for p in parts], axis=0) for name in parts[0]}, len(parts)

    learned = learned_from_totals(terms, mu, ask)
    return from_totals.posterior(learned.outputs[0], known()), learned.shared().found[0]


def by_releases(made: Made, public: PublicBasis, epsilon: float) -> tuple[Found, Found]:
    """The same for one release a client."""
    mu = mu_for(epsilon, DELTA)
    seen = [release(public, rows.X, rows.Y, bound=BOUND, mu=mu) for rows in made.rows]
    twins = Twins.of(seen, 0, cells_of(public, PER_INPUT))
    search = twin.learned(public, twins, Parameters(LONGER * public.lengthscales, **START))
    return twin.posterior(public, twins, known()), twin.averaged(public, twins, search)


def known() -> Parameters:
    return Parameters(np.array([SCALE]), 1 / UNIT**2, PHI, NOISE**2 / UNIT**2, 1e-9)


def scored(found: Found, public: PublicBasis, shared: np.ndarray) -> tuple[float, float]:
    F = public.features(GRID[:, None])
    gap = UNIT * F.T @ found.mean - shared
    sd = UNIT * np.sqrt(np.einsum("mn,mk,kn->n", F, found.covariance, F))
    return float(np.sqrt(np.mean(gap**2))), float(np.mean(np.abs(gap) < 1.96 * sd))


def results(asked: argparse.Namespace) -> Iterator[tuple[str, tuple[float, float]]]:
    public, third = PublicBasis.over(np.array([SCALE])), tolerated(asked.clients, None)
    for seed in asked.seeds:
        made = made_up(asked.clients, asked.rows, seed)
        for mode in asked.modes:
            if mode == "local":
                found = by_releases(made, public, asked.epsilon)
            else:
                missing = third if mode == "distributed" else 0
                found = by_totals(made, public, asked.epsilon, missing)
            for kind, each in zip(("known", "learned"), found, strict=True):
                yield f"{mode}, {kind}", scored(each, public, made.shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clients", type=int)
    parser.add_argument("rows", type=int)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[*range(100, 124)])
    parser.add_argument("--modes", nargs="+", default=["local", "distributed", "central"])
    asked = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {}
    for name, score in results(asked):
        found.setdefault(name, []).append(score)
    for name, scores in found.items():
        mean = np.mean(scores, axis=0)
        error = np.std(scores, axis=0) / np.sqrt(len(scores))
        about = f"{asked.clients} × {asked.rows}, ε = {asked.epsilon:g}, {name}"
        print(
            f"{about}: RMSE {mean[0]:.3f} ± {error[0]:.3f}, "
            f"coverage {mean[1]:.3f} ± {error[1]:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
