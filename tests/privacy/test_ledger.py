"""The ledger: budgets that hold, releases that stay the same, and a process killed at any point."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from pfedhgp.base import atomic_files
from pfedhgp.errors import InputError
from pfedhgp.privacy.accounting import delta_of, mu_for
from pfedhgp.privacy.ledger import FILE, HEAD, Ledger, Limit, request_of

LIMIT = Limit(1.0, 1e-6)
MU = mu_for(1.0, 1e-6)


def numbers(seed: int):
    return lambda mu: {"a": np.random.default_rng(seed).normal(size=3)}


def test_the_same_request_gets_the_same_bytes_and_costs_once(tmp_path):
    ledger = Ledger(tmp_path / "home")
    first = ledger.release("a" * 64, purpose="run 1", mu=MU, limit=LIMIT, make=numbers(0))
    again = ledger.release("a" * 64, purpose="run 2", mu=MU, limit=LIMIT, make=numbers(1))
    assert first["a"].tobytes() == again["a"].tobytes()
    assert ledger.mu() == MU
    assert [entry.purpose for entry in ledger.entries()] == ["run 1"]
    assert 1.0 <= ledger.epsilon(1e-6) <= 1.0 + 2.1e-4


def test_a_spent_budget_refuses_and_keeps_what_is_there(tmp_path):
    ledger = Ledger(tmp_path)
    half = MU / np.sqrt(2)
    for name in "ab":
        ledger.release(name * 64, purpose=name, mu=half, limit=LIMIT, make=numbers(0))
    with pytest.raises(InputError, match="budget"):
        ledger.release("c" * 64, purpose="c", mu=0.05, limit=LIMIT, make=numbers(0))
    with pytest.raises(InputError, match="budget"):
        ledger.release("c" * 64, purpose="c", limit=LIMIT, make=numbers(0))
    assert len(ledger.entries()) == 2
    wider = ledger.release("c" * 64, purpose="c", mu=0.05, limit=Limit(2.0, 1e-6), make=numbers(0))
    assert set(wider) == {"a"}
    rest = ledger.release("e" * 64, purpose="e", limit=Limit(2.0, 1e-6), make=lambda mu: {"mu": mu})
    assert float(rest["mu"]) ** 2 + MU**2 + 0.05**2 == pytest.approx(mu_for(2.0, 1e-6) ** 2)
    with pytest.raises(InputError, match="μ"):
        ledger.release("d" * 64, purpose="d", mu=float("nan"), limit=LIMIT, make=numbers(0))


def test_altered_and_removed_lines_are_named(tmp_path):
    ledger = Ledger(tmp_path)
    for name in "abc":
        ledger.release(name * 64, purpose=name, mu=0.01, limit=LIMIT, make=numbers(0))
    path = tmp_path / FILE
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[2]]) + "\n")
    with pytest.raises(InputError, match="line 2"):
        ledger.entries()
    cheaper = json.loads(lines[0]) | {"mu": 0.0}
    path.write_text("\n".join([json.dumps(cheaper, sort_keys=True), *lines[1:]]) + "\n")
    with pytest.raises(InputError, match="line 2"):
        ledger.entries()
    path.write_text("\n".join([lines[0].replace("0.01", "NaN"), *lines[1:]]) + "\n")
    with pytest.raises(InputError, match="line 1"):
        ledger.entries()


def test_an_altered_release_is_not_sent_again(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.release("a" * 64, purpose="a", mu=0.1, limit=LIMIT, make=numbers(0))
    (path,) = (tmp_path / "releases").iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match="altered"):
        ledger.release("a" * 64, purpose="a", mu=0.1, limit=LIMIT, make=numbers(0))


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from pfedhgp.base import atomic_files
from pfedhgp.privacy.ledger import Ledger, Limit
writes, when = [0], int(sys.argv[2])
honest = os.replace
def replace(source, target):
    writes[0] += 1
    if writes[0] == when and sys.argv[3] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    honest(source, target)
    if writes[0] == when:
        os.kill(os.getpid(), signal.SIGKILL)
os.replace = replace
made = Ledger(Path(sys.argv[1])).release(
    "a" * 64, purpose="run", mu=0.1, limit=Limit(1.0, 1e-6), make=lambda mu: {"a": np.arange(3.0)}
)
print("left")
"""


def released_and_killed(folder, when, side):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), str(when), side],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == -9
    assert "left" not in done.stdout


@pytest.mark.parametrize("when", [1, 2, 3, 4])
@pytest.mark.parametrize("side", ["before", "after"])
def test_killed_at_any_point_it_neither_spends_twice_nor_for_nothing(tmp_path, when, side):
    """The first release is four files: a head of no lines, content, line, head. Nothing has left before."""
    released_and_killed(tmp_path, when, side)
    ledger = Ledger(tmp_path)
    spent = ledger.mu()
    assert spent == (0.1 if (when, side) in {(3, "after"), (4, "before"), (4, "after")} else 0.0)
    found = ledger.release("a" * 64, purpose="run", mu=0.1, limit=LIMIT, make=numbers(5))
    assert ledger.mu() == 0.1
    if spent:
        assert np.array_equal(found["a"], np.arange(3.0))
    assert json.loads((tmp_path / HEAD).read_text())["lines"] == 1


