"""Files and folders that are whole or not there, whatever goes wrong in between."""

from __future__ import annotations

from hashlib import sha256

import pytest

from pfedhgp.base import atomic_files


@pytest.mark.parametrize("error", [OSError(28, "full"), KeyboardInterrupt()])
@pytest.mark.parametrize("there", [True, False])
def test_a_file_that_could_not_be_finished_leaves_what_was_there(error, there, tmp_path):
    target = tmp_path / "a.txt"
    if there:
        target.write_text("old")
    with pytest.raises(type(error)), atomic_files.replacing(target) as beside:  # noqa: PT012
        beside.write_text("half")
        raise error
    assert [p.read_text() for p in tmp_path.iterdir()] == (["old"] if there else [])


def test_a_whole_file_takes_the_place(tmp_path):
    target = tmp_path / "sub" / "a.txt"
    atomic_files.write_bytes(target, b"one")
    atomic_files.write_bytes(target, b"two")
    assert [(p.name, p.read_bytes()) for p in target.parent.iterdir()] == [("a.txt", b"two")]


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    def files(fail: bool):
        yield "a", b"1"
        if fail:
            raise OSError(28, "full")
        yield "sub/b", b"2"

    with pytest.raises(OSError, match=r"full: .*/new'"):
        atomic_files.write_new_folder(tmp_path / "new", files(fail=True))
    assert list(tmp_path.iterdir()) == []
    atomic_files.write_new_folder(tmp_path / "new", files(fail=False))
    assert (tmp_path / "new" / "sub" / "b").read_bytes() == b"2"
    assert [p.name for p in tmp_path.iterdir()] == ["new"]


def test_many_files_are_written_with_their_hashes(tmp_path):
    files = {f"{i % 3}/{i}": bytes([i]) * (1000 * i) for i in range(60)}
    digests = atomic_files.write_durably(tmp_path, files.items())
    assert list(digests) == list(files)
    assert digests == {name: sha256(content).hexdigest() for name, content in files.items()}
    assert {name: (tmp_path / name).read_bytes() for name in files} == files


@pytest.mark.parametrize(
    "taken", [0, 30, 59]
)  # while others are under way, and among the last ones
def test_a_file_that_cannot_be_written_is_an_error(taken, tmp_path):
    (tmp_path / f"{taken}").write_bytes(b"old")
    with pytest.raises(FileExistsError, match=f"/{taken}'"):
        atomic_files.write_durably(tmp_path, [(f"{i}", b"new") for i in range(60)])
    assert (tmp_path / f"{taken}").read_bytes() == b"old"
