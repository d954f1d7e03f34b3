"""A folder that is written whole or not at all, and whose files are what its spec.json says.

spec.json lists the SHA-256 of every other file under `files`. Under `sha256` it has the hash of its own
content without that entry.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from pfedhgp.base.atomic_files import (
    beside,
    exchange,
    one_at_a_time,
    sync_folder,
    write_durably,
)
from pfedhgp.errors import InputError, ModelFileError
from pfedhgp.version import __version__

FORMAT, VERSION = "pfedhgp-run", 1
SPEC = "spec.json"
DIAGNOSIS = "diagnosis.safetensors"
PARTS = (SPEC, "global.safetensors", "clients", "metrics.json", "messages.jsonl", DIAGNOSIS)
PREVIOUS = "previous"
"""The model that an update replaced; a RUN folder too."""
NOTES = (
    *("report.html", "zones", "classified.json"),
    *("backtest.json", "attacks.json"),
)
"""What commands find about the model and keep beside it. It goes with the model to `PREVIOUS`."""
OTHERS = (*NOTES, "checkpoint", PREVIOUS)
"""Other files of a RUN folder; they are removed when the model is replaced."""
STAY = ("sites", "participation.jsonl", "audit.jsonl", "audit.head")
"""What a federation keeps there; it stays when the model is replaced."""
MEND = "copy the folder again, or fit again (RUN/previous, if there is one, may be whole)"
"""What to do about a folder that is not as it was written."""
NO_PLACE = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.ENOENT,
    errno.EEXIST,
    errno.ENAMETOOLONG,
)
"""Errors of the system for a badly chosen place; a full or broken disk is not the caller's fault."""


def client_file(name: str) -> str:
    """clients/<sha256(name)[:16]>.safetensors"""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"clients/{digest[:16]}.safetensors"


def sums_file(name: str) -> str:
    """clients/<sha256(name)[:16]>.sums.safetensors"""
    return client_file(name).replace(".safetensors", ".sums.safetensors")


