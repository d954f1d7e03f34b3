"""The layout of the package: imports point one way."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """`lint-imports` on the package in a folder, with the contract of pyproject.toml."""
    tool = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [tool, "--config", ROOT / "pyproject.toml", "--no-cache"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": ""},
    )


@pytest.fixture
def source(tmp_path) -> Path:
    """A copy of src."""
    copy = tmp_path / "src"
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def test_imports_point_one_way(source):
    done = lint_imports(source)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("gp/linalg.py", "import pfedhgp.model.spec"),
        ("federation/server.py", "from pfedhgp.cli import terminal"),
        ("report/shares.py", "def late() -> None:\n    from pfedhgp.studies.common import store"),
        ("zones/groups.py", "import pfedhgp.diagnosis.evidence"),
    ],
)
def test_an_import_against_the_order_is_refused(source, module, line):
    """Inside a function too, and between two packages of one level."""
    path = source / "pfedhgp" / module
    path.write_text(f"{path.read_text('utf-8')}\n\n{line}\n", "utf-8")
    done = lint_imports(source)
    assert done.returncode != 0
    assert "pfedhgp." + module.removesuffix(".py").replace("/", ".") in done.stdout
