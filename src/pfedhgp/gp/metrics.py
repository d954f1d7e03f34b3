"""Scores of Gaussian predictions: the paper's "Evaluation Protocol and Metrics", and ECE.

Every function scores one client from arrays: `y` (n, Q) what was observed, `mean` (n, Q) and `cov`
(n, Q, Q) the predictive distribution of `y` at each of n inputs, noise included. NaN cells of `y`
are left out, and a row's covariance is then that of its observed cells. `evaluate` averages over
clients. Plain NumPy and SciPy: no JAX.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from pfedhgp.errors import InputError

FloatArray = npt.NDArray[np.float64]

ECE_LEVELS: tuple[float, ...] = tuple(round(0.05 * k, 2) for k in range(1, 20))
"""The nominal levels of ECE: .05, .10, …, .95."""


def rmse(y: npt.ArrayLike, mean: npt.ArrayLike) -> float:
    """√( Σ_jq (y_jq − μ_jq)² / (n Q) ), eq. rmse_metric for one client.

    >>> rmse([[1.0], [3.0]], [[1.0], [1.0]]) == 2.0**0.5
    True
    """
    y, mean = _shaped(y, mean)
    return float(np.sqrt(np.nanmean((y - mean) ** 2)))


def nll(y: npt.ArrayLike, mean: npt.ArrayLike, cov: npt.ArrayLike) -> float:
    """1/n Σ_j ½ [Q log 2π + log|Σ_j| + (y_j − μ_j)ᵀ Σ_j⁻¹ (y_j − μ_j)], eq. multioutput_nll.

    Q is the number of cells observed in the row; rows without any are not counted in n.
    """
    y, mean, cov = _with_covariance(y, mean, cov)
    seen = ~np.isnan(y)
    # A missing cell becomes an independent N(0, 1/2π) cell at its mean, which adds nothing.
    error = np.where(seen, y - mean, 0.0)
    both = seen[:, :, None] & seen[:, None, :]
    cov = np.where(both, cov, np.eye(y.shape[1]) / (2.0 * np.pi))
    try:
        L = np.linalg.cholesky(cov)
    except np.linalg.LinAlgError:
        raise InputError(
            "`cov` is not positive definite in some row; is the noise in it?"
        ) from None
    white = np.linalg.solve(L, error[:, :, None])[:, :, 0]
    logdet = 2.0 * np.sum(np.log(np.diagonal(L, axis1=1, axis2=2)), axis=1)
    rows = 0.5 * (y.shape[1] * np.log(2.0 * np.pi) + logdet + np.sum(white**2, axis=1))
    return float(np.mean(rows[seen.any(axis=1)]))


def crps(y: npt.ArrayLike, mean: npt.ArrayLike, cov: npt.ArrayLike) -> float:
    """1/(nQ) Σ_jq σ_jq [z(2Φ(z) − 1) + 2φ(z) − 1/√π], z = (y − μ)/σ, eq. crps_metric.

    >>> round(crps([[0.0]], [[0.0]], [[[1.0]]]), 6)  # (√2 − 1)/√π
    0.233695
    """
    y, mean, sd = _with_sd(y, mean, cov)
    z = (y - mean) / sd
    density = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    cells = sd * (z * (2.0 * ndtr(z) - 1.0) + 2.0 * density - 1.0 / np.sqrt(np.pi))
    return float(np.nanmean(cells))


def coverage(
    y: npt.ArrayLike, mean: npt.ArrayLike, cov: npt.ArrayLike, *, level: float = 0.95
) -> float:
    """1/(nQ) Σ_jq 1{|y_jq − μ_jq| ≤ z σ_jq}, z = Φ⁻¹((1 + level)/2), eq. Cov_0.95.

    >>> coverage([[1.9], [2.1]], [[0.0], [0.0]], [[[1.0]], [[1.0]]])
    0.5
    """
    y, mean, sd = _with_sd(y, mean, cov)
    inside = np.abs(y - mean) <= _critical(level) * sd
    return float(np.mean(inside[~np.isnan(y)]))


def width(
    y: npt.ArrayLike, mean: npt.ArrayLike, cov: npt.ArrayLike, *, level: float = 0.95
) -> float:
    """1/(nQ) Σ_jq 2 z σ_jq, z = Φ⁻¹((1 + level)/2), over the observed cells, eq. Width_0.95."""
    y, _, sd = _with_sd(y, mean, cov)
    return float(np.mean(2.0 * _critical(level) * sd[~np.isnan(y)]))


def ece(y: npt.ArrayLike, mean: npt.ArrayLike, cov: npt.ArrayLike) -> float:
    """mean over levels .05, .10, …, .95 of |coverage(level) − level|.

    The paper names the expected calibration error without an equation; the levels are ours.
    """
    return _ece_of(np.array([coverage(y, mean, cov, level=level) for level in ECE_LEVELS]))


def coverr(
    clean: npt.ArrayLike, mean: npt.ArrayLike, cov: npt.ArrayLike, *, noise: npt.ArrayLike
) -> float:
    """‖Σ̂_y − Σ_true‖_F / ‖Σ_true‖_F, eq. cov_error for one client.

    Σ_true = Cov_x{y_clean(x)} + noise (eq. true_output_covariance) and Σ̂_y = Cov_x{μ(x)} +
    1/n Σ_j Σ_j (eq. model_implied_output_covariance). Cov_x divides by n: x is uniform on the test
    grid, and Σ̂_y is then the law of total covariance. `noise` is a variance, one per output, or a
    (Q, Q) matrix.
    """
    clean, mean, cov = _with_covariance(clean, mean, cov)
    if np.isnan(clean).any():
        raise InputError("`clean` has NaN cells; CovErr needs the whole noise-free signal")
    true = _covariance_over_rows(clean) + _noise_matrix(noise, clean.shape[1])
    model = _covariance_over_rows(mean) + cov.mean(axis=0)
    return float(np.linalg.norm(model - true) / np.linalg.norm(true))


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One client's test rows and what was predicted for them.

    `clean` (n, Q), the noise-free signal, and `noise`, the simulator's noise variance, are for
    CovErr alone: leave them out if the truth is not known.
    """

    y: npt.ArrayLike
    mean: npt.ArrayLike
    cov: npt.ArrayLike
    clean: npt.ArrayLike | None = None
    noise: npt.ArrayLike | None = None


