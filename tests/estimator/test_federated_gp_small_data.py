"""How sure predictions are where rows are few: made-up federations with truths drawn at random."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp import FederatedGP

NEW = 60
FEDERATIONS = 24


def federation(seed: int, sizes=(20, 20, 20, 1)):
    """({client: rows}, {client: new rows}) of the three layers, lengthscales and noise log-uniform."""
    rng = np.random.default_rng([seed, 77])

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    def draw(x: np.ndarray, scale: float) -> np.ndarray:
        K = np.exp(-0.5 * ((x[:, None] - x[None]) / scale) ** 2) + 1e-8 * np.eye(len(x))
        return np.linalg.cholesky(K) @ rng.normal(size=len(x))

    long, short, noise = between(0.15, 0.5), between(0.05, 0.2), between(0.05, 0.4)
    deviation, local = rng.uniform(0.2, 0.7, 2)
    X = [rng.uniform(size=n + NEW) for n in sizes]
    shared = np.split(draw(np.concatenate(X), long), np.cumsum([len(x) for x in X])[:-1])
    rows, new = {}, {}
    for i, (n, x, f) in enumerate(zip(sizes, X, shared, strict=True)):
        y = f + deviation * draw(x, long) + local * draw(x, short) + noise * rng.normal(size=len(x))
        rows[str(i)], new[str(i)] = (x[:n], y[:n]), (x[n:], y[n:])
    return rows, new


@pytest.mark.slow
def test_intervals_of_small_clients_hold_what_they_promise():
    """95% intervals over 24 federations of three clients with 20 rows and one with a single row."""
    inside: dict[int, list] = {20: [], 1: []}
    scores: dict[int, list] = {20: [], 1: []}
    for seed in range(FEDERATIONS):
        rows, new = federation(seed)
        model = FederatedGP(domain=[(0.0, 1.0)], inducing=20).fit(rows)
        for name, (x, y) in new.items():
            p, size = model.predict(name, x), len(rows[name][0])
            z = (y - p.mean[:, 0]) / p.sd[:, 0]
            inside[size].append(np.mean(np.abs(z) < 1.96))
            scores[size].append(np.mean(0.5 * z**2 + np.log(p.sd[:, 0] * np.sqrt(2 * np.pi))))
    assert np.mean(inside[20]) > 0.9
    assert np.mean(inside[1]) > 0.8
    assert np.mean(scores[20]) < 0.05  # 0.08 without the prior of log σ²
    assert np.mean(scores[1]) < 3.0  # 22 without it
