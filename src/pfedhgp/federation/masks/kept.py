"""The server's part of secure aggregation as a state on its disk, so that a killed server goes on.

Who is asked is kept before they are asked, and who is summed before that is signed: sites answer one question
and sign one set of survivors in an exchange.
"""

from __future__ import annotations

import numpy as np

from pfedhgp.errors import InputError
from pfedhgp.federation.masks import stored
from pfedhgp.federation.masks.aggregator import Aggregator
from pfedhgp.federation.masks.roster import Card
from pfedhgp.inference.arrays import State

CARD = ("public", "signature")


def state_of(aggregator: Aggregator) -> State:
    """Everything but the signatures, which are asked for again."""
    replies = {name: stored.to_json(each) for name, each in aggregator.replies.items()}
    for each in replies.values():
        del each["values"]
    plain = {
        "roster": aggregator.scope.roster.digest.hex(),
        "run": aggregator.scope.run,
        "cards": stored.to_json(aggregator.cards),
        "adverts": stored.to_json(aggregator.adverts),
        "question": stored.to_json(aggregator.question),
        "asked": stored.to_json(aggregator.asked),
        "replies": replies,
        "survivors": list(aggregator.survivors),
        "received": aggregator.received,
    }
    return State({name: each.values for name, each in aggregator.replies.items()}, plain)


def restore(aggregator: Aggregator, state: State) -> None:
    """Puts `state` back, if it is of the same run and sites."""
    plain, scope = state.plain, aggregator.scope
    if plain["roster"] != scope.roster.digest.hex():
        raise InputError(
            "the list of sites is not the one that the run with masks began with: put it back, or start "
            "again with --overwrite"
        )
    if plain["run"] != scope.run:
        raise InputError("the masks belong to another run: start again with --overwrite")
    cards = {n: stored.boxes_from({k: c[k] for k in CARD}) for n, c in plain["cards"].items()}
    aggregator.cards = {name: Card(name, **card) for name, card in cards.items()}
    aggregator.adverts = {n: stored.advert_from(a) for n, a in plain["adverts"].items()}
    question = plain["question"]
    aggregator.question = stored.question_from(question) if question else None
    aggregator.asked = {n: stored.advert_from(a) for n, a in plain["asked"].items()}
    aggregator.replies = {
        name: stored.reply_from(each, np.asarray(state.arrays[name], np.uint64))
        for name, each in plain["replies"].items()
    }
    aggregator.survivors, aggregator.signatures = tuple(plain["survivors"]), {}
    aggregator.received = int(plain["received"])
