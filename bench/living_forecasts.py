"""Forecasts of days 2 to 7 beside a ridge and the Bayes limit: simulated sites with a daily wave and weather.

    python -m bench.living_forecasts [--seeds 5] [--sites 6] [--days 28] [--jobs 4]

Each site: a daily wave of its own size and phase with a second harmonic, weather (Matérn 3/2, five days)
that all share and a part of its own, noise. The ridge has six harmonics of the day and a smooth trend of
splines, its penalty chosen on the last week before the origin. The model is fitted at every seed with
default settings and --kernel, by default rbf + periodic(1). The oracle is the exact GP of all sites that
knows how the weather and the noise were made: nobody can promise more than it holds. --oracle-only leaves
the model out, which takes a second a seed.
"""

from __future__ import annotations

import argparse
import json
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import numpy as np

from pfedhgp import FederatedGP
from pfedhgp.gp.metrics import coverage, crps, rmse

NAMES = (
    *("rmse", "coverage", "crps"),
    *("rmse_oracle", "coverage_oracle", "crps_oracle"),
    "rmse_ridge",
)
STEP, AHEAD = 1.0 / 12.0, 7.0
COMMON, OWN, NOISE = 1.5, 0.5, 0.5
"""Standard deviations of the weather that all share, of a site's own, and of the noise"""


def of_weather(x: np.ndarray, at: np.ndarray, size: float) -> np.ndarray:
    """Matérn 3/2 with a lengthscale of five days."""
    d = np.sqrt(3.0) * np.abs(x[:, None] - at[None, :]) / 5.0
    return size**2 * (1.0 + d) * np.exp(-d)


def weather(x: np.ndarray, size: float, rng: np.random.Generator) -> np.ndarray:
    """A function of that kind."""
    K = of_weather(x, x, size) + 1e-9 * np.eye(len(x))
    return np.linalg.cholesky(K) @ rng.normal(size=len(x))


def sites(count: int, days: float, seed: int) -> dict[str, tuple]:
    rng = np.random.default_rng(seed)
    x = np.arange(0.0, days + AHEAD, STEP)
    common = weather(x, COMMON, rng)
    found = {}
    for i in range(count):
        a, b, phase = rng.normal(3.0, 0.5), rng.normal(0.8, 0.2), rng.normal(0.0, 0.3)
        wave = a * np.sin(2 * np.pi * x + phase) + b * np.sin(4 * np.pi * x + 2 * phase)
        own = weather(x, OWN, rng)
        found[f"site {i}"] = (x, 15.0 + wave + common + own + NOISE * rng.normal(size=len(x)))
    return found


def oracle(past: dict[str, tuple], at: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Mean and variance of each site's values at `at`, from all sites' rows by the kernel that made them.

    Waves are sines and cosines of the day and half a day with wide Gaussian sizes, as is the level.
    """

    def waves(t: np.ndarray) -> np.ndarray:
        turns = [f(2 * np.pi * k * t) for k in (1, 2) for f in (np.sin, np.cos)]
        return 10.0 * np.stack([2.0 * np.ones_like(t), *turns], 1)

    def of_site(x: np.ndarray, z: np.ndarray) -> np.ndarray:
        return of_weather(x, z, OWN) + waves(x) @ waves(z).T

    x = next(iter(past.values()))[0]
    count, n = len(past), len(x)
    common, own = of_weather(x, x, COMMON), of_site(x, x) + NOISE**2 * np.eye(n)
    K = np.kron(np.ones((count, count)), common) + np.kron(np.eye(count), own)
    solve = np.linalg.inv(np.linalg.cholesky(K))
    white = solve @ np.concatenate([y for _, y in past.values()])
    found = {}
    for i, name in enumerate(past):
        cross = np.tile(of_weather(x, at, COMMON), (count, 1))
        cross[i * n : (i + 1) * n] += of_site(x, at)
        half = solve @ cross
        prior = COMMON**2 + OWN**2 + NOISE**2 + (waves(at) ** 2).sum(1)
        found[name] = (half.T @ white, prior - (half**2).sum(0))
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


def scores_of(seed: int, arguments: argparse.Namespace) -> list[tuple[float, ...]]:
    """Of each site, on days 2 to 7: what `NAMES` says."""
    warnings.simplefilter("ignore")
    data = sites(arguments.sites, arguments.days, seed)
    past = {n: (x[x < arguments.days], y[x < arguments.days]) for n, (x, y) in data.items()}
    x = next(iter(data.values()))[0]
    late = x >= arguments.days + 1.0
    rounds = {} if arguments.rounds is None else {"rounds": arguments.rounds}
    model = None
    if not arguments.oracle_only:
        model = FederatedGP(kernel=arguments.kernel, **rounds).fit(past)
    best, rows = oracle(past, x[late]), []
    for name, (_, y) in data.items():
        truth = y[late][:, None]
        known = _scores(truth, *best[name])
        ours = (np.nan,) * len(known)
        if model is not None:
            ahead = model.forecast(name, AHEAD)
            days = ahead.times > arguments.days + 1.0 - STEP / 2.0
            np.testing.assert_allclose(ahead.times[days], x[late])
            ours = _scores(truth, ahead.mean[days], ahead.sd[days] ** 2)
        rows.append((*ours, *known, rmse(truth, ridge(*past[name], x[late])[:, None])))
    return rows


def _scores(truth: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> tuple[float, ...]:
    """RMSE, coverage and CRPS."""
    given = truth, mean[:, None], variance[:, None, None]
    return rmse(*given[:2]), coverage(*given), crps(*given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=100, help="the first seed")
    parser.add_argument("--sites", type=int, default=6)
    parser.add_argument("--days", type=float, default=28.0)
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--kernel", default="rbf + periodic(1)")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--oracle-only", action="store_true")
    parser.add_argument("--out", help="file for what each seed gave, a line each")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    rows = []
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        tasks = {pool.submit(scores_of, seed, arguments): seed for seed in seeds}
        for done in as_completed(tasks):
            rows += done.result()
            if arguments.out:
                with open(arguments.out, "a", encoding="utf-8") as file:
                    print(
                        json.dumps([tasks[done], np.mean(done.result(), axis=0).tolist()]),
                        file=file,
                    )
    print(json.dumps(dict(zip(NAMES, np.mean(rows, axis=0).tolist(), strict=True)), indent=1))


if __name__ == "__main__":
    main()
