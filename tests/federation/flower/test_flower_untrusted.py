"""Without TLS, on loopback: Flower's own commands on the app, and ours with a second site of one name."""

from __future__ import annotations

import shutil
import signal
import time
from dataclasses import replace

import pytest

from pfedhgp.model import files
from support.flower_processes import needs_flower
from support.reference_federation import rows_of

needs_flower()
from pfedhgp.federation.flower.processes import free_port  # noqa: E402
from pfedhgp.federation.flower.write_app import write_app  # noqa: E402
from support.twins_in_process import (  # noqa: E402
    assert_every_round_agrees,
    assert_global_blocks_agree,
    in_process,
)

pytestmark = pytest.mark.flower


def test_flwr_run_works_on_the_app_with_mean_field(deployment):
    """Flower's own commands, without TLS: a process for every message, state on the sites' disks alone."""
    how = {"inference": {"name": "mean-field", "rounds": 2}, "model": {"domain": ["0..5"]}}
    here = deployment(rows_of(["north", "south"]), **how)
    expected = in_process(here)
    write_app(here.folder / "pfedhgp-app")
    home = here.folder / "flwr"
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    quiet |= {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLWR_HOME": str(home)}
    home.mkdir()
    address = f"127.0.0.1:{here.port}"
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    )
    link = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(here.port)]
    here.start("superlink", link, more=quiet)
    for i, row in enumerate(here.rows):
        config = f'home="{here.home(i)}" name="{row.name}" data="{here.data(i)}"'
        node = ["flower-supernode", "--insecure", "--superlink", address, "--node-config", config]
        here.start(f"node-{i}", [*node, "--port", str(free_port())], more=quiet)
    config = f'config="{here.folder}/run.toml" sites="{here.certs}/sites.toml" out="{here.run}"'
    command = ["flwr", "run", "pfedhgp-app", "--run-config", config]
    for _ in range(20):  # the SuperLink may not be up yet
        done = here.start("flwr-run", command, more=quiet)
        if here.wait(done, "flwr-run") == 0:
            break
        time.sleep(2.0)
    here.wait_for(lambda: (here.run / "spec.json").exists(), "the model")
    assert_global_blocks_agree(here.run, expected.server)
    assert_every_round_agrees(here, expected)
    for i, row in enumerate(here.rows):
        here.wait_for((here.home(i) / "model" / "spec.json").exists, "a site's model")
        assert list(files.load(here.home(i) / "model").clients) == [row.name]


def test_without_tls_on_loopback_and_a_second_site_of_one_name(deployment):
    rows = rows_of(["north", "south"])
    here = deployment(rows, inference={"rounds": 1})
    expected = in_process(here)
    server = here.server("--insecure", "--timeout", "400")
    first = here.client(0, "--insecure")
    here.wait_for(lambda: bool(here.audit(0)), "the first site")
    here.keys["twin"] = here.keys["south"]
    here.rows = [*rows, replace(rows[1], name="north")]  # another home, the same name
    shutil.copy(here.data(1), here.data(2))
    twin = here.client(2, "--insecure")
    here.wait_for(lambda: bool(here.audit(2)), "the second site of that name")
    second = here.client(1, "--insecure")
    assert here.wait(server, "server") == 0, here.out("server")
    assert here.wait(first, "client-0") == here.wait(second, "client-1") == 0
    assert {entry["kind"] for entry in here.audit(2)} == {"hello"}
    assert "a second site of one name was refused" in here.out("server")
    here.rows = rows
    assert_global_blocks_agree(here.run, expected.server)
    twin.send_signal(signal.SIGTERM)
