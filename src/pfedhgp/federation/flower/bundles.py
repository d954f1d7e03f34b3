"""The Flower app as files: three lines of code that import this package, and what Flower wants to know."""

from __future__ import annotations

from pathlib import Path


def app_files() -> dict[str, bytes]:
    """Path and content of each; they lie in `bundle` as text, so that nothing takes them for a package."""
    folder = Path(__file__).with_name("bundle")
    return {
        path.relative_to(folder).as_posix().removesuffix(".txt"): path.read_bytes()
        for path in sorted(folder.rglob("*.txt"))
    }
