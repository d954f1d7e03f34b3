"""`pfedhgp simulate --sites 200 --out TRIAL`: what a server does with hundreds of made-up sites."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.cli.commands import require_flower
from pfedhgp.cli.options import AsJson, Quiet
from pfedhgp.cli.terminal import only_errors_logged, result, say, warnings_as_lines
from pfedhgp.errors import InputError

CONFIG = """[data]
inputs = ["x"]
outputs = ["y"]

[model]
domain = ["0..10"]
inducing = {inducing}
local_inducing = {inducing}

[inference]
rounds = {rounds}
averaging = false
"""


def simulate(
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder for everything.")],
    sites: Annotated[int, typer.Option(min=2, max=10_000, help="Number of sites.")] = 50,
    rows: Annotated[int, typer.Option(min=5, help="Rows of each site.")] = 40,
    rounds: Annotated[int, typer.Option(min=1, help="Training rounds, at most.")] = 3,
    inducing: Annotated[int, typer.Option(min=2, help="Shared inducing inputs.")] = 12,
    dropouts: Annotated[
        float, typer.Option(help="Share of the sites that leave for good in rounds 1 to 4.")
    ] = 0.0,
    slow: Annotated[float, typer.Option(help="Share of the sites that are slow.")] = 0.0,
    delay: Annotated[
        float, typer.Option(help="Seconds that slow sites take longer, at most.")
    ] = 10.0,
    liars: Annotated[float, typer.Option(help="Share of the sites that send false sums.")] = 0.0,
    attack: Annotated[
        str, typer.Option(help="What liars send: scaled (× 1000), nan or flipped (× −1).")
    ] = "scaled",
    over: Annotated[
        str,
        typer.Option(help="memory: one process, virtual time. tls: a server and real sockets."),
    ] = "memory",
    processes: Annotated[
        int, typer.Option(min=1, help="With tls: processes that the sites share.")
    ] = 2,
    timeout: Annotated[
        float, typer.Option(help="Seconds that an exchange waits for the sites.")
    ] = 120.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of rows and roles.")] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Try a federation of hundreds of made-up sites.

    Sites drop out, are slow or lie, by shares. The table says what the server made of it.

    Server, checks, sites and messages are real. With --over memory there is no network.
    """
    require_flower()
    use_compilation_cache()
    from pfedhgp.federation.flower.trial.outcome import outcome, table
    from pfedhgp.federation.flower.trial.population import Population

    population = Population(sites, rows, dropouts, slow, liars, attack, delay, seed)
    population.check()
    if over not in ("memory", "tls"):
        raise InputError(f"--over must be memory or tls, got {over}")
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out} is not empty: choose a new folder")
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = out / "run.toml"
    config.write_text(CONFIG.format(inducing=inducing, rounds=rounds), "utf-8")
    began = time.monotonic(), time.process_time()
    with warnings_as_lines():
        trial = _in_memory if over == "memory" else _over_tls
        log, more = trial(population, config, out, timeout, processes, quiet)
    found: dict[str, Any] = {
        **outcome(log, population.roles()),
        "over": over,
        "wall_seconds": time.monotonic() - began[0],
        **more,
    }
    if over == "memory":
        found["processor_seconds"] = time.process_time() - began[1]
    (out / "simulation.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    if as_json:
        result(found)
        return
    say(table(found), quiet=quiet)
    say(_totals(found), quiet=quiet)


def _in_memory(
    population: Any, config: Path, out: Path, timeout: float, processes: int, quiet: bool
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    from pfedhgp.federation.agreement import Agreement
    from pfedhgp.federation.flower.trial import in_memory
    from pfedhgp.federation.flower.waiting import QuorumError
    from pfedhgp.settings import config as configs

    terms = Agreement.of(configs.read(config))
    try:
        with only_errors_logged():  # the table says it all
            log, missing, summary = in_memory.run(
                population, terms, out.resolve(), timeout=timeout, quorum=1
            )
    except QuorumError as error:
        say(f"pfedhgp: error: {error}")
        raise typer.Exit(1) from None
    return log, {"bound": summary["bound"], "without_model": len(missing)}


def _over_tls(
    population: Any, config: Path, out: Path, timeout: float, processes: int, quiet: bool
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    from pfedhgp.federation.flower.processes import FlowerError
    from pfedhgp.federation.flower.trial.over_sockets import Trial

    command = (sys.executable, "-m", "pfedhgp.cli.main")
    trial = Trial(population, command, config.resolve(), out.resolve(), processes, timeout)
    try:
        log, used = trial.run(lambda text: say(text, quiet=quiet))
    except FlowerError as error:
        say(f"pfedhgp: error: {error}")
        raise typer.Exit(1) from None
    return log, {
        name: {"processor_seconds": each.seconds, "peak_mb": each.peak_mb}
        for name, each in used.items()
    }


def _totals(found: dict[str, Any]) -> str:
    lines = [
        f"{found['sites']} sites ({', '.join(f'{n} {role}' for role, n in found['roles'].items())}), "
        f"{found['rounds']} rounds, {found['exchanges']} exchanges, {found['bytes_up'] / 1e6:.2f} MB up, "
        f"{found['bytes_down'] / 1e6:.2f} MB down, {found['wall_seconds']:.0f} s"
    ]
    for name in ("server", "superlink"):
        if name in found:
            each = found[name]
            lines.append(
                f"{name}: {each['processor_seconds']:.1f} s of processor time, "
                f"{each['peak_mb']:.0f} MB of memory at most"
            )
    return "\n".join(lines)
