"""Values that look like codes for missing are told, and those that may be real are not."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.data.missing_codes import warn_of_codes
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import PFedHGPWarning


def told(**outputs) -> list[str]:
    clients = [
        ClientRows(name, np.zeros((len(y), 1)), np.asarray(y, float).reshape(len(y), -1))
        for name, y in outputs.items()
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_codes(clients, ["pm25"])
    assert all(issubclass(each.category, PFedHGPWarning) for each in caught)
    return [str(each.message) for each in caught]


WAVE = np.sin(np.arange(30.0))


@pytest.mark.parametrize("code", [-999.0, -9999.0, 9999.0, -99.0, 999.9])
def test_one_cell_of_a_usual_code_is_enough(code):
    (line,) = told(a=WAVE, b=np.append(WAVE, code))
    assert line.startswith(f"output 'pm25': 1 value of {code:g} at client b looks like a code for")
    assert "NaN" in line


def test_codes_of_several_kinds_and_clients():
    lines = told(
        a=np.append(WAVE, [-999.0, -999.0]), b=np.append(WAVE, [-999.0, 9999.0]), c=WAVE + np.nan
    )
    assert len(lines) == 2
    assert "1 value of 9999 at client b" in lines[0]
    assert "3 values of -999 at clients a, b look like" in lines[1]


def test_an_extreme_that_repeats_far_from_the_rest():
    (line,) = told(a=np.append(WAVE, [-7777.0] * 3), b=WAVE)
    assert "3 values of one extreme at client a" in line
    assert "7777" not in line  # no value of the data is shown
    assert told(a=np.append(WAVE, [-7777.0] * 2), b=WAVE) == []


@pytest.mark.parametrize(
    "values",
    [
        np.arange(0.0, 12_000.0, 111.1),  # 999.9 and 9999 are among many others
        np.append(900.0 + 50 * WAVE, 999.0),
        np.append(WAVE, 1.9),  # an outlier
        np.append(WAVE, np.full(20, -1.0)),  # a floor that is not far
        np.full(12, -999.0),
        [-999.0, 1.0],
        [0.0, 1.0] * 8 + [1.0] * 8,  # yes and no
    ],
    ids=["wide", "near", "outlier", "floor", "constant", "two", "flags"],
)
def test_what_may_be_real_is_not_told(values):
    assert told(a=values) == []


def test_a_fit_says_it():
    x = np.linspace(0, 1, 12)
    broken = np.append(np.sin(x[:-1]), -9999.0)
    with pytest.warns(PFedHGPWarning, match="output 'y': 1 value of -9999 at client b") as caught:
        FederatedGP(rounds=1, averaging=False).fit({"a": (x, np.sin(x)), "b": (x, broken)})
    (mine,) = [each for each in caught if "-9999" in str(each.message)]
    assert mine.filename == __file__


def test_the_command_says_it(run, tmp_path):
    rows = [f"{c},{i},{-9999 if (c, i) == ('a', 3) else i % 3}" for c in "ab" for i in range(9)]
    (tmp_path / "d.csv").write_text("\n".join(["c,x,y", *rows]) + "\n")
    arguments = ("--client", "c", "--input", "x", "--output", "y", "--rounds", 1, "--no-report")
    done = run("fit", tmp_path / "d.csv", *arguments, "--out", tmp_path / "RUN")
    assert done.code == 0
    assert "warning: output 'y': 1 value of -9999 at client a looks like a code" in done.err
