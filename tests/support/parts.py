"""Parts that not every machine has: their tests are skipped there, and say so."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import pytest


def require_part(part: str, *, found: bool) -> None:
    """Skips the test where `part` is missing, or fails it when PFEDHGP_REQUIRE_ALL=1."""
    if found:
        return
    if os.environ.get("PFEDHGP_REQUIRE_ALL") == "1":
        pytest.fail(f"{part} is missing, and PFEDHGP_REQUIRE_ALL=1 asks for it", pytrace=False)
    pytest.skip(f"{part} is missing on this machine", allow_module_level=True)


def require(part: str) -> ModuleType:
    """Imports and returns the module `part`; skips or fails as `require_part` where it is missing.

    Tests take it as a fixture, `def test_x(require): tinygp = require("tinygp")`, or import it.
    """
    try:
        return importlib.import_module(part)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != part.split(".")[0]:
            raise  # the part is there, and something that it needs is not: not ours to hide
        require_part(part, found=False)
        raise  # not reached; says so to type checkers
