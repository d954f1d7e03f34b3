"""The units and the compose file in docs/deploy: their commands are ours, and systemd takes the units."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import typer

from pfedhgp.cli.main import app
from support.documents import ROOT
from support.parts import require, require_part

FOLDER = ROOT / "docs" / "deploy"
UNITS = sorted(FOLDER.glob("*.service"))


def parameters(words):
    """What the command line makes of a command's words; raises if an option does not exist."""
    name, *options = words
    command = typer.main.get_command(app).get_command(None, name)
    return command.make_context(name, list(options)).params


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_start_our_commands(unit):
    (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), flags=re.M)
    program, *words = line.split()
    assert program == "/opt/pfedhgp/bin/pfedhgp"
    found = parameters(words)
    assert found["log_json"]
    states = re.findall(r"^StateDirectory=(.*)$", unit.read_text(), flags=re.M)
    own = found["out"] if words[0] == "server" else found["home"]
    assert str(own).startswith(f"/var/lib/{states[0]}")  # all else is read-only there


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_units(unit, tmp_path):
    require_part("systemd-analyze", found=shutil.which("systemd-analyze") is not None)
    program = tmp_path / "pfedhgp"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/pfedhgp/bin/pfedhgp", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False
    )
    about = [line for line in done.stderr.splitlines() if line.startswith(("pfedhgp", str(copy)))]
    assert about == []
    assert done.returncode == 0, done.stderr


def compose():
    """The compose file: YAML's plain part, with anchors, as this file uses it."""
    yaml = require("yaml")
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())


def test_the_compose_file_starts_our_commands():
    found = compose()
    volumes = set(found["volumes"])
    for service, place in (("server", "out"), ("site", "home")):
        about = found["services"][service]
        words = [re.sub(r"\$\{(\w+):\?[^}]*\}", r"\1:1", word) for word in about["command"]]
        given = parameters(words)
        assert str(given[place]).startswith("/var/lib/pfedhgp")
        named = {text.split(":")[0] for text in about["volumes"]} & volumes
        assert named == {service}
        assert about["read_only"]
        assert about["cap_drop"] == ["ALL"]
        assert (ROOT / "docs" / "deploy" / about["build"]["context"]).resolve() == ROOT
        assert (ROOT / about["build"]["dockerfile"]).is_file()
    ports = found["services"]["server"]["ports"]
    assert [p for p in ports if "8080" in p] == [
        "127.0.0.1:8080:8080"
    ]  # the page stays on the host
    assert "ports" not in found["services"]["site"]
