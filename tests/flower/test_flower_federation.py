"""Federations of real processes over Flower on loopback: the same answer, refusals, faults and kills."""

from __future__ import annotations

import shutil
import signal
import struct
import sys
import time
from dataclasses import replace

import jax
import numpy as np
import polars as pl
import pytest

from flower_processes import Deployment, needs_flower
from pfedhgp import FederatedGP
from pfedhgp.cli import config as configs
from pfedhgp.cli.agreement import Agreement
from pfedhgp.federation import inprocess
from pfedhgp.federation.cohort import make_cohorts
from pfedhgp.federation.server import Server
from pfedhgp.model import files
from pfedhgp.runtime import numerics
from reference_federation import replay, rows_of

needs_flower()
from pfedhgp.federation.flower.certs import make_certificates  # noqa: E402
from pfedhgp.federation.flower.processes import free_port  # noqa: E402

pytestmark = pytest.mark.flower

CANARY_X, CANARY_Y = 2.7182818459045, 0.57721566490153
CONFIG = {
    "data": {"inputs": ["x"], "outputs": ["y"]},
    "model": {"inducing": 5, "local_inducing": 5},
    "inference": {"rounds": 5, "tolerance": 0.0},
}


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """Compiled code that all processes of all tests share."""
    given = jax.config.jax_compilation_cache_dir
    return given or tmp_path_factory.mktemp("compiled")


@pytest.fixture
def deployment(tmp_path, cache):
    made = []

    def make(rows, **tables):
        config = {name: {**table, **tables.get(name, {})} for name, table in CONFIG.items()}
        made.append(Deployment(tmp_path, cache, rows, config, free_port()))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def in_process(deployed) -> tuple[Server, list]:
    """The same training in this process, with batch=False; and every request's hash."""
    plan = Agreement.of(configs.check(deployed.config)).plan()
    server, hashes = Server(plan), {}
    cohorts = make_cohorts(plan, deployed.rows, batch=False)

    def record(message, receiver):
        if message.sender == "server":
            hashes[message.kind, message.round] = message.block

    with numerics():
        inprocess.run(server, cohorts, record=record)
    return server, cohorts, hashes


def assert_global_blocks_agree(run, server: Server) -> None:
    found, expected = files.load(run), server.best
    pairs = zip(
        jax.tree.leaves((found.shared, found.population)),
        jax.tree.leaves((expected[2], expected[3])),
        strict=True,
    )
    for one, two in pairs:
        np.testing.assert_allclose(np.asarray(one), np.asarray(two), rtol=1e-10, atol=1e-10)
    bounds = [
        [record["bound"] for record in history] for history in (found.history, server.history)
    ]
    assert len(bounds[0]) == len(bounds[1])
    if None not in bounds[1]:
        np.testing.assert_allclose(*bounds, rtol=1e-10)


def test_four_sites_over_tls_find_what_one_process_finds(deployment, run):
    """And nobody else gets in, nothing leaks, and each site predicts alone afterwards."""
    rows = rows_of([f"site {i} CANARYNAME" for i in range(4)])
    rows[1].X[3], rows[1].Y[3] = CANARY_X, CANARY_Y
    here = deployment(rows)
    server = here.server()
    strangers = _strangers(here)
    clients = [here.client(i) for i in range(4)]
    for process, name, code, words in strangers:
        assert here.wait(process, name) in code, here.out(name)
        assert words in here.out(name).replace("\n", " "), here.out(name)
    assert here.wait(server, "server") == 0, here.out("server")
    for i, client in enumerate(clients):
        assert here.wait(client, f"client-{i}") == 0, here.out(f"client-{i}")

    expected, cohorts, hashes = in_process(here)
    assert_global_blocks_agree(here.run, expected)
    log = here.participation()
    assert [entry["missing"] for entry in log] == [{}] * len(log)
    assert sum(entry["kind"] == "round" for entry in log) == 5
    # The hash is of all that is broadcast: the global block after each round is the same, bit for bit.
    assert {(e["kind"], e["round"]): e["block"] for e in log} == {
        key: value for key, value in hashes.items() if key[0] != "finish"
    }
    _check_offline_prediction(here, run, cohorts)
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


