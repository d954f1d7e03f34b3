"""Forecasts of days 2 to 7 beside a ridge on Fourier terms: simulated sites with a daily wave and weather.

    python bench/living_forecasts.py [--seeds 5] [--sites 6] [--days 28]

Each site: a daily wave of its own size and phase with a second harmonic, weather (Matérn 3/2, five days)
that all share and a part of its own, noise. The ridge has six harmonics of the day and a smooth trend of
splines, its penalty chosen on the last week before the origin. The model is fitted at every seed with
default settings and the kernel rbf + periodic(1).
"""

from __future__ import annotations

import argparse
import json
import warnings

import numpy as np

from pfedhgp import FederatedGP
from pfedhgp.gp.kernels import RBF, Periodic
from pfedhgp.gp.metrics import coverage, crps, rmse

STEP, AHEAD = 1.0 / 12.0, 7.0


def weather(x: np.ndarray, size: float, rng: np.random.Generator) -> np.ndarray:
    """A Matérn 3/2 function with a lengthscale of five days."""
    d = np.sqrt(3.0) * np.abs(x[:, None] - x[None, :]) / 5.0
    K = size**2 * (1.0 + d) * np.exp(-d) + 1e-9 * np.eye(len(x))
    return np.linalg.cholesky(K) @ rng.normal(size=len(x))


def sites(count: int, days: float, seed: int) -> dict[str, tuple]:
    rng = np.random.default_rng(seed)
    x = np.arange(0.0, days + AHEAD, STEP)
    common = weather(x, 1.5, rng)
    found = {}
    for i in range(count):
        a, b, phase = rng.normal(3.0, 0.5), rng.normal(0.8, 0.2), rng.normal(0.0, 0.3)
        wave = a * np.sin(2 * np.pi * x + phase) + b * np.sin(4 * np.pi * x + 2 * phase)
        own = weather(x, 0.5, rng)
        found[f"site {i}"] = (x, 15.0 + wave + common + own + 0.5 * rng.normal(size=len(x)))
    return found


def ridge(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Fourier terms of the day and splines of the trend, the penalty by the last week."""
    knots = np.arange(0.0, x.max(), 3.5)

    def terms(t: np.ndarray) -> np.ndarray:
        waves = [f(2 * np.pi * k * t) for k in range(1, 7) for f in (np.sin, np.cos)]
        return np.stack(
            [np.ones_like(t), *waves, *np.exp(-0.5 * ((t - knots[:, None]) / 3.5) ** 2)], 1
        )

    def fitted(t: np.ndarray, v: np.ndarray, penalty: float) -> np.ndarray:
        A = terms(t)
        D = penalty * np.eye(A.shape[1])
        D[0, 0] = 0.0
        return np.linalg.solve(A.T @ A + D, A.T @ v)

    early = x < x.max() - AHEAD
    penalties = 10.0 ** np.arange(-2, 4)
    A, late = terms(x[~early]), y[~early]
    errors = [np.mean((late - A @ fitted(x[early], y[early], p)) ** 2) for p in penalties]
    return terms(at) @ fitted(x, y, penalties[int(np.argmin(errors))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sites", type=int, default=6)
    parser.add_argument("--days", type=float, default=28.0)
    parser.add_argument("--rounds", type=int, default=None)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for seed in range(100, 100 + arguments.seeds):
        data = sites(arguments.sites, arguments.days, seed)
        past = {n: (x[x < arguments.days], y[x < arguments.days]) for n, (x, y) in data.items()}
        rounds = {} if arguments.rounds is None else {"rounds": arguments.rounds}
        model = FederatedGP(kernel=RBF() + Periodic(period=1.0), **rounds).fit(past)
        for name, (x, y) in data.items():
            late = x >= arguments.days + 1.0
            p = model.predict(name, x[late][:, None])
            truth = y[late][:, None]
            other = ridge(*past[name], x[late])[:, None]
            rows.append(
                (
                    rmse(truth, p.mean),
                    rmse(truth, other),
                    coverage(truth, p.mean, p.covariance()),
                    crps(truth, p.mean, p.covariance()),
                )
            )
    names = ("rmse", "rmse_ridge", "coverage", "crps")
    print(json.dumps(dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True)), indent=1))


if __name__ == "__main__":
    main()
