"""How training ended: which word, which sentence, and that it never ends early on a worse round."""

from __future__ import annotations

import pytest

from pfedhgp.inference import ending

SLACK = 0.1


@pytest.mark.parametrize(
    ("bounds", "word"),
    [
        ([-9.0, -5.0, -4.0, -3.0], "limit"),
        ([-9.0, -5.0, -4.99, -4.98], "converged"),  # at the limit, and flat
        ([-9.0, -4.0, -3.0, -3.0], "limit"),  # θ_g rested before the last round: flat by that alone
        ([-9.0, -3.0, -5.0, -5.0], "limit"),  # flat, and lower than it was
        ([-9.0, -3.0, *[-5.0] * 6], "limit"),  # five rounds that change nothing, and six
        ([-9.0, -3.0, *[-5.0] * 7], "converged"),
        ([-9.0, -5.0], "limit"),  # one round says nothing
        ([], "limit"),  # nobody knows the bound
    ],
)
def test_the_limit_of_rounds_is_convergence_only_where_it_is(bounds, word):
    assert ending.outcome(bounds, converged=False, stopped=False, slack=SLACK) == word
    assert ending.outcome(bounds, converged=True, stopped=False, slack=SLACK) == "converged"
    assert ending.outcome(bounds, converged=False, stopped=True, slack=SLACK) == "stopped"


def history(bounds, ended, attempt=0):
    kinds = ["start", *["round"] * (len(bounds) - 1)]
    found = [
        {"round": i, "kind": kind, "attempt": attempt, "bound": b}
        for i, (kind, b) in enumerate(zip(kinds, bounds, strict=True))
    ]
    return [*found[:-1], {**found[-1], "ended": ended}]


@pytest.mark.parametrize(
    ("bounds", "ended", "words"),
    [
        (
            [-9.0, -5.0, -4.0, -3.5],
            "limit",
            "stopped at the limit of 3 rounds, still gaining 0.75 nats a round",
        ),
        ([-9.0, -5.0], "limit", "stopped at the limit of 1 round"),
        ([-9.0, -3.0, -5.0], "limit", "stopped at the limit of 2 rounds, 2 nats below round 1"),
        ([-9.0, -5.0, -4.99], "converged", "converged after 2 rounds"),
        (
            [-9.0, -3.0, *[-5.0] * 7],
            "converged",
            "converged after 8 rounds, 2 nats below round 1",
        ),
        (
            [-9.0, -5.0, -4.0],
            "stopped",
            "stopped when asked, after 2 rounds, still gaining 2.5 nats a round",
        ),
        ([None, None], "limit", "stopped at the limit of rounds"),
    ],
)
def test_the_sentence(bounds, ended, words):
    assert ending.in_words(history(bounds, ended)) == words


def test_of_restarts_the_one_that_was_kept_is_told():
    both = history([-9.0, -5.0, -4.99], "converged") + history([-9.0, -4.0, -2.0], "limit", 1)
    assert ending.in_words(both).startswith("stopped at the limit of 2 rounds")
    assert ending.in_words([]) is None
    assert ending.in_words([{"round": 0, "bound": 1.0, "attempt": 0}]) is None  # an older model's


def converged_after(bounds) -> int | None:
    """The round after which training with a tolerance of 0.1 ends early."""
    rounds = range(1, len(bounds))
    return next((n for n in rounds if ending.has_converged(bounds[: n + 1], SLACK)), None)


def test_training_never_ends_early_on_a_worse_round():
    assert converged_after([-9.0, -5.0, -4.99, -4.98]) == 3
    # Two rounds without a gain, but a nat below the best: it goes on until it is back there.
    assert converged_after([-9.0, -4.0, -5.0, -5.0]) is None
    assert converged_after([-9.0, -4.0, -5.0, -5.0, -4.05, -4.04, -4.03]) == 6


def test_six_rounds_that_change_nothing_have_settled_wherever_they_are():
    below = [-9.0, -3.0, *[-5.0 + 0.01 * (i % 2) for i in range(7)]]
    assert ending.has_converged(below, SLACK)
    assert not ending.has_converged(below[:-1], SLACK)
    assert not ending.has_converged([-9.0, -3.0, *[-5.0 + 0.03 * i for i in range(7)]], SLACK)


def test_up_and_down_for_ever_has_settled_when_it_is_up():
    """A step of θ_g is tried and taken back, again and again."""
    waves = [-9.0, -5.0, *[-5.6, -5.0] * 3]
    assert ending.has_converged(waves, SLACK)
    assert ending.outcome(waves, converged=False, stopped=False, slack=SLACK) == "converged"
    assert not ending.has_converged(waves[:-1], SLACK), "down"
    assert not ending.has_converged(waves[:-2], SLACK), "four rounds"
    assert not ending.has_converged([*waves[:-1], -4.8], SLACK), "better than before"


def test_up_and_down_between_the_same_bounds_has_settled_below_a_better_round():
    """The bounds of six sites with a daily wave, which went on like this for 20 rounds more."""
    bounds = [
        -128.4,
        81.4,
        88.8,
        100.8,
        114.9,
        121.03,
        120.81,
        120.52,
        119.64,
        118.93,
        119.49,
        120.0,
    ]
    bounds += [119.94, 120.24, 120.07, 120.31, 120.11, 120.32, 120.14, 120.32, 120.16, 120.33]
    bounds += [120.16, 120.32, 120.17]
    ends = [n for n in range(len(bounds)) if ending.has_converged(bounds[: n + 1], 0.06)]
    assert ends == [23]
    climbs = [
        -9.0,
        -3.0,
        *[-5.0 + 0.02 * i - 0.3 * (i % 2) for i in range(9)],
    ]  # slowly, and up and down
    assert not ending.has_converged(climbs, SLACK)


def test_what_is_said_if_it_has_not_settled():
    said = ending.unsettled(history([-9.0, -5.0, -4.0, -3.5], "limit"))
    assert said.endswith("fit with a higher limit, such as `rounds`=40")
    assert ending.unsettled(history([-9.0, -5.0, -4.99], "converged")) is None
    assert ending.unsettled(history([-9.0, -5.0, -4.0], "stopped")) is None
    assert ending.unsettled(history([None, None], "limit")) is None
    assert ending.unsettled([]) is None
    many = [-100.0 + i for i in range(41)]
    assert "`rounds`=120" in ending.unsettled(history(many, "limit"))


def test_words_of_a_training_that_goes_up_and_down_at_its_limit():
    """The bounds of a fit that rose by 4 nats more in the 24 rounds after its limit."""
    bounds = [40.63, 43.64, 42.36, 43.59, 42.07, 43.75, 41.56, 43.47]
    history = [{"round": i, "attempt": 0, "bound": b} for i, b in enumerate(bounds)]
    history[-1] |= {"ended": "limit", "clients": 8}
    assert (
        ending.in_words(history)
        == "stopped at the limit of 7 rounds, going up and down by 2.2 nats"
    )
    assert ending.settled(history) is False
