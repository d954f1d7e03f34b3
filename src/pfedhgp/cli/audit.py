"""`pfedhgp audit RUN-or-home`: whether the log of what left is as it was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pfedhgp.federation.flower.audit import Finding

PARTICIPATION = "participation.jsonl"


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

    Of a `federate` run also those of its sites, in RUN/sites.

    Exit code 1 and the first bad line where one was altered.
    """
    from pfedhgp.cli.terminal import result
    from pfedhgp.federation.flower.audit import LOG, check
    from pfedhgp.federation.flower.homes import SITES, homes_of

    known = [] if against is None else _known(folder, against)
    found = {folder / LOG: check(folder, known=known)}
    homes = homes_of(folder)
    hashes = _hashes(folder) if homes else {}
    for home in sorted({*homes, *(folder / SITES / name for name in hashes)}):
        own = _of_site(home, hashes.get(home.name, []))
        found |= {} if own is None else {home / LOG: own}
    if as_json:
        first, *others = [_as_json(path, one) for path, one in found.items()]
        result({**first, **({"sites": others} if homes else {})})
    else:
        for path, one in found.items():
            typer.echo(_line(path, one))
    if any(one.bad_line is not None for one in found.values()):
        raise typer.Exit(1)


def _line(path: Path, found: Finding) -> str:
    if found.bad_line is not None:
        return f"{path}: line {found.bad_line}: {found.problem}"
    return (
        f"{path}: {found.lines} lines, {found.sent} messages sent, "
        f"{found.bytes_sent} bytes of arrays; whole, ends in {found.head}"
    )


def _as_json(path: Path, found: Finding) -> dict[str, Any]:
    return {
        "log": str(path),
        "lines": found.lines,
        "sent": found.sent,
        "bytes_sent": found.bytes_sent,
        "head": found.head,
        "bad_line": found.bad_line,
        "problem": found.problem or None,
    }


def _of_site(home: Path, known: list[tuple[int, str]]) -> Finding | None:
    """A site of a `federate` run; None where nothing ever left it."""
    from pfedhgp.federation.flower.audit import HEAD, LOG, START, Finding, check

    if (home / LOG).is_file():
        return check(home, known=known)
    if known or (home / HEAD).exists():
        return Finding(0, START, 1, "the log is missing")
    return None


def _hashes(run: Path) -> dict[str, list[tuple[int, str]]]:
    """The hashes that the server has of its sites' logs, by the name of a site's folder."""
    from pfedhgp.errors import InputError
    from pfedhgp.federation.flower.homes import site_hash

    path = run / PARTICIPATION
    kept: dict[str, list[tuple[int, str]]] = {}
    try:
        for entry in map(json.loads, path.read_bytes().splitlines()):
            for name, digest in entry["audit"].items():
                kept.setdefault(site_hash(name), []).append((int(entry["exchange"]), str(digest)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path}: missing, or not the log of a server") from None
    return kept


def _known(home: Path, run: Path) -> list[tuple[int, str]]:
    """The hashes that the server has of this site's log, by exchange."""
    from pfedhgp.errors import InputError
    from pfedhgp.federation.flower.homes import site_hash

    try:
        name = json.loads((home / "site.json").read_bytes())["name"]
        kept = _hashes(run).get(site_hash(name), [])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InputError):
        raise InputError(f"--against {run}: not the RUN of a server that knows this site") from None
    if not kept:
        raise InputError(f"--against {run}: this site was never counted there")
    return kept
