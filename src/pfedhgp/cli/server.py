"""`pfedhgp server --config run.toml --sites sites.toml --out RUN`: the server of a federation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.base.signals import SignalCallback
from pfedhgp.cli.commands import require_flower
from pfedhgp.cli.console import (
    Console,
    LogJson,
    PageAddress,
    PageOptions,
    PagePublic,
    PageToken,
    console,
)
from pfedhgp.cli.federated_zones import ZoneGroups, ZoneSeed, ZoneSize, check_groups, zones_in
from pfedhgp.cli.options import AsJson, Insecure, Quiet
from pfedhgp.cli.terminal import counted as plural
from pfedhgp.cli.terminal import result
from pfedhgp.errors import InputError, warn


def server(
    config: Annotated[
        Path, typer.Option(metavar="FILE", help="Settings as TOML: columns, model, inference.")
    ],
    sites: Annotated[
        Path,
        typer.Option(metavar="FILE", help="sites.toml, with the name and public key of each site."),
    ],
    out: Annotated[Path, typer.Option(metavar="RUN", help="The folder for the model.")],
    certificates: Annotated[
        Path | None,
        typer.Option(
            "--certs",
            metavar="DIR",
            help="Folder with ca.crt, server.crt and server.key. Default: that of sites.toml.",
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The address that sites connect to.")
    ] = "0.0.0.0:9092",
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of training rounds. Default: as in --config, or 10 (mean-field: 20).",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            help="Seconds that an exchange waits for the other sites after its first answer."
        ),
    ] = 600.0,
    quorum: Annotated[
        int | None,
        typer.Option(help="Training stops with fewer sites. Default: half of them."),
    ] = None,
    zones: ZoneGroups = None,
    zone_size: ZoneSize = None,
    zone_seed: ZoneSeed = 0,
    insecure: Insecure = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace RUN, or the unfinished run in it.")
    ] = False,
    page: PageAddress = None,
    page_token: PageToken = None,
    page_public: PagePublic = False,
    log_json: LogJson = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train with sites on their own machines.

    Waits for the sites in sites.toml, trains, and writes RUN.

    A site that does not answer in time is left out; the log names it.

    After a stop or a crash, run the same command again to continue.
    """
    require_flower()
    from pfedhgp.federation.flower.processes import FlowerError, require_loopback, split_address

    host, port = split_address(listen, "--listen")
    if insecure:
        require_loopback(host, "--listen")
    folder = None if insecure else _certificates(certificates, sites)
    use_compilation_cache()  # before JAX is imported: it quietens XLA, too
    from pfedhgp.federation.flower.listen_address import ListenAddress
    from pfedhgp.federation.flower.server_process import Coordinator, serve
    from pfedhgp.federation.flower.waiting import QuorumError
    from pfedhgp.federation.watch.server_state import ServerState, after

    certs = None if folder is None else folder.resolve()
    with console(
        ServerState(started=time.time()),
        after,
        PageOptions(page, page_token, page_public, tls=certs),
        quiet=quiet,
        log_json=log_json,
    ) as lines:
        coordinator = Coordinator.of(
            config=config,
            sites=sites,
            out=out,
            keys=not insecure,
            rounds=rounds,
            timeout=timeout,
            quorum=quorum,
            overwrite=overwrite,
            zones=zones is not None,
        )
        if zones is not None:
            check_groups(zones, len(coordinator.sites))
            coordinator.after_delivery = zones_in(
                out, lines.say, groups=zones, size=zone_size, seed=zone_seed
            )
        again = " (going on with the run that stopped)" if coordinator.resume else ""
        coordinator.on_listening = lambda: lines.say(
            f"waiting for {len(coordinator.sites)} sites on {listen}{again}", covered=True
        )
        if coordinator.roster_hash:
            lines.say(f"masks: the list of sites has SHA-256 {coordinator.roster_hash}")
        coordinator.callbacks = [SignalCallback()]
        plan = coordinator.agreement.plan
        left = TimeLeft(plan.inference.rounds, plan.restarts)
        coordinator.on_exchange = lambda entry: lines.say(
            line_of(entry, left.after(entry)), covered=True
        )
        coordinator.say = lines.say
        coordinator.tell = lines.watch.tell
        try:
            summary = serve(coordinator, ListenAddress(host, port, certs))
        except (QuorumError, FlowerError) as error:
            lines.error(str(error))
            raise typer.Exit(1) from None
        if summary["ended"] and "still gaining" in summary["ended"]:
            warn(f"training {summary['ended']}: a higher limit (--rounds) would improve the model")
        if not as_json:
            _say_result(lines, summary, out)
    if as_json:
        result({**summary, "warnings": lines.warnings})


def _say_result(lines: Console, summary: dict[str, Any], out: Path) -> None:
    if late := len(summary["without_model"]):
        lines.say(
            f"{late} of {summary['sites']} sites do not have the model yet: run the same command again to "
            "deliver it; remove sites that have left from sites.toml"
        )
    if summary["zones_alone"]:
        return
    bound = "unknown" if summary["bound"] is None else f"{summary['bound']:.2f}"
    lines.say(
        f"{summary['sites']} sites, {summary['rounds']} rounds, {summary['exchanges']} exchanges, "
        f"bound {bound}: {out}"
    )


def _certificates(given: Path | None, sites: Path) -> Path:
    """The folder with the server's certificate: as given, or that of sites.toml."""
    folder = sites.parent if given is None else given
    for name in ("ca.crt", "server.crt", "server.key"):
        if not (folder / name).is_file():
            if given is not None:
                raise InputError(f"{folder / name}: no such file")
            raise InputError(
                f"--certs is missing, and there is no {name} beside {sites}: make certificates for a trial "
                "with `pfedhgp certs`"
            )
    return folder


@dataclass
class TimeLeft:
    """How long training may still take: rounds that are left, times the median of those so far."""

    rounds: int
    restarts: int = 1
    seconds: list[float] = field(default_factory=list)

    def after(self, entry: Mapping[str, Any]) -> float | None:
        """Seconds at most, after this exchange; None while that is not known."""
        if entry["kind"] != "round":
            return None
        self.seconds.append(float(entry["seconds"]))
        others = self.rounds * max(self.restarts - 1 - int(entry.get("attempt", 0)), 0)
        rounds = max(self.rounds - int(entry["round"]), 0) + others
        return rounds * statistics.median(self.seconds)


def line_of(entry: dict[str, object], left: float | None = None) -> str:
    """One exchange as text for the terminal; `left` are the seconds that training may still take."""
    from pfedhgp.base.checks import short
    from pfedhgp.federation.envelope import CODES

    counted, missing = entry["counted"], entry["missing"]
    assert isinstance(counted, list)
    assert isinstance(missing, dict)
    about = f"exchange {entry['exchange']}, {entry['kind']}"
    about += f" {entry['round']}" if entry["kind"] == "round" else ""
    sizes = f"{entry['bytes_up']} bytes of arrays up, {entry['bytes_down']} down"
    bound = f", bound {entry['bound']:.2f}" if "bound" in entry else ""
    rest = f", at most {left:.0f} s left" if left else ""
    times = f"{plural(len(counted), 'site')} in {entry['seconds']:.1f} s"
    lines = [f"{about}: {times}{bound}{rest}, {sizes}"]
    lines += [f"  without {short(name)}: {CODES[code]}" for name, code in missing.items()]
    excluded = entry.get("excluded", {})
    assert isinstance(excluded, dict)
    lines += [f"  excluded {short(name)}: {why}" for name, why in excluded.items()]
    return "\n".join(lines)
