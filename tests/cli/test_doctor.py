"""`pfedhgp doctor`: a line for each part, JSON, and an exit code that only the core decides about."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from pfedhgp.base import installation
from pfedhgp.base.installation import Finding
from pfedhgp.cli import doctor


def test_it_says_that_this_installation_works(run):
    done = run("doctor")
    assert done.code == 0, done.out
    assert done.err == ""
    assert "pfedhgp works here" in done.out.splitlines()[-1]
    for name in ("Python", "pfedhgp", "BLAS", "GPU", "cache", "Flower", "Chromium", "torch"):
        (line,) = [each for each in done.out.splitlines() if f"  {name} " in each]
        assert line.split()[0] in doctor.MARKS.values()


def test_json_has_the_same_findings(run):
    done = run("doctor", "--json")
    found = json.loads(done.out)
    assert found["works"] is True
    by_name = {each["name"]: each for each in found["findings"]}
    assert by_name["a small fit"]["status"] == "ok"
    assert set(by_name["Flower"]) == {"group", "name", "status", "found", "advice"}
    missing = [each for each in found["findings"] if each["status"] != "ok"]
    assert all(each["advice"] for each in missing)
    assert all("\n" not in each["found"] + each["advice"] for each in found["findings"])


def test_what_the_core_lacks_is_exit_code_1_and_no_fit_is_tried(run, monkeypatch):
    wrong = Finding("core", "packages", "error", "jax (0.10.1 is installed)", "install another")
    monkeypatch.setattr(installation, "dependencies", lambda: wrong)
    monkeypatch.setattr(doctor, "small_fit", lambda: pytest.fail("it would hang with this jax"))
    done = run("doctor")
    assert done.code == 1
    assert "XX  packages" in done.out
    assert "-> install another" in done.out
    assert done.out.splitlines()[-1].startswith("pfedhgp does not work here")


def test_a_fit_that_fails_is_a_finding(run, monkeypatch):
    def broken() -> float:
        raise ImportError("libblas.so:\n not found")

    monkeypatch.setattr(doctor, "_fitted_bound", broken)
    done = run("doctor", "--json")
    assert done.code == 1
    found = json.loads(done.out)
    assert found["works"] is False
    (fit,) = [each for each in found["findings"] if each["name"] == "a small fit"]
    assert fit["found"] == "ImportError: libblas.so: not found"


def test_a_gpu_that_jax_does_not_see(monkeypatch, tmp_path):
    import jax

    def none(name: str) -> list:
        raise RuntimeError(f"no {name}")

    monkeypatch.setattr(jax, "devices", none)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert doctor.gpu(tmp_path / "no driver").status == "missing"
    (tmp_path / "version").write_text("NVRM")
    found = doctor.gpu(tmp_path / "version")
    assert found.status == "warning"
    assert "cuda" in found.advice
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert doctor.gpu(tmp_path / "version").found == "JAX_PLATFORMS=cpu hides any other device"


def test_it_works_without_the_packages_that_the_core_needs(tmp_path):
    """In a process where scipy cannot be imported: a line and exit code 1, no traceback."""
    (tmp_path / "scipy.py").write_text("raise ImportError('scipy is broken')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "pfedhgp", "doctor"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 1, done.stdout
    assert "XX  BLAS" in done.stdout
    assert "ImportError: scipy is broken" in done.stdout
    assert "Traceback" not in done.stderr
