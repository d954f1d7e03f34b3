"""What an audit found, kept in a RUN folder for its report: RUN/attacks.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pfedhgp.attacks.audit import Finding
from pfedhgp.model import run_notes

FILE = "attacks.json"


def write(run: Path, model: str, findings: Sequence[Finding]) -> None:
    """`model` is the SHA-256 of the model that was attacked."""
    run_notes.write(run, FILE, model, [each.as_json() for each in findings])


def read(run: Path, model: str) -> list[dict[str, Any]] | None:
    """The findings about this model; None if there are none."""
    found: list[dict[str, Any]] | None = run_notes.read(run, FILE, model, command="audit --attack")
    return found
