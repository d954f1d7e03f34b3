"""The command line run in this process: `run("fit", ...)` gives its exit code and what it printed."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from pfedhgp.cli.main import main


class Result(NamedTuple):
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
    monkeypatch.setenv("PFEDHGP_CACHE", "")

    def call(*arguments) -> Result:
        capsys.readouterr()
        code = main([str(each) for each in arguments])
        return Result(code, *capsys.readouterr())

    return call
