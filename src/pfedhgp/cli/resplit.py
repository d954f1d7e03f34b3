"""Splits a table as the fit did: rows of the fit, and rows that it held out.

A RUN folder has no rows. It has the kind, share and seed of the split, and for each client the number of rows
and a four-digit checksum (`pfedhgp.data.holdout.ledger`). Given the same rows that is enough; other rows
count as neither fitted nor held out.
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


@dataclass(frozen=True)
class GivenRows:
    """Rows of the fit, held-out rows, other rows of known clients, and names of unknown clients."""

    rows: Sequence[ClientRows] = ()
    held_out: Sequence[ClientRows] = ()
    others: Sequence[ClientRows] = ()
    strangers: tuple[str, ...] = ()


def parts_of(given: Sequence[Observations], columns: Columns, model: FittedModel) -> GivenRows:
    """Splits the rows as the fit did."""
    known = [client for client in given if client.name in model.clients]
    strangers = tuple(client.name for client in given if client.name not in model.clients)
    ledger = model.metrics.get("data")
    holdout = model.metrics.get("holdout")
    if ledger is None and not holdout:  # saved from Python, with no record of held-out rows
        return GivenRows(rows=client_rows(known, columns), strangers=strangers)
    same = _same(known, model)
    found = {client.name for client in same}
    others = [client for client in known if client.name not in found]
    training, test = _split(same, holdout, model)
    rows, held_out, apart = (client_rows(part, columns) for part in (training, test, others))
    return GivenRows(rows, held_out, apart, strangers)


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
