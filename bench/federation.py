"""What a round costs over Flower, beside the sites' own work: `python -m bench.federation --sites 2,4,8`.

For each number of sites, on loopback with TLS and node keys: an app whose ServerApp and ClientApp do
nothing, run by Flower's own commands (a process for every message); and a small federation of ours, without
the slowest site's own work in a later round. What happens once a process is counted, and shown apart: from
the start of the processes to the end, less the rounds (imports, connecting, compiling, the delivery), spread
over the rounds; for a first run, which compiles, and for a second one, which finds the compiled code. Ends
with exit code 1 where a ratio of the first run is above `--at-most`. Needs the extra `flower`.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
import polars as pl

OPEN = '[run]\nprivacy = "none"\n'
"""Sites of 50 rows answer for 20 inducing inputs only if they know what that tells."""
ROUNDS = 20
ONCE_GOALS = {8: 50.0}
"""Seconds, by number of sites: what happens once in a first run."""
EMPTY = {
    "pyproject.toml": b"""
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "empty"
version = "1.0.0"
description = "An app that does nothing"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41,<1.43"]
[tool.flwr.app]
publisher = "pfedhgp"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "empty.apps:server"
clientapp = "empty.apps:client"
[tool.flwr.app.config]
nodes = 2
out = ""
""",
    "LICENSE": b"Apache-2.0\n",
    "README.md": b"An app that does nothing.\n",
    "empty/__init__.py": b"",
    "empty/apps.py": b"""
import time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server, client = ServerApp(), ClientApp()

@client.train()
def train(message, context):
    return Message(RecordDict(), reply_to=message)

@server.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < context.run_config["nodes"]:
        time.sleep(0.1)
    taken = []
    for _ in range(5):
        began = time.monotonic()
        asked = [Message(RecordDict(), dst_node_id=n, message_type="train", ttl=600.0) for n in nodes]
        left = set(grid.push_messages(asked))
        while left:
            left -= {m.metadata.reply_to_message_id for m in grid.pull_messages(list(left))}
            time.sleep(0.1)
        taken.append(time.monotonic() - began)
    out = Path(context.run_config["out"])
    out.with_suffix(".part").write_text("\\n".join(map(str, taken)))
    out.with_suffix(".part").rename(out)
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", default="2,4,8")
    parser.add_argument("--at-most", type=float, default=2.0, help="the ratio that is allowed")
    given = parser.parse_args()
    today = datetime.date.today().isoformat()
    versions = ", ".join(f"{name} {version(name)}" for name in ("flwr", "jax", "pfedhgp"))
    print(f"{today}, {versions}, Python {sys.version.split()[0]}, {ROUNDS} rounds")
    head = ("sites", "load", "empty Flower round, s", "ours beside the sites' work, s", "ratio")
    head += (
        "once a first run, s",
        "with that, s a round",
        "ratio",
        "once a second run, s",
        "ratio",
    )
    head += ("a site's own step, s", "kB up a site", "kB down a site")
    highest, once = 0.0, {}
    print("| " + " | ".join(head) + " |")
    print("|---" * len(head) + "|")
    for sites in (int(n) for n in given.sites.split(",")):
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory(prefix="pfedhgp-bench-") as name:
            os.environ["PFEDHGP_CACHE"] = f"{name}/compiled"
            # Before and after ours: what else the machine does meanwhile slows both.
            empty = empty_rounds(Path(name) / "before", sites)
            first = our_rounds(Path(name) / "first", sites)
            empty += empty_rounds(Path(name) / "between", sites)
            second = our_rounds(Path(name) / "second", sites)
            cells, ratio = row(empty, first, second)
            once[sites] = costs(first)[2]
        print(f"| {sites} | {load:.1f} | " + " | ".join(cells) + " |", flush=True)
        highest = max(highest, ratio)
    for sites, goal in ONCE_GOALS.items():
        if sites in once:
            late = ", missed" if once[sites] > goal else ""
            print(f"once in a first run of {sites} sites: {once[sites]:.0f} s, goal {goal:g}{late}")
    if highest > given.at_most:
        sys.exit(f"a round costs {highest:.2f} times an empty one: more than {given.at_most:g}")


Run = tuple[list[dict], float]
"""A federation's participation log, and its seconds in all."""


def row(empty: list[float], first: Run, second: Run) -> tuple[list[str], float]:
    """Cells of the table, and the largest ratio of the first run."""
    usual = statistics.median(empty)
    added, step, once = costs(first)
    spread = added + once / ROUNDS
    again = costs(second)
    later = (again[0] + again[2] / ROUNDS) / usual
    rounds = [entry for entry in first[0] if entry["kind"] == "round"]
    clients = len(rounds[0]["counted"])
    up, down = (max(e[k] for e in rounds) / clients / 1000 for k in ("bytes_up", "bytes_down"))
    cells = [f"{usual:.1f}", f"{added:.1f}", f"{added / usual:.2f}"]
    cells += [f"{once:.0f}", f"{spread:.1f}", f"{spread / usual:.2f}"]
    cells += [f"{again[2]:.0f}", f"{later:.2f}", f"{step:.2f}"]
    return [*cells, f"{up:.1f}", f"{down:.1f}"], max(added, spread) / usual


