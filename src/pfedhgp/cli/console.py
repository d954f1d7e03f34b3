"""What `server` and `client` say while they run: lines for people, JSON for programs, and the live page.

Everything goes through one `Watch`: the page shows its state, and `--log-json` writes its events.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from pfedhgp.cli.terminal import stamped, warnings_as_lines
from pfedhgp.errors import InputError, PFedHGPError, warn
from pfedhgp.federation.watch.events import Ended, Event, Line
from pfedhgp.federation.watch.holder import Watch
from pfedhgp.federation.watch.json_lines import json_line

PageAddress = Annotated[
    str | None,
    typer.Option("--page", metavar="HOST:PORT", help="Show a live page there, as 127.0.0.1:8080."),
]
PageToken = Annotated[
    Path | None,
    typer.Option(
        "--page-token",
        metavar="FILE",
        help="The page's token; made if missing. Default: a new one, printed at the start.",
    ),
]
PagePublic = Annotated[
    bool, typer.Option("--page-public", help="Let --page listen on other addresses than loopback.")
]
LogJson = Annotated[
    bool, typer.Option("--log-json", help="One JSON object a line, instead of text, to stderr.")
]


@dataclass(frozen=True)
class PageOptions:
    """`--page` and its kin. `tls` is a folder with server.crt and server.key, for public pages."""

    address: str | None = None
    token: Path | None = None
    public: bool = False
    tls: Path | None = None


@dataclass
class Console:
    """`warnings` are those of the library, as they were said."""

    watch: Watch[Any]
    as_json: bool
    quiet: bool
    warnings: list[str]

    def say(self, text: str, *, covered: bool = False) -> None:
        """A line for the user. If an event of its own tells the same, it is `covered`."""
        if not (covered and self.as_json):
            self.watch.tell(Line(text))
        if not (self.as_json or self.quiet):
            _print(text)

    def error(self, text: str) -> None:
        """Why the command ends; also if it is quiet."""
        self.watch.tell(Line(f"error: {text}", "error"))
        if not self.as_json:
            print(f"pfedhgp: error: {text}", file=sys.stderr, flush=True)


def _print(text: str) -> None:
    print("\n".join(stamped(line) for line in text.splitlines()), file=sys.stderr, flush=True)


class _Warnings(logging.Handler):
    """Log records as lines: on the page, and as text or JSON."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.console.watch.tell(Line(text, record.levelname.lower()))
        if not self.console.as_json:
            _print(text)


def write_json(event: Event, now: float) -> None:
    """A line of `--log-json`."""
    print(json_line(event, now), file=sys.stderr, flush=True)


@contextmanager
def console(
    state: Any,
    after: Callable[[Any, Event, float], Any],
    page: PageOptions,
    *,
    quiet: bool,
    log_json: bool,
) -> Iterator[Console]:
    """From the first line to the last: log, warnings and page belong to this command while it runs."""
    log = logging.getLogger("pfedhgp")
    if log_json:
        watch: Watch[Any] = Watch(state, after, log=write_json)
    else:
        watch = Watch(state, after)

    def show(text: str) -> None:
        watch.tell(Line(f"warning: {text}", "warning"))
        if not log_json:
            print("pfedhgp: warning:", text, file=sys.stderr, flush=True)

    with warnings_as_lines(show_line=show) as told:
        here = Console(watch, log_json, quiet, told)
        handler = _Warnings(here)
        server = _page_of(page, here)
        log.addHandler(handler)
        why = "interrupted"
        try:
            yield here
            why = ""
        except PFedHGPError as error:
            why = " ".join(str(error).split())
            if not (log_json and isinstance(error, InputError)):
                raise
            here.error(why)
            raise typer.Exit(2) from None
        except typer.Exit as error:
            why = "" if error.exit_code == 0 else "see the last lines"
            raise
        except Exception as error:
            why = type(error).__name__
            raise
        finally:
            log.removeHandler(handler)
            watch.tell(Ended(why))
            if server is not None:
                server.stop()


def _page_of(options: PageOptions, here: Console) -> Any:
    """The page, started; or None."""
    if options.address is None:
        for given, option in ((options.token, "--page-token"), (options.public, "--page-public")):
            if given:
                raise InputError(f"{option} needs --page")
        return None
    from pfedhgp.federation.flower.processes import LOOPBACK, split_address
    from pfedhgp.page.web import Page, token_from

    if here.as_json and options.token is None:
        raise InputError("--page with --log-json needs --page-token FILE: logs are kept and copied")
    host, port = split_address(options.address, "--page")
    away = host not in LOOPBACK
    if away and not options.public:
        raise InputError(
            f"--page {options.address}: other machines could open it: use 127.0.0.1 and a tunnel "
            "(ssh -L), or add --page-public"
        )
    page = Page(
        here.watch,
        host=host,
        port=port,
        token=token_from(options.token),
        tls=options.tls if away else None,
    )
    page.start()
    bare = page.address.partition("?")[0]
    if options.token is not None:
        here.say(f"page    {bare} (its token is in {options.token})")
    else:
        # Not through the watch: the page's own lines would show it.
        print(f"page    {page.address}", file=sys.stderr, flush=True)
    if away and page.tls is None:
        warn(
            f"--page {options.address} is plain HTTP: others on the network can read it, with its token"
        )
    return page
