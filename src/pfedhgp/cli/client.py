"""`pfedhgp client --data my.csv --name Dongsi --server HOST:PORT …`: one site of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.base.signals import raise_pending_signal
from pfedhgp.cli.commands import require_flower
from pfedhgp.cli.options import Delimiter, Insecure, Quiet
from pfedhgp.cli.terminal import say, warnings_as_lines
from pfedhgp.errors import InputError


def client(
    data: Annotated[
        list[Path],
        typer.Option(help="This site's rows: one table, or several with the same columns."),
    ],
    name: Annotated[str, typer.Option(help="This site's name, as in the server's sites.toml.")],
    address: Annotated[
        str, typer.Option("--server", metavar="HOST:PORT", help="The server's address.")
    ],
    home: Annotated[
        Path,
        typer.Option(metavar="DIR", help="This site's folder, for state, audit log and model."),
    ],
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate of the authority, ca.crt.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="This site's private key.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The agreed settings. If the server has others, the site refuses to take part.",
        ),
    ] = None,
    delimiter: Delimiter = None,
    least_rows: Annotated[
        int,
        typer.Option(
            min=1, help="Minimum number of rows to take part. Sums over few rows reveal them."
        ),
    ] = 5,
    wait: Annotated[
        float | None,
        typer.Option(help="Seconds to wait for the first message. Default: no limit."),
    ] = None,
    stay: Annotated[
        bool, typer.Option("--stay", help="Wait for the next run after the model is delivered.")
    ] = False,
    insecure: Insecure = False,
    quiet: Quiet = False,
) -> None:
    """Take part in a federation with rows that stay here.

    The server sets columns and model. The site sends only sums.

    HOME/audit.jsonl lists everything that was sent. HOME/model is the model at the end.

    After a stop or a crash, run the same command again to continue.
    """
    require_flower()
    from pfedhgp.data.readers import find_files
    from pfedhgp.federation.flower.certificates import check_names
    from pfedhgp.federation.flower.processes import (
        FlowerError,
        locked,
        private_folder,
        split_address,
    )

    check_names([name])
    host, port = split_address(address, "--server")
    files = find_files(data)
    _check_keys(ca, key, host, insecure=insecure)
    expected = None
    with warnings_as_lines():
        if config is not None:
            from pfedhgp.federation.agreement import Agreement
            from pfedhgp.settings import config as configs

            expected = Agreement.of(configs.read(config)).to_json()
        use_compilation_cache()
        from pfedhgp.federation.flower.site import MODEL, site_from_files
        from pfedhgp.federation.flower.site_process import (
            ServerAddress,
            SiteProcess,
            check_certificate,
        )

        there = ServerAddress(
            host,
            port,
            None if ca is None else ca.resolve(),
            None if key is None else key.resolve(),
        )
        check_certificate(there)
        place = home.resolve()
        try:
            private_folder(place, "--home")
            with locked(place, "client") as lock:
                site = site_from_files(
                    home=place,
                    name=name,
                    data=files,
                    delimiter=delimiter,
                    least_rows=least_rows,
                    expected=expected,
                )
                SiteProcess(
                    site,
                    there,
                    lock,
                    stay=stay,
                    wait=wait,
                    say=lambda text: say(text, quiet=quiet),
                    check_signals=raise_pending_signal,
                ).run()
        except FlowerError as error:
            say(f"pfedhgp: error: {error}")
            raise typer.Exit(1) from None
    say(f"model   {home / MODEL}", quiet=quiet)


def _check_keys(ca: Path | None, key: Path | None, host: str, *, insecure: bool) -> None:
    """Refuses a connection without certificate and key, unless it stays on this machine."""
    from pfedhgp.federation.flower.certificates import check_private_key
    from pfedhgp.federation.flower.processes import require_loopback

    if insecure:
        require_loopback(host, "--server")
        if ca is not None or key is not None:
            raise InputError("--insecure cannot be combined with --ca and --key: choose one")
        return
    for given, option in ((ca, "--ca"), (key, "--key")):
        if given is None:
            raise InputError(
                f"{option} is missing: connections are encrypted and authenticated (trials: --insecure)"
            )
        if not given.is_file():
            raise InputError(f"{given}: no such file")
    assert key is not None
    check_private_key(key)
