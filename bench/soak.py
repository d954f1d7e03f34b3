"""A federation of real processes in bad weather, for as long as you like; by hand, not part of the tests.

    python -m bench.soak --minutes 30 --sites 4 --seed 0

Sites reach the server through proxies that cut connections and lose, garble or duplicate bytes at random
times. Now and then a site or the server is killed and started again. Runs follow each other until the time is
up. Each must end with exit code 0 everywhere, with the model that one process finds from the participation
log, and with audit logs that verify. Ends with exit code 1 if one does not.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
FAULTS = ("cut", "lose", "garble", "duplicate")
CALM, STORM = (5.0, 20.0), (1.0, 25.0)
"""Seconds between two faults, and of a fault."""
CONFIG: dict[str, dict[str, Any]] = {
    "data": {"inputs": ["x"], "outputs": ["y"]},
    "model": {"inducing": 8, "local_inducing": 8},
    "inference": {"rounds": 10, "tolerance": 0.0, "averaging": False},
}


def one_run(folder: Path, sites: int, weather: random.Random) -> dict[str, Any]:
    """One federation from the first message to the last, with faults all the time."""
    from pfedhgp.federation.flower import audit
    from pfedhgp.federation.flower.processes import free_port
    from support.bad_network import PASS, BadNetwork
    from support.flower_processes import Deployment
    from support.reference_federation import replay, rows_of
    from support.twins_in_process import assert_global_blocks_agree, plan_of

    rows = rows_of([f"site {i}" for i in range(sites)], seed=weather.randrange(1000))
    here = Deployment(folder, folder / "compiled", rows, CONFIG, free_port())
    networks = [BadNetwork(here.port) for _ in rows]
    options = ("--certs", "certs", "--timeout", "600", "--quorum", str(sites))
    began, faults, kills = time.monotonic(), dict.fromkeys(FAULTS, 0), {"server": 0, "site": 0}
    try:
        server = here.server(*options)
        clients = [here.client(i, port=each.port) for i, each in enumerate(networks)]
        while server.poll() is None:
            time.sleep(weather.uniform(*CALM))
            which, fault = weather.randrange(sites), weather.choice(FAULTS)
            networks[which].set(fault)
            faults[fault] += 1
            time.sleep(weather.uniform(*STORM))
            networks[which].set(PASS)
            delivered = any("deliver" in here.out(f"client-{i}") for i in range(sites))
            if weather.random() < 0.15 and here.participation() and not delivered:
                if weather.random() < 0.3:
                    kills["server"] += 1
                    server.send_signal(signal.SIGKILL)
                    server.wait()
                    server = here.server(*options)
                elif clients[which].poll() is None:
                    kills["site"] += 1
                    clients[which].send_signal(signal.SIGKILL)
                    clients[which].wait()
                    clients[which] = here.client(which, port=networks[which].port)
        codes = [server.returncode, *(here.wait(c, f"client-{i}") for i, c in enumerate(clients))]
        assert not any(codes), f"exit codes {codes}: see {folder}"
        log = here.participation()
        assert_global_blocks_agree(here.run, replay(plan_of(here), rows, log))
        for i in range(sites):
            assert audit.check(here.home(i)).bad_line is None, f"audit of site {i}"
        left_out = sum(len(entry["missing"]) for entry in log)
        seconds = round(time.monotonic() - began)
        return {"seconds": seconds, **faults, "kills": kills, "replies left out": left_out}
    finally:
        for network in networks:
            network.close()
        here.stop()


def main() -> int:
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    given.add_argument("--minutes", type=float, default=30.0)
    given.add_argument("--sites", type=int, default=4)
    given.add_argument("--seed", type=int, default=0)
    options = given.parse_args()
    weather, end, runs = random.Random(options.seed), time.monotonic() + 60.0 * options.minutes, 0
    while runs == 0 or time.monotonic() < end:
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            try:
                found = one_run(Path(folder), options.sites, weather)
            except AssertionError as error:
                print(f"run {runs}: {error}", flush=True)
                return 1
        print(f"run {runs}: {json.dumps(found)}", flush=True)
        runs += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
