"""The audit log: what it says, and that no change of it goes unseen."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pfedhgp.errors import InputError
from pfedhgp.federation.flower.audit import HEAD, LOG, START, AuditLog, check, link


@pytest.fixture
def home(tmp_path):
    log = AuditLog(tmp_path)
    for exchange in (1, 2, 3):
        log.append("received", run="r", exchange=exchange, kind="round")
        arrays = {"U": np.zeros((2, 3)), "y": np.zeros(())}
        log.append("sent", run="r", exchange=exchange, kind="round", arrays=arrays)
    return tmp_path


def test_a_line_has_names_shapes_and_bytes_and_follows_the_one_before(home):
    lines = [json.loads(line) for line in (home / LOG).read_text().splitlines()]
    assert lines[1]["arrays"] == {"U": [2, 3], "y": []}
    assert lines[1]["bytes"] == 7 * 8
    previous = START
    for line in lines:
        assert line["hash"] == link(previous, line)
        previous = line["hash"]
    found = check(home)
    assert (found.bad_line, found.lines, found.sent, found.bytes_sent) == (None, 6, 3, 168)
    assert found.head == previous


@pytest.mark.parametrize(
    ("change", "bad"),
    [
        (lambda lines: [lines[0], lines[1].replace("56", "57"), *lines[2:]], 2),
        (lambda lines: [*lines[:2], *lines[3:]], 3),
        (lambda lines: [*lines[:3], lines[2], *lines[3:]], 4),
        (lambda lines: [lines[1], lines[0], *lines[2:]], 1),
        (lambda lines: [*lines[:4], "not json", *lines[5:]], 5),
        (lambda lines: lines[:-1], 6),
        (lambda lines: [], 1),
    ],
    ids=["changed", "taken out", "twice", "swapped", "not a line", "cut off", "emptied"],
)
def test_any_change_is_found_with_its_line(home, change, bad, run):
    path = home / LOG
    path.write_text("".join(f"{line}\n" for line in change(path.read_text().splitlines())))
    assert check(home).bad_line == bad
    result = run("audit", home)
    assert result.code == 1
    assert f"line {bad}: " in result.out
    result = run("audit", home, "--json")
    assert (result.code, json.loads(result.out)["bad_line"]) == (1, bad)


def test_a_log_that_was_cut_off_and_its_head_with_it_lacks_what_the_server_kept(home):
    known = json.loads((home / LOG).read_text().splitlines()[-1])["hash"]
    lines = (home / LOG).read_text().splitlines(keepends=True)[:4]
    (home / LOG).write_text("".join(lines))
    (home / HEAD).write_text(f"4 {json.loads(lines[-1])['hash']}\n")
    assert check(home).bad_line is None
    assert check(home, known=known).bad_line == 5


def test_a_half_written_line_is_dropped_and_noted_and_others_are_not_touched(home):
    whole = (home / LOG).read_bytes()
    (home / LOG).write_bytes(whole + b'{"n": 7, "time"')
    log = AuditLog(home)
    assert log.count == 7
    assert (home / LOG).read_bytes().startswith(whole)
    assert check(home).bad_line is None
    broken = whole.replace(b'"bytes": 56', b'"bytes": 65', 1)
    (home / LOG).write_bytes(broken)
    with pytest.raises(InputError, match=r"audit\.jsonl: line 2: "):
        AuditLog(home)
    assert (home / LOG).read_bytes() == broken


def test_a_folder_without_a_log_is_said_so(tmp_path, run):
    assert "no audit.jsonl here" in run("audit", tmp_path).complaint
