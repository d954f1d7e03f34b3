"""Server and sites as processes: the same answer as in one process, and nobody else gets in."""

from __future__ import annotations

import re
import shutil
import signal
import struct
import sys
from dataclasses import replace

import jax
import numpy as np
import polars as pl
import pytest

from pfedhgp import FederatedGP
from pfedhgp.model import files
from support.flower_processes import needs_flower
from support.reference_federation import rows_of

needs_flower()
from pfedhgp.federation.flower.certificates import make_certificates  # noqa: E402
from pfedhgp.federation.flower.processes import free_port  # noqa: E402
from support.twins_in_process import (  # noqa: E402
    assert_every_round_agrees,
    assert_global_blocks_agree,
    in_process,
)

pytestmark = pytest.mark.flower
CANARY_X, CANARY_Y = 2.7182818459045, 0.57721566490153


def test_four_sites_over_tls_find_what_one_process_finds(deployment, run):
    """And nobody else gets in, nothing leaks, and each site predicts alone afterwards."""
    rows = rows_of([f"site {i} CANARYNAME" for i in range(4)])
    rows[1].X[3], rows[1].Y[3] = CANARY_X, CANARY_Y
    here = deployment(rows)
    expected = in_process(here)
    server = here.server()
    strangers = _strangers(here)
    clients = [here.client(i) for i in range(4)]
    for process, name, code, words in strangers:
        assert here.wait(process, name) in code, here.out(name)
        assert words in here.out(name).replace("\n", " "), here.out(name)
    assert here.wait(server, "server") == 0, here.out("server")
    for i, client in enumerate(clients):
        assert here.wait(client, f"client-{i}") == 0, here.out(f"client-{i}")

    assert_global_blocks_agree(here.run, expected.server)
    assert_every_round_agrees(here, expected)
    assert sum(entry["kind"] == "round" for entry in here.participation()) == 5
    _check_offline_prediction(here, run, expected.groups)
    _check_audit_logs(here, run)
    _check_canaries(here)
    _check_connections(here)


def _strangers(here):
    """An unregistered key, no key, and a site that trusts another CA."""
    make_certificates(here.folder / "other", [here.rows[0].name], ["127.0.0.1"])
    (other,) = (here.folder / "other" / "sites").iterdir()
    here.wait_for(lambda: (here.run / "checkpoint/flower/ready").exists(), "the server")
    program = [sys.executable, "-m", "pfedhgp.cli.main", *here.client_arguments(0)[:-1]]
    unregistered = [*program, str(here.folder / "x0"), "--ca", "certs/ca.crt", "--key", str(other)]
    wrong_ca = [*program, str(here.folder / "x1"), "--ca", "other/ca.crt"]
    wrong_ca += here.credentials(0)[2:]
    program_text = "from flwr.supernode.cli import flower_supernode; flower_supernode()"
    keyless = [sys.executable, "-c", program_text, "--superlink", f"127.0.0.1:{here.port}"]
    keyless += ["--root-certificates", "certs/ca.crt", "--port", str(free_port())]
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    quiet |= {"FLWR_HOME": str(here.folder / "x2")}
    return [
        (here.start("unregistered", unregistered), "unregistered", (2,), "refused this site's key"),
        (here.start("wrong-ca", wrong_ca), "wrong-ca", (2,), "certificate of 127.0.0.1"),
        (
            here.start("keyless", keyless, more=quiet),
            "keyless",
            range(1, 256),
            "Failed to initialize the connection",
        ),
    ]


def _check_offline_prediction(here, run, groups):
    """The server is gone; the site's model has its own block alone, and predicts as in one process."""
    points = np.linspace(0.0, 5.0, 7)
    pl.DataFrame({"x": points}).write_csv(here.folder / "where.csv")
    for i, row in enumerate(here.rows):
        own = files.load(here.home(i) / "model")
        assert list(own.clients) == [row.name]
        (group,) = (c for c in groups if c.names == (row.name,))
        pairs = zip(
            jax.tree.leaves(own.clients[row.name]),
            jax.tree.leaves(group.posteriors[row.name]),
            strict=True,
        )
        for one, two in pairs:
            np.testing.assert_allclose(np.asarray(one), np.asarray(two), rtol=1e-8, atol=1e-10)
    table = here.folder / "predicted.csv"
    name = here.rows[2].name
    done = run(
        "predict",
        here.home(2) / "model",
        here.folder / "where.csv",
        "--client",
        name,
        "--out",
        table,
    )
    assert done.code == 0, done.err
    found = pl.read_csv(table)
    model = FederatedGP.load(here.home(2) / "model")
    np.testing.assert_allclose(found["mean"], model.predict(name, points[:, None]).mean[:, 0])


