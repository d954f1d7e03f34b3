"""Imputes held-out days and a whole fortnight of one station, and compares with simpler methods.

Every method gives a mean and an sd for each held-out cell. Three baselines use only the station itself:
`station-gp` is an exact GP with a Matérn function and yearly, weekly and daily waves, `station-gp-plain` has
no waves (both by Kalman filter), and `interpolation` is linear. Two baselines need pooled rows: `pooled-gp`
is one GP of all rows, as if of one station, and `others-mean` is the mean of the other stations at that hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from pfedhgp.base.numerics import with_numerics
from pfedhgp.errors import InputError
from pfedhgp.estimator import FederatedGP
from pfedhgp.gp import metrics
from pfedhgp.gp import state_space as ss
from pfedhgp.gp.kernels import Matern12
from pfedhgp.studies.airquality.station_gp import station_gps

FORTNIGHT = 14.0
Series = tuple[np.ndarray, np.ndarray]  # days (n,), values (n,) without NaN
Predicted = tuple[np.ndarray, np.ndarray]  # mean (n,), sd (n,)


@dataclass(frozen=True, eq=False)
class Split:
    """Rows to fit to and rows held out, by station."""

    kept: dict[str, Series]
    days: dict[str, Series]
    fortnight: dict[str, Series]

    @property
    def held(self) -> dict[str, Series]:
        """Both kinds together, the fortnight last."""
        return {name: _joined(days, self.fortnight.get(name)) for name, days in self.days.items()}


def _joined(first: Series, second: Series | None) -> Series:
    if second is None:
        return first
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])


def split(sites: Mapping[str, Series], *, share: float, seed: int) -> Split:
    """Holds out random whole days at each station, and two weeks in a row at one station."""
    rng = np.random.default_rng([seed, 7])
    names = sorted(sites)
    chosen = names[int(rng.integers(len(names)))]
    kept, days, fortnight = {}, {}, {}
    for name in names:
        t, y = sites[name]
        whole = np.unique(np.floor(t))
        out = np.isin(
            np.floor(t), rng.choice(whole, max(1, round(share * len(whole))), replace=False)
        )
        if name == chosen:
            if t[-1] - t[0] <= 3 * FORTNIGHT:
                raise InputError(
                    f"station {name!r} has six weeks or less: too short for imputation"
                )
            first = float(rng.uniform(t[0] + FORTNIGHT, t[-1] - 2 * FORTNIGHT))
            block = (t >= first) & (t < first + FORTNIGHT)
            if not block.any():
                raise InputError(
                    f"station {name!r} has no values in the fortnight to be held out: another `seed` takes "
                    "another one"
                )
            fortnight[name] = (t[block], y[block])
            out = out & ~block
        else:
            block = np.zeros(len(t), bool)
        days[name] = (t[out], y[out])
        kept[name] = (t[~out & ~block], y[~out & ~block])
    return Split(kept, days, fortnight)


def score(y: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> dict[str, float]:
    """RMSE, NLL, CRPS, coverage and width of 95% intervals, in transformed units; all arguments (n,)."""
    truth, centre, variance = y[:, None], mean[:, None], (sd**2)[:, None, None]
    return {
        "rmse": metrics.rmse(truth, centre),
        "nll": metrics.nll(truth, centre, variance),
        "crps": metrics.crps(truth, centre, variance),
        "coverage": metrics.coverage(truth, centre, variance),
        "width": metrics.width(truth, centre, variance),
    }


def predicted(model: FederatedGP, station: str, days: np.ndarray) -> Predicted:
    """What a fitted model predicts for a station on these days."""
    p = model.predict(station, days[:, None])
    return p.mean.reshape(-1), p.sd.reshape(-1)


def scores(held: Mapping[str, Series], found: Mapping[str, Predicted]) -> dict[str, float]:
    """`score` over the held-out cells of all stations together."""
    y = np.concatenate([held[name][1] for name in held])
    mean, sd = (np.concatenate([found[name][j] for name in held]) for j in range(2))
    return score(y, mean, sd)


# ---------------------------------------------------------------------------------------- baselines


@jax.jit
def _negative(free: jax.Array, t: jax.Array, y: jax.Array) -> jax.Array:
    """−log N(y; 0, b²K + σ²) for log (ℓ, b, σ²), and a weak prior."""
    model, scale, series = _model(free, t)
    carry = ss.start(model, 1, t[0])
    white, log_det, _ = ss.whiten(model, scale, series, y[:, None], carry)
    return 0.5 * (jnp.sum(white**2) + log_det) + 0.02 * jnp.sum(free**2)


def _model(free: jax.Array, t: jax.Array) -> tuple[ss.StateModel, jax.Array, ss.Series]:
    length, scale, variance = jnp.exp(free)
    series = ss.Series(t, jnp.full(t.shape, variance + 1e-6), jnp.ones(t.shape))
    return ss.StateModel.of(Matern12(length)), scale, series


_slope = jax.jit(jax.value_and_grad(_negative))


@with_numerics
def gaussian_process(t: np.ndarray, y: np.ndarray, at: np.ndarray) -> Predicted:
    """An exact GP of one series with a Matérn 1/2 kernel; its parameters maximise the likelihood."""
    order = np.argsort(t, kind="stable")
    t, y = t[order], y[order]
    centre = float(y.mean())
    best = minimize(
        lambda z: tuple(np.asarray(v, np.float64) for v in _slope(jnp.asarray(z), t, y - centre)),
        np.log([1.0, max(float(y.std()), 1e-3), 0.1]),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 60},
    )
    mean, variance = posterior(jnp.asarray(best.x), t, y - centre, at)
    noise = float(np.exp(best.x[2])) + 1e-6
    return np.asarray(mean) + centre, np.sqrt(np.asarray(variance) + noise)


@jax.jit
def posterior(
    free: jax.Array, t: jax.Array, y: jax.Array, at: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of the function at new times, without noise, for log (ℓ, b, σ²)."""
    both = jnp.concatenate([t, at])
    order = jnp.argsort(both, stable=True)
    model, scale, series = _model(free, both[order])
    seen = jnp.concatenate([jnp.ones(t.shape), jnp.zeros(at.shape)])[order]
    data = jnp.concatenate([y, jnp.zeros(at.shape)])[order]
    series = ss.Series(series.times, series.variance, seen)
    states, covariances = ss.smooth(model, scale, series, data[:, None])
    places = jnp.argsort(order, stable=True)[t.shape[0] :]
    h = scale * model.observe
    return jnp.einsum("s,nsk->n", h, states[places]), jnp.einsum(
        "s,nst,t->n", h, covariances[places], h
    )


