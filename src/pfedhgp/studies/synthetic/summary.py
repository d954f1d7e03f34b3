"""From runs to results: means with 95% intervals, curves, and what is needed to come near the best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pfedhgp.gp.metrics import ECE_LEVELS
from pfedhgp.studies.common.records import Record, interval, measured, possible, record_of
from pfedhgp.studies.synthetic.printed import printed_records

NEAR = 0.2
"""Nats of NLL within which a method has come near its own best."""
BEHIND = "behind full, run by run"
ONE_AFTER_ANOTHER = "exchanges one after another"
PAIRED = ("nll", "crps", "coverr")


def summarise(
    runs: Iterable[Record], *, scenarios: Sequence[str], models: Sequence[str], count: int
) -> dict[str, Any]:
    """records, curves and tables of results.json, from the runs 0 … count − 1 of these cells."""
    cells: dict[tuple[str, str], list[Record]] = {(s, m): [] for s in scenarios for m in models}
    for run in sorted(runs, key=lambda r: r["run"]):
        if (run["scenario"], run["model"]) in cells and run["run"] < count:
            cells[run["scenario"], run["model"]].append(run)
    records = [
        record_of(s, m, name, [run["metrics"][name] for run in found], possible(name))
        for (s, m), found in cells.items()
        for name in measured(found)
    ]
    return {
        "records": [*records, *printed_records(list(scenarios))],
        "curves": {
            "nll": [_nll_curve(s, m, found) for (s, m), found in cells.items() if _curves(found)],
            "coverage": [
                {
                    "scenario": s,
                    "model": m,
                    "level": list(ECE_LEVELS),
                    "coverage": np.mean([run["coverage"] for run in found], axis=0).tolist(),
                }
                for (s, m), found in cells.items()
                if found
            ],
        },
        "tables": {
            f"within {NEAR} nats of its own best": [
                {"scenario": s, "model": m, **nearness(_curves(found))}
                for (s, m), found in cells.items()
                if _curves(found)
            ],
            BEHIND: [
                {"scenario": s, "model": m, **behind(found, cells[s, "full"])}
                for (s, m), found in cells.items()
                if m != "full" and found and len(cells.get((s, "full"), ())) == len(found)
            ],
            "kernels chosen": [
                {"scenario": s, "model": m, "kernel": kernel, "runs": times}
                for (s, m), found in cells.items()
                for kernel, times in _votes(found).items()
            ],
            ONE_AFTER_ANOTHER: [
                {"scenario": s, "model": m, "exchanges": float(np.mean(counts))}
                for (s, m), found in cells.items()
                if (counts := [run[ONE_AFTER_ANOTHER] for run in found if ONE_AFTER_ANOTHER in run])
            ],
        },
    }


def behind(found: Sequence[Record], full: Sequence[Record]) -> dict[str, Any]:
    """How far a model is behind `full` on the same data: mean of the differences, with its 95% interval."""
    pairs = [(o["metrics"], f["metrics"]) for o, f in zip(found, full, strict=True)]
    summary = {}
    for metric in PAIRED:
        gaps = [one[metric] - other[metric] for one, other in pairs]
        mean, ci95 = interval(gaps)
        summary[metric] = {"mean": mean, "ci95": ci95, "least": min(gaps)}
    return summary


def nearness(curves: Sequence[Sequence[Sequence[float]]]) -> dict[str, float]:
    """Mean over runs of the first exchange (and bytes) after which NLL is within NEAR of the run's best."""
    firsts = []
    for curve in curves:
        best = min(nll for _, _, nll in curve)
        firsts.append(next((e, b) for e, b, nll in curve if nll <= best + NEAR))
    exchanges, sent = np.mean(np.array(firsts, np.float64), axis=0)
    return {"exchanges": float(exchanges), "bytes": float(sent), "runs": len(firsts)}


def _curves(found: Sequence[Record]) -> list[list[list[float]]]:
    return [run["curve"] for run in found if run["curve"]]


def _nll_curve(scenario: str, model: str, found: Sequence[Record]) -> dict[str, Any]:
    """Mean NLL after each exchange; a run that ended early keeps its last value."""
    curves = _curves(found)
    last = int(max(curve[-1][0] for curve in curves))
    first = int(min(curve[0][0] for curve in curves))
    exchanges = list(range(first, last + 1))
    values = [float(np.mean([_at(curve, exchange) for curve in curves])) for exchange in exchanges]
    return {
        "scenario": scenario,
        "model": model,
        "exchange": exchanges,
        "nll": values,
        "runs": len(curves),
    }


def _at(curve: Sequence[Sequence[float]], exchange: int) -> float:
    reached = [nll for e, _, nll in curve if e <= exchange]
    return reached[-1] if reached else curve[0][2]


def _votes(found: Sequence[Record]) -> dict[str, int]:
    names = [run["chosen"] for run in found if "chosen" in run]
    return {name: names.count(name) for name in sorted(set(names))}
