"""`pfedhgp certs --site A --site B --out DIR`: certificates and keys for a trial."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pfedhgp.cli.commands import require_flower
from pfedhgp.cli.terminal import say
from pfedhgp.errors import InputError


def certs(
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="A new folder; with --key-only, the file for the key."),
    ],
    sites: Annotated[
        list[str] | None, typer.Option("--site", help="A site's name; may be repeated.")
    ] = None,
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", help="The server's name or address; may be repeated."),
    ] = None,
    days: Annotated[
        int,
        typer.Option(
            min=1,
            max=36_500,
            help="Days that server.crt is valid; ca.crt is valid ten years longer.",
        ),
    ] = 365,
    renew: Annotated[
        bool,
        typer.Option("--renew", help="Only replace DIR/server.crt, using DIR/ca.key."),
    ] = False,
    authority: Annotated[
        bool,
        typer.Option(
            "--authority",
            help="Only make the authority and the server's certificate, and no key of a site.",
        ),
    ] = False,
    key_only: Annotated[
        bool,
        typer.Option(
            "--key-only", help="Only make the key of one site, and print its line for sites.toml."
        ),
    ] = False,
) -> None:
    """Make a certificate authority, a server certificate and site keys.

    For a trial. For real use the server makes an authority (--authority), and each site its own key
    (--key-only).
    """
    require_flower()
    from pfedhgp.base.checks import short
    from pfedhgp.federation.flower import certificates

    if authority and (sites or renew or key_only):
        raise InputError(
            "--authority makes no site's key: give it without --site, --renew and --key-only"
        )
    if renew:
        if sites or key_only:
            raise InputError(
                "--renew only replaces server.crt: give it without --site and --key-only"
            )
        last = certificates.renew_certificate(out, hosts or [], days=days)
        say(f"{out / 'server.crt'}: valid until {last:%Y-%m-%d}; restart the server")
        return
    if key_only:
        if not sites or len(sites) != 1:
            raise InputError("--key-only makes the key of one site: give --site once")
        certificates.check_names(sites)
        public = certificates.make_site_key(out)
        typer.echo(certificates.sites_text({sites[0]: public}).splitlines()[-1])
        return
    if not sites and not authority:
        raise InputError("--site is missing: give the name of each site, or --authority for none")
    paths = certificates.make_certificates(out, sites or [], hosts or ["localhost"], days=days)
    say(f"{out / 'ca.crt'}: for every site")
    say(f"{out / 'ca.key'}: keep it offline: whoever has it can pose as the server")
    say(f"{out / 'sites.toml'}, server.crt and server.key: for the server")
    for name, path in paths.items():
        say(f"{path}: for {short(name)} alone")
    if not paths:
        say("sites.toml lists nobody yet: add the line that `certs --key-only` prints at each site")
