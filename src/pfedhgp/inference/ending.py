"""How training ended: converged, at its limit of rounds, or because a callback asked; and in what words.

Training has settled when two rounds in a row gained nearly nothing and none before was better. It has also
settled if six rounds in a row brought nearly nothing: below a round that was better some trainings stay for
good, and others go up and down for ever as steps of θ_g are tried and taken back.

Training does not go back to an earlier round. A step of θ_g that lowers the bound is taken back in the
round after it, θ_g rests before the last round, and training never ends early below a bound that it had: so
the last round is mostly the best one. Not always: clients move at once, and of a training that ends at a low
limit of rounds (six, once, by 8 nats) nothing takes the last steps back. The words then say by how much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pfedhgp.errors import ConvergenceWarning, warn_caller

CONVERGED, LIMIT, STOPPED = "converged", "limit", "stopped"
NOISE = 0.05
"""Nats a client by which a bound may fall because clients move at the same time; the server allows for it."""

STILL = 6
"""Rounds in a row that change nearly nothing: training has settled, even if an earlier round was better."""


def gain_a_round(bounds: Sequence[float]) -> float | None:
    """(bound − bound two rounds ago)/2; the last round alone says little, because θ_g rests before it."""
    return 0.5 * (bounds[-1] - bounds[-3]) if len(bounds) > 2 else None


def may_end(bounds: Sequence[float], slack: float) -> bool:
    """Whether the last bound is the highest so far, but for `slack` nats."""
    return bounds[-1] >= max(bounds) - slack


def has_converged(bounds: Sequence[float], slack: float) -> bool:
    """Whether the last two rounds gained less than `slack` nats each, and no round before was better.

    Or six rounds brought nothing (`stands_still`).
    """
    if len(bounds) < 3:
        return False
    most = max(bounds[-1] - bounds[-2], bounds[-2] - bounds[-3])
    return (most < slack and may_end(bounds, slack)) or stands_still(bounds, slack)


def stands_still(bounds: Sequence[float], slack: float) -> bool:
    """Whether six rounds stayed within `slack` nats, or went up and down and the last one is the best.

    Or they went up and down between the same two bounds, and the last one is up: three rounds are then as
    high and as low as the three before, wherever the best one was.

    >>> stands_still([-9.0, -3.0, *[-5.0] * 7], 0.1), stands_still([-5.0, *[-6.0, -5.0] * 3], 0.1)
    (True, True)
    >>> stands_still([-9.0, -3.0, -5.0, *[-6.0, -5.0] * 3], 0.1)
    True
    """
    last = bounds[-STILL - 1 :]
    if len(last) <= STILL:
        return False
    gained = max(bounds) - max(bounds[:-STILL])
    return (
        max(last) - min(last) < slack
        or (gained < slack and may_end(bounds, slack))
        or (_repeats(last, 0.5 * slack) and may_end(last, slack))
    )


def _repeats(bounds: Sequence[float], slack: float) -> bool:
    """Whether the last three bounds are as high and as low as the three before, but for `slack` nats."""
    now, before = bounds[-3:], bounds[-6:-3]
    return abs(max(now) - max(before)) < slack and abs(min(now) - min(before)) < slack


def outcome(bounds: Sequence[float], *, converged: bool, stopped: bool, slack: float) -> str:
    """What the last record of a training says of its end; `slack` is the tolerance of all clients in nats.

    At the limit of rounds, training has converged too if its last two gained no more than the tolerance.

    >>> outcome([-9.0, -5.0, -4.99, -4.985], converged=True, stopped=False, slack=0.1)
    'converged'
    >>> outcome([-9.0, -5.0, -4.0, -3.0], converged=False, stopped=False, slack=0.1)
    'limit'
    """
    if converged:
        return CONVERGED
    if stopped:
        return STOPPED
    gain = gain_a_round(bounds)
    if stands_still(bounds, slack):
        return CONVERGED
    still = gain is None or abs(gain) >= slack or not may_end(bounds, slack)
    return LIMIT if still else CONVERGED


def in_words(history: Sequence[Mapping[str, Any]]) -> str | None:
    """How the training that was kept ended (with restarts, the best one); None if that is not known.

    >>> rounds = [
    ...     {"round": i, "attempt": 0, "bound": b} for i, b in enumerate((-9.0, -5.0, -4.0, -3.0))
    ... ]
    >>> in_words([*rounds[:3], {**rounds[3], "ended": "limit"}])
    'stopped at the limit of 3 rounds, still gaining 1 nat a round'
    """
    ends = [h for h in history if h.get("ended")]
    if not ends:
        return None
    last = max(ends, key=lambda h: float("-inf") if h["bound"] is None else h["bound"])
    mine = [h for h in history if h.get("attempt") == last["attempt"]]
    rounds = sum(h.get("kind", "round") == "round" and h["round"] > 0 for h in mine)
    count = f"{rounds} round{'' if rounds == 1 else 's'}"
    bounds = [h["bound"] for h in mine]
    below = _below(bounds, int(last.get("clients") or 1))
    if last["ended"] == CONVERGED:
        return f"converged after {count}{below}"
    if None in bounds:  # of `mean-field`, whose start is a round too
        return (
            "stopped when asked" if last["ended"] == STOPPED else "stopped at the limit of rounds"
        )
    limit = "stopped when asked, after" if last["ended"] == STOPPED else "stopped at the limit of"
    gain, swing = gain_a_round(bounds), _swing(bounds)
    if swing is not None:
        return f"{limit} {count}, going up and down by {_nats(f'{swing:.2g}')}{below}"
    if below:
        return f"{limit} {count}{below}"
    if gain is None or gain <= 0:
        return f"{limit} {count}"
    return f"{limit} {count}, still gaining {_nats(f'{gain:.2g}')} a round"


def settled(history: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether the training that was kept ended because it had settled; None if that is not known."""
    words = in_words(history)
    if words is None or any(h["bound"] is None for h in history):
        return None
    return words.startswith(CONVERGED)


