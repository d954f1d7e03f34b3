"""What commands keep in a RUN folder for the report."""

from __future__ import annotations

import json

import pytest

from pfedhgp.errors import InputError
from pfedhgp.model import run_notes

AGAIN = {"command": "audit --attack"}


def test_a_note_comes_back_and_what_is_not_known_is_null(tmp_path):
    assert run_notes.read(tmp_path, "note.json", "abc", **AGAIN) is None
    run_notes.write(tmp_path, "note.json", "abc", [{"found": float("nan"), "of": (1, 2.5)}])
    assert run_notes.read(tmp_path, "note.json", "abc", **AGAIN) == [
        {"found": None, "of": [1, 2.5]}
    ]


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"model": "abc"})])
def test_a_damaged_note_and_one_of_another_model_are_refused(tmp_path, content):
    path = tmp_path / "note.json"
    path.write_text(content)
    with pytest.raises(
        InputError, match=r"note\.json: cannot be read: give `audit --attack` again"
    ):
        run_notes.read(tmp_path, "note.json", "abc", **AGAIN)
    run_notes.write(tmp_path, "note.json", "other", {})
    with pytest.raises(InputError, match="about another model"):
        run_notes.read(tmp_path, "note.json", "abc", **AGAIN)
