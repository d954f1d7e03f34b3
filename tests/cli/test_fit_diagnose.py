"""`fit --diagnose`: rows become cycles of classes; refusals. docs/diagnosis.md has it from end to end."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from pfedhgp.cli.config import Config, Data, Model
from pfedhgp.cli.diagnosing import _cycles, check
from pfedhgp.data.readers import Observations
from pfedhgp.errors import InputError

GRID = np.array([[0.0], [1.0], [2.0]])
COLUMNS = ("--client", "state", "--input", "x", "--output", "y")


def rows() -> Observations:
    """Cycle b before cycle a, and a lacks its last sample."""
    X = np.array([[0.0], [1.0], [2.0], [1.0], [0.0]])
    Y = np.array([[1.0], [2.0], [3.0], [5.0], [4.0]])
    return Observations("worn", X, Y, np.array(list("bbbaa")), np.arange(5) + 10)


def test_rows_become_cycles_in_their_order_with_gaps():
    blocks = np.array([""] * 10 + ["late"] * 3 + ["early"] * 2, dtype=object)
    cycles, owners = _cycles(rows(), GRID, blocks)
    np.testing.assert_array_equal(cycles, [[[1.0, 2.0, 3.0]], [[4.0, 5.0, np.nan]]])
    assert owners == ["late", "early"]
    assert _cycles(rows(), GRID, None)[1] == []


def test_a_cycle_in_two_blocks_or_with_two_rows_is_refused():
    blocks = np.array([""] * 10 + ["1", "2", "2", "2", "2"], dtype=object)
    with pytest.raises(InputError, match="'worn': cycle 'b' is in two blocks"):
        _cycles(rows(), GRID, blocks)
    twice = rows().take(np.array([0, 0, 1]))
    with pytest.raises(InputError, match="'worn': a cycle has two rows at the same inputs"):
        _cycles(twice, GRID, None)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--diagnose"], "--diagnose needs --cycle"),
        (["--cycle", "c", "--block", "b"], "--block is for --diagnose"),
        (["--cycle", "c", "--diagnose", "--cycles", "free"], "leave --cycles and --cycle-sharing"),
        (["--cycle", "c", "--diagnose", "--block", "nose"], "no column 'nose'"),
        (["--cycle", "c", "--diagnose"], "it needs two at least, and there is one"),
    ],
)
def test_what_cannot_be_diagnosed_is_one_line(run, tmp_path, more, words):
    table = {"state": "one", "c": [1, 1, 2, 2], "b": 1, "x": [0.0, 1.0] * 2, "y": [1.0, 2, 3, 4]}
    pl.DataFrame(table).write_csv(tmp_path / "t.csv")
    done = run("fit", tmp_path / "t.csv", *COLUMNS, *more, "--out", tmp_path / "RUN")
    assert words in done.complaint
    assert not (tmp_path / "RUN").exists()


def test_a_federation_of_sites_does_not_diagnose():
    config = Config(data=Data(cycle="c"), model=Model(diagnose=True))
    with pytest.raises(InputError, match="use `pfedhgp fit`"):
        check(config, federated=True)
    check(config, federated=False)
