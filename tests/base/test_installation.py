"""What the doctor finds, on installations that lack something."""

from __future__ import annotations

import os
import sys
from importlib import metadata

import pytest

from pfedhgp.base import installation
from pfedhgp.base.installation import GIB

WANTED = [
    "jax!=0.10.*,>=0.8.1",
    "numpy>=1.26",
    'flwr<1.43,>=1.41; extra == "flower"',
    'pytest>=8; extra == "test"',
]


@pytest.fixture
def installed(monkeypatch):
    """A made-up set of distributions: `installed(jax="0.9.2")`."""

    def pretend(**versions: str) -> None:
        def version(name: str) -> str:
            if name not in versions:
                raise metadata.PackageNotFoundError(name)
            return versions[name]

        monkeypatch.setattr(metadata, "version", version)
        monkeypatch.setattr(metadata, "requires", lambda name: WANTED)

    return pretend


def test_requirements_are_those_of_pyproject():
    """Against the file itself, as pip would read it."""
    import tomllib
    from pathlib import Path

    from packaging.requirements import Requirement

    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text("utf-8")
    project = tomllib.loads(text)["project"]
    flower = project["optional-dependencies"]["flower"]
    for extra, written in ((None, project["dependencies"]), ("flower", flower)):
        found = [Requirement(each) for each in installation.requirements(extra)]
        assert {r.name for r in found} == {Requirement(each).name for each in written}


def test_a_version_that_deadlocks_is_an_error(installed):
    installed(jax="0.10.2", jaxlib="0.10.2", numpy="2.0", scipy="1.12")
    found = installation.dependencies()
    assert found.status == "error"
    assert found.found == "jax!=0.10.*,>=0.8.1 (0.10.2 is installed)"
    assert found.advice == "python3 -m pip install 'jax!=0.10.*,>=0.8.1'"
    assert installation.errors_in([found]) == [found]


def test_a_package_that_is_missing_is_an_error(installed):
    installed(jax="0.9.2")
    found = installation.dependencies()
    assert (found.status, found.found) == ("error", "numpy>=1.26 (missing)")


def test_all_in_range_is_fine(installed):
    installed(jax="0.11.0", jaxlib="0.11.0", numpy="2.0", scipy="1.12")
    found = installation.dependencies()
    assert (found.status, found.advice) == ("ok", "")
    assert found.found.startswith("all 2 in range: jax 0.11.0")


def flower() -> installation.Finding:
    return installation.optional(
        "federations",
        "Flower",
        packages=("flwr",),
        extra="flower",
        purpose="federations",
        install="install it",
    )


@pytest.mark.parametrize(
    ("versions", "status", "said"),
    [
        ({}, "missing", "no flwr; needed for federations"),
        ({"flwr": "1.41.0"}, "ok", "flwr 1.41.0"),
        ({"flwr": "1.50.0"}, "warning", "untested with flwr<1.43,>=1.41 (1.50.0 is installed)"),
    ],
)
def test_an_extra_is_missing_fine_or_out_of_range(installed, versions, status, said):
    installed(**versions)
    found = flower()
    assert (found.status, found.found) == (status, said)
    assert bool(found.advice) == (status != "ok")
    assert not installation.errors_in([found])  # the core works without


def test_an_old_python_is_an_error(monkeypatch):
    assert installation.python().status == "ok"
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    found = installation.python()
    assert (found.status, found.advice) == ("error", "install Python 3.11 or newer")


def test_chromium_by_any_of_its_names():
    found = installation.browser(which=lambda name: "/b/c" if name == "google-chrome" else None)
    assert (found.status, found.found) == ("ok", "/b/c")
    assert installation.browser(which=lambda name: None).status == "missing"


def test_free_memory_is_the_least_that_binds(tmp_path):
    assert installation.free_memory(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   2097152 kB\n")
    assert installation.free_memory(tmp_path) == 2 * GIB
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("100\n")
    assert installation.free_memory(tmp_path) == 2 * GIB
    (group / "memory.max").write_text(f"{int(GIB)}\n")
    assert installation.free_memory(tmp_path) == GIB - 100


def test_little_memory_is_a_warning(monkeypatch):
    monkeypatch.setattr(installation, "free_memory", lambda: 0.25 * GIB)
    found = installation.memory()
    assert (found.status, found.found) == ("warning", "0.2 GiB free")
    assert found.advice
    monkeypatch.setattr(installation, "free_memory", lambda: 4 * GIB)
    assert installation.memory().status == "ok"


def test_the_cache_is_off_there_or_not_writable(monkeypatch, tmp_path):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("PFEDHGP_CACHE", "")
    assert installation.cache().found.startswith("off")
    monkeypatch.setenv("PFEDHGP_CACHE", str(tmp_path / "new"))
    found = installation.cache()
    assert found.status == "ok"
    assert found.found.startswith(str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()  # it only looks
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    found = installation.cache()
    assert found.status == "warning"
    assert "cannot be written" in found.found
