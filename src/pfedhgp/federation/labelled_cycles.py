"""A site's rows as cycles of known classes, by the agreed columns; and the terms of a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pfedhgp.data.readers import Observations
from pfedhgp.data.rows import by_appearance
from pfedhgp.data.table import Table
from pfedhgp.data.tables import gathered
from pfedhgp.diagnosis.federated.terms import SiteCycles, Terms
from pfedhgp.errors import InputError
from pfedhgp.settings.config import Config


def check_diagnosis(config: Config) -> None:
    """What a diagnosis in a federation needs to be told."""
    if not config.diagnose:
        return
    for given, what in (
        (config.cycle, "`cycle` in [data] is missing: the column that numbers the cycles"),
        (
            config.label,
            "`label` in [data] is missing: the column that names the class of each cycle",
        ),
        (config.classes, "`classes` in [data] is missing: the names of all classes"),
    ):
        if not given:
            raise InputError(f"diagnose = true: {what}")
    if config.cycles != Config.cycles or config.cycle_sharing != Config.cycle_sharing:
        raise InputError(
            "diagnose = true has layers of runs and cycles of its own: leave `cycles` and `cycle_sharing` out"
        )


def terms_of(config: Config, channels: Sequence[str]) -> Terms | None:
    """The terms of the diagnosis of these channels, if there is one."""
    if not config.diagnose:
        return None
    return Terms(
        classes=tuple(config.classes or ()),
        channels=tuple(channels),
        blocks=config.block is not None,
        rank=None if config.cycle_basis == "auto" else int(config.cycle_basis),
        false_alarms=config.false_alarms,
        seed=config.seed,
    )


def labelled(
    whole: Observations, tables: Sequence[Table], config: Config, terms: Terms
) -> tuple[Observations, SiteCycles]:
    """The rows with cycles told apart by class, and the same as whole cycles.

    `whole` has the rows of the tables one after another. A cycle's number may come again in another class.
    """
    assert whole.cycle is not None
    label = _texts(tables, str(config.label))
    number = np.asarray([f"{k}/{c}" for k, c in zip(label, whole.cycle, strict=True)])
    which = by_appearance(number)
    first = np.array([np.flatnonzero(which == c)[0] for c in range(int(which.max()) + 1)])
    runs = None
    if config.block is not None:
        runs = _texts(tables, config.block)
        for c in range(len(first)):
            if len(set(runs[which == c])) > 1:
                raise InputError(f"cycle {str(whole.cycle[first[c]])!r} is in two blocks")
            if not runs[first[c]].strip():
                raise InputError(f"cycle {str(whole.cycle[first[c]])!r} has no block")
        runs = runs[first]
    grid = np.unique(whole.X, axis=0)
    found = np.moveaxis(gathered(whole.name, grid, whole.X, whole.Y, number), 1, 2)
    empty = np.flatnonzero(np.isnan(found).all(axis=(1, 2)))
    if len(empty):
        raise InputError(f"cycle {str(whole.cycle[first[empty[0]]])!r} has no value")
    own = SiteCycles.of(terms, grid, found, label[first].tolist(), runs)
    return replace(whole, cycle=number), own


def _texts(tables: Sequence[Table], name: str) -> np.ndarray:
    """A column of all tables as texts."""
    import polars as pl

    parts = [table.column(name).cast(pl.String).fill_null("").to_list() for table in tables]
    return np.asarray([text for part in parts for text in part])
