"""How `client` agrees to terms: a file, a person at the terminal, or what was approved here before."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pfedhgp.errors import InputError

if TYPE_CHECKING:
    from pfedhgp.federation.policy.consent import Approve
    from pfedhgp.federation.policy.settings import Policy


def agreed_terms(
    home: Path, *, config: Path | None, policy: Path | None, ask: bool
) -> tuple[Policy, str | None]:
    """The site's policy, and the terms of `config`; refuses a site that has agreed to nothing."""
    from pfedhgp.federation.policy import consent
    from pfedhgp.federation.policy.settings import Policy, read

    allowed = Policy() if policy is None else read(policy)
    if config is not None:
        return allowed, consent.terms_of_file(config)
    asked = ask or allowed.ask or not allowed.agreed_terms
    if not asked and not (home / consent.FILE).is_file():
        raise InputError(
            "--config is missing: the settings that the sites agreed on. With --ask you see the server's, "
            "and approve them"
        )
    return allowed, None


def approval() -> Approve:
    """Asks a person at this terminal; refuses to start where there is none."""
    if not sys.stdin.isatty():
        raise InputError("--ask needs a terminal, where a person can answer: start the site on one")

    def approve(text: str) -> bool:
        typer.echo(f"The server proposes a run on these terms:\n{text}", err=True)
        return typer.confirm("Take part?", default=False, err=True)

    return approve
