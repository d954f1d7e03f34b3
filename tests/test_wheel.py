"""The package builds into a wheel that installs and runs without the checkout, on every Python here."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import pfedhgp
from support.parts import require

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
"""Those that pyproject.toml names."""
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
ALONE = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    require("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT], check=True
    )
    (found,) = folder.iterdir()
    return found


def test_a_wheel_builds_installs_and_runs(wheel, tmp_path):
    assert wheel.name == f"pfedhgp-{pfedhgp.__version__}-py3-none-any.whl"
    inside = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    files = {str(p.relative_to(source)) for p in (source / "pfedhgp").rglob("*") if p.is_file()}
    files = {name for name in files if "__pycache__" not in name}
    report = {f"pfedhgp/report/{name}" for name in ("template.html", "zones.html", "style.css")}
    assert report | {"pfedhgp/py.typed"} <= files <= inside
    check_commands(installed(wheel, tmp_path / "venv"), tmp_path / "elsewhere")


@pytest.mark.parametrize("version", [each for each in VERSIONS if each != HERE])
def test_it_installs_into_an_empty_environment_of_another_python(version, wheel, tmp_path):
    """With its dependencies from the package index: about a gigabyte, which is removed again."""
    python = python_of(version)
    if python is None:
        pytest.skip(f"no python{version} here")
    folder = tmp_path / "venv"
    try:
        subprocess.run([python, "-m", "venv", folder], check=True)
        pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "-q"]
        done = subprocess.run(
            [*pip, "install", "--retries", "1", wheel], capture_output=True, text=True, env=ALONE
        )
        unreachable = ("Failed to establish", "Connection", "No space left", "timed out")
        if done.returncode and any(words in done.stderr for words in unreachable):
            pytest.skip(f"python{version} is here, but packages for it cannot be had")
        assert done.returncode == 0, done.stderr
        check_commands(folder / "bin" / "pfedhgp", tmp_path / "elsewhere")
        doctor = [folder / "bin" / "pfedhgp", "doctor"]
        said = subprocess.run(doctor, capture_output=True, text=True, env=ALONE).stdout
        assert f"Python        {version}." in said
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def python_of(version: str) -> str | None:
    """A Python of this version on the PATH, or one of pyenv's, that can make environments."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    own = sorted(root.glob(f"versions/{version}.*/bin/python{version}"))
    for each in (*map(str, own), shutil.which(f"python{version}")):
        if each is None:
            continue
        done = subprocess.run([each, "-c", "import ensurepip, venv"], capture_output=True)
        if done.returncode == 0:  # pyenv's shims are there for versions that are not chosen, too
            return each
    return None


def check_commands(program: Path, folder: Path) -> None:
    """The command says its version, fits a table, and writes a report with figures."""
    folder.mkdir()
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # compiling is what takes time here

    def run(*words: str) -> str:
        done = subprocess.run(
            [program, *words],
            **{"capture_output": True, "text": True},
            **{"env": ALONE | quick, "cwd": folder},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("--version") == f"pfedhgp {pfedhgp.__version__}\n"
    rows = [
        f"{site},{x / 2},{math.sin(x / 2) + len(site)}" for site in ("a", "bb") for x in range(8)
    ]
    (folder / "d.csv").write_text("\n".join(["site,x,y", *rows, ""]))
    columns = ("--client", "site", "--input", "x", "--output", "y")
    run("fit", "d.csv", *columns, "--rounds", "1", "--inducing", "4", "--no-report", "--out", "RUN")
    assert run("report", "RUN", "--data", "d.csv", "--out", "page.html") == "page.html\n"
    page = (folder / "page.html").read_text("utf-8")
    assert "y at 2 clients" in page
    assert page.count("<svg") > 5


def installed(wheel: Path, folder: Path) -> Path:
    """The command of the wheel in an environment of its own; what it needs comes from this one's packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    into = [*PIP, "--python", python]
    subprocess.run([*into, "install", "--no-deps", "--no-index", wheel], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # Of a folder that a .pth file names, .pth files are not read: this one's own pfedhgp is not found there.
    (site / "needed.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    code = "import pfedhgp, jax; print(pfedhgp.__file__)"
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, env=ALONE, cwd=folder
    )
    assert done.stdout.startswith(str(site)), done.stderr
    return folder / "bin" / "pfedhgp"
