"""Scores on held-out rows as one JSON table: overall, by output, by client, and calibration.

All numbers are in the data's own units. No JAX: predictions come as `Scored` arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtr

from pfedhgp.metrics import ECE_LEVELS, Scored, coverage, evaluate

PIT_EDGES = tuple(round(0.1 * k, 1) for k in range(11))


def summarise(scored: Mapping[str, Scored], outputs: Sequence[str]) -> dict[str, Any]:
    """`overall`, `outputs`, `clients` and `calibration` of test rows by client.

    In `overall` and in `outputs` each client counts alike, as in the paper's metrics.

    >>> one = Scored(y=[[0.0], [1.0]], mean=[[0.0], [0.0]], cov=[[[1.0]], [[1.0]]])
    >>> summarise({"a": one}, ["y"])["overall"]["rows"]
    2
    """
    cases = {name: _arrays(case) for name, case in scored.items()}
    by_output = {}
    for q, name in enumerate(outputs):
        seen = {client: _one_output(case, q) for client, case in cases.items()}
        kept = {client: case for client, case in seen.items() if len(np.asarray(case.y))}
        if kept:
            by_output[name] = _scores(kept)
    return {
        "overall": _scores(cases),
        "outputs": by_output,
        "clients": {name: _scores({name: case}) for name, case in cases.items()},
        "calibration": _calibration(cases),
    }


def _arrays(case: Scored) -> Scored:
    y, mean, cov = (np.asarray(v, np.float64) for v in (case.y, case.mean, case.cov))
    return Scored(y=y, mean=mean, cov=cov, clean=case.clean, noise=case.noise)


def _one_output(case: Scored, q: int) -> Scored:
    y, mean, cov = np.asarray(case.y), np.asarray(case.mean), np.asarray(case.cov)
    rows = np.isfinite(y[:, q])
    each = slice(q, q + 1)
    return Scored(y=y[rows, each], mean=mean[rows, each], cov=cov[rows, each, each])


def _scores(cases: Mapping[str, Scored]) -> dict[str, Any]:
    rows = sum(int(np.isfinite(np.asarray(case.y)).any(axis=1).sum()) for case in cases.values())
    return {"rows": rows, **evaluate(cases)}


def _calibration(cases: Mapping[str, Scored]) -> dict[str, Any]:
    """Coverage at every level, averaged over clients, and the histogram of Φ((y − μ)/σ) over all cells."""
    covered = [
        float(np.mean([coverage(c.y, c.mean, c.cov, level=level) for c in cases.values()]))
        for level in ECE_LEVELS
    ]
    pit = np.concatenate([_pit(case) for case in cases.values()])
    counts, _ = np.histogram(pit, bins=np.asarray(PIT_EDGES))
    return {
        "levels": list(ECE_LEVELS),
        "coverage": covered,
        "pit": {"edges": list(PIT_EDGES), "counts": counts.tolist()},
    }


def _pit(case: Scored) -> np.ndarray:
    y, mean, cov = np.asarray(case.y), np.asarray(case.mean), np.asarray(case.cov)
    values: np.ndarray = ndtr((y - mean) / np.sqrt(np.diagonal(cov, axis1=1, axis2=2)))
    return values[np.isfinite(y)]
