"""`pfedhgp ledger HOME`: what a site has released of its rows, and what that cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pfedhgp.cli.options import AsJson
from pfedhgp.cli.terminal import result
from pfedhgp.errors import InputError


def ledger(
    folder: Annotated[
        Path, typer.Argument(metavar="HOME", help="A ledger's folder, or one with ledgers in it.")
    ],
    delta: Annotated[float, typer.Option(metavar="DELTA", help="δ for which ε is shown.")] = 1e-6,
    as_json: AsJson = False,
) -> None:
    """Show what was released of rows, and what it cost in differential privacy.

    Every line of a ledger is checked. If one was altered or is missing, that is said, and the exit code is 2.
    ε is rounded up.
    """
    from pfedhgp.privacy.accounting import shown
    from pfedhgp.privacy.ledger import FILE, FOLDER, HEAD, Ledger

    known = [path for name in (FILE, HEAD, FOLDER) for path in folder.rglob(name)]
    homes = sorted({path.parent for path in known if path.name != FOLDER or any(path.iterdir())})
    if not homes:
        raise InputError(f"{folder}: no {FILE} in it: nothing was released from here")
    found = [_of(Ledger(home), folder, delta) for home in homes]
    if as_json:
        result({"delta": delta, "ledgers": found})
        return
    for each in found:
        count = len(each["releases"])
        typer.echo(
            f"{each['home']}: {count} release{'s' * (count > 1)}, ε = {shown(each['epsilon'])} in all "
            f"(δ = {delta:g}, μ = {each['mu']:.4g})"
        )
        for entry in each["releases"]:
            typer.echo(f"  {entry['purpose']}: μ = {entry['mu']:.4g}, {entry['content'][:16]}")


def _of(ledger: Any, folder: Path, delta: float) -> dict[str, Any]:
    from pfedhgp.privacy.accounting import composed, epsilon_of

    entries = ledger.entries()
    mu = composed(entry.mu for entry in entries)
    home = ledger.folder.relative_to(folder).as_posix()
    releases = [
        {"purpose": entry.purpose, "mu": entry.mu, "content": entry.content} for entry in entries
    ]
    return {
        "home": folder.name if home == "." else home,
        "mu": mu,
        "epsilon": epsilon_of(mu, delta),
        "releases": releases,
    }
