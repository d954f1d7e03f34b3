"""What a refusal shows of a value, and how names are shortened. Checks: test_federated_gp_arguments.py."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pfedhgp import FederatedGP
from pfedhgp.base import checks
from pfedhgp.base.progress import progress
from pfedhgp.errors import InputError

T = np.linspace(0.0, 1.0, 8)
SITES = {"a": (T, np.sin(6 * T)), "b": (T, np.cos(6 * T))}
TABLE = pd.DataFrame({"site": ["a"] * 8 + ["b"] * 8, "t": [*T, *T], "y": [*T, *-T]})


def test_a_message_never_shows_a_table():
    for value in (TABLE, SITES, np.arange(3.0), [T], "x" * 500):
        text = str(checks.refusal("kernel", "a kernel", value))
        assert text == f"`kernel` must be a kernel, got a value of type {type(value).__name__}"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["north", " south", ""], "north, ' south', ''"),
        (["a", "b", "c", "d"], "a, b, c and 1 more"),
        (["x" * 70], "x" * 59 + "…"),
        (["a\nb"], "'a\\nb'"),
    ],
)
def test_names_are_listed_in_one_line(names, text):
    assert checks.listed(names, 3) == text


def no_record() -> None:
    """A callback that takes nothing."""


@pytest.mark.parametrize(
    ("callback", "said"),
    [
        (no_record, "`callbacks`: no_record must take one argument, the record of a round"),
        (lambda record, more: None, "must take one argument"),
        (progress, "progress must take one argument"),
        (progress(rounds=2), "`with progress(...) as show:`, and then callbacks=[show]"),
    ],
    ids=["none", "two", "function", "not entered"],
)
def test_callbacks_of_the_wrong_shape_are_refused_before_training(callback, said):
    seen = []
    with pytest.raises(InputError) as caught:
        FederatedGP(rounds=1, callbacks=[seen.append, callback]).fit(SITES)
    assert said in str(caught.value)
    assert seen == []


def test_callbacks_that_take_a_record():
    def with_more(record, more=None):
        """Also other arguments, if they have defaults."""

    given = [print, with_more, lambda *all_of_it: None, [].append]
    assert checks.functions(given, "callbacks") == tuple(given)
