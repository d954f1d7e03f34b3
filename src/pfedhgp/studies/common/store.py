"""Results on disk: one JSON line per run, written as it ends and read when a study is resumed."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfedhgp.errors import InputError

RUNS, CONFIG = "runs.jsonl", "config.json"


class Store:
    """A study's folder. A folder with results of another study is refused, and not changed.

    Several processes may write to one folder; those that join while others write do not touch a half-written
    last line (`mend=False`). A record has the names of its `key` and those that the study `needs`.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        *,
        key: tuple[str, ...],
        needs: tuple[str, ...] = (),
        mend: bool = True,
    ) -> None:
        self.folder, self.key, self.mend = folder, key, mend
        self.needs = (*key, *needs)
        self.lock = threading.Lock()
        wanted = json.loads(json.dumps(dict(config)))
        make_folder(folder)
        there = folder / CONFIG
        self.config = _read_json(there) if there.exists() else wanted
        if there.exists():
            _check_same(folder, self.config, wanted)
        else:
            write_whole(there, json.dumps(wanted, indent=2) + "\n")
        self.records = {self._key(record): record for record in self._read()}

    def _key(self, record: Mapping[str, Any]) -> tuple:
        return tuple(record[name] for name in self.key)

    def _read(self) -> list[dict[str, Any]]:
        """All complete lines; an incomplete last line is removed from the file."""
        path = self.folder / RUNS
        if not path.exists():
            return []
        lines = path.read_text().splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            lines.pop()
            if self.mend:
                write_whole(path, "".join(lines))
        records = []
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                raise InputError(
                    f"{path}, line {number}: not JSON; remove that line to repeat its run"
                ) from None
            there = record if isinstance(record, dict) else {}
            if missing := [name for name in self.needs if name not in there]:
                raise InputError(
                    f"{path}, line {number}: not a run of this study: it has no {missing[0]!r}; "
                    "remove that line to repeat its run, or choose another --out"
                )
            records.append(record)
        return records

    def add(self, record: dict[str, Any]) -> None:
        """Appends a run's record; it is on disk when this returns."""
        line = json.dumps(record, allow_nan=False) + "\n"
        with self.lock:
            file = os.open(self.folder / RUNS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(file, line.encode())  # in one piece: other processes write here too
                os.fsync(file)
            finally:
                os.close(file)
            self.records[self._key(record)] = json.loads(line)


def make_folder(folder: Path) -> None:
    """Makes the folder of results, with those above it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot write there ({error.strerror})") from None


def write_whole(path: Path, text: str) -> None:
    """Writes all of a file or none of it."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        raise InputError(f"{path} is not the settings of a study; choose another --out") from None
    return found if isinstance(found, dict) else {}


def _study_of(config: Mapping[str, Any]) -> str | None:
    """The study's name, or if it is not written, the study that alone has one of the settings."""
    marks = {"curve_runs": "synthetic", "subtlety": "tonnage"}
    return config.get("study") or next((marks[name] for name in marks if name in config), None)


def _check_same(folder: Path, there: dict[str, Any], wanted: dict[str, Any]) -> None:
    theirs, ours = _study_of(there), _study_of(wanted)
    if theirs is not None and ours is not None and theirs != ours:
        raise InputError(
            f"{folder} holds results of `reproduce {theirs}`, not of `reproduce {ours}`: "
            "choose another --out"
        )
    for name, value in wanted.items():
        if there.get(name) != value:
            raise InputError(
                f"{folder} holds a study with `{name}` {there.get(name)!r}, not {value!r}: "
                "choose another --out, or the same settings to resume it"
            )
