"""Servers and sites as real processes, for tests: each with a log, all ended with the test."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pfedhgp.data.rows import ClientRows

PATIENCE = 600.0
"""Seconds that anything may take on a loaded machine before a test fails."""


def needs_flower() -> None:
    """Skips a module where Flower is not installed; `make test-flower`, which installs it, allows no skip."""
    if importlib.util.find_spec("flwr") is not None:
        return
    if os.environ.get("PFEDHGP_REQUIRE_FLOWER") == "1":
        pytest.fail("flwr is missing, and PFEDHGP_REQUIRE_FLOWER=1 asks for it", pytrace=False)
    pytest.skip(
        "flwr is missing: `make test-flower` brings it and runs these", allow_module_level=True
    )


@dataclass
class Deployment:
    """A folder with settings, certificates, rows and homes; and what runs there."""

    folder: Path
    cache: Path
    rows: Sequence[ClientRows]
    config: Mapping[str, Mapping[str, Any]]
    port: int
    i_know: bool = True
    """Whether rows may be computed from what is sent: most tests have sites of a few rows."""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        from pfedhgp.federation.flower.certificates import make_certificates
        from pfedhgp.settings import config as configs

        if self.i_know:
            run = {"privacy": "none", **self.config.get("run", {})}
            self.config = {**self.config, "run": run}
        checked = configs.check(self.config)
        (self.folder / "run.toml").write_text(configs.to_toml(checked), encoding="utf-8")
        self.keys = make_certificates(self.certs, [row.name for row in self.rows], ["127.0.0.1"])
        for i, row in enumerate(self.rows):
            write_rows(self.data(i), row)

    @property
    def certs(self) -> Path:
        return self.folder / "certs"

    @property
    def run(self) -> Path:
        return self.folder / "RUN"

    def data(self, i: int) -> Path:
        return self.folder / f"rows-{i}.parquet"

    def home(self, i: int) -> Path:
        return self.folder / f"home-{i}"

    def environment(self) -> dict[str, str]:
        here = Path(__file__).parent
        tests = here.parent
        paths = [str(here / "flower_hook"), str(tests), str(tests.parent / "src")]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "JAX_COMPILATION_CACHE_DIR": str(self.cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # as in the tests' own process
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }

    def start(
        self, name: str, command: Sequence[str], *, more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.out", "ab") as sink:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**self.environment(), **(more or {})},
                cwd=self.folder,
            )
        self.processes.append(process)
        return process

    def server(self, *more: str) -> subprocess.Popen[bytes]:
        return self.start(
            "server",
            [
                *(sys.executable, "-m", "pfedhgp.cli.main", "server", "--config", "run.toml"),
                *("--sites", "certs/sites.toml", "--out", "RUN"),
                *("--listen", f"127.0.0.1:{self.port}", *more),
            ],
        )

    def client_arguments(self, i: int, port: int | None = None) -> list[str]:
        return [
            *("client", *(["--i-know"] if self.i_know else [])),
            *("--data", str(self.data(i)), "--name", self.rows[i].name),
            *("--config", str(self.folder / "run.toml")),
            *("--server", f"127.0.0.1:{port or self.port}", "--home", str(self.home(i))),
        ]

    def credentials(self, i: int) -> list[str]:
        return ["--ca", "certs/ca.crt", "--key", str(self.keys[self.rows[i].name])]

    def client(
        self, i: int, *more: str, fault: str = "", port: int | None = None, home: str = ""
    ) -> subprocess.Popen[bytes]:
        """A site; with a fault, one that misbehaves as tests/support/rogue_site.py says.

        `port` is that of a proxy before the server; `home` is another than the usual one.
        """
        rogue = Path(__file__).with_name("rogue_site.py")
        program = [str(rogue)] if fault else ["-m", "pfedhgp.cli.main"]
        arguments = [*self.client_arguments(i, port), *(more or self.credentials(i))]
        if home:
            arguments = [home if word == str(self.home(i)) else word for word in arguments]
        surroundings = {"FAULT": fault, "CONNECTS": str(self.folder / f"connects-{i}.txt")}
        command = [sys.executable, *program, *arguments]
        return self.start(home or f"client-{i}", command, more=surroundings)

    def out(self, name: str) -> str:
        path = self.folder / f"{name}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def participation(self) -> list[dict[str, Any]]:
        path = self.run / "participation.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def audit(self, i: int) -> list[dict[str, Any]]:
        path = self.home(i) / "audit.jsonl"
        if not path.exists():
            return []
        whole = path.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def wait(self, process: subprocess.Popen[bytes], name: str) -> int:
        try:
            return process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{name} did not end:\n{self.out(name)[-3000:]}") from None

    def wait_for(self, what: Callable[[], bool], why: str) -> None:
        end = time.monotonic() + PATIENCE
        while not what():
            if time.monotonic() > end:
                logs = {
                    p.name: p.read_text(errors="replace")[-1500:] for p in self.folder.glob("*.out")
                }
                raise AssertionError(f"waited in vain for {why}: {logs}")
            time.sleep(0.1)

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 15.0
        for process in self.processes:
            try:
                process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def write_rows(path: Path, row: ClientRows) -> None:
    """x and y; missing cells as nulls."""
    pl.DataFrame({"x": row.X[:, 0], "y": row.Y[:, 0]}).with_columns(
        pl.col("y").fill_nan(None)
    ).write_parquet(path)
