"""`update` and `forget`: checks of the rows, what changes in the model, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from pfedhgp.base.checks import listed
from pfedhgp.base.choices import DIFFERENTIAL
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError, RowError
from pfedhgp.inference.structured.adoption import Adopted
from pfedhgp.living.change import changed
from pfedhgp.living.staleness import ALARM, Surprise, surprise, together
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.kept_sums import KeptSums, row_hashes

Adopt = Callable[[FittedModel, ClientRows], Adopted]
"""Fits a new client's own block to its rows."""
LEARNED = ("starting_scales", "bound", "exchanges")
"""Settings of a model that training sets."""
Change = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Updated:
    """What an update, or forgetting, did."""

    rows: dict[str, int]
    """How many rows of each client were added, or taken out"""
    new_clients: tuple[str, ...] = ()
    gone_clients: tuple[str, ...] = ()
    surprises: tuple[Surprise, ...] = ()
    p: float = 1.0
    """The chance that new rows look so bad if the parameters still hold"""

    @property
    def stale(self) -> bool:
        """Whether the parameters have gone stale: `p` is below 1%."""
        return self.p < ALARM

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": dict(self.rows),
            "new_clients": list(self.new_clients),
            "gone_clients": list(self.gone_clients),
            "stale": self.stale,
            "p": self.p,
            "scores": [asdict(each) for each in self.surprises],
        }


def updated(
    model: FittedModel, rows: Sequence[ClientRows], adopt: Adopt
) -> tuple[FittedModel, Updated]:
    """The model with new rows of its clients, and with new clients, at its own parameters.

    A new client's own block is fitted first, against q(v_g) with the other rows in it; then it counts too.
    """
    old = [each for each in rows if each.name in model.clients]
    new = [each for each in rows if each.name not in model.clients]
    if model.sums or not new:
        for each in old:
            _check_new(model, each)
    elif model.clients:
        raise InputError(_why_not(model, next(iter(model.clients))))
    scored = tuple(
        surprise(model, each, learned_from=len(model.sums[each.name].rows) * model.outputs)
        for each in old
    )
    found = changed(model, old) if old else model
    found = replace(found, sums=_with_hashes(found, old, _more))
    for each in new:
        found = _joined(found, each, adopt)
    done = Updated(
        rows={each.name: _count(each) for each in rows},
        new_clients=tuple(each.name for each in new),
        surprises=scored,
        p=together(scored),
    )
    return _recorded(found, "update", done), done


def retrained(
    before: FittedModel, now: FittedModel, new: Sequence[ClientRows]
) -> tuple[FittedModel, Updated]:
    """A model that was trained again, with the names, settings and history of the one before it."""
    done = Updated(
        rows={each.name: _count(each) for each in new},
        new_clients=tuple(each.name for each in new if each.name not in before.clients),
    )
    kept = {**before.settings, **{key: now.settings[key] for key in LEARNED if key in now.settings}}
    found = replace(
        now,
        kernel=before.kernel,
        local_kernel=before.local_kernel,
        input_names=before.input_names,
        output_names=before.output_names,
        settings=kept,
        metrics=dict(before.metrics),
    )
    return _recorded(found, "retrain", done), done


def forgotten(
    model: FittedModel, client: str, rows: ClientRows | None
) -> tuple[FittedModel, Updated]:
    """The model without some of a client's rows, or without the client."""
    if client not in model.clients:
        raise InputError(
            f"no client {client!r} in the model; it has {listed(list(model.clients), 5)}"
        )
    kept = _sums(model, client)
    if rows is not None and not np.isfinite(rows.Y).any():
        raise InputError(f"client {client!r}: no row with an observed output was given")
    if rows is None or _count(rows) >= len(kept.rows):
        if rows is not None:
            _check_there(rows, kept)
        if len(model.clients) == 1:
            raise InputError(f"{client!r} is the only client: delete the model instead")
        found = changed(model, leaving=[client])
        done = Updated({client: len(kept.rows)}, gone_clients=(client,))
        return _recorded(found, "forget", done), done
    _check_there(rows, kept)
    found = changed(model, [rows], sign=-1.0)
    found = replace(found, sums=_with_hashes(found, [rows], _less))
    done = Updated({client: _count(rows)})
    return _recorded(found, "forget", done), done


def _joined(model: FittedModel, rows: ClientRows, adopt: Adopt) -> FittedModel:
    """The model with one more client, whose rows count in q(v_g)."""
    found = adopt(model, rows)
    if found.sums is None:
        raise InputError(
            f"client {rows.name!r} can only be adopted: its rows cannot be counted in the global "
            "layer of this model (use `adopt`, or fit again with all rows)"
        )
    return changed(found.into(model, rows.name), joining=[rows.name])


# -------------------------------------------------------------------------------------------- checks


def _sums(model: FittedModel, client: str) -> KeptSums:
    if client not in model.sums:
        raise InputError(_why_not(model, client))
    return model.sums[client]


