"""Zones of a federation: what `server --zones` does when the sites have the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfedhgp.errors import InputError

if TYPE_CHECKING:
    from pfedhgp.federation.flower.exchange import Engine

ZoneGroups = Annotated[
    int | None,
    typer.Option(
        "--zones",
        metavar="N",
        min=1,
        help="Also find N groups of sites that behave alike. On a finished RUN: only that.",
    ),
]
ZoneSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Numbers in each site's sketch for --zones. Fewer reveal less. Default: 240 per output.",
    ),
]
ZoneSeed = Annotated[
    int,
    typer.Option(
        min=0, help="Public seed of the sketches. A second seed reveals more about the rows."
    ),
]
Reveal = Annotated[
    float | None,
    typer.Option(
        metavar="R2",
        help="Send a sketch for zones if it reveals this site's rows with no more than this R² (0 to 1). "
        "Default: as the policy says; 0, no sketch.",
    ),
]


def zones_in(
    out: Path, say: Callable[[str], None], *, groups: int, size: int | None, seed: int
) -> Callable[[Engine], None]:
    """Asks the sites that have the model, writes RUN/zones, and tells each site its group."""

    def after_delivery(engine: Engine) -> None:
        from pfedhgp.cli.cluster import FOLDER, lines, write
        from pfedhgp.cli.saved import open_run
        from pfedhgp.model import files
        from pfedhgp.zones.at_server import ZonesAtServer
        from pfedhgp.zones.clustering import ClusterSettings
        from pfedhgp.zones.result import KeptZones

        how = ClusterSettings(groups=groups, size=size, seed=seed)
        names = tuple(sorted(engine.roster.delivered))
        server, found = ZonesAtServer(engine.ask, files.load(out), names, how), None
        try:
            found = server.find()
            write(KeptZones(found), out / FOLDER, open_run(out)["sha256"])
        except InputError as error:  # the model is there: it is only the zones that are not
            say(f"no zones: {error}")
        finally:
            server.tell(found)
        if found is not None:
            for line in lines(found):
                say(line)
            say(str(out / FOLDER / "zones.html"))

    return after_delivery


def check_groups(groups: int | None, sites: int) -> None:
    """Refuses more groups than there are sites, before anybody is asked."""
    if groups is not None and groups > sites:
        raise InputError(f"--zones must be from 1 to {sites}, the number of sites, got {groups}")


def reveal_of(policy: Any, given: float | None) -> float:
    """The ceiling of --reveal, or that of the policy."""
    if given is None:
        return float(policy.reveal)
    if not 0.0 <= given <= 1.0:
        raise InputError(f"--reveal must be from 0 to 1, got {given:g}")
    return given
