"""What a back-test found, kept in a RUN folder for its report: RUN/backtest.json. It holds no rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pfedhgp.model import run_notes

FILE = "backtest.json"


def write(run: Path, model: str, found: dict[str, Any]) -> None:
    """`model` is the SHA-256 of the model; `found` is what `FederatedGP.backtest` returned."""
    run_notes.write(run, FILE, model, found)


def read(run: Path, model: str) -> dict[str, Any] | None:
    """What was found for this model; None if there is nothing."""
    found: dict[str, Any] | None = run_notes.read(run, FILE, model, command="forecast --backtest")
    return found
