"""`pfedhgp audit RUN-or-HOME`: checks that a log of sent messages was not altered."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfedhgp.cli.options import AsJson, Delimiter
from pfedhgp.cli.terminal import result
from pfedhgp.errors import InputError

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
            metavar="RUN",
            help="The server's RUN. The log must contain every hash that the server kept.",
        ),
    ] = None,
    attack: Annotated[
        bool,
        typer.Option(
            "--attack",
            help="Attack the run's own messages, made again from --data, and show what is found.",
        ),
    ] = False,
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", help="With --attack: the rows of the run; may be repeated."),
    ] = None,
    delimiter: Delimiter = None,
    as_json: AsJson = False,
) -> None:
    """Check that no line of an audit log was changed, moved or removed.

    For a `federate` run it also checks the logs of the sites, in RUN/sites.

    If a line was altered, it names the first one and ends with exit code 1.

    With --attack it shows what an attacker learns from the messages of a run instead.
    """
    if attack:
        from pfedhgp.cli.attacking import attack_run

        attack_run(folder, data or [], delimiter=delimiter, as_json=as_json)
        return
    if data:
        raise InputError("--data is for --attack: give both, or leave it out")
    from pfedhgp.federation.flower.audit import LOG, check
    from pfedhgp.federation.flower.state import SITES, homes_of

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
    return {"log": str(path), **asdict(found), "problem": found.problem or None}


def _of_site(home: Path, known: list[tuple[int, str]]) -> Finding | None:
    """The log of a site of a `federate` run; None if the site never sent anything."""
    from pfedhgp.federation.flower.audit import HEAD, LOG, START, Finding, check

    if (home / LOG).is_file():
        return check(home, known=known)
    if known or (home / HEAD).exists():
        return Finding(0, START, 1, "the log is missing")
    return None


def _hashes(run: Path) -> dict[str, list[tuple[int, str]]]:
    """The hashes of the sites' logs that the server kept, by the name of the site's folder."""
    from pfedhgp.federation.flower.state import site_hash

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
    """The hashes of this site's log that the server kept, by exchange."""
    from pfedhgp.federation.flower.state import site_hash

    try:
        name = json.loads((home / "site.json").read_bytes())["name"]
        kept = _hashes(run).get(site_hash(name), [])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InputError):
        raise InputError(f"--against {run}: not the RUN of a server of this site") from None
    if not kept:
        raise InputError(f"--against {run}: this site never took part in it")
    return kept
