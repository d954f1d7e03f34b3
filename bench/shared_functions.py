"""`python -m bench.shared_functions PART`: functions that clients mix, on data that chose nothing.

    ranks      does latents="auto" find how many functions made-up clients share
    loadings   do 95% regions hold clients' true loadings
    beijing    imputation at other seeds and hours (needs --data)

Each case runs in a process of its own, `--processes` at a time, and prints one line.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import chi2

CLIENTS, STEPS, HELD_OUT = 12, 200, 0.15
FEW = 5
"""In `loadings`, one client keeps every fifth of its rows."""


class Mixture(NamedTuple):
    """Rows by client, held-out ones, and what they come from."""

    train: dict[str, tuple[np.ndarray, np.ndarray]]
    test: dict[str, tuple[np.ndarray, np.ndarray]]
    functions: np.ndarray
    loadings: np.ndarray


def walk(rng: np.random.Generator, length: float, steps: int, count: int) -> np.ndarray:
    """Matérn 1/2 functions of unit variance at whole steps, (steps, count)."""
    rho, found = np.exp(-1.0 / length), np.zeros((steps, count))
    found[0] = rng.standard_normal(count)
    for j in range(1, steps):
        found[j] = rho * found[j - 1] + np.sqrt(1.0 - rho**2) * rng.standard_normal(count)
    return found


def mixture(seed: int, count: int, steps: int = STEPS) -> Mixture:
    """y_i = c_iᵀu + drift_i + ε: loadings 1 ± .25 on the first function, 0 ± .6 on the others."""
    rng = np.random.default_rng([seed, count, 77])
    t, u = np.arange(float(steps)), walk(rng, 3.0, steps, count)
    c = np.zeros((CLIENTS, count))
    c[:, 0] = 1.0 + 0.25 * rng.standard_normal(CLIENTS)
    c[:, 1:] = 0.6 * rng.standard_normal((CLIENTS, count - 1))
    train, test = {}, {}
    for i in range(CLIENTS):
        f = u @ c[i] + 0.3 * walk(rng, 30.0, steps, 1)[:, 0]
        y = f + 0.3 * rng.standard_normal(steps)
        out = rng.random(steps) < HELD_OUT
        train[f"s{i}"] = (t[~out, None], y[~out])
        test[f"s{i}"] = (t[out, None], y[out])
    return Mixture(train, test, u, c)


def fitted(rows: dict[str, tuple[np.ndarray, np.ndarray]], steps: int, latents: Any) -> Any:
    from pfedhgp import FederatedGP

    warnings.simplefilter("ignore")
    return FederatedGP(
        inference="markov",
        kernel="matern12",
        local="state-space",
        local_kernel="matern12",
        layers=("global", "local"),
        client_loadings=True,
        latents=latents,
        inducing=steps,
        domain=((0.0, steps - 1.0),),
    ).fit(rows)


def scored(model: Any, held: dict[str, tuple[np.ndarray, np.ndarray]]) -> str:
    from pfedhgp.studies.airquality import imputation

    flat = {name: (x[:, 0], y) for name, (x, y) in held.items()}
    found = imputation.scores(
        flat, {name: imputation.predicted(model, name, t) for name, (t, _) in flat.items()}
    )
    return ", ".join(f"{name} {found[name]:.4f}" for name in ("crps", "nll", "coverage"))


def rank(seed: int, count: int) -> str:
    made = mixture(seed, count)
    model = fitted(made.train, STEPS, "auto")
    choice = model.model_.settings["choice"]
    behind = ", ".join(f"{c['latents']} by {c['behind']:.1f}" for c in choice[1:])
    chosen = choice[0]["latents"]
    return f"ranks: seed {seed}, {count} functions, found {chosen} ({behind}); {scored(model, made.test)}"


def covered(seed: int, steps: int) -> str:
    """Functions are known up to a linear map, the same for all clients: the best one is taken.

    Distances d² = (c − A c₀)ᵀCov(c)⁻¹(c − A c₀) then add up to R (clients − R), if covariances are right.
    """
    from pfedhgp.zones.loadings import Loadings

    made = mixture(seed, 2, steps)
    x, y = made.train["s0"]
    fit = fitted({**made.train, "s0": (x[::FEW], y[::FEW])}, steps, 2).model_
    known = Loadings.of(fit)
    truth = np.stack([made.loadings[int(name[1:])] for name in known.names])
    T, R = truth.shape
    roots = [np.linalg.inv(np.linalg.cholesky(V)) for V in known.covariances]
    X = np.concatenate(
        [root @ np.kron(np.eye(R), c[None]) for root, c in zip(roots, truth, strict=True)]
    )
    z = np.concatenate([root @ c.reshape(-1) for root, c in zip(roots, known.numbers, strict=True)])
    left = z - X @ np.linalg.lstsq(X, z, rcond=None)[0]
    d2 = (left.reshape(T, R) ** 2).sum(1)
    ratio = d2.sum() / (R * (T - R))
    inside = int((d2 < chi2.ppf(0.95, R)).sum())
    own = d2[known.names.index("s0")]
    return (
        f"loadings: seed {seed}, {steps} steps: d² is {ratio:.2f} of what is expected, {inside} of {T} "
        f"inside 95% ellipses; with few rows d² = {own:.1f}"
    )


def imputed(data: str, year: int, hours: tuple[int, ...], seed: int, latents: Any) -> str:
    from pfedhgp.studies.airquality import imputation
    from pfedhgp.studies.airquality.models import AirQuality, imputing_model
    from pfedhgp.studies.airquality.study import sites_of

    warnings.simplefilter("ignore")
    study = AirQuality(year=year, hours=hours, seed=seed)
    parts = imputation.split(sites_of(study, data), share=study.held_out, seed=seed)
    rows = {name: (t[:, None], y) for name, (t, y) in parts.kept.items()}
    model = imputing_model(study, parts.kept).set_params(latents=latents).fit(rows)
    held = {name: (t[:, None], y) for name, (t, y) in parts.held.items()}
    chosen = model.model_.shared.block.loadings.shape[1]
    return f"beijing: {year}, {hours}, seed {seed}, latents {latents} ({chosen}): {scored(model, held)}"


def cases(asked: argparse.Namespace) -> Iterator[Callable[[], str]]:
    for seed in asked.seeds:
        if asked.part == "ranks":
            yield from (partial(rank, seed, count) for count in (1, 2, 3))
        elif asked.part == "loadings":
            yield from (partial(covered, seed, steps) for steps in (60, 150))
        else:
            for year in (2013, 2014):
                for hours in ((2, 14), (8, 20)):
                    for latents in (4, "auto"):
                        yield partial(imputed, asked.data, year, hours, seed, latents)


def called(case: Callable[[], str]) -> str:
    return case()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("ranks", "loadings", "beijing"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--data", help="UCI's Beijing files: a folder or a zip")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    if asked.part == "beijing" and not asked.data:
        parser.error("beijing needs --data")
    with ProcessPoolExecutor(asked.processes) as pool:
        for line in pool.map(called, cases(asked)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
