"""`pfedhgp rehearse`: dishonest sites in a made-up federation, and what the server's checks make of them."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from pfedhgp.cli.options import AsJson
from pfedhgp.cli.terminal import result, say, warnings_as_lines
from pfedhgp.errors import InputError


def rehearse(
    attack: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="An attack. Repeat the option for several. Default: all."
        ),
    ] = None,
    share: Annotated[
        list[float] | None,
        typer.Option(metavar="SHARE", help="Share of dishonest sites. Default: 0.1, 0.2 and 0.3."),
    ] = None,
    sites: Annotated[int, typer.Option(min=4, help="Number of sites.")] = 20,
    rows: Annotated[int, typer.Option(min=5, help="Rows of each site.")] = 50,
    rounds: Annotated[int, typer.Option(min=1, help="The most rounds of training.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the made-up sites.")] = 0,
    robust: Annotated[
        str, typer.Option(metavar="WORD", help="What the server does: test, or off to compare.")
    ] = "test",
    as_json: AsJson = False,
) -> None:
    """Rehearse attacks by dishonest sites, and show what was caught and what it cost.

    Sites are made up, so that the true function is known. The last attack, a plausible lie, is not caught.
    """
    from pfedhgp.attacks.rehearsal import ATTACKS
    from pfedhgp.attacks.rehearsal import rehearse as study

    unknown = [name for name in attack or () if name not in ATTACKS]
    if unknown:
        raise InputError(f"--attack {unknown[0]}: known are {', '.join(ATTACKS)}")
    if robust not in ("test", "off"):
        raise InputError(f"--robust must be test or off, got {robust}")
    if any(not 0.0 < each < 0.5 for each in share or ()):
        raise InputError("--share must be above 0 and below 0.5: with half, nobody is right")
    logging.getLogger("pfedhgp").setLevel(logging.ERROR)
    with warnings_as_lines():
        found = study(
            attacks=attack or ATTACKS,
            shares=share or (0.1, 0.2, 0.3),
            sites=sites,
            rows=rows,
            rounds=rounds,
            seed=seed,
            robust=robust,
            told=lambda each: say(f"{each.attack}, {each.share:.0%}: done", quiet=as_json),
        )
    if as_json:
        result(
            {
                "robust": robust,
                "sites": sites,
                "rows": rows,
                "outcomes": [e.as_dict() for e in found],
            }
        )
        return
    from rich.console import Console
    from rich.table import Table

    names = ("attack", "sites", "caught", "honest excluded", "RMSE", "of honest fit", "coverage")
    table = Table(*names, "of honest fit")
    for each in found:
        table.add_row(
            each.attack,
            f"{each.share:.0%}",
            f"{each.caught:.0%}",
            f"{each.honest_excluded:.0%}",
            f"{each.rmse:.3f}",
            f"{each.ratio:.2f}",
            f"{each.coverage:.2f}",
            f"{each.honest_coverage:.2f}",
        )
    Console().print(table)