def _why_not(model: FittedModel, client: str) -> str:
    """What is missing for an update, and how to get it."""
    if model.settings.get("privacy") in DIFFERENTIAL:
        return "a private model cannot be updated: its rows were released once, and are spent"
    if model.inference != "structured":
        return (
            f"a model of inference={model.inference!r} keeps no sums to add rows to: "
            "fit again with all rows"
        )
    if model.cycle_layer is not None:
        return "a model with a cycle layer keeps no sums to add rows to: fit again with all cycles"
    return (
        f"the model keeps no sums for client {client!r} (it was saved by an earlier version, or fitted "
        "to cycles, or clients are so many that their sums would take over 2 GiB): fit again with this "
        "version and all rows (for many clients with a smaller `local_inducing`), and later rows can be "
        "added"
    )


def _check_new(model: FittedModel, rows: ClientRows) -> None:
    """Refuses rows that are in the model already, and outputs that the client never had."""
    kept = _sums(model, rows.name)
    if rows.counts is not None:
        raise InputError("`update` takes rows, not cycles: fit again with all cycles")
    _check_outputs(model, rows)
    inputs, whole = row_hashes(rows.name, rows.X, rows.Y)
    repeats = len(np.unique(kept.inputs)) < len(kept.inputs)
    there = np.isin(whole, kept.rows) if repeats else np.isin(inputs, kept.inputs)
    if there.any():
        first = int(np.flatnonzero(np.isfinite(rows.Y).any(axis=1))[np.flatnonzero(there)[0]])
        what = "row" if repeats else "input"
        raise RowError(
            f"client {_braced(rows.name)}: {int(there.sum())} of {len(there)} rows are in the model already "
            f"(the first is {{row}}, by its {what}): drop them, or `forget` the old ones first",
            client=rows.name,
            row=first,
        )


def _check_outputs(model: FittedModel, rows: ClientRows) -> None:
    block = model.clients[rows.name].block
    known = np.any(np.asarray(block.loadings) != 0, axis=1) if model.outputs > 1 else [True]
    seen = np.isfinite(rows.Y).any(axis=0)
    for q in np.flatnonzero(seen & ~np.asarray(known)):
        if np.shape(block.loadings)[1]:
            raise InputError(
                f"client {rows.name!r}: output {model.output_names[q]!r} was never observed there "
                "before, so its parameters are unknown: fit again with all rows"
            )


def _check_there(rows: ClientRows, kept: KeptSums) -> None:
    """Refuses to forget rows that were never added, or were other rows."""
    _, whole = row_hashes(rows.name, rows.X, rows.Y)
    there = np.isin(whole, kept.rows)
    if len(np.unique(whole)) < len(whole):
        raise InputError(f"client {rows.name!r}: the same row is given twice: give it once")
    if not there.all():
        missing = int(np.flatnonzero(np.isfinite(rows.Y).any(axis=1))[np.flatnonzero(~there)[0]])
        raise RowError(
            f"client {_braced(rows.name)}: {int((~there).sum())} of {len(there)} rows are not in the model "
            f"(the first is {{row}}): give the rows exactly as they were fitted or added",
            client=rows.name,
            row=missing,
        )


def _braced(name: str) -> str:
    """A name in a text that `str.format` is called on."""
    return repr(name).replace("{", "{{").replace("}", "}}")


def _with_hashes(
    model: FittedModel, rows: Sequence[ClientRows], change: Change
) -> dict[str, KeptSums]:
    found = dict(model.sums)
    for each in rows:
        inputs, whole = row_hashes(each.name, each.X, each.Y)
        kept = found[each.name]
        x = each.X[np.isfinite(each.Y).any(axis=1), 0]
        span = kept.span
        if span is not None:
            last = max(span[0], x.max()) if change is _more else _last_without(span, x)
            span = np.array([last, span[1]])
        found[each.name] = replace(
            kept, inputs=change(kept.inputs, inputs), rows=change(kept.rows, whole), span=span
        )
    return found


def _last_without(span: np.ndarray, gone: np.ndarray) -> float:
    """Where the last row is when the last ones have gone: one usual step before the first of them.

    The model keeps no rows, so that this is a guess if their steps differ.
    """
    last, step = (float(each) for each in span)
    for x in np.sort(gone)[::-1]:
        if x < last - 0.5 * step:
            break
        last = float(x) - step
    return last


def _more(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    return np.concatenate([old, new])


def _less(old: np.ndarray, gone: np.ndarray) -> np.ndarray:
    """`old` without each of `gone` as often as it is there."""
    order = np.argsort(old, kind="stable")
    values, counts = np.unique(gone, return_counts=True)
    first = np.searchsorted(old[order], values)
    out = np.concatenate([order[f : f + c] for f, c in zip(first, counts, strict=True)])
    return np.delete(old, out)


def _count(rows: ClientRows) -> int:
    return int(np.isfinite(rows.Y).any(axis=1).sum())


def _recorded(model: FittedModel, what: str, done: Updated) -> FittedModel:
    """With a line about what was done among the model's metrics."""
    lines = [*model.metrics.get("updates", ()), {"what": what, **done.to_json()}]
    return replace(model, metrics={**model.metrics, "updates": lines})
