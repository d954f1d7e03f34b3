"""What a site has answered about the same rows so far: HOME/policy.json, which outlives runs and restarts.

    {"<hash of the rows>": {"runs": ["<run>", …], "rounds": 40, "evaluations": 1700, "asked": {"<run>": 12}}}

A request is written down before it is answered: a site that is killed in between has counted it all the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfedhgp.base.atomic_files import write_bytes
from pfedhgp.errors import InputError

FILE = "policy.json"


@dataclass
class Counts:
    """About one set of rows."""

    runs: list[str] = field(default_factory=list)
    rounds: int = 0
    evaluations: int = 0
    asked: dict[str, int] = field(default_factory=dict)
    """Training requests that were answered, by run."""

    @staticmethod
    def of(found: Any) -> Counts:
        """From the file; raises if it is something else."""
        kept = Counts(list(found["runs"]), int(found["rounds"]), int(found["evaluations"]))
        kept.asked = {str(run): int(count) for run, count in found["asked"].items()}
        return kept


@dataclass(frozen=True)
class Book:
    """The file of one home."""

    home: Path

    @property
    def path(self) -> Path:
        return self.home / FILE

    def counts(self, rows: str) -> Counts:
        """What was answered about the rows of this hash."""
        found = self._read().get(rows)
        return Counts() if found is None else found

    def keep(self, rows: str, counts: Counts) -> None:
        """Replaces what was counted about these rows."""
        whole = {name: vars(each) for name, each in self._read().items()} | {rows: vars(counts)}
        write_bytes(self.path, json.dumps(whole).encode("ascii"))

    def _read(self) -> dict[str, Counts]:
        if not self.path.is_file():
            return {}
        try:
            found = json.loads(self.path.read_bytes())
            return {str(rows): Counts.of(each) for rows, each in found.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(
                f"{self.path}: does not say what this site has answered so far; restore it from a backup"
            ) from None
