"""Flower's own commands on the app, and the app's ClientApp."""

from __future__ import annotations

import time

import pytest

from pfedhgp.federation.envelope import Envelope
from pfedhgp.federation.schema import HELLO
from pfedhgp.model import files
from support.flower_processes import needs_flower
from support.reference_federation import rows_of

needs_flower()
from flwr.app import Context, Message, RecordDict  # noqa: E402

from pfedhgp.federation.flower import transport  # noqa: E402
from pfedhgp.federation.flower.app import client_app, write_app  # noqa: E402
from pfedhgp.federation.flower.processes import free_port  # noqa: E402
from support.twins_in_process import (  # noqa: E402
    assert_every_round_agrees,
    assert_global_blocks_agree,
    in_process,
)

pytestmark = pytest.mark.flower


@pytest.mark.usefixtures("in_a_flower_task")
def test_flowers_client_app_answers_for_the_site_of_its_node_config(tmp_path, capsys, monkeypatch):
    config = {"home": str(tmp_path), "name": "north", "data": str(tmp_path / "rows.csv")}
    context = Context(1, 7, config, RecordDict(), {})
    hello = Envelope(run="", exchange=0, kind=HELLO, round=0, sender="server")
    asked = Message(transport.to_records(hello), 7, transport.TRAIN)
    reply = client_app(asked, context)
    assert transport.from_records(reply.content, most_bytes=100).sender == "north"
    (tmp_path / "file").write_text("a home can be no file")
    elsewhere = Context(1, 7, {**config, "home": str(tmp_path / "file")}, RecordDict(), {})
    refused = transport.from_records(client_app(asked, elsewhere).content, most_bytes=100)
    assert refused.code == "internal"  # and not the text, which has this machine's paths
    unread = client_app(Message(RecordDict(), 7, transport.TRAIN), context)
    assert transport.from_records(unread.content, most_bytes=100).code == "malformed"
    assert not context.state, "state is on the site's disk alone"

    def fails(**options):
        raise ValueError("row 3: CANARY-77c2")

    monkeypatch.setattr("pfedhgp.federation.flower.site.site_from_files", fails)
    refused = transport.from_records(client_app(asked, context).content, most_bytes=100)
    assert refused.code == "internal"
    said = capsys.readouterr().err
    assert "pfedhgp: error: ValueError at test_app.py:" in said
    assert "CANARY" not in said


def test_flwr_run_works_on_the_app_with_mean_field(deployment):
    """Flower's own commands, without TLS: a process for every message, state on the sites' disks alone."""
    how = {"inference": {"name": "mean-field", "rounds": 2}, "model": {"domain": ["0..5"]}}
    here = deployment(rows_of(["north", "south"]), **how)
    expected = in_process(here)
    write_app(here.folder / "pfedhgp-app")
    (here.folder / "policy.toml").write_text("public_grid = false\n")  # mean-field's inputs move
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
        config = f'home="{here.home(i)}" name="{row.name}" data="{here.data(i)}" i-know=true '
        config += f'config="{here.folder}/run.toml" policy="{here.folder}/policy.toml"'
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
