"""Every row of docs/glossary.md has its place in the code, and every place is there."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def places() -> dict[str, list[str]]:
    """The last column of each row of a table, by its first."""
    lines = (ROOT / "docs" / "glossary.md").read_text().replace("\\|", "∣").splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    heads = {i for i, row in enumerate(rows) if i + 1 < len(rows) and "---" in rows[i + 1][0]}
    for i in heads:
        assert rows[i][-1].strip() == "place", rows[i]
    kept = [r for i, r in enumerate(rows) if i not in heads and "---" not in r[0]]
    return {row[0].strip(): [p.strip(" `") for p in row[-1].split(",")] for row in kept}


def found(place: str) -> bool:
    """Whether a file, a module, a name of it, a method or a field is there."""
    if "/" in place:
        return (ROOT / place).exists()
    parts = ["pfedhgp", *place.split(".")]
    for cut in range(len(parts), 1, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            fields = getattr(value, "__dataclass_fields__", {}) | {
                field: None for field in getattr(value, "_fields", ())
            }
            if not hasattr(value, name):
                return name in fields and name == parts[-1]
            value = getattr(value, name)
        return True
    return False


@pytest.mark.parametrize(("symbol", "where"), places().items(), ids=lambda v: str(v)[:30])
def test_every_row_names_places_that_are_there(symbol, where):
    assert where, f"{symbol} has no place"
    for place in where:
        assert found(place), f"{symbol}: {place} is not in the code"


def test_a_place_that_is_not_there_is_noticed():
    assert found("model.blocks.Rows.X")
    for wrong in ("model.blocks.Rows.Q", "model.blocks.Rose", "nowhere.at_all", "tests/none.py"):
        assert not found(wrong)