def evaluate(clients: Iterable[Scored] | Mapping[Any, Scored]) -> dict[str, float]:
    """1/T Σ_i metric_i for rmse, nll, crps, width, coverage, and coverr if `clean` is known.

    The paper's equations average over clients of equal size; here too each client counts alike.
    ECE compares the levels with the client-averaged coverage, so that it measures calibration and
    not how few rows a client has.

    >>> one = Scored(y=[[0.0], [1.0]], mean=[[0.0], [0.0]], cov=[[[1.0]], [[1.0]]])
    >>> round(evaluate([one])["nll"], 4)
    1.1689
    """
    cases = list(clients.values() if isinstance(clients, Mapping) else clients)
    if not cases:
        raise InputError("`clients` is empty; there is nothing to evaluate")
    triples = [(c.y, c.mean, c.cov) for c in cases]
    levels = [[coverage(*t, level=level) for level in ECE_LEVELS] for t in triples]
    result = {
        "rmse": _average(rmse(c.y, c.mean) for c in cases),
        "nll": _average(nll(*t) for t in triples),
        "crps": _average(crps(*t) for t in triples),
        "width": _average(width(*t) for t in triples),
        "coverage": _average(coverage(*t) for t in triples),
        "ece": _ece_of(np.mean(np.array(levels), axis=0)),
    }
    if all(c.clean is not None and c.noise is not None for c in cases):
        result["coverr"] = _average(coverr(c.clean, c.mean, c.cov, noise=c.noise) for c in cases)
    return result


def _average(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _ece_of(coverages: FloatArray) -> float:
    return float(np.mean(np.abs(coverages - np.array(ECE_LEVELS))))


def _critical(level: float) -> float:
    if not 0.0 < level < 1.0:
        raise InputError(f"`level` must be between 0 and 1, got {level!r}")
    return float(ndtri(0.5 * (1.0 + level)))


def _covariance_over_rows(values: FloatArray) -> FloatArray:
    centred = values - values.mean(axis=0)
    return centred.T @ centred / len(values)


def _noise_matrix(noise: npt.ArrayLike, outputs: int) -> FloatArray:
    array = np.asarray(noise, dtype=np.float64)
    if array.shape == (outputs, outputs):
        return array
    if array.shape in ((), (outputs,)):
        return np.diag(np.broadcast_to(array, (outputs,)))
    raise InputError(
        f"`noise` must be a number, ({outputs},) or ({outputs}, {outputs}), got {array.shape}"
    )


def _shaped(y: npt.ArrayLike, mean: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    y_, mean_ = np.asarray(y, dtype=np.float64), np.asarray(mean, dtype=np.float64)
    if y_.ndim != 2:
        raise InputError(f"`y` must be (rows, outputs), got shape {y_.shape}")
    if mean_.shape != y_.shape:
        raise InputError(f"`mean` has shape {mean_.shape}, but `y` has {y_.shape}")
    if not np.isfinite(mean_).all():
        raise InputError("`mean` has NaN or infinite cells")
    if np.isnan(y_).all():
        raise InputError("`y` has no observed cell; leave this client out")
    return y_, mean_


def _with_covariance(
    y: npt.ArrayLike, mean: npt.ArrayLike, cov: npt.ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    y_, mean_ = _shaped(y, mean)
    cov_ = np.asarray(cov, dtype=np.float64)
    if cov_.shape != (*y_.shape, y_.shape[1]):
        raise InputError(f"`cov` has shape {cov_.shape}, needs {(*y_.shape, y_.shape[1])}")
    if not np.isfinite(cov_).all():
        raise InputError("`cov` has NaN or infinite entries")
    return y_, mean_, cov_


def _with_sd(
    y: npt.ArrayLike, mean: npt.ArrayLike, cov: npt.ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    y_, mean_, cov_ = _with_covariance(y, mean, cov)
    variance = np.diagonal(cov_, axis1=1, axis2=2)
    if (variance <= 0).any():
        raise InputError("`cov` has a variance that is not positive")
    return y_, mean_, np.sqrt(variance)
