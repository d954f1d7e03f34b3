"""`pfedhgp client --data my.csv --name Dongsi --server HOST:PORT …`: one site of a federation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.base.signals import raise_pending_signal
from pfedhgp.cli.commands import require_flower
from pfedhgp.cli.console import (
    LogJson,
    PageAddress,
    PageOptions,
    PagePublic,
    PageToken,
    console,
)
from pfedhgp.cli.federated_zones import Reveal, reveal_of
from pfedhgp.cli.options import Delimiter, Insecure, Quiet
from pfedhgp.errors import InputError

if TYPE_CHECKING:
    from pfedhgp.federation.flower.masked_site import MaskKeys
    from pfedhgp.privacy.ledger import Limit


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
            help="The agreed settings. If the server has others, the site refuses to take part. Needed "
            "unless a person approves the server's (--ask).",
        ),
    ] = None,
    ask: Annotated[
        bool,
        typer.Option(
            "--ask",
            help="Show the terms of each new run here, and take part only if a person approves them.",
        ),
    ] = False,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What this site allows a server (`pfedhgp policy` writes one). Default: the strict one.",
        ),
    ] = None,
    roster: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|SHA256",
            help="For runs with masks: this site's own copy of sites.toml, or the SHA-256 that the server "
            "prints. The site refuses another list of sites, and a run without masks.",
        ),
    ] = None,
    epsilon_ceiling: Annotated[
        float,
        typer.Option(
            help="For runs with differential privacy: ε that this site's rows may cost, in all runs with "
            "this --home. The site refuses above it."
        ),
    ] = 1.0,
    delta_ceiling: Annotated[
        float,
        typer.Option(help="With --epsilon-ceiling: the largest δ that this site takes part with."),
    ] = 1e-6,
    new_rows: Annotated[
        bool,
        typer.Option(
            "--new-rows",
            help="For runs with differential privacy: this site's rows are new. The next run draws a new "
            "release and pays for it. Otherwise what was released before is sent again.",
        ),
    ] = False,
    delimiter: Delimiter = None,
    least_rows: Annotated[
        int,
        typer.Option(
            min=1, help="Minimum number of rows to take part. Sums over few rows reveal them."
        ),
    ] = 5,
    i_know: Annotated[
        bool,
        typer.Option(
            "--i-know",
            help="Answer every request, even if this site's rows can be computed from the answers.",
        ),
    ] = False,
    wait: Annotated[
        float | None,
        typer.Option(help="Seconds to wait for the first message. Default: no limit."),
    ] = None,
    stay: Annotated[
        bool, typer.Option("--stay", help="Wait for the next run after the model is delivered.")
    ] = False,
    reveal: Reveal = None,
    insecure: Insecure = False,
    page: PageAddress = None,
    page_token: PageToken = None,
    page_public: PagePublic = False,
    log_json: LogJson = False,
    quiet: Quiet = False,
) -> None:
    """Take part in a federation with rows that stay here.

    The site sends only sums, on terms that it agreed to: --config, or --ask.

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
    ceiling = _ceiling(epsilon_ceiling, delta_ceiling)
    host, port = split_address(address, "--server")
    files = find_files(data)
    _check_keys(ca, key, host, insecure=insecure)
    masks = None if roster is None else _mask_keys(roster, key)
    from pfedhgp.federation.flower.audit import LOG
    from pfedhgp.federation.watch import site_state

    place = home.resolve()
    state = site_state.SiteState(name, address, str(home), started=time.time())
    with console(
        site_state.read(state, place / LOG),
        site_state.after,
        PageOptions(page, page_token, page_public),
        quiet=quiet,
        log_json=log_json,
    ) as lines:
        use_compilation_cache()  # before anything imports JAX, which would write lines of its own
        from pfedhgp.cli.agreeing import agreed_terms, approval

        allowed, expected = agreed_terms(home, config=config, policy=policy, ask=ask)
        approve = approval() if ask or allowed.ask else None
        most = reveal_of(allowed, reveal)
        from pfedhgp.federation.flower.private_site import PrivateSite
        from pfedhgp.federation.flower.server_probe import ServerAddress, check_certificate
        from pfedhgp.federation.flower.site import MODEL, site_from_files
        from pfedhgp.federation.flower.site_process import SiteProcess
        from pfedhgp.zones.at_site import ZonesAtSite

        there = ServerAddress(
            host,
            port,
            None if ca is None else ca.resolve(),
            None if key is None else key.resolve(),
        )
        check_certificate(there)
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
                    masks=masks,
                    answers_all=i_know,
                    policy=allowed,
                    approve=approve,
                )
                site.private = PrivateSite(place, ceiling, new_rows)
                site.answer_zones = ZonesAtSite(place, most)
                site.audit.on_append = lambda entry: lines.watch.tell(site_state.audited(entry))
                SiteProcess(
                    site,
                    there,
                    lock,
                    stay=stay,
                    wait=wait,
                    say=lines.say,
                    check_signals=raise_pending_signal,
                    tell=lines.watch.tell,
                ).run()
        except FlowerError as error:
            lines.error(str(error))
            raise typer.Exit(1) from None
        lines.say(f"model   {home / MODEL}")


def _ceiling(epsilon: float, delta: float) -> Limit:
    """What this site's rows may cost, checked before anything starts."""
    from pfedhgp.privacy.accounting import mu_for
    from pfedhgp.privacy.ledger import Limit

    if not 0.0 < delta < 1.0:
        raise InputError(f"--delta-ceiling must be between 0 and 1, got {delta:g}")
    if not epsilon > 0.0:
        raise InputError(f"--epsilon-ceiling must be positive, got {epsilon:g}")
    mu_for(epsilon, delta)  # one that is too large to count with is refused
    return Limit(epsilon, delta)


def _mask_keys(roster: str, key: Path | None) -> MaskKeys:
    from pfedhgp.federation.flower.pinned_roster import mask_keys

    if key is None:
        raise InputError("--roster: masks need this site's key: give --key, and no --insecure")
    return mask_keys(roster, key)


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
