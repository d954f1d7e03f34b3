"""Values that look like codes for missing are told, and those that may be real are not."""

from __future__ import annotations

import warnings
from copy import copy

import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.data.columns import Columns, InputColumn
from pfedhgp.data.missing_codes import warn_of_codes
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import PFedHGPWarning, StaleWarning


def told(**outputs) -> list[str]:
    clients = [
        ClientRows(name, np.zeros((len(y), 1)), np.asarray(y, float).reshape(len(y), -1))
        for name, y in outputs.items()
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_codes(clients, Columns("site", (InputColumn("x"),), ("pm25",)))
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


@pytest.mark.parametrize("code", [-999.0, -9999.0, -99.0])
def test_a_negative_code_among_values_that_are_none_is_told_however_wide_they_are(code):
    wide = np.geomspace(1.0, 5000.0, 60)
    (line,) = told(a=wide, b=np.append(wide, code))
    assert f"1 value of {code:g} at client b" in line
    assert told(a=np.append(wide, -2.0), b=np.append(wide, code)) == (
        [] if code > -9999 else [line]
    )


def test_a_site_that_has_nothing_but_a_code_is_told():
    (line,) = told(a=1000.0 * WAVE, b=np.full(40, -999.0))
    assert "40 values of -999 at client b look like a code" in line
    assert told(a=1000.0 * WAVE, b=np.full(40, -998.0)) == []


def test_codes_in_inputs_are_told_and_times_are_left_alone():
    x = np.append(np.linspace(-5.0, 30.0, 40), [-999.0, -999.0])
    rows = [ClientRows("a", np.stack([x, x], axis=1), np.sin(x)[:, None])]
    columns = Columns("site", (InputColumn("time", "datetime"), InputColumn("temp")), ("y",))
    with pytest.warns(PFedHGPWarning) as caught:
        (code,) = warn_of_codes(rows, columns)
    assert str(caught[0].message) == str(code)
    assert str(code).startswith("input 'temp': 2 values of -999 at client a look like a code")
    assert "remove these rows" in str(code)


@pytest.fixture(scope="module")
def waves() -> FederatedGP:
    x = np.linspace(0.0, 4.0, 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FederatedGP(rounds=2, averaging=False, domain=[(0.0, 8.0)]).fit(
            {name: (x, 3.0 + np.sin(3 * x)) for name in "ab"}
        )


def test_an_update_says_it_and_does_not_call_the_parameters_stale(waves):
    model, new = copy(waves), ([4.2, 4.4], [3.0, -999.0])
    with pytest.warns(PFedHGPWarning) as caught:
        model.update({"a": new})
    texts = [str(each.message) for each in caught]
    assert texts[0].startswith("output 'y': 1 value of -999 at client a looks like a code")
    (stale,) = [each for each in caught if each.category is StaleWarning]
    assert "and -999 among them looks like a code for missing: `forget` these rows" in texts[-1]
    assert "fit again" not in str(stale.message)
    assert {each.filename for each in caught} == {__file__}


def test_adopting_and_judging_rows_say_it(waves):
    rows = ([1.0, 2.0, 3.0], [3.0, 3.2, -9999.0])
    with pytest.warns(PFedHGPWarning, match="1 value of -9999 at client new looks") as caught:
        copy(waves).adopt("new", *rows)
    assert caught[0].filename == __file__
    with pytest.warns(PFedHGPWarning, match="1 value of -9999 at client a looks") as caught:
        waves.anomalies("a", ([4.1, 4.2, 4.3], rows[1]))
    assert caught[0].filename == __file__


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