def _check_offline_prediction(here, run, cohorts):
    """The server is gone; the site's model has its own block alone, and predicts as in one process."""
    points = np.linspace(0.0, 5.0, 7)
    pl.DataFrame({"x": points}).write_csv(here.folder / "where.csv")
    for i, row in enumerate(here.rows):
        own = files.load(here.home(i) / "model")
        assert list(own.clients) == [row.name]
        (cohort,) = (c for c in cohorts if c.names == (row.name,))
        pairs = zip(
            jax.tree.leaves(own.clients[row.name]),
            jax.tree.leaves(cohort.posteriors[row.name]),
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


def _check_canaries(here):
    """No row in any file but the data; no name in any log of a site or of Flower."""
    numbers = [f"{value:.9f}"[:9].encode() for value in (CANARY_X, CANARY_Y)]
    numbers += [struct.pack("<d", value) for value in (CANARY_X, CANARY_Y)]
    named = ("site.json", "messages.jsonl", "participation.jsonl", "spec.json", "sites.toml")
    named += ("predicted.csv",)  # the user asked for it
    looked = 0
    for path in sorted(here.folder.rglob("*")):
        if not path.is_file() or path.suffix == ".parquet" or "altered" in path.parts:
            continue
        content = path.read_bytes()
        looked += 1
        assert not any(number in content for number in numbers), path
        if path.name not in named and path.suffix != ".safetensors":
            assert b"CANARYNAME" not in content, path
    assert looked > 60


def _check_connections(here):
    for i in range(len(here.rows)):
        lines = (here.folder / f"connects-{i}.txt").read_text().splitlines()
        assert lines
        assert all("127.0.0.1" in line or "localhost" in line for line in lines), set(lines)
        assert any(str(here.port) in line for line in lines)


def test_kills_nan_replays_and_silence(deployment):
    """A site and the server are killed in mid-round, others misbehave; the log tells all of it."""
    rows = rows_of(["steady", "killed", "nan", "replay", "silent", "raises"])
    here = deployment(rows, inference={"rounds": 4})
    options = ("--certs", "certs", "--quorum", "2", "--timeout")
    server = here.server(*options, "250")
    faults = {0: "", 1: "slow", 2: "nan", 3: "replay", 4: "silent", 5: "raise"}
    clients = {i: here.client(i, fault=fault) for i, fault in faults.items()}

    def at(number):
        return lambda: any(e["code"] == f"slow {number}" for e in here.audit(1))

    here.wait_for(at(1), "the slow site's first round")
    clients[1].send_signal(signal.SIGKILL)
    clients[1].wait()
    clients[1] = here.client(1, fault="slow")
    here.wait_for(at(2), "its second round, after its return")
    server.send_signal(signal.SIGKILL)
    server.wait()
    server = here.server(*options, "60")  # which the site that falls silent in round 3 costs, once
    assert here.wait(server, "server") == 0, here.out("server")
    assert "going on with the run that stopped" in here.out("server")

    log = here.participation()
    missing = {entry["round"]: entry["missing"] for entry in log if entry["kind"] == "round"}
    assert set(missing) == {1, 2, 3, 4}
    for found in missing.values():
        assert found["nan"] == "not-finite"
        assert found["replay"] == "stale"
        assert found["raises"] == "internal"
    for number in (1, 2):
        assert "silent" not in missing[number]
        assert missing[number + 2]["silent"] == "no-answer"
    assert "killed" not in missing[1], "it was killed and came back within the round"
    assert all("steady" not in found for found in missing.values())
    plan = Agreement.of(configs.check(here.config)).plan()
    assert_global_blocks_agree(here.run, replay(plan, rows, log))
    assert "division by zero" not in "".join(
        path.read_text(errors="replace")
        for path in here.folder.rglob("*")
        if path.is_file() and path.suffix in (".out", ".log", ".jsonl")
    )


def test_flwr_run_works_on_the_app_with_mean_field(deployment):
    """Flower's own commands, without TLS: a process for every message, state on the sites' disks alone."""
    here = deployment(rows_of(["north", "south"]), inference={"name": "mean-field", "rounds": 2})
    from pfedhgp.federation.flower.write_app import write_app

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
    expected, _, _ = in_process(here)
    assert_global_blocks_agree(here.run, expected)
    for i, row in enumerate(here.rows):
        here.wait_for((here.home(i) / "model" / "spec.json").exists, "a site's model")
        assert list(files.load(here.home(i) / "model").clients) == [row.name]


def test_federate_is_fit_with_processes(tmp_path, cache, run):
    rows = rows_of(["north", "south"])
    here = Deployment(tmp_path, cache, rows, CONFIG, free_port())
    table = pl.concat(
        [pl.DataFrame({"site": row.name, "x": row.X[:, 0], "y": row.Y[:, 0]}) for row in rows]
    )
    table.write_parquet(tmp_path / "all.parquet")
    options = ["all.parquet", "--client", "site", "--input", "x", "--output", "y", "--rounds", "1"]
    options += ["--inducing", "5", "--local-inducing", "5", "--no-report"]
    options[0] = str(tmp_path / "all.parquet")
    done = run("fit", *options, "--one-by-one", "--out", tmp_path / "one")
    assert done.code == 0, done.err
    command = [sys.executable, "-m", "pfedhgp.cli.main", "federate", *options, "--out", "many"]
    process = here.start("federate", command)
    assert here.wait(process, "federate") == 0, here.out("federate")
    one, many = FederatedGP.load(tmp_path / "one"), FederatedGP.load(tmp_path / "many")
    points = np.linspace(0.0, 5.0, 5)[:, None]
    for row in rows:
        first, second = one.predict(row.name, points), many.predict(row.name, points)
        np.testing.assert_allclose(first.mean, second.mean, rtol=1e-8)
        np.testing.assert_allclose(first.sd, second.sd, rtol=1e-8)
    assert len(list((tmp_path / "many" / "sites").iterdir())) == 2
    assert not list((tmp_path / "many").rglob("*.parquet"))
    assert run("audit", tmp_path / "many").code == 0


def test_without_tls_on_loopback_and_a_second_site_of_one_name(deployment):
    rows = rows_of(["north", "south"])
    here = deployment(rows, inference={"rounds": 1})
    server = here.server("--insecure", "--timeout", "200")
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
    expected, _, _ = in_process(here)
    assert_global_blocks_agree(here.run, expected)
    twin.send_signal(signal.SIGTERM)
