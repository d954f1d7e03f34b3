"""`python -m bench.private_beijing UCI.zip`: private fits of rough series, PM2.5 at twelve Beijing stations.

Hourly log(1 + PM2.5) over 60 days from BEGIN (days since 1 January 2013), 15% of whole days held out,
other days at each station. One line for each fit: RMSE, CRPS and coverage of 95% intervals.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import ndtr

from bench.beijing_rows import stations
from pfedhgp import RBF, FederatedGP

DAYS, SHARE, BOUNDS = 60, 0.15, (0.0, 7.0)
Rows = dict[str, tuple[np.ndarray, np.ndarray]]


def split(data: str, begin: int, seed: int) -> tuple[Rows, Rows]:
    """{station: (days, values)} of the hours that are fitted, and of those that are held out."""
    rng, kept, held = np.random.default_rng(seed), {}, {}
    for name, (when, values) in stations(data, "PM2.5", [*range(24)]).items():
        inside = (when >= begin) & (when < begin + DAYS) & np.isfinite(values)
        t, y = when[inside] - begin, np.log1p(values[inside])
        out = np.isin(np.floor(t), rng.choice(DAYS, size=round(SHARE * DAYS), replace=False))
        kept[name], held[name] = (t[~out], y[~out]), (t[out], y[out])
    return kept, held


def scores(fitted: dict[str, FederatedGP], held: Rows) -> tuple[float, float, float]:
    """RMSE, CRPS and coverage over all stations' held-out hours."""
    gaps, sds = [], []
    for name, (t, y) in held.items():
        found = fitted[name].predict(name, t[:, None])
        gaps.append(y - np.ravel(found.mean))
        sds.append(np.ravel(found.sd))
    gap, sd = np.concatenate(gaps), np.concatenate(sds)
    z = gap / sd
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    crps = sd * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))
    inside = np.abs(z) < 1.96
    return float(np.sqrt(np.mean(gap**2))), float(np.mean(crps)), float(np.mean(inside))


def fits(asked: argparse.Namespace, kept: Rows) -> Iterator[tuple[str, dict[str, FederatedGP]]]:
    """What is compared: {station: the model that predicts it}."""
    for mode in asked.modes:
        if mode == "none":
            yield "no privacy", dict.fromkeys(kept, FederatedGP().fit(kept))
        elif mode == "alone":
            yield "alone", {name: FederatedGP().fit({name: own}) for name, own in kept.items()}
        else:
            for epsilon in asked.epsilon:
                settings: dict[str, Any] = {"local_kernel": asked.local_kernel}
                model = FederatedGP(
                    privacy=mode,
                    epsilon=epsilon,
                    domain=(0, DAYS),
                    output_bounds=BOUNDS,
                    kernel=RBF(lengthscale=asked.lengthscale),
                    **settings,
                )
                yield f"{mode}, ε = {epsilon:g}", dict.fromkeys(kept, model.fit(kept))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--begin", type=int, nargs="+", default=[700])
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--lengthscale", type=float, default=1.5, help="days")
    parser.add_argument("--local-kernel", default=None)
    every = ["local", "distributed", "central", "alone", "none"]
    parser.add_argument("--modes", nargs="+", default=every)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    found: dict[str, list[tuple[float, float, float]]] = {}
    for begin in asked.begin:
        kept, held = split(asked.data, begin, asked.seed)
        for name, fitted in fits(asked, kept):
            found.setdefault(name, []).append(scores(fitted, held))
            rmse, crps, inside = found[name][-1]
            print(f"{begin}, {name}: {rmse:.3f}, {crps:.3f}, {inside:.3f}", flush=True)
    for name, scored in found.items():
        rmse, crps, inside = np.mean(scored, axis=0)
        print(f"{name}: RMSE {rmse:.3f}, CRPS {crps:.3f}, coverage {inside:.3f}", flush=True)


if __name__ == "__main__":
    main()
