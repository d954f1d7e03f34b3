"""What a command finds about a model and keeps in its RUN folder for the report: one JSON file each.

A note carries the SHA-256 of the model that it is about. Of another model it is refused, not shown.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from pfedhgp.base.atomic_files import write_bytes
from pfedhgp.errors import InputError


def write(run: Path, file: str, model: str, content: Any) -> None:
    """`model` is the SHA-256 of the model that the content is about."""
    text = json.dumps({"model": model, "findings": plain(content)}, indent=1)
    write_bytes(run / file, text.encode("ascii"))


def plain(tree: Any) -> Any:
    """JSON has no NaN: what is not known is null."""
    if isinstance(tree, dict):
        return {name: plain(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [plain(each) for each in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def read(run: Path, file: str, model: str, *, command: str) -> Any:
    """The content about this model; None if there is none. `command` is what writes it anew."""
    path = run / file
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_bytes())
        content, of = found["findings"], found["model"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path}: cannot be read: give `{command}` again") from None
    if of != model:
        raise InputError(f"{path} is about another model: give `{command}` again")
    return content
