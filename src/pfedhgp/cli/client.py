"""`pfedhgp client --data my.csv --name Dongsi --server HOST:PORT …`: one site of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pfedhgp.cli.options import Delimiter


def client(
    data: Annotated[
        list[Path], typer.Option(help="This site's rows: a table, or several of the same form.")
    ],
    name: Annotated[str, typer.Option(help="This site's name, as in the server's sites.toml.")],
    address: Annotated[
        str, typer.Option("--server", metavar="HOST:PORT", help="Where the server is.")
    ],
    home: Annotated[
        Path, typer.Option(metavar="DIR", help="This site's folder: state, audit log and model.")
    ],
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate authority, ca.crt.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="This site's private key.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The settings that were agreed: others of the server's are refused.",
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
        typer.Option(help="Seconds to wait for the first message; no limit if not set."),
    ] = None,
    stay: Annotated[
        bool, typer.Option("--stay", help="Go on to the next run when the model is delivered.")
    ] = False,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Without TLS and key: to 127.0.0.1 alone, for trials."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings.")] = False,
) -> None:
    """Take part in a federation with rows that stay here.

    Columns and model come from the server; only sums are sent.

    HOME/audit.jsonl has what left; HOME/model is the model at the end.

    After a stop or a crash the same command goes on.
    """
    from pfedhgp.base.compilation_cache import use_compilation_cache
    from pfedhgp.base.signals import heed
    from pfedhgp.cli.extra import require_flower
    from pfedhgp.cli.terminal import say, warnings_as_lines

    require_flower()
    from pfedhgp.data.readers import find_files
    from pfedhgp.errors import InputError
    from pfedhgp.federation.flower.certs import check_names, check_private_key
    from pfedhgp.federation.flower.processes import (
        FlowerError,
        locked,
        private_folder,
        require_loopback,
        split_address,
    )

    check_names([name])
    host, port = split_address(address, "--server")
    files = find_files(data)
    if insecure:
        require_loopback(host, "--server")
        if ca is not None or key is not None:
            raise InputError("--insecure goes without --ca and --key: choose one")
    else:
        for given, option in ((ca, "--ca"), (key, "--key")):
            if given is None:
                raise InputError(
                    f"{option} is missing: connections are encrypted and authenticated"
                )
            if not given.is_file():
                raise InputError(f"{given}: no such file")
        assert key is not None
        check_private_key(key)
    expected = None
    with warnings_as_lines():
        if config is not None:
            from pfedhgp.federation.agreement import Agreement
            from pfedhgp.settings import config as configs

            expected = Agreement.of(configs.read(config)).to_json()
        use_compilation_cache()
        from pfedhgp.federation.flower.attend import Server, attend, check_certificate
        from pfedhgp.federation.flower.participant import MODEL, make_site

        there = Server(
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
                site = make_site(
                    home=place,
                    name=name,
                    data=files,
                    delimiter=delimiter,
                    least_rows=least_rows,
                    expected=expected,
                )
                attend(
                    site,
                    there,
                    lock,
                    stay=stay,
                    patience=wait,
                    say=lambda text: say(text, quiet=quiet),
                    heed=heed,
                )
        except FlowerError as error:
            say(f"pfedhgp: error: {error}")
            raise typer.Exit(1) from None
    say(f"model   {home / MODEL}", quiet=quiet)
