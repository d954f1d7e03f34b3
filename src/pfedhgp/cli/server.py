"""`pfedhgp server --config run.toml --sites sites.toml --out RUN`: the server of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.base.signals import SignalCallback
from pfedhgp.cli.commands import require_flower
from pfedhgp.cli.options import AsJson, Insecure, Quiet
from pfedhgp.cli.terminal import counted as plural
from pfedhgp.cli.terminal import result, say, warnings_as_lines
from pfedhgp.errors import InputError


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
        float, typer.Option(help="Seconds that an exchange waits for the sites.")
    ] = 600.0,
    quorum: Annotated[
        int | None,
        typer.Option(help="Training stops with fewer sites. Default: half of them."),
    ] = None,
    insecure: Insecure = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace RUN, or the unfinished run in it.")
    ] = False,
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
    from pfedhgp.federation.flower.exchange import QuorumError
    from pfedhgp.federation.flower.server_process import Coordinator, ListenAddress, serve

    with warnings_as_lines() as told:
        coordinator = Coordinator.of(
            config=config,
            sites=sites,
            out=out,
            keys=not insecure,
            rounds=rounds,
            timeout=timeout,
            quorum=quorum,
            overwrite=overwrite,
        )
        again = " (going on with the run that stopped)" if coordinator.resume else ""
        coordinator.on_listening = lambda: say(
            f"waiting for {len(coordinator.sites)} sites on {listen}{again}", quiet=quiet
        )
        coordinator.callbacks = [SignalCallback()]
        coordinator.on_exchange = lambda entry: say(line_of(entry), quiet=quiet)
        try:
            summary = serve(
                coordinator, ListenAddress(host, port, None if folder is None else folder.resolve())
            )
        except (QuorumError, FlowerError) as error:
            say(f"pfedhgp: error: {error}")
            raise typer.Exit(1) from None
    if as_json:
        result({**summary, "warnings": told})
        return
    if late := len(summary["without_model"]):
        say(
            f"{late} of {summary['sites']} sites do not have the model yet: run the same command again to "
            "deliver it; remove sites that have left from sites.toml"
        )
    bound = "unknown" if summary["bound"] is None else f"{summary['bound']:.2f}"
    say(
        f"{summary['sites']} sites, {summary['rounds']} rounds, {summary['exchanges']} exchanges, "
        f"bound {bound}: {out}",
        quiet=quiet,
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


def line_of(entry: dict[str, object]) -> str:
    """One exchange as text for the terminal."""
    from pfedhgp.base.checks import short
    from pfedhgp.federation.envelope import CODES

    counted, missing = entry["counted"], entry["missing"]
    assert isinstance(counted, list)
    assert isinstance(missing, dict)
    about = f"exchange {entry['exchange']}, {entry['kind']} {entry['round']}"
    sizes = f"{entry['bytes_up']} bytes of arrays up, {entry['bytes_down']} down"
    lines = [f"{about}: {plural(len(counted), 'site')} in {entry['seconds']} s, {sizes}"]
    lines += [f"  without {short(name)}: {CODES[code]}" for name, code in missing.items()]
    return "\n".join(lines)
