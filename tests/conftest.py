"""Settings and helpers for the whole test run."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

# Compiling is most of what tests do: workers, and commands that they start, share what was compiled.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).resolve().parents[1] / "build" / "compiled")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import jax
import pytest

from support.parts import require

# Float64 as the library works in it; and silent promotion of ranks or dtypes is a bug in our code.
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
# The problems here are tiny: compiling them takes far longer than the optimiser could win back.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(name="require", scope="session")
def _require():
    return require


class Result(NamedTuple):
    """What a command returned and printed."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line of a refusal."""
        lines = [line for line in self.err.splitlines() if "warning:" not in line]
        assert self.code == 2, self.err
        assert len(lines) == 1, self.err
        assert lines[0].startswith("pfedhgp: error: ")
        return lines[0]


@pytest.fixture
def run(capsys, monkeypatch):
    """The command line in this process: `run("fit", ...)` gives its exit code and what it printed."""
    from pfedhgp.cli.main import main

    monkeypatch.setenv("PFEDHGP_CACHE", "")

    def call(*arguments) -> Result:
        capsys.readouterr()
        code = main([str(each) for each in arguments])
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture
def compilations():
    """The name of each program that JAX compiles while the test runs, as it is compiled."""
    seen: list[str] = []

    def note(event: str, _seconds: float, **labels: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(str(labels.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(note)
    jax.jit(lambda x: 3.0 * x + 1.0)(1.0)
    assert seen  # it counts
    yield seen
    jax.monitoring.unregister_event_duration_listener(note)


@pytest.fixture
def written(monkeypatch):
    """A stand-in for `pfedhgp.report` that keeps what it is given."""
    calls = []

    def write(path, model, *, rows=None, metrics=None, held_out=None, **others):
        calls.append((model, rows, metrics, held_out))
        path.write_text("<html>")
        return path

    module = ModuleType("pfedhgp.report")
    module.write = write
    monkeypatch.setitem(sys.modules, "pfedhgp.report", module)
    return calls


MOST_MAPS = 20_000
"""A process may have 65,530 memory maps on Linux, and every compiled function holds some."""


@pytest.fixture(autouse=True)
def _room_for_compiled_code():
    """Drops compiled functions after a test where they are many: XLA crashes when maps run out."""
    started = time.perf_counter()
    yield
    if time.perf_counter() - started < 1.0:  # too short to have compiled much; counting takes 10 ms
        return
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
