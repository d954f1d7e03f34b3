"""Scores on held-out rows as one JSON table: by output, by client, overall, and calibration.

Every score is given for each output, in that output's own units. Scores that have a unit (RMSE, CRPS,
width) are never averaged over outputs: `overall` and `clients` have them only where there is one output.
"Overall" is said twice, by name: `pooled` (every held-out row counts alike) and `client_mean` (the mean of
the clients' scores: every client counts alike, as in the paper's metrics). No JAX: predictions come as
`Scored` arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtr

from pfedhgp.gp.metrics import ECE_LEVELS, Scored, coverage, evaluate

PIT_EDGES = tuple(round(0.1 * k, 1) for k in range(11))
WITH_UNITS = ("rmse", "crps", "width")
"""Scores in an output's units: of several outputs they have no sum."""
AVERAGES = {
    "pooled": "over rows: every held-out row counts alike",
    "client_mean": "over clients: the mean of the clients' scores, every client counts alike",
}
"""What the two kinds of "overall" are."""


def summarise(scored: Mapping[str, Scored], outputs: Sequence[str]) -> dict[str, Any]:
    """`averages`, `overall`, `outputs`, `clients` and `calibration` of test rows by client.

    `outputs[name]` has `pooled`, `client_mean` and `clients`, each a table of scores; so has `overall`, but
    for `clients`, which is a table beside it. With several outputs, NLL in `overall` and `clients` is that of
    a row's outputs together, and coverage and ECE count the cells of all of them.

    >>> one = Scored(y=[[0.0], [1.0]], mean=[[0.0], [0.0]], cov=[[[1.0]], [[1.0]]])
    >>> two = Scored(y=[[2.0]], mean=[[0.0]], cov=[[[1.0]]])
    >>> found = summarise({"a": one, "b": two}, ["y"])["overall"]
    >>> round(found["pooled"]["rmse"], 4), round(found["client_mean"]["rmse"], 4)
    (1.291, 1.3536)
    """
    cases = {name: _arrays(case) for name, case in scored.items()}
    by_output = {}
    for q, name in enumerate(outputs):
        seen = {client: _one_output(case, q) for client, case in cases.items()}
        kept = {client: case for client, case in seen.items() if len(np.asarray(case.y))}
        if kept:
            by_output[name] = {**_both_averages(kept), "clients": _by_client(kept)}
    kept = {client: case for client, case in cases.items() if np.isfinite(case.y).any()}
    together = {"overall": _both_averages(kept), "clients": _by_client(kept)}
    if len(outputs) > 1:
        together = _without_units(together)
    return {
        "averages": AVERAGES,
        **together,
        "outputs": by_output,
        "calibration": _calibration(kept),
    }


def _both_averages(cases: Mapping[str, Scored]) -> dict[str, dict[str, Any]]:
    return {"pooled": _scores({"all": _pooled(cases)}), "client_mean": _scores(cases)}


def _by_client(cases: Mapping[str, Scored]) -> dict[str, dict[str, Any]]:
    return {name: _scores({name: case}) for name, case in cases.items()}


def _without_units(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_units(value) if isinstance(value, Mapping) else value
        for key, value in tree.items()
        if key not in WITH_UNITS or isinstance(value, Mapping)
    }


def _pooled(cases: Mapping[str, Scored]) -> Scored:
    """All clients' rows as if they were one client's."""
    y, mean, cov = (
        np.concatenate([np.asarray(getattr(case, part)) for case in cases.values()])
        for part in ("y", "mean", "cov")
    )
    return Scored(y=y, mean=mean, cov=cov)


def _arrays(case: Scored) -> Scored:
    y, mean, cov = (np.asarray(v, np.float64) for v in (case.y, case.mean, case.cov))
    return Scored(y=y, mean=mean, cov=cov)


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
