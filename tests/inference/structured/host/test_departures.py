"""A client's evidence by φ_i against a naive twin: SciPy's search on the compiled bound."""

from __future__ import annotations

import jax
import numpy as np
from scipy.optimize import minimize

from pfedhgp.inference.structured import averaging
from pfedhgp.inference.structured.departures import GRID
from pfedhgp.inference.structured.host import departures
from pfedhgp.model.blocks import Structure
from support.client_batches import batch, on_jax
from support.host_batches import host_batch

TIED = {"structure": Structure(tied=True), "rows": 12, "seed": 3}


def naive_evidence(given, client: int, sizes) -> list[float]:
    """log Z of one client at each √(φ_i/φ): log ℓ, log B_l² and log σ² are integrated out by Laplace."""
    own = jax.tree.map(
        lambda leaf: leaf[client],
        on_jax((given.others, given.blocks, given.expected, given.rows, given.jitter, given.floor)),
    )
    others, *rest = own
    block, jitter = on_jax((given.broadcast.block, given.broadcast.jitter))
    target = averaging.target(given.options, block, jitter, others, *rest)
    value = jax.jit(target.log_density)
    mean, precision = (
        float(v[1]) for v in (given.expected.mean[client], given.expected.precision[client])
    )
    start = np.asarray(target.best)  # log ℓ, √(φ_i/φ), B_l, log σ²
    found = []
    for size in sizes:

        def log_p(eta, size=size) -> float:
            return float(value(np.array([eta[0], size, np.exp(0.5 * eta[1]), eta[2]])))

        gap = np.log(size**2 + 1e-12) - mean
        first = np.array([start[0], np.log(start[2] ** 2), start[3]])
        best = minimize(lambda eta: -log_p(eta), first, method="Nelder-Mead",
                        options={"xatol": 1e-6, "fatol": 1e-10, "maxiter": 4000}).x  # fmt: skip
        h, eye = 1e-3, 1e-3 * np.eye(3)
        H = [[-(log_p(best + a + b) - log_p(best + a - b) - log_p(best - a + b) + log_p(best - a - b))
              / (4 * h * h) for b in eye] for a in eye]  # fmt: skip
        logs = np.log(np.maximum(np.linalg.eigvalsh(np.array(H)), departures.FLATTEST)).sum()
        found.append(log_p(best) + 0.5 * precision * gap**2 - 0.5 * logs)
    return found


def test_evidence_by_size_agrees_with_a_naive_search(monkeypatch):
    monkeypatch.setattr(departures, "EVALUATIONS", 200)
    monkeypatch.setattr(departures, "SETTLED", 1e-9)
    given = batch(**TIED)
    found = departures.evidence(host_batch(given), searched=True)
    sizes = np.exp(0.5 * (GRID - np.log(float(given.broadcast.block.phi))))
    for client in (0, 2):
        expected = naive_evidence(given, client, [sizes[2], sizes[5], 0.0])
        mine = [found.sizes[client, 2], found.sizes[client, 5], found.none[client]]
        np.testing.assert_allclose(mine, expected, atol=2e-3)


def test_a_deviation_of_no_size_is_none(monkeypatch):
    """The evidence is continuous at φ_i = 0, searched or not."""
    monkeypatch.setattr(departures, "GRID", np.array([-24.0, -22.0, 1.0]))
    made = host_batch(batch(**TIED))
    for searched in (False, True):
        found = departures.evidence(made, searched=searched)
        assert found.sizes.shape == (3, 3)
        np.testing.assert_allclose(found.sizes[:, 0], found.none, atol=1e-3)
        assert np.abs(found.sizes[:, -1] - found.none).max() > 1.0
