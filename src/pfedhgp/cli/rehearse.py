"""`pfedhgp rehearse`: dishonest sites in a federation, and what the server's checks make of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pfedhgp.cli.options import AsJson
from pfedhgp.cli.terminal import only_errors_logged, result, say, warnings_as_lines
from pfedhgp.errors import InputError

if TYPE_CHECKING:
    from pfedhgp.attacks.rehearsal import Town


def rehearse(
    data: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DATA...]", help="Tables of your own sites. Default: sites are made up."
        ),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="With DATA: the column that names the site."),
    ] = None,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", metavar="COLUMN", help="With DATA: an input.")
    ] = None,
    outputs: Annotated[
        list[str] | None, typer.Option("--output", metavar="COLUMN", help="With DATA: an output.")
    ] = None,
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
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of towns, with seeds from --seed on.")
    ] = 1,
    robust: Annotated[
        str, typer.Option(metavar="WORD", help="What the server does: test, or off to compare.")
    ] = "test",
    as_json: AsJson = False,
) -> None:
    """Rehearse attacks by dishonest sites, and show what was caught and what it cost.

    Made-up sites have a function that is known. With DATA, the first sites attack, and errors are those
    against the shared function of all sites before they do. The last attack, a plausible lie, is not caught.
    """
    from pfedhgp.attacks.rehearsal import ATTACKS, Outcome, over_towns
    from pfedhgp.attacks.rehearsal import rehearse as study

    unknown = [name for name in attack or () if name not in ATTACKS]
    if unknown:
        raise InputError(f"--attack {unknown[0]}: known are {', '.join(ATTACKS)}")
    if robust not in ("test", "off"):
        raise InputError(f"--robust must be test or off, got {robust}")
    if any(not 0.0 < each < 0.5 for each in share or ()):
        raise InputError("--share must be above 0 and below 0.5: with half, nobody is right")
    if not data and (client or inputs or outputs):
        raise InputError("--client, --input and --output need DATA, a table of your own sites")
    every: list[Outcome] = []
    with warnings_as_lines(), only_errors_logged():
        own = None if not data else _own_town(data, client, inputs, outputs, rounds)
        for town in range(seed, seed + seeds):
            about = f"seed {town}, " if seeds > 1 else ""
            every += study(
                attacks=attack or ATTACKS,
                shares=share or (0.1, 0.2, 0.3),
                sites=sites,
                rows=rows,
                rounds=rounds,
                seed=town,
                of=own,
                robust=robust,
                told=lambda each, about=about: say(  # type: ignore[misc]
                    f"{about}{each.attack}, {each.share:.0%}: done", quiet=as_json
                ),
            )
    found = over_towns(every)
    if as_json:
        result(
            {
                "robust": robust,
                **({"data": [str(path) for path in data]} if data else {}),
                "sites": sites if own is None else len(own.rows),
                **({} if data else {"rows": rows}),
                "seeds": seeds,
                "outcomes": [e.as_dict() for e in found],
            }
        )
        return
    from rich.console import Console
    from rich.table import Table

    names = ("attack", "sites", "caught", "honest excluded", "RMSE", "/ honest", "coverage")
    table = Table(*names, "honest")
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


def _own_town(
    data: Sequence[Path],
    client: str | None,
    inputs: Sequence[str] | None,
    outputs: Sequence[str] | None,
    rounds: int,
) -> Town:
    """Sites from tables: a file each, or by a column."""
    from pfedhgp.attacks.rehearsal import town_of
    from pfedhgp.data.readers import client_rows, find_columns, observations_of, read_tables

    if not inputs or not outputs:
        raise InputError("DATA needs --input and --output, the columns that sites would train on")
    wanted = {*inputs, *outputs, *([client] if client else ())}
    tables = read_tables(data, wanted=wanted)
    columns = find_columns(tables, client=client, inputs=inputs, outputs=outputs)
    return town_of(client_rows(observations_of(tables, columns), columns), rounds)
