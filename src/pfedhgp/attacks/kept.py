"""What an audit found, kept in a RUN folder for its report: RUN/attacks.json."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pfedhgp.attacks.audit import Finding
from pfedhgp.base.atomic_files import write_bytes
from pfedhgp.errors import InputError

FILE = "attacks.json"


def write(run: Path, model: str, findings: Sequence[Finding]) -> None:
    """`model` is the SHA-256 of the model that was attacked."""
    content = {"model": model, "findings": [plain(each.as_json()) for each in findings]}
    write_bytes(run / FILE, json.dumps(content, indent=1).encode("ascii"))


def plain(tree: Any) -> Any:
    """JSON has no NaN: what is not known is null."""
    if isinstance(tree, dict):
        return {name: plain(value) for name, value in tree.items()}
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def read(run: Path, model: str) -> list[dict[str, Any]] | None:
    """The findings about this model; None if there are none."""
    path = run / FILE
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_bytes())
        findings, of = list(found["findings"]), found["model"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path}: not what an audit left: give `audit --attack` again") from None
    if of != model:
        raise InputError(f"{path} is about another model: give `audit --attack` again")
    return findings
