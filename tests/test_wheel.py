"""The package builds into a wheel that installs and runs without the checkout."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import pfedhgp
from support.parts import require

pytestmark = pytest.mark.slow


def test_a_wheel_builds_installs_and_runs(tmp_path):
    require("hatchling")
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
    program = installed(wheel, tmp_path / "venv")
    (tmp_path / "elsewhere").mkdir()
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # compiling is what takes time here
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | quick

    def run(*words: str) -> str:
        done = subprocess.run(
            [program, *words],
            **{"capture_output": True, "text": True},
            **{"env": environment, "cwd": tmp_path / "elsewhere"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("--version") == f"pfedhgp {pfedhgp.__version__}\n"
    rows = [
        f"{site},{x / 2},{math.sin(x / 2) + len(site)}" for site in ("a", "bb") for x in range(8)
    ]
    (tmp_path / "elsewhere" / "d.csv").write_text("\n".join(["site,x,y", *rows, ""]))
    columns = ("--client", "site", "--input", "x", "--output", "y")
    run("fit", "d.csv", *columns, "--rounds", "1", "--inducing", "4", "--no-report", "--out", "RUN")
    assert run("report", "RUN", "--data", "d.csv", "--out", "page.html") == "page.html\n"
    page = (tmp_path / "elsewhere" / "page.html").read_text("utf-8")
    assert "y at 2 clients" in page
    assert page.count("<svg") > 5


def installed(wheel: Path, folder: Path) -> Path:
    """The command of the wheel in an environment of its own; what it needs comes from this one's packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", python]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", wheel], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # Of a folder that a .pth file names, .pth files are not read: this one's own pfedhgp is not found there.
    (site / "needed.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    code = "import pfedhgp, jax; print(pfedhgp.__file__)"
    alone = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, env=alone, cwd=folder
    )
    assert done.stdout.startswith(str(site)), done.stderr
    return folder / "bin" / "pfedhgp"