def with_waves(kept: Mapping[str, Series], held: Mapping[str, Series]) -> dict[str, Predicted]:
    """Each station's own GP with yearly, weekly and daily waves, all on one clock."""
    names = list(held)
    parts = [*(kept[n][0] for n in names), *(held[n][0] for n in names)]
    clock = np.unique(np.concatenate(parts))
    Y = np.full((len(clock), len(names)), np.nan)
    for i, name in enumerate(names):
        Y[np.searchsorted(clock, kept[name][0]), i] = kept[name][1]
    mean, sd = station_gps(clock, Y)
    at = [np.searchsorted(clock, held[name][0]) for name in names]
    return {name: (mean[at[i], i], sd[at[i], i]) for i, name in enumerate(names)}


def interpolation(t: np.ndarray, y: np.ndarray, at: np.ndarray) -> Predicted:
    """Interpolates between neighbours in time; the sd comes from leaving out whole days of the rows."""
    mean = np.interp(at, t, y)
    errors = []
    for fold in range(5):
        out = np.floor(t).astype(int) % 5 == fold
        if out.any() and not out.all():
            errors.append(y[out] - np.interp(t[out], t[~out], y[~out]))
    sd = float(np.sqrt(np.mean(np.concatenate(errors) ** 2))) if errors else float(y.std())
    return mean, np.full(len(at), sd)


def others_mean(kept: Mapping[str, Series], name: str, at: np.ndarray) -> Predicted:
    """The mean of the other stations at that hour, plus this station's average difference from it."""
    others = [kept[other] for other in kept if other != name]
    everything = float(np.mean(np.concatenate([y for _, y in others])))

    def mean_at(times: np.ndarray) -> np.ndarray:
        total, count = np.zeros(len(times)), np.zeros(len(times))
        for t, y in others:
            where = np.clip(np.searchsorted(t, times), 0, len(t) - 1)
            same = np.abs(t[where] - times) < 1e-6
            total += np.where(same, y[where], 0.0)
            count += same
        return np.where(count > 0, total / np.maximum(count, 1), everything)

    t, y = kept[name]
    left = y - mean_at(t)
    return mean_at(at) + left.mean(), np.full(len(at), float(left.std()))


def baselines(
    kept: Mapping[str, Series], held: Mapping[str, Series]
) -> dict[str, dict[str, Predicted]]:
    """Means and sds of every baseline at every station's held-out rows."""
    pooled = [np.concatenate([kept[name][j] for name in kept]) for j in range(2)]
    every = np.concatenate([held[name][0] for name in held])
    cuts = np.cumsum([len(held[name][0]) for name in held])[:-1]
    mean, sd = gaussian_process(pooled[0], pooled[1], every)
    parts = zip(np.split(mean, cuts), np.split(sd, cuts), strict=True)
    return {
        "station-gp": with_waves(kept, held),
        "station-gp-plain": {n: gaussian_process(*kept[n], held[n][0]) for n in held},
        "interpolation": {n: interpolation(*kept[n], held[n][0]) for n in held},
        "pooled-gp": dict(zip(held, parts, strict=True)),
        "others-mean": {n: others_mean(kept, n, held[n][0]) for n in held},
    }