@pytest.mark.parametrize("when", [1, 2, 3])
@pytest.mark.parametrize("side", ["before", "after"])
def test_killed_in_a_later_release_what_was_spent_before_stays(tmp_path, when, side):
    ledger = Ledger(tmp_path)
    ledger.release("b" * 64, purpose="earlier", mu=0.05, limit=LIMIT, make=numbers(0))
    released_and_killed(tmp_path, when, side)
    known = (when, side) in {(2, "after"), (3, "before"), (3, "after")}
    assert len(ledger.entries()) == 1 + known
    ledger.release("a" * 64, purpose="run", mu=0.1, limit=LIMIT, make=numbers(5))
    assert ledger.mu() == pytest.approx(np.hypot(0.05, 0.1))
    assert [entry.purpose for entry in ledger.entries()] == ["earlier", "run"]


def spoiled(folder, how):
    """A ledger of two releases to which something was done that would give ε back."""
    ledger = Ledger(folder)
    for name in "ab":
        ledger.release(name * 64, purpose=name, mu=0.1, limit=LIMIT, make=numbers(0))
    path, content = folder / FILE, (folder / FILE).read_bytes()
    lines = content.splitlines(keepends=True)
    if how == "newline":
        path.write_bytes(content[:-1])
    elif how == "emptied":
        path.write_bytes(b"")
    elif how == "gone":
        path.unlink()
    elif how == "last line":
        path.write_bytes(lines[0])
    elif how == "cheaper":
        last = json.loads(lines[1]) | {"mu": 0.0}
        path.write_bytes(lines[0] + json.dumps(last, sort_keys=True).encode() + b"\n")
    elif how == "head and lines":
        (folder / HEAD).unlink()
        path.unlink()
    elif how == "head":
        (folder / HEAD).write_bytes(b"{")
    return ledger


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("newline", "its last line was cut off"),
        ("emptied", "it has 0 of 2 lines"),
        ("gone", "it has 0 of 2 lines"),
        ("last line", "it has 1 of 2 lines"),
        ("cheaper", "line 2 was altered"),
        ("head and lines", "2 releases are in .*, and 0 lines are here"),
        ("head", "ledger.head: cannot be read"),
    ],
)
def test_what_was_spent_does_not_come_back(tmp_path, run, how, words):
    ledger = spoiled(tmp_path / "home", how)
    with pytest.raises(InputError, match=words):
        ledger.mu()
    with pytest.raises(InputError, match=words):
        ledger.release("c" * 64, purpose="c", mu=0.1, limit=LIMIT, make=numbers(0))
    done = run("ledger", tmp_path)
    assert done.code == 2
    assert re.search(words, done.complaint)
    assert len(done.complaint.splitlines()) == 1


def test_a_ledger_of_an_earlier_version_gets_a_head_with_its_next_release(tmp_path):
    ledger = Ledger(tmp_path)
    for name in "ab":
        ledger.release(name * 64, purpose=name, mu=0.1, limit=LIMIT, make=numbers(0))
    (tmp_path / HEAD).unlink()
    assert [entry.purpose for entry in ledger.entries()] == ["a", "b"]
    assert not (tmp_path / HEAD).exists()  # looking changes nothing
    ledger.release("a" * 64, purpose="again", mu=0.1, limit=LIMIT, make=numbers(0))
    assert json.loads((tmp_path / HEAD).read_text())["lines"] == 2
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(InputError, match="it has 1 of 2 lines"):
        ledger.entries()


def test_epsilon_is_shown_rounded_up(tmp_path, run):
    ledger = Ledger(tmp_path / "home")
    ledger.release("a" * 64, purpose="a", mu=MU, limit=LIMIT, make=numbers(0))
    said = float(re.search(r"ε = (\S+) in all", run("ledger", tmp_path).out)[1])
    assert 1.0 <= said <= 1.0003
    assert delta_of(MU, said) <= 1e-6


def test_a_request_is_known_by_all_of_its_parts():
    base = {"mu": 0.5, "X": np.arange(4.0)}
    assert request_of(base) == request_of(dict(reversed(base.items())))
    assert request_of(base) != request_of(base | {"mu": 0.6})
    assert request_of(base) != request_of(base | {"X": np.arange(4.0).reshape(2, 2)})


def test_it_writes_with_files_that_are_whole_or_not_there(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path)

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_files, "sync", full_disk)
    with pytest.raises(OSError, match="space"):
        ledger.release("a" * 64, purpose="a", mu=0.1, limit=LIMIT, make=numbers(0))
    monkeypatch.undo()
    assert ledger.entries() == []


def test_what_is_there_and_whether_more_is_allowed_can_be_asked_without_a_charge(tmp_path):
    ledger = Ledger(tmp_path)
    assert not ledger.has("a" * 64)
    ledger.check(MU, LIMIT)
    ledger.release("a" * 64, purpose="a", mu=0.8 * MU, limit=LIMIT, make=numbers(0))
    assert ledger.has("a" * 64)
    ledger.check(0.6 * MU, LIMIT)
    with pytest.raises(InputError, match="budget"):
        ledger.check(0.61 * MU, LIMIT)
    assert len(ledger.entries()) == 1
