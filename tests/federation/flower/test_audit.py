"""The audit log: what it says, and that no change of it goes unseen."""

from __future__ import annotations

import errno
import json
import os
import shutil
from contextlib import suppress

import numpy as np
import pytest

from pfedhgp.errors import InputError
from pfedhgp.federation.flower import audit
from pfedhgp.federation.flower.audit import HEAD, LOG, START, AuditLog, check, link
from pfedhgp.federation.flower.state import site_hash


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


def _cut(home, lines, *, head=False):
    """Takes lines away at the end, and where asked for mends the head, as somebody who knows would."""
    kept = (home / LOG).read_text().splitlines(keepends=True)[:lines]
    (home / LOG).write_text("".join(kept))
    if head:
        (home / HEAD).write_text(f"{lines} {json.loads(kept[-1])['hash']}\n")


@pytest.mark.parametrize(
    ("lines", "words"), [(5, "a line is"), (3, "3 lines are"), (0, "6 lines are")]
)
def test_a_restart_does_not_hide_that_the_end_was_cut_off(home, run, lines, words):
    _cut(home, lines)
    log = AuditLog(home)
    log.append("sent", run="r", exchange=4, kind="round")
    AuditLog(home)
    found = check(home)
    assert (found.lines, found.bad_line) == (lines + 2, lines + 1)
    assert f"{words} missing at the end" in found.problem
    result = run("audit", home)
    assert result.code == 1
    assert f"line {lines + 1}: " in result.out


@pytest.mark.parametrize("head", [None, "6 " + "0" * 64, "4 " + "0" * 64, "not a head"])
def test_a_restart_does_not_hide_that_the_head_is_another(home, head):
    (home / HEAD).unlink() if head is None else (home / HEAD).write_text(head)
    AuditLog(home)
    assert check(home).bad_line == 7


def test_a_head_that_lags_by_one_line_is_what_a_stop_leaves(home):
    lines = (home / LOG).read_text().splitlines()
    (home / HEAD).write_text(f"5 {json.loads(lines[4])['hash']}\n")
    assert check(home).bad_line is None
    AuditLog(home).append("note")
    assert (check(home).bad_line, check(home).lines) == (None, 7)


def test_every_hash_that_the_server_kept_must_be_there(home, tmp_path_factory, run):
    """A log that was cut off and went on, head and all, looks whole: not so beside the server's."""
    hashes = [json.loads(line)["hash"] for line in (home / LOG).read_text().splitlines()]
    _cut(home, 4, head=True)
    log = AuditLog(home)
    log.append("received", run="r", exchange=4, kind="round")
    last = log.append("sent", run="r", exchange=4, kind="round")
    assert check(home).bad_line is None
    server = tmp_path_factory.mktemp("RUN")
    kept = {1: hashes[1], 2: hashes[3], 3: hashes[5], 4: last}
    entries = [{"exchange": n, "audit": {"north": digest}} for n, digest in kept.items()]
    (server / "participation.jsonl").write_text("".join(json.dumps(e) + "\n" for e in entries))
    assert (
        "not the RUN of a server of this site" in run("audit", home, "--against", server).complaint
    )
    (home / "site.json").write_text('{"name": "north"}')
    result = run("audit", home, "--against", server)
    assert result.code == 1
    assert "line 5: the line of exchange 3, whose hash the server has" in result.out
    (server / "participation.jsonl").write_text(json.dumps(entries[0]) + "\n")
    assert run("audit", home, "--against", server).code == 0


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


class FullDisk:
    """Takes so many more bytes, and then refuses; in place of the calls that write lines and heads."""

    def __init__(self, monkeypatch, room):
        self.room, self.write, self.write_bytes = room, os.write, audit.write_bytes
        monkeypatch.setattr(audit.os, "write", self._write)
        monkeypatch.setattr(audit, "write_bytes", self._write_head)

    def _write(self, handle, content):
        taken = min(self.room, len(content))
        self.room -= taken
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.write(handle, content[:taken])

    def _write_head(self, path, content):
        if self.room < 4096:  # a new file needs a block of its own
            raise OSError(errno.ENOSPC, "No space left on device")
        self.write_bytes(path, content)


@pytest.mark.parametrize("room", [0, 10, 300, 1000, 3000, 4500])
def test_a_full_disk_leaves_a_log_that_verifies(home, run, monkeypatch, room):
    """In the middle of a line, between a line and its head, and again and again without a restart."""
    log, before = AuditLog(home), (home / LOG).read_bytes()
    with monkeypatch.context() as patch:
        FullDisk(patch, room)
        for _ in range(20):
            with suppress(OSError):
                log.append("received", run="r", exchange=4, kind="round")
        with pytest.raises(OSError, match="No space left on device") as caught:
            log.append("sent", run="r", exchange=4, kind="round")
        assert str(home) in str(caught.value.filename)
        assert check(home).bad_line is None
    assert (home / LOG).read_bytes().startswith(before)
    log.append("received", run="r", exchange=4, kind="round")
    lines = AuditLog(home).count
    found = check(home)
    assert (found.bad_line, found.lines) == (None, lines)
    assert run("audit", home).code == 0


def test_a_line_that_is_only_half_there_is_no_tampering(home, run):
    with open(home / LOG, "ab") as file:
        file.write(b'{"n": 7, "time"')
    assert run("audit", home).code == 0
    assert check(home).lines == 6


def test_a_folder_without_a_log_is_said_so(tmp_path, run):
    assert "no audit.jsonl here" in run("audit", tmp_path).complaint


def test_the_logs_of_a_federate_runs_sites_are_checked_too(tmp_path, run):
    """Each on its own chain and against the hashes of the server beside it; also one that was taken away."""
    kept, logs = {}, {}
    for name in ("RUN", "north", "south"):
        folder = tmp_path if name == "RUN" else tmp_path / "sites" / site_hash(name)
        logs[name], log = folder / LOG, AuditLog(folder)
        log.append("received", run="r", exchange=1, kind="census")
        kept[name] = log.append("sent", run="r", exchange=1, kind="census")
    (tmp_path / "sites" / site_hash("never there")).mkdir()
    entry = {"exchange": 1, "audit": {n: kept[n] for n in ("north", "south")}}
    (tmp_path / "participation.jsonl").write_text(json.dumps(entry) + "\n")
    whole = run("audit", tmp_path)
    assert (whole.code, whole.out.count("2 lines, 1 messages sent")) == (0, 3)
    before = logs["south"].read_text()
    logs["south"].write_text(before.replace('"kind": "census"', '"kind": "extent"'))
    changed = run("audit", tmp_path)
    assert changed.code == 1
    assert (
        f"{logs['south']}: line 1: its hash does not fit its content and the line before"
        in changed.out
    )
    told = json.loads(run("audit", tmp_path, "--json").out)
    assert {s["log"]: s["bad_line"] for s in told["sites"]} == {
        str(logs["south"]): 1,
        str(logs["north"]): None,
    }
    assert told["bad_line"] is None
    shutil.rmtree(logs["south"].parent)  # without a trace, but for the hash that the server has
    gone = run("audit", tmp_path)
    assert gone.code == 1
    assert f"{logs['south']}: line 1: the log is missing" in gone.out
