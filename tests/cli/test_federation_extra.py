"""Without the extra, the federation's commands say what to install, and the rest works."""

from __future__ import annotations

import sys

import pytest

COMMANDS = {
    "server": ["--config", "c", "--sites", "s", "--out", "o"],
    "client": ["--data", "d", "--name", "n", "--server", "h:1", "--home", "o"],
    "certs": ["--site", "a", "--out", "o"],
    "federate": ["d.csv", "--input", "x", "--output", "y", "--out", "o"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_missing_extra_is_one_line(name, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)  # as if it were not there
    monkeypatch.setattr("pfedhgp.cli.commands.find_spec", lambda name: None)
    complaint = run(name, *COMMANDS[name]).complaint
    assert complaint.endswith(
        "needs Flower: python3 -m pip install '.[flower]' in a checkout of pfedhgp"
    )