def _check_audit_logs(here, run):
    for i in range(len(here.rows)):
        assert run("audit", here.home(i), "--against", here.run).code == 0
    assert run("audit", here.run).code == 0
    sent = [entry for entry in here.audit(1) if entry["direction"] == "sent"]
    log = here.participation()
    assert [(e["exchange"], e["kind"]) for e in sent[:-1]] == [
        (e["exchange"], e["kind"]) for e in log
    ]
    altered = here.folder / "altered"
    shutil.copytree(here.home(1), altered)
    lines = (altered / "audit.jsonl").read_text().splitlines(keepends=True)
    number = next(i for i, line in enumerate(lines) if '"sent"' in line)
    lines[number] = lines[number].replace('"bytes": ', '"bytes": 1')
    (altered / "audit.jsonl").write_text("".join(lines))
    result = run("audit", altered)
    assert result.code == 1
    assert f"line {number + 1}: " in result.out


NAMED_AT_A_SITE = ("site.json", "spec.json")
"""Files of a home that have the site's own name; no file of it has another's."""
NAMED_AT_THE_SERVER = ("messages.jsonl", "participation.jsonl", "spec.json", "server.out")
"""Files of RUN, and the server's own lines: it has all names in its sites.toml."""


def _check_canaries(here):
    """No row in any file but the data. The server may name its sites; a site's files name no other site."""
    numbers = [f"{value:.9f}"[:9].encode() for value in (CANARY_X, CANARY_Y)]
    numbers += [struct.pack("<d", value) for value in (CANARY_X, CANARY_Y)]
    asked_for = (here.folder / "altered", here.folder / "predicted.csv", here.certs / "sites.toml")
    secrets = [set(path.read_bytes().splitlines()) for path in (here.certs / "sites").iterdir()]
    lines = set.union(*secrets) - set.intersection(*secrets)  # some lines of the format are in each
    keys = {
        line for line in lines if len(line) > 40
    }  # and a last one may be short enough for chance
    assert len(keys) >= len(here.rows)
    looked = {"site": 0, "server": 0}
    for path in sorted(here.folder.rglob("*")):
        inside = path.relative_to(here.folder).parts[0]
        if not path.is_file() or path.suffix == ".parquet" or inside == "altered":
            continue
        content = path.read_bytes()
        assert not any(number in content for number in numbers), path
        assert here.certs in path.parents or not any(key in content for key in keys), path
        if path in asked_for or inside == "other":
            continue
        there = [i for i, row in enumerate(here.rows) if row.name.encode() in content]
        mine = [i for i in range(len(here.rows)) if inside.startswith(_places(i))]
        allowed = NAMED_AT_A_SITE if mine else NAMED_AT_THE_SERVER
        if mine and path.suffix == ".safetensors":  # a client's state is that client's
            allowed = (path.name,)
        looked["site" if mine else "server"] += 1
        assert not there or (path.name in allowed and set(there) <= set(mine or there)), path
        assert (b"CANARYNAME" in content) == bool(there), path
    assert looked["site"] > 40
    assert looked["server"] > 10


def _places(i):
    return (f"home-{i}", f"client-{i}.out", f"connects-{i}.txt")


def _check_connections(here):
    """To the server's port, and to the SuperNode beside the site: nowhere else, not even on this machine."""
    for i in range(len(here.rows)):
        log = (here.home(i) / "flower" / "supernode.log").read_text()
        beside = re.findall(r"running on http://127\.0\.0\.1:(\d+)", log)
        assert beside
        allowed = {f"('127.0.0.1', {port})" for port in (here.port, *beside)}
        lines = (here.folder / f"connects-{i}.txt").read_text().splitlines()
        found = {line.partition(" ")[2] for line in lines}
        assert found <= allowed, found - allowed
        assert f"socket.connect ('127.0.0.1', {here.port})" in lines


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
    assert "refused a second site with a name that is already taken" in here.out("server")
    here.rows = rows
    assert_global_blocks_agree(here.run, expected.server)
    twin.send_signal(signal.SIGTERM)
