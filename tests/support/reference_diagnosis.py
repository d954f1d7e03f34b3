"""Naive twins of `pfedhgp.diagnosis`: dense, one at a time."""

from __future__ import annotations

import numpy as np
from scipy.optimize import lsq_linear

from pfedhgp.diagnosis.class_gaussian import ClassGaussian


def distance_towards(y, mean, others, cov) -> tuple[float, int]:
    """dᵀΣ⁻¹M (MᵀΣ⁻¹M)⁻¹ MᵀΣ⁻¹d of one cycle (cells,) and rank M, cells that are NaN left out."""
    seen = np.flatnonzero(np.isfinite(y))
    precision = np.linalg.inv(cov[np.ix_(seen, seen)])
    M = np.stack([(other - mean)[seen] for other in others], axis=1)
    M = M[:, np.abs(M).max(axis=0) > 0]
    if not M.shape[1]:
        return 0.0, 0
    t = M.T @ precision @ (y - mean)[seen]
    return float(t @ np.linalg.pinv(M.T @ precision @ M) @ t), int(np.linalg.matrix_rank(M))


def terms_along(y, mean, cov) -> np.ndarray:
    """log p(y_m | y_1 … y_{m−1}), each from a conditional Gaussian of its own."""
    out = np.zeros(len(y))
    for m in range(len(y)):
        gain = np.linalg.solve(cov[:m, :m], cov[:m, m]) if m else np.zeros(0)
        expected = mean[m] + gain @ (y[:m] - mean[:m])
        variance = cov[m, m] - gain @ cov[:m, m]
        out[m] = -0.5 * ((y[m] - expected) ** 2 / variance + np.log(2 * np.pi * variance))
    return out


def dense(one: ClassGaussian) -> np.ndarray:
    """Σ of a class, (nQ, nQ)."""
    return one.half @ one.half.T + np.kron(np.eye(len(one.mean)), one.noise)


# ------------------------------------------------------------------------------- class, run, cycle


def run_layers(F, labels, runs):
    """(f, S, W, share of W in a new cycle) by loops over classes and runs, from the cycles themselves."""
    f, scatter_b, scatter_w, nu_b, nu_w, inverse, B = [], 0.0, 0.0, 0, 0, 0.0, 0
    for k in sorted(set(labels.tolist())):
        means = []
        for run in sorted({r for r, own in zip(runs, labels, strict=True) if own == k}):
            mine = np.stack(
                [y for y, r, own in zip(F, runs, labels, strict=True) if r == run and own == k]
            )
            means.append(mine.mean(axis=0))
            scatter_w = scatter_w + sum(np.outer(y - means[-1], y - means[-1]) for y in mine)
            nu_w += len(mine) - 1
            inverse += 1.0 / len(mine)
        f.append(np.mean(means, axis=0))
        scatter_b = scatter_b + sum(np.outer(m - f[-1], m - f[-1]) for m in means)
        nu_b, B = nu_b + len(means) - 1, B + len(means)
    return np.stack(f), scatter_b / nu_b, scatter_w / max(nu_w, 1), 1.0 - inverse / B


def stationary(M, channels):
    """s (C ⊗ K) s by loops; amplitudes of the lag function by a bounded least-squares solver."""
    r = len(M) // channels
    place = [(q, a) for q in range(channels) for a in range(r)]
    sd = [np.sqrt(np.mean([M[q * r + a, q * r + a] for a in range(r)])) for q in range(channels)]
    lags = np.zeros(r)
    C = np.zeros((channels, channels))
    for i, (q, a) in enumerate(place):
        for j, (p, b) in enumerate(place):
            value = M[i, j] / (sd[q] * sd[p])
            if q == p and b >= a:
                lags[b - a] += value / (channels * (r - (b - a)))
            if a == b:
                C[q, p] += value / r
    frequencies = np.arange(2 * r) / (4.0 * r)
    waves = np.array([[np.cos(2 * np.pi * f * lag) for f in frequencies] for lag in range(r)])
    root = np.sqrt(r - np.arange(r))
    fit = lsq_linear(waves * root[:, None], lags * root, (0.0, np.inf), tol=1e-14, max_iter=500)
    k = (1.0 - 1e-5) * waves @ fit.x / (waves @ fit.x)[0]
    k[0] = 1.0
    return np.array([[sd[q] * sd[p] * C[q, p] * k[abs(a - b)] for p, b in place] for q, a in place])


def restricted_likelihood(F, labels, runs, Psi_b, Psi_e) -> float:
    """log p of all contrasts that do not know the class means, with the covariance of all cycles at once."""
    C, D = F.shape
    same = (np.asarray(runs)[:, None] == np.asarray(runs)) & (labels[:, None] == labels)
    V = np.kron(same, Psi_b) + np.kron(np.eye(C), Psi_e)
    X = np.kron((labels[:, None] == np.unique(labels)).astype(float), np.eye(D))
    null = np.linalg.svd(X, full_matrices=True)[0][:, X.shape[1] :]
    inner = null.T @ V @ null
    z = null.T @ F.reshape(-1)
    value = z @ np.linalg.solve(inner, z) + np.linalg.slogdet(inner)[1]
    return float(-0.5 * (value + len(z) * np.log(2 * np.pi)))


def robust_distance(y, mean, sigma, slices) -> float:
    """dᵀΣ⁻¹d with the channel that gains most at a scale of its own, channel by channel."""
    d = y - mean
    whole = float(d @ np.linalg.solve(sigma, d))
    best = whole
    for part in slices:
        rest = np.setdiff1d(np.arange(len(d)), np.arange(part.start, part.stop))
        others = float(d[rest] @ np.linalg.solve(sigma[np.ix_(rest, rest)], d[rest]))
        n, u = part.stop - part.start, whole - others
        if u > n:
            best = min(best, others + n * (1.0 + np.log(u / n)))
    return best


def partition_evidence(x, labels, ratio) -> float:
    """log p of points (U, r) in groups: a dense Gaussian for each group and direction, and a prior."""
    total = 0.0
    for g in sorted(set(labels.tolist())):
        mine = x[labels == g]
        n = len(mine)
        V = np.eye(n) + ratio * np.ones((n, n))
        for column in mine.T:
            value = column @ np.linalg.solve(V, column) + np.linalg.slogdet(V)[1]
            total -= 0.5 * (value + n * np.log(2 * np.pi))
        total += float(np.sum(np.log(np.arange(1, n))))  # (n − 1)!
    return total