def costs(run: Run) -> tuple[float, float, float]:
    """Seconds: a round beside the slowest site's step, that step, and all that is not of a round."""
    rounds = [entry for entry in run[0] if entry["kind"] == "round"]
    own = [max(entry["site_seconds"].values()) for entry in rounds]
    beside = [entry["seconds"] - work for entry, work in zip(rounds, own, strict=True)]
    added, step = statistics.median(beside), statistics.median(own)
    return added, step, run[1] - len(rounds) * (added + step)


def empty_rounds(folder: Path, sites: int) -> list[float]:
    """Seconds of each round of the app that does nothing, without its first."""
    from flwr.cli.build import build_fab_from_files
    from flwr.common.serde import fab_to_proto, user_config_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.fab import Fab

    from pfedhgp.federation.flower import superlink
    from pfedhgp.federation.flower.certificates import make_certificates, public_bytes, read_sites
    from pfedhgp.federation.flower.processes import OFFLINE, Address, free_port

    folder.mkdir()
    certs, port = folder / "certs", free_port()
    keys = make_certificates(certs, [f"site {i}" for i in range(sites)], ["127.0.0.1"])
    binaries = Path(sys.executable).parent
    home = {
        **OFFLINE,
        "FLWR_HOME": str(folder / "flwr"),
        "PATH": f"{binaries}:{os.environ['PATH']}",
    }
    link = [
        "flower-superlink",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--enable-supernode-auth",
    ]
    link += ["--ssl-ca-certfile", f"{certs}/ca.crt", "--ssl-certfile", f"{certs}/server.crt"]
    link += ["--ssl-keyfile", f"{certs}/server.key", "--disable-runtime-dependency-installation"]
    address = Address(f"127.0.0.1:{port}", certs / "ca.crt")
    with started(home) as start:
        process = start(link)
        superlink.wait_until_up(address, lambda: process.poll() is None)
        known = read_sites(certs / "sites.toml")
        superlink.register(address, {public_bytes(key, name): name for name, key in known.items()})
        for key in keys.values():
            node = ["flower-supernode", "--superlink", address.text, "--port", str(free_port())]
            trust = [
                "--root-certificates",
                f"{certs}/ca.crt",
                "--auth-supernode-private-key",
                str(key),
            ]
            start([*node, *trust])
        bundle, out = build_fab_from_files(EMPTY)[0], folder / "empty.txt"
        control = address.client(ControlHttpClient)
        fab = fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {}))
        options = user_config_to_proto({"nodes": sites, "out": str(out)})
        control.StartRun(StartRunRequest(fab=fab, override_config=options))
        wait_for(out)
        control.close()
    return [float(line) for line in out.read_text().split()][1:]


def our_rounds(folder: Path, sites: int) -> Run:
    """The participation log of a small federation, and its seconds from the start to the last model."""
    folder.mkdir()
    from pfedhgp.cli.child import COMMAND
    from pfedhgp.federation.agreement import Agreement
    from pfedhgp.federation.flower.certificates import make_certificates
    from pfedhgp.federation.flower.processes import LocalFederation, LocalSite
    from pfedhgp.federation.policy.settings import of_a_trial, to_toml
    from pfedhgp.settings import config as configs

    names = [f"site {i}" for i in range(sites)]
    keys = make_certificates(folder / "certs", names, ["127.0.0.1"])
    settings = (
        '[data]\ninputs = ["x"]\noutputs = ["y"]\n[model]\ninducing = 20\nlocal_inducing = 20\n'
    )
    (folder / "run.toml").write_text(
        f"{settings}[inference]\nrounds = {ROUNDS}\ntolerance = 0.0\n{OPEN}"
    )
    local = []
    for i, name in enumerate(names):
        rng = np.random.default_rng(i)
        x = np.sort(rng.uniform(0.0, 5.0, 50))
        y = np.sin(x) + 0.3 * np.cos(3.0 * x + i) + 0.1 * rng.normal(size=50)
        pl.DataFrame({"x": x, "y": y}).write_parquet(folder / f"{i}.parquet")
        local.append(LocalSite(name, folder / f"{i}.parquet", keys[name], folder / f"home-{i}"))
    policy = folder / "policy.toml"
    plan = Agreement.of(configs.read(folder / "run.toml")).plan
    policy.write_text(to_toml(of_a_trial(plan)), encoding="utf-8")
    federation = LocalFederation(
        COMMAND,
        folder / "run.toml",
        folder / "certs",
        folder / "RUN",
        tuple(local),
        policy,
        i_know=True,
    )
    began = time.monotonic()
    federation.run(quiet=True)
    whole = time.monotonic() - began
    lines = (folder / "RUN" / "participation.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], whole


@contextmanager
def started(environment: dict[str, str]) -> Iterator:
    """A function that starts processes, which end with the block."""
    running: list[subprocess.Popen[bytes]] = []

    def start(command: Sequence[str]) -> subprocess.Popen[bytes]:
        quiet = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        running.append(subprocess.Popen(command, env={**os.environ, **environment}, **quiet))
        return running[-1]

    try:
        yield start
    finally:
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(15.0)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for(path: Path, patience: float = 900.0) -> None:
    end = time.monotonic() + patience
    while not path.exists():
        if time.monotonic() > end:
            raise SystemExit(f"waited {patience:g} s for {path.name}")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
