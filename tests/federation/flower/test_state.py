"""A federation that an older version began goes on, from the server's checkpoint and the sites' homes."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from pfedhgp import FederatedGP
from support.flower_processes import Deployment, needs_flower
from support.reference_federation import rows_of

needs_flower()
from pfedhgp.federation.flower.processes import free_port  # noqa: E402

pytestmark = pytest.mark.flower
SAVED = Path(__file__).parents[2] / "fixtures" / "federation"
COLUMNS = {"data": {"inputs": ["x"], "outputs": ["y"]}}


def test_a_stopped_federation_of_an_older_version_goes_on(tmp_path, cache, run):
    """Settings, agreement, states, replies and logs are all read; it ends near a run without a stop.

    That run was of a version whose clients' scales had fixed priors and one φ; today they have a population.
    """
    saved = tmp_path / "saved"
    shutil.copytree(SAVED, saved)
    here = Deployment(tmp_path, cache, rows_of(["unused"]), COLUMNS, free_port())
    place, address = saved / "stopped", f"127.0.0.1:{here.port}"
    settings = (saved / "run.toml").read_text()  # before there was a choice, rows had no protection
    (saved / "run.toml").write_text(settings.replace("[run]", '[run]\nprivacy = "none"'))
    for folder in (place / "RUN" / "checkpoint", place / "home-a", place / "home-b"):
        folder.chmod(0o700)
    logs = {path: path.read_bytes() for path in place.rglob("audit.jsonl")}
    program = [sys.executable, "-m", "pfedhgp"]
    terms = ["--config", str(saved / "run.toml"), "--insecure"]
    sites = ["--sites", str(saved / "sites.toml"), "--out", str(place / "RUN")]
    running = {
        "server": here.start("server", [*program, "server", *terms, *sites, "--listen", address])
    }
    for name in ("a", "b"):
        own = ["--i-know", "--data", str(saved / f"{name}.csv"), "--name", name]
        own += ["--home", str(place / f"home-{name}"), "--server", address]
        running[name] = here.start(name, [*program, "client", *terms, *own])
    try:
        for name, process in running.items():
            assert here.wait(process, name) == 0, here.out(name)
    finally:
        here.stop()
    assert "going on with the run that stopped" in here.out("server")
    assert "exchange 6" in here.out("server")
    assert "exchange 4" not in here.out("server"), "it began again"

    end = json.loads((SAVED / "end.json").read_text("ascii"))
    for name, stored in end.items():
        model = FederatedGP.load(place / f"home-{name}" / "model")
        # Clients' own φ_i came later; they can only raise what is reached.
        assert stored["bound"] - 0.5 < model.bound_ < stored["bound"] + 1.0
        inputs, expected = np.array(stored["inputs"])[:, None], stored["clients"][name]
        found = model.predict(name, inputs)
        sd = np.asarray(expected["sd"])
        assert np.all(np.abs(found.mean - expected["mean"]) < 0.5 * sd)
        assert np.all(np.abs(np.log(found.sd / sd)) < 0.5)
        audited = run("audit", place / f"home-{name}", "--against", place / "RUN")
        assert audited.code == 0, audited.out
    assert run("audit", place / "RUN").code == 0
    for path, before in logs.items():
        assert path.read_bytes().startswith(before), "the log goes on where it was"
