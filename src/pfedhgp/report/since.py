"""What happened to the model since the fit: rows that came, rows and clients that were forgotten.

A RUN folder has no rows, but the model's own sums know how many are in it, and metrics.json has a line for
each update. What a report says of rows goes by these, not by the table of the fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pfedhgp.base.checks import listed
from pfedhgp.data.rows import ClientRows
from pfedhgp.model.fitted import FittedModel
from pfedhgp.report import words

LATEST = 8
"""Updates that are listed one by one."""
Lines = Sequence[Mapping[str, Any]]


def lines_of(metrics: Mapping[str, Any]) -> Lines:
    """What was done since the fit, oldest first."""
    return list(metrics.get("updates") or ())


def touched(metrics: Mapping[str, Any]) -> set[str]:
    """Clients whose rows are not those of the fit any more."""
    return {name for line in lines_of(metrics) for name in line["rows"]}


def last_surprise(metrics: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The last time that new rows came, unless training followed."""
    came = [line for line in lines_of(metrics) if line["what"] in ("update", "retrain")]
    return came[-1] if came and came[-1]["what"] == "update" and came[-1]["scores"] else None


def section(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """The sum of what was done, and the last few lines of it; None if nothing was."""
    lines = lines_of(metrics)
    if not lines:
        return None
    shown = [_in_words(line) for line in lines[-LATEST:]][::-1]
    return {
        "whole": _whole(lines),
        "lines": shown if len(lines) > 1 else [],
        "earlier": max(len(lines) - LATEST, 0),
        "only": shown[0] if len(lines) == 1 else None,
    }


def _whole(lines: Lines) -> str:
    came = [line for line in lines if line["what"] != "forget"]
    gone = [line for line in lines if line["what"] == "forget"]
    parts = []
    if came:
        parts.append(f"{_rows(came)} came, in {len(came)} update{'' if len(came) == 1 else 's'}")
    if gone:
        parts.append(f"{_rows(gone)} {'were' if _count(gone) != 1 else 'was'} forgotten")
    odd = sum(bool(line.get("stale")) for line in came)
    if odd:
        parts.append(f"{odd} of these brought rows that were not as expected")
    return f"{'; '.join(parts)}."


def _count(lines: Lines) -> int:
    return sum(sum(line["rows"].values()) for line in lines)


def _rows(lines: Lines) -> str:
    """'30 rows of 5 clients'"""
    names = {name for line in lines for name in line["rows"]}
    count = _count(lines)
    of = words.shown(next(iter(names))) if len(names) == 1 else f"{len(names)} clients"
    number = f"{count:,}".replace(",", "\u202f")
    return f"{number} row{'' if count == 1 else 's'} of {of}"


def _in_words(line: Mapping[str, Any]) -> str:
    text = {"update": "Update: ", "retrain": "Trained again with ", "forget": "Forgotten: "}
    said = f"{text.get(line['what'], '')}{_rows([line])}"
    for key, what in (("new_clients", "new"), ("gone_clients", "gone as a client")):
        if line.get(key):
            said += f", {what}: {listed([words.shown(n, 24) for n in line[key]], 3)}"
    if line["what"] == "update" and line.get("scores"):
        how = "not as expected" if line["stale"] else "as expected"
        said += f"; the rows were {how} (chance {line['p']:.2g})"
    return said


def cells(
    model: FittedModel, metrics: Mapping[str, Any], rows: Mapping[str, ClientRows]
) -> tuple[dict[str, int], bool]:
    """Observed cells of each client in the model, and whether all of them are known exactly.

    Those of the fit are in metrics.json. A client whose rows have changed since is counted by its sums, which
    count rows: cells follow exactly with one output, or if these very rows are given.
    """
    kept, changed = metrics.get("data") or {}, touched(metrics)
    if not kept:
        return {name: _observed(own) for name, own in rows.items()}, True
    found, exact = {}, True
    for name in model.clients:
        entry, own = kept.get(name) or {}, model.sums.get(name)
        if name in changed and own is not None:
            found[name], sure = _changed(len(own.rows), model.outputs, entry, rows.get(name))
            exact &= sure
        elif "cells" in entry:
            found[name] = int(entry["cells"])
    return found, exact


def _changed(
    count: int, outputs: int, entry: Mapping[str, Any], given: ClientRows | None
) -> tuple[int, bool]:
    """Cells of `count` rows, and whether that is exact."""
    if given is not None and int(np.isfinite(given.Y).any(axis=1).sum()) == count:
        return _observed(given), True
    before = int(entry.get("rows", 0)) - int(entry.get("held_out", 0))
    each = int(entry["cells"]) / before if before > 0 and "cells" in entry else outputs
    return round(count * each) if outputs > 1 else count, outputs == 1


def _observed(rows: ClientRows) -> int:
    return int(np.isfinite(rows.Y).sum())
