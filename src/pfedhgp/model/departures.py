"""How far a client departs from the global function, as users see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.posterior import ClientPosterior

SURE = 0.95
"""How probable a claim must be"""
MOST_ODDS = 1e6


@dataclass(frozen=True)
class Departure:
    """φ_i of a client: the variance of its deviation, as a share of the global function's.

    `phi` is the median, `lower` to `upper` the 95% interval of a client that departs; `sd` is the standard
    deviation of its deviation in the output's units, with its interval. `odds` compare departing with
    φ_i = 0, before that an even chance.
    """

    phi: float
    lower: float
    upper: float
    sd: float
    sd_lower: float
    sd_upper: float
    log_odds: float

    @property
    def odds(self) -> float:
        """How many times more probable it is that the client departs than that it does not."""
        return float(np.exp(np.clip(self.log_odds, -np.log(MOST_ODDS), np.log(MOST_ODDS))))

    @property
    def probability(self) -> float:
        """That the client departs."""
        return float(1.0 / (1.0 + np.exp(-np.clip(self.log_odds, -700.0, 700.0))))

    @property
    def verdict(self) -> str:
        """ "departs" or "does not depart" if that is at least 95% sure; else what there is a sign of."""
        if self.probability >= SURE:
            return "departs"
        if self.probability <= 1.0 - SURE:
            return "does not depart"
        return "may depart" if self.probability >= 0.5 else "no sign of departing"

    def to_json(self) -> dict[str, Any]:
        """For `metrics.json`."""
        return {**asdict(self), "probability": self.probability, "verdict": self.verdict}

    @property
    def odds_in_words(self) -> str:
        """The odds as people say them: "20 to 1 that it departs"."""
        times = max(self.odds, 1.0 / self.odds)
        more = "over " if times >= 1000.0 else ""
        shown = f"{min(times, 1000.0):.2g}" if times < 10.0 else f"{min(times, 1000.0):.0f}"
        return f"{more}{shown} to 1 {'for' if self.log_odds >= 0.0 else 'against'}"


def departures(model: FittedModel) -> dict[str, Departure]:
    """Of all clients for which it is known, in the model's order."""
    every = ((name, departure_of(model, own)) for name, own in model.clients.items())
    return {name: found for name, found in every if found is not None}


def departure_of(model: FittedModel, own: ClientPosterior) -> Departure | None:
    """One client's; None: not known."""
    if own.departure is None:
        return None
    unit = float(np.max(model.scaling.spread))
    low, phi, high, sd_low, sd, sd_high, log_odds = (float(v) for v in own.departure)
    return Departure(phi, low, high, unit * sd, unit * sd_low, unit * sd_high, log_odds)


def in_words(found: Mapping[str, Departure]) -> str | None:
    """How many clients depart, and which most; None: nothing is known."""
    if not found:
        return None
    counts: dict[str, int] = {}
    for each in found.values():
        counts[each.verdict] = counts.get(each.verdict, 0) + 1
    order = ("departs", "may depart", "no sign of departing", "does not depart")
    one_or_more = {
        "departs": ("departs", "depart"),
        "may depart": ("may depart", "may depart"),
        "no sign of departing": ("shows no sign of it", "show no sign of it"),
        "does not depart": ("does not", "do not"),
    }
    said = [f"{counts[w]} {one_or_more[w][counts[w] > 1]}" for w in order if w in counts]
    text = f"of {len(found)} clients, {', '.join(said)}"
    name, most = max(found.items(), key=lambda item: item[1].phi)
    if most.verdict == "departs":
        text += (
            f"; {name!r} departs most, φ = {most.phi:.2g} ({most.lower:.2g} to {most.upper:.2g})"
        )
    return text
