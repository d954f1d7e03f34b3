"""What a reader must know before believing a number: said at the top of the page, with what to do."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from pfedhgp.base.checks import listed
from pfedhgp.inference import ending
from pfedhgp.model.posterior import limits_in_words
from pfedhgp.report import since, words
from pfedhgp.report.gathered import Gathered


class Alarm(NamedTuple):
    """One line: what is wrong, what it means, and what helps."""

    title: str
    text: str
    todo: str


def alarms(found: Gathered) -> list[Alarm]:
    """Training that has not settled, averages that left something out, parameters that have gone stale."""
    each = (_unsettled(found), _limited(found), _stale(found))
    return [alarm for alarm in each if alarm is not None]


def _unsettled(found: Gathered) -> Alarm | None:
    history = found.model.history
    told = ending.unsettled(history)
    if told is None:
        return None
    limit = re.search(r"`rounds`=(\d+)", told)
    rounds = limit[1] if limit else "40"
    return Alarm(
        "Training has not settled.",
        f"It {words.plain(ending.in_words(history) or '')}. "
        "Predictions may still move, and uncertainty may be wrong.",
        f"Fit again with a higher limit, such as --rounds {rounds} (in Python rounds={rounds}).",
    )


def _limited(found: Gathered) -> Alarm | None:
    """Directions that were only shortened are usual with few rows: nothing to be alarmed about."""
    clients = found.model.clients
    if limits_in_words(clients, unless_only_shortened=True) is None:
        return None
    reach = {n: own.tangents.reach for n, own in clients.items() if own.tangents is not None}
    left = {n: int(np.sum(np.asarray(s) == 0)) for n, s in reach.items() if s is not None}
    some = [words.shown(name, 24) for name, count in left.items() if count]
    settled, count = ending.settled(found.model.history), sum(left.values())
    return Alarm(
        "Some uncertainty is left out.",
        f"Averages over uncertain parameters leave out {count} direction{'' if count == 1 else 's'} at "
        f"{len(some)} of {len(clients)} clients ({listed(some, 3)}), whose intervals may be too narrow.",
        "More rows, or a simpler local kernel." if settled else "Fit with more rounds first.",
    )


def _stale(found: Gathered) -> Alarm | None:
    """Only the last rows that came count: what came before may have been seen to."""
    last = since.last_surprise(found.metrics)
    if last is None or not last["stale"]:
        return None
    return Alarm(
        "Parameters have gone stale.",
        f"The rows of the last update are not as the model expected (chance {last['p']:.2g}).",
        "Train again with all rows: pfedhgp update --retrain (in Python update(…, retrain=…)).",
    )