def seal(spec: Mapping[str, Any]) -> str:
    """The SHA-256 of a spec without its own, in one canonical spelling."""
    rest = {key: value for key, value in spec.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


# ------------------------------------------------------------------------------------------ writing


def _mode_of(target: Path) -> int:
    """A new folder is its owner's alone: a model says much of its rows. An older model's mode stays."""
    return target.stat().st_mode & 0o777 if (target / SPEC).is_file() else 0o700


def write_folder(
    target: Path,
    files: Iterable[tuple[str, bytes]],
    spec: Mapping[str, Any],
    *,
    overwrite: bool,
    stay: Sequence[str] = (),
    keep_previous: bool = False,
    replaces: str | None = None,
) -> None:
    """Writes `files`, then spec.json, into a new folder beside `target`, and puts it in its place.

    Whatever fails, `target` stays as it was; with `overwrite` the old folder goes last. With `keep_previous`
    the old model is in the new folder under `PREVIOUS`, from the moment at which both change places.
    `replaces` is the SHA-256 of the model that must be there until then: another one is not replaced.
    """
    target = target.resolve()
    check_target(target, overwrite=overwrite, how="overwrite=True")
    fresh = beside(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh.mkdir(mode=_mode_of(target))
        (fresh / "clients").mkdir()
        digests = write_durably(fresh, files)
        head = {"format": FORMAT, "format_version": VERSION, "package_version": __version__}
        whole = {**head, **spec, "files": digests}
        whole["sha256"] = seal(whole)
        text = json.dumps(whole, indent=1, allow_nan=False).encode("ascii")
        write_durably(fresh, [(SPEC, text)])
        sync_folder(fresh / "clients")
        if keep_previous and (target / SPEC).exists():
            _link_model(target, fresh / PREVIOUS)
        sync_folder(fresh)
        with one_at_a_time(target.parent):
            if replaces is not None:
                _refuse_changed(target, replaces)
            old = _put_in_place(fresh, target, (*STAY, *stay))
    except BaseException as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in NO_PLACE:
            raise InputError(
                f"{target} cannot be written ({error.strerror}): choose another folder"
            ) from None
        raise
    sync_folder(target.parent)
    if old is not None:
        _take_over(old, target, (*stay, *STAY))


def _refuse_changed(target: Path, expected: str) -> None:
    """What the model that is there has learned would be lost in one that was made from another."""
    try:
        there = RunFolder.open(target).spec["sha256"]
    except ModelFileError:
        there = None
    if there != expected:
        raise InputError(
            f"{target} was changed meanwhile by another command: nothing was written; give the command again"
        )


def check_target(target: Path, *, overwrite: bool, how: str = "--overwrite") -> None:
    """Only a model is ever replaced, or a run that has only got to its checkpoint."""
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise InputError(f"{target} is a file: choose a folder for the model")
    # What a killed process left half written does not count.
    there = {p.name for p in target.iterdir() if not p.name.startswith(".pfedhgp-")}
    strange = sorted(there - {*PARTS, *OTHERS, *STAY})
    if strange:
        raise InputError(
            f"{target} holds {strange[0]!r}, which is no part of a model: move it elsewhere, or choose "
            "another folder"
        )
    if there - {"checkpoint", *STAY} and not overwrite:
        raise InputError(f"{target} already exists: choose another folder, or overwrite it ({how})")


def _put_in_place(fresh: Path, target: Path, names: Sequence[str]) -> Path | None:
    """`fresh` becomes `target`, with the files of `names` that exist; `target` exists at every moment.

    Returns the path of the old folder.
    """
    if not target.exists():
        os.rename(fresh, target)
        return None
    for name in names:
        if (target / name).is_file():
            with suppress(OSError):  # a file system without links: it moves afterwards
                os.link(target / name, fresh / name)
    sync_folder(fresh)
    return exchange(fresh, target, beside(target))


def _link_model(model: Path, copy: Path) -> None:
    """The model's files, with what is kept beside it, in another folder.

    As links, or as copies where the file system has none.
    """
    made = {copy, copy / "clients"}
    for name in (*PARTS, *OTHERS):
        if name == PREVIOUS:
            continue
        for path in [model / name, *sorted((model / name).rglob("*"))]:
            if path.is_file():
                there = copy / path.relative_to(model)
                there.parent.mkdir(parents=True, exist_ok=True)
                made.add(there.parent)
                try:
                    os.link(path, there)
                except OSError:
                    shutil.copy2(path, there)
    (copy / "clients").mkdir(parents=True, exist_ok=True)
    for folder in sorted(made, reverse=True):
        sync_folder(folder)


def _take_over(old: Path, target: Path, names: Sequence[str]) -> None:
    """Moves files that stay, unless the new folder has them already, and removes the old folder."""
    for name in names:
        if os.path.lexists(old / name) and not os.path.lexists(target / name):
            os.rename(old / name, target / name)
    sync_folder(target)
    shutil.rmtree(old, ignore_errors=True)


# ------------------------------------------------------------------------------------------ reading


@dataclass(frozen=True)
class RunFolder:
    """A folder whose spec.json has been checked; other files are checked as they are read."""

    path: Path
    spec: Mapping[str, Any]

    @staticmethod
    def open(path: str | os.PathLike[str]) -> RunFolder:
        folder = Path(path)
        if not folder.is_dir():
            what = "a file, not a folder that a fit wrote" if folder.is_file() else "no such folder"
            raise ModelFileError(f"{folder}: {what}")
        if not (folder / SPEC).exists() and (folder / "model" / SPEC).exists():
            raise ModelFileError(f"{folder} is a site's home: its model is {folder / 'model'}")
        with naming(folder / SPEC):
            spec = _spec_in(_read(folder / SPEC))
            version = spec["format_version"]
            if type(version) is not int or version < 1:
                raise ValueError(f"format version {version!r} does not exist")
            if version > VERSION:
                raise ValueError(
                    f"format version {version} is newer than {VERSION}, the newest that pfedhgp "
                    f"{__version__} reads: update pfedhgp"
                )
            if spec["sha256"] != seal(spec):
                raise ValueError(f"corrupted: its SHA-256 does not match: {MEND}")
            if not isinstance(spec["files"], dict):
                raise ValueError("`files` is not a table")
        return RunFolder(folder, spec)

    def read(self, name: str) -> bytes:
        """A file's content, if its SHA-256 is the spec's."""
        with naming(self.path / name):
            content = _read(self.path / name)
            expected = self.spec["files"].get(name)
            if expected is None:
                raise ValueError(f"not listed in {SPEC}")
            if hashlib.sha256(content).hexdigest() != expected:
                raise ValueError(f"corrupted: its SHA-256 is not the one in spec.json: {MEND}")
            return content

    def refuse_strangers(self, expected: Iterable[str]) -> None:
        """Refuses arrays that the spec does not list, and a spec that lists other files than a model has."""
        wanted = set(expected)
        with naming(self.path / SPEC):
            listed = set(self.spec["files"])
            for name in sorted(listed ^ wanted):
                raise ValueError(f"`files` {'has' if name in listed else 'lacks'} {name!r}")
        clients = self.path / "clients"
        there = [*self.path.glob("*.safetensors"), *(clients.iterdir() if clients.is_dir() else ())]
        for found in sorted(there):
            if found.relative_to(self.path).as_posix() not in listed:
                raise ModelFileError(f"{found}: not listed in {SPEC}")


def _spec_in(content: bytes) -> dict[str, Any]:
    """The content of spec.json. A file that was one, but can no longer be read, is corrupted."""
    was_one = all(word in content for word in (b'"sha256"', b'"files"'))
    try:
        spec = parse_json(content)
    except ValueError as error:
        what = "corrupted" if was_one else "cut off, or not the spec of a model"
        raise ValueError(f"{what}: {error}: {MEND}") from None
    keys = {"format", "format_version", "sha256", "files"}
    if isinstance(spec, dict) and spec.get("format") == FORMAT and keys <= set(spec):
        return spec
    if was_one or (isinstance(spec, dict) and len(keys & set(spec)) > 1):
        raise ValueError("corrupted: its head is not that of a pfedhgp model")
    raise ValueError("this is not the spec of a pfedhgp model")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turns whatever is wrong with a file's content into one line that names the file."""
    try:
        yield
    except ModelFileError:
        raise
    except KeyError as error:
        raise ModelFileError(f"{path}: {error.args[0]!r} is missing") from None
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror or error}") from None
    except (TypeError, ValueError, AttributeError, RecursionError, SafetensorError) as error:
        raise ModelFileError(f"{path}: {' '.join(str(error).split())}") from None


def parse_json(content: bytes) -> Any:
    """JSON proper: no NaN, no Infinity."""
    return _DECODER.decode(content.decode("utf-8"))


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ModelFileError(f"{path}: the file is missing: {MEND}") from None
