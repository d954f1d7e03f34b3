"""New classes through the command line: proposals in the table, a class of one of them, and refusals."""

from __future__ import annotations

import json
import shutil

import numpy as np
import polars as pl
import pytest

from pfedhgp.cli.new_classes import chosen_cycles, lines_of
from pfedhgp.errors import InputError
from support.strokes import GRID, strokes, trained


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("add-class")
    trained().save(folder / "RUN")
    kinds = {"worn": strokes(0.6, 3, 2), "low": strokes(-3.0, 6, 7), "high": strokes(4.0, 6, 4)}
    parts = [
        pl.DataFrame({"c": f"{k} {c}", "batch": f"{k} {c // 2}", "x0": GRID, "p": Y[0], "q": Y[1]})
        for k, cycles in kinds.items()
        for c, Y in enumerate(cycles)
    ]
    pl.concat(parts).write_csv(folder / "new.csv")
    whole = np.concatenate(list(kinds.values()))
    block = [f"{k} {c // 2}" for k, cycles in kinds.items() for c in range(len(cycles))]
    names = np.array(["p", "q"])
    np.savez(folder / "new.npz", cycles=whole, grid=GRID, channels=names, block=block)
    return folder


@pytest.fixture
def place(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "here")
    return tmp_path / "here"


def inputs(folder):
    """The model's own name of its input."""
    name = json.loads((folder / "RUN" / "spec.json").read_text())["inputs"][0]
    table = pl.read_csv(folder / "new.csv").rename({"x0": name})
    table.write_csv(folder / "new.csv")


@pytest.mark.parametrize("kind", ["new.csv", "new.npz"])
def test_proposed_named_and_known(run, place, kind):
    inputs(place)
    more = ["--cycle", "c", "--block", "batch"] if kind.endswith("csv") else []
    out = place / "classes.csv"
    done = run("classify", place / "RUN", place / kind, *more, "--propose", "--out", out, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)["proposals"]
    assert [len(each["cycles"]) for each in found] == [6, 6]
    assert {each["runs"] for each in found} == {3}
    table = pl.read_csv(out)
    assert table["proposal"].drop_nulls().to_list() == ["new 1"] * 6 + ["new 2"] * 6
    assert table["proposal"].is_null().sum() == 3
    stored = json.loads((place / "RUN" / "classified.json").read_text())
    assert stored["proposals"] == found
    shown = run("report", place / "RUN", "--out", place / "r.html")
    assert shown.code == 0, shown.err
    page = (place / "r.html").read_text()
    assert "Candidate new classes" in page
    assert "new 2" in page
    done = run(
        *("add-class", place / "RUN", place / kind, *more, "--name", "cracked"),
        *("--from", out, "--proposal", "new 1"),
    )
    assert done.code == 0, done.err
    assert "class 'cracked' of 6 cycles in 3 runs, beside 2 others" in done.err + done.out
    done = run(
        "classify", place / "RUN", place / kind, *more, "--propose", "--out", out, "--overwrite"
    )
    assert done.code == 0, done.err
    assert "new 1: 6 cycles in 3 runs, nearest to" in done.err + done.out
    labels = pl.read_csv(out)["class"].to_list()
    assert labels == ["worn"] * 3 + ["cracked"] * 6 + ["none of these"] * 6
    shown = run("report", place / "RUN", "--out", place / "r2.html")
    assert "Added later, from sums: cracked (6 cycles in 3 runs)" in (place / "r2.html").read_text()


def test_into_another_folder_and_all_cycles_of_a_file(run, place):
    np.savez(place / "low.npz", cycles=strokes(-3.0, 6, 7), grid=GRID)
    target = place / "OTHER"
    done = run(
        *("add-class", place / "RUN", place / "low.npz", "--name", "low", "--out", target, "--json")
    )
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["name"], told["cycles"], told["strange"]) == ("low", 6, 0)
    specs = [json.loads((f / "spec.json").read_text()) for f in (place / "RUN", target)]
    assert [len(spec["clients"]) for spec in specs] == [2, 3]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--name", "worn"], "there is a class 'worn' already"),
        (["--name", "x", "--proposal", "new 1"], "--proposal needs --from"),
        (["--name", "x", "--from", "nothing.csv"], "nothing.csv"),
        (["--name", "x", "--out", "HERE"], "already exists: choose another folder"),
        (["--name", "x", "--block", "batch"], "no array `block`"),
    ],
)
def test_refusals_are_one_line(run, place, monkeypatch, more, words):
    monkeypatch.chdir(place)
    (place / "HERE").mkdir()
    np.savez(place / "low.npz", cycles=strokes(-3.0, 6, 7), grid=GRID)
    done = run("add-class", "RUN", "low.npz", *more)
    assert done.code == 2
    assert words in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_block_without_propose_and_proposals_that_are_not_there(run, place):
    done = run(
        "classify", place / "RUN", place / "new.npz", "--block", "block", "--out", place / "o.csv"
    )
    assert done.code == 2
    assert "--block needs --propose" in done.err
    pl.DataFrame({"cycle": ["1", "2"], "proposal": ["new 1", "new 2"]}).write_csv(place / "c.csv")
    assert chosen_cycles(place / "c.csv", "new 2") == {"2"}
    with pytest.raises(InputError, match=r"has 2 proposals \(new 1, new 2\): choose one"):
        chosen_cycles(place / "c.csv", None)
    with pytest.raises(InputError, match="no proposal 'new 3'; it has new 1, new 2"):
        chosen_cycles(place / "c.csv", "new 3")
    done = run(
        *("add-class", place / "RUN", place / "new.npz", "--name", "x"),
        *("--from", place / "c.csv", "--proposal", "new 1"),
    )
    assert done.code == 0, done.err
    pl.DataFrame({"cycle": ["99"], "proposal": ["new 1"]}).write_csv(place / "c.csv")
    done = run(
        "add-class", place / "RUN", place / "new.npz", "--name", "y", "--from", place / "c.csv"
    )
    assert done.code == 2
    assert "no cycle '99', which the proposal has" in done.err
    assert lines_of(()) == []
