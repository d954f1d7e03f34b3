"""A client's local drift b·l(t), l Matérn 1/2, beside white noise: filters of many series at once.

N = b²K_l + diag(σ²/c) for cells that are means of c observations. `whiten` is L⁻¹A with LLᵀ = N, by a Kalman
filter in O(n); `smoothed` is E[b·l | a series]. All arrays have a leading axis of series.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Array = np.ndarray


class Drifts(NamedTuple):
    """ψ of each series: ℓ, b² and σ²."""

    length: Float[Array, " k"]
    variance: Float[Array, " k"]
    noise: Float[Array, " k"]

    @staticmethod
    def of_logs(rows: Float[Array, "k 3"]) -> Drifts:
        return Drifts(*np.exp(rows.T))


class Filtered(NamedTuple):
    """What the filter does at each time, times first: ρ, variance before, gain, innovation variance."""

    rho: Float[Array, "n k"]
    before: Float[Array, "n k"]
    gain: Float[Array, "n k"]
    innovation: Float[Array, "n k"]


def filtered(at: Drifts, times: Float[Array, "k n"], counts: Float[Array, "k n"]) -> Filtered:
    """The part that does not look at data; cells with a count of 0 are not there."""
    steps = np.diff(times, axis=1, prepend=times[:, :1]).T
    rho = np.exp(-steps / at.length)
    noise = at.noise / np.maximum(counts.T, 1e-300)
    seen = counts.T > 0
    shape = rho.shape
    before, gain, innovation = np.empty(shape), np.empty(shape), np.ones(shape)
    P = at.variance.copy()
    for n in range(shape[0]):
        P = at.variance + rho[n] ** 2 * (P - at.variance)
        before[n] = P
        V = np.where(seen[n], P + noise[n], 1.0)
        gain[n], innovation[n] = np.where(seen[n], P / V, 0.0), V
        P = (1.0 - gain[n]) * P
    return Filtered(rho, before, gain, innovation)


def whiten(
    found: Filtered, columns: Float[Array, "k n c"], counts: Float[Array, "k n"]
) -> tuple[Float[Array, "n k c"], Float[Array, " k"]]:
    """L⁻¹A, zero where a cell is not there, and log|N|."""
    A = np.moveaxis(columns, 1, 0)
    out, x = np.empty_like(A), np.zeros_like(A[0])
    for n in range(len(A)):
        x = found.rho[n][:, None] * x
        out[n] = A[n] - x
        x += found.gain[n][:, None] * out[n]
    seen = counts.T > 0
    out *= (seen / np.sqrt(found.innovation))[:, :, None]
    return out, np.sum(np.where(seen, np.log(found.innovation), 0.0), axis=0)


def smoothed(found: Filtered, series: Float[Array, "k n"]) -> Float[Array, "k n"]:
    """E[b·l(t_n) | the series], at every time."""
    data = series.T
    forward, x = np.empty_like(data), np.zeros_like(data[0])
    for n in range(len(data)):
        x = found.rho[n] * x
        x = x + found.gain[n] * (data[n] - x)
        forward[n] = x
    after = (1.0 - found.gain) * found.before
    out = forward.copy()
    for n in range(len(data) - 2, -1, -1):
        back = after[n] * found.rho[n + 1] / np.maximum(found.before[n + 1], 1e-300)
        out[n] += back * (out[n + 1] - found.rho[n + 1] * forward[n])
    return out.T