def unsettled(history: Sequence[Mapping[str, Any]]) -> str | None:
    """What is said of a training that reached its limit before it had settled, and what to do.

    None if it had settled, if a callback stopped it, or if that is not known.
    """
    words = in_words(history)
    if settled(history) is not False or words is None or words.startswith("stopped when asked"):
        return None
    done = sum(h.get("kind", "round") == "round" and h["round"] > 0 for h in history)
    return (
        f"training {words}: it has not settled, and uncertainty may be wrong; fit with a higher limit, such "
        f"as `rounds`={max(40, 3 * done)}"
    )


def warn_unsettled(history: Sequence[Mapping[str, Any]]) -> None:
    """Warns of a training that reached its limit of rounds before it had settled."""
    if (more := unsettled(history)) is not None:
        warn_caller(more, ConvergenceWarning)


def _swing(bounds: Sequence[float]) -> float | None:
    """How far the bound goes up and down, if it turned round after each of the last rounds; else None.

    >>> (
    ...     _swing([-9.0, 41.0, 43.0, 41.5, 43.5, 42.0, 43.0, 41.0]),
    ...     _swing([1.0, 2.0, 3.0, 3.1, 3.2, 3.3, 3.4]),
    ... )
    (2.5, None)
    """
    last = bounds[-STILL:]
    if len(bounds) <= STILL:
        return None
    steps = [b - a for a, b in pairwise(last)]
    turns = all(one * other < 0 for one, other in pairwise(steps))
    return max(last) - min(last) if turns else None


def _below(bounds: Sequence[float | None], clients: int) -> str:
    """By how much the last bound is below the best one, in words; nothing if that may be chance."""
    known = [float("-inf") if b is None else b for b in bounds]
    if None in bounds or max(known) - known[-1] <= NOISE * clients:
        return ""
    best = known.index(max(known))
    return f", {_nats(f'{known[best] - known[-1]:.2g}')} below round {best}"


def _nats(number: str) -> str:
    return f"{number} nat{'' if number == '1' else 's'}"
