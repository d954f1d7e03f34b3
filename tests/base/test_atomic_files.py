"""Files and folders that are whole or not there, whatever goes wrong in between."""

from __future__ import annotations

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

    with pytest.raises(OSError, match="full"):
        atomic_files.write_new_folder(tmp_path / "new", files(fail=True))
    assert list(tmp_path.iterdir()) == []
    atomic_files.write_new_folder(tmp_path / "new", files(fail=False))
    assert (tmp_path / "new" / "sub" / "b").read_bytes() == b"2"
    assert [p.name for p in tmp_path.iterdir()] == ["new"]
