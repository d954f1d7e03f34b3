"""Splits a table as the fit did: rows of the fit, and rows that it held out.

A RUN folder has no rows. It has the kind, share and seed of the split, and for each client the number of rows
and a four-digit checksum (`pfedhgp.data.holdout.ledger`). Given the same rows that is enough; other rows
count as neither fitted nor held out. For a report of a model whose rows came or went since, its own sums
say which rows are in it (`pfedhgp.model.kept_sums`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pfedhgp.base.checks import listed
from pfedhgp.data.columns import Columns
from pfedhgp.data.holdout import Holdout, is_the_same, split
from pfedhgp.data.readers import Observations, client_rows
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError, warn
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.kept_sums import row_hashes


@dataclass(frozen=True)
class GivenRows:
    """Rows of the fit, held-out rows, other rows of known clients, and names of unknown clients."""

    rows: Sequence[ClientRows] = ()
    held_out: Sequence[ClientRows] = ()
    others: Sequence[ClientRows] = ()
    strangers: tuple[str, ...] = ()


def parts_of(
    given: Sequence[Observations], columns: Columns, model: FittedModel, *, as_now: bool = False
) -> GivenRows:
    """Splits the rows as the fit did; `as_now` counts rows that came since, and not those that went."""
    known = [client for client in given if client.name in model.clients]
    strangers = tuple(client.name for client in given if client.name not in model.clients)
    lines = model.metrics.get("updates", ()) if as_now else ()
    changed = {name for line in lines for name in line["rows"]} & set(model.sums)
    grown = [_grown(each, model) for each in known if each.name in changed]
    rest = [each for each in known if each.name not in changed]
    training, test, others = _as_the_fit(rest, model)
    for part, own in zip((training, test, others), zip(*grown, strict=True), strict=False):
        part += [each for each in own if len(each.X)]
    rows, held_out, apart = (tuple(client_rows(part, columns)) for part in (training, test, others))
    return GivenRows(rows, held_out, apart, strangers)


Parts = tuple[list[Observations], list[Observations], list[Observations]]


def _as_the_fit(known: Sequence[Observations], model: FittedModel) -> Parts:
    """Rows of the fit, rows held out, and rows of clients whose rows are not those of the fit."""
    holdout = model.metrics.get("holdout")
    if model.metrics.get("data") is None and not holdout:
        return list(known), [], []  # saved from Python, with no record of held-out rows
    same = _same(known, model)
    found = {client.name for client in same}
    training, test = _split(same, holdout, model)
    return list(training), list(test), [client for client in known if client.name not in found]


def _grown(client: Observations, model: FittedModel) -> tuple[Observations, ...]:
    """Of a client whose rows came or went since the fit: rows in the model, rows held out, others.

    Its sums have a hash of each row, those that came at the end. Without these, rows that are those of the
    fit are split as it did.
    """
    kept, lines = model.sums[client.name], model.metrics.get("updates", ())
    seen = np.isfinite(client.Y).any(axis=1)
    repeats = len(np.unique(client.X, axis=0)) < len(
        client.X
    )  # replicates are one row of the model
    inside, late = np.ones(len(seen), bool), np.zeros(len(seen), bool)
    hashes = row_hashes(client.name, client.X, client.Y)[0 if repeats else 1]
    there = kept.inputs if repeats else kept.rows
    came = sum(line["rows"].get(client.name, 0) for line in lines if line["what"] != "forget")
    inside[seen] = np.isin(hashes, there)
    late[seen] = np.isin(hashes, there[len(there) - min(came, len(there)) :])
    before = client.take(~late)
    if not is_the_same(before, (model.metrics.get("data") or {}).get(client.name)):
        return client.take(inside), client.take(np.zeros(len(seen), bool)), client.take(~inside)
    test = _split([before], model.metrics.get("holdout"), model)[1]
    held = np.zeros(len(seen), bool)
    for each in test:
        held |= seen & ~inside & _among(client, each)
    return client.take(inside), client.take(held), client.take(~inside & ~held)


def _among(client: Observations, part: Observations) -> np.ndarray:
    """Which rows are among some of them."""
    whole, some = (np.nan_to_num(np.concatenate([c.X, c.Y], axis=1)) for c in (client, part))
    return np.asarray((whole[:, None] == some[None]).all(axis=2).any(axis=1))


def held_out_of(given: Sequence[Observations], model: FittedModel) -> list[Observations]:
    """The rows of the data that the fit held out. Clients whose rows have changed since are warned of."""
    holdout = model.metrics.get("holdout")
    if not holdout:
        raise InputError(
            "the fit held no rows out: fit with --holdout, such as --holdout random:0.2"
        )
    same = _same(given, model)
    if not same:
        raise InputError(
            "these rows are not those of the fit, so nobody can say which of them it held out: give the "
            "data that were fitted"
        )
    found = {client.name for client in same}
    changed = [client.name for client in given if client.name not in found]
    warn_of(changed, "the rows are not those of the fit, and are left out")
    return _split(same, holdout, model)[1]


def _same(given: Sequence[Observations], model: FittedModel) -> list[Observations]:
    """Clients whose rows are those of the fit."""
    entries = model.metrics.get("data") or {}
    return [client for client in given if is_the_same(client, entries.get(client.name))]


def _split(
    same: list[Observations], holdout: dict | None, model: FittedModel
) -> tuple[list[Observations], list[Observations]]:
    if not holdout:
        return same, []
    if model.settings.get("demo"):
        return _split_of_the_demo(same, holdout)
    return split(same, Holdout(holdout["kind"], holdout["fraction"], holdout["seed"]))


def _split_of_the_demo(
    same: list[Observations], holdout: dict
) -> tuple[list[Observations], list[Observations]]:
    from pfedhgp.data.demo_town import hold_out_blocks

    parted = hold_out_blocks(
        [ClientRows(client.name, client.X, client.Y) for client in same],
        fraction=holdout["fraction"],
        block_days=holdout["block_days"],
        seed=holdout["seed"],
    )
    training, test = [], []
    for client, left in zip(same, parted.train, strict=True):
        kept = np.isfinite(left.Y).any(axis=1)
        observed = np.isfinite(client.Y).any(axis=1)
        training.append(client.take(kept | ~observed))
        if (observed & ~kept).any():
            test.append(client.take(observed & ~kept))
    return training, test


def warn_of(names: Sequence[str], what: str) -> None:
    """One warning about some clients, if there are any."""
    if names:
        count = "client" if len(names) == 1 else f"{len(names)} clients:"
        warn(f"{count} {listed(names, 3)}: {what}", stacklevel=3)
