"""What `pfedhgp classify` stores in a RUN folder for its report: counts, scores, and the closest calls.

It has log-likelihood differences and names of cycles, but no samples. It belongs to one model: the report of
another model does not show it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pfedhgp.base import atomic_files
from pfedhgp.diagnosis.decision import NONE, Diagnosis, Why
from pfedhgp.errors import InputError

FILE = "classified.json"
FORMAT, VERSION = "pfedhgp-classified", 1
CALLS = 3
"""Cycles that are explained: the closest calls, of different classes if possible."""
STRONGEST = 6
"""Stretches that are listed for each."""


def close_calls(found: Diagnosis, count: int = CALLS) -> list[int]:
    """Cycles whose two best classes are nearly equal: first one of each class, then the next closest."""
    if len(found.classes) < 2:
        return []
    ranked = np.sort(found.log_density, axis=1)
    order = np.argsort(ranked[:, -1] - ranked[:, -2], kind="stable").tolist()
    first: dict[int, int] = {}
    for cycle in order:
        first.setdefault(int(np.argmax(found.log_density[cycle])), cycle)
    chosen = list(first.values())
    return [*chosen, *(cycle for cycle in order if cycle not in set(chosen))][:count]


def report_content(
    found: Diagnosis,
    names: Sequence[str],
    *,
    model: str,
    explain: Callable[[int, str, str], Why],
    scores: Mapping[str, Any] | None = None,
    proposals: Sequence[Mapping[str, Any]] | None = None,
    layer: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of the file; `explain(cycle, chosen, other)` gives reasons, `model` is a SHA-256."""
    calls = []
    for cycle in close_calls(found):
        one, two = (found.classes[k] for k in np.argsort(-found.log_density[cycle])[:2])
        reason = explain(cycle, one, two)
        strongest = sorted(reason.stretches(), key=lambda each: -abs(each["nats"]))[:STRONGEST]
        calls.append(
            {
                "cycle": str(names[cycle]),
                "none": bool(found.none[cycle]),
                **reason.condensed(),
                "stretches": strongest,
            }
        )
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": model,
        "cycles": len(found.labels),
        "counts": {name: found.labels.count(name) for name in (*found.classes, NONE)},
        "thresholds": found.calibration.thresholds is not None,
        "scores": None
        if scores is None
        else {k: scores[k] for k in ("accuracy", "log_loss", "ece")},
        "layer": None if layer is None else dict(layer),
        "calls": calls,
        **({} if proposals is None else {"proposals": [dict(each) for each in proposals]}),
    }


def write(run: Path, content: Mapping[str, Any]) -> None:
    """Writes the file into RUN, whole or not at all."""
    text = json.dumps(content, allow_nan=False) + "\n"
    atomic_files.write_bytes(run / FILE, text.encode("utf-8"))


def read(run: Path, model: str) -> dict[str, Any] | None:
    """The result of the last classification; None if there is none, or if it is of another model."""
    path = run / FILE
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text("utf-8"))
        known = content["format"] == FORMAT and content["version"] == VERSION
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise InputError(f"{path} was not written by `pfedhgp classify`: delete it")
    return content if content["model"] == model else None
