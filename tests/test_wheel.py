"""The package builds into a wheel that installs and runs without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile

import pytest

import pfedhgp
from parts import require

pytestmark = pytest.mark.slow


def test_a_wheel_builds_installs_and_runs(tmp_path):
    require("hatchling")
    from pathlib import Path

    root = Path(__file__).resolve().parents[1]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path / "dist", root],
        check=True,
    )
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name == f"pfedhgp-{pfedhgp.__version__}-py3-none-any.whl"
    inside = set(zipfile.ZipFile(wheel).namelist())
    source = root / "src"
    files = {str(p.relative_to(source)) for p in (source / "pfedhgp").rglob("*") if p.is_file()}
    files = {name for name in files if "__pycache__" not in name}
    report = {f"pfedhgp/report/{name}" for name in ("template.html", "zones.html", "style.css")}
    assert report | {"pfedhgp/py.typed"} <= files <= inside
    target = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", target, wheel], check=True)
    code = "import pfedhgp, sys; print(pfedhgp.__file__); sys.path.pop(0)"
    environment = {**os.environ, "PYTHONPATH": str(target)}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert run.stdout.startswith(str(target))
    run = subprocess.run(
        [target / "bin" / "pfedhgp", "--version"], capture_output=True, text=True, env=environment
    )
    assert run.stdout == f"pfedhgp {pfedhgp.__version__}\n", run.stderr
