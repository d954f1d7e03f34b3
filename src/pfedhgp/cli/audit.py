"""`pfedhgp audit RUN-or-home`: whether the log of what left is as it was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def audit(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN|HOME", help="A server's RUN or a site's home.")
    ],
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="The server's RUN: all hashes that it kept must be in the log."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check an audit log: every line, in order, and the end.

    Exit code 1 and the first bad line where it was altered.
    """
    from pfedhgp.cli.terminal import result
    from pfedhgp.federation.flower.audit import LOG, check

    known = [] if against is None else _known(folder, against)
    found = check(folder, known=known)
    if as_json:
        result(
            {
                "log": str(folder / LOG),
                "lines": found.lines,
                "sent": found.sent,
                "bytes_sent": found.bytes_sent,
                "head": found.head,
                "bad_line": found.bad_line,
                "problem": found.problem or None,
            }
        )
    elif found.bad_line is None:
        typer.echo(
            f"{folder / LOG}: {found.lines} lines, {found.sent} messages sent, "
            f"{found.bytes_sent} bytes; whole, ends in {found.head}"
        )
    else:
        typer.echo(f"{folder / LOG}: line {found.bad_line}: {found.problem}")
    if found.bad_line is not None:
        raise typer.Exit(1)


def _known(home: Path, run: Path) -> list[tuple[int, str]]:
    """The hashes that the server has of this site's log, by exchange."""
    from pfedhgp.errors import InputError

    try:
        name = json.loads((home / "site.json").read_bytes())["name"]
        entries = map(json.loads, (run / "participation.jsonl").read_bytes().splitlines())
        kept = [(int(e["exchange"]), str(e["audit"][name])) for e in entries if name in e["audit"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"--against {run}: not the RUN of a server that knows this site") from None
    if not kept:
        raise InputError(f"--against {run}: this site was never counted there")
    return kept
