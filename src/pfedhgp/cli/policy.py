"""`pfedhgp policy policy.toml`: writes a site's policy, with comments; or checks one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pfedhgp.base.atomic_files import write_bytes
from pfedhgp.cli.targets import writing_to
from pfedhgp.errors import InputError


def policy(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The policy: policy.toml.")],
    check: Annotated[
        bool,
        typer.Option("--check", help="Check FILE, and show which lines are not the strict ones."),
    ] = False,
) -> None:
    """Write the policy of a site: what it allows a server. Or check one.

    The file that is written has the strict values, which hold without a file, too. Change what you need.
    """
    from pfedhgp.federation.policy.settings import Policy, read, to_toml

    if check:
        found, strict = vars(read(file)), vars(Policy())
        loose = [f"{name} = {value}" for name, value in found.items() if value != strict[name]]
        typer.echo("\n".join(loose) or "the strict policy")
        return
    if file.exists():
        raise InputError(f"{file} already exists: choose another name, or remove it")
    with writing_to(file):
        write_bytes(file, to_toml(Policy()).encode("utf-8"))
    typer.echo(file)
