"""The section about zones: groups of clients that behave alike, as `pfedhgp cluster` found them.

It stands between two marks, so that it can be put into a report that is there already: clustering comes after
the fit, and a fit's report may show rows that are not at hand any more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from pfedhgp.report import words, zone_figures
from pfedhgp.report.theme import both, style
from pfedhgp.zones.result import KeptZones

MOST_DRAWN = 80
"""Clients in a tree and a heat map: of more, neither would be read."""
MARKED = re.compile(r"(<!-- zones -->)(.*?)(<!-- end of zones -->)", flags=re.DOTALL)
LINKED = re.compile(r"(<!-- zones link -->)(.*?)(<!-- end of zones link -->)", flags=re.DOTALL)
LINK = '<a href="#zones">Zones</a>'


def section(kept: KeptZones) -> Markup:
    """The section's HTML."""
    zones = kept.zones
    drawn = 2 <= len(zones.clients) - len(zones.sparse) <= MOST_DRAWN
    sent = _sent(kept)
    context: dict[str, Any] = {
        "zones": zones,
        "members": zones.members(),
        "tree": Markup(zone_figures.tree(zones, name="zone-tree")) if drawn else None,
        "heat_map": Markup(zone_figures.heat_map(zones, name="zone-heat")) if drawn else None,
        "map": _map(kept),
        "r2": _mean_and_most(zones.r2),
        "shared": _mean_and_most(zones.r2_shared),
        "sent": sent,
        "truth": _truth(kept),
    }
    return Markup(words.template("zones.html").render(context))


def _mean_and_most(r2: Mapping[str, float]) -> tuple[float, float] | None:
    values = list(r2.values())
    return (sum(values) / len(values), max(values)) if values else None


def _map(kept: KeptZones) -> Markup | None:
    places = kept.places
    if places is None:
        return None
    return both(
        lambda w, key: zone_figures.site_map(kept.zones.labels, places, width=w, name=key),
        "zone-map",
    )


def _sent(kept: KeptZones) -> int:
    """Bytes that a client sent, at most."""
    by_client: dict[str, int] = {}
    for message in kept.zones.messages:
        if message["to"] == "server":
            by_client[message["from"]] = by_client.get(message["from"], 0) + int(message["bytes"])
    return max(by_client.values(), default=0)


def _truth(kept: KeptZones) -> dict[str, Any] | None:
    """The zones that made-up data have, and how well the groups found agree with them."""
    if kept.truth is None:
        return None
    names = dict.fromkeys(kept.truth.values())
    return {
        "zones": {z: [c for c, own in kept.truth.items() if own == z] for z in names},
        "ari": kept.agreement(),
    }


def inserted(text: str, kept: KeptZones) -> str | None:
    """A report's text with this section in its place; None where it has no place for one."""
    if not MARKED.search(text) or not LINKED.search(text):
        return None
    made = str(section(kept))
    text = MARKED.sub(lambda m: f"{m[1]}{made}{m[3]}", text, count=1)
    return LINKED.sub(lambda m: f"{m[1]}{LINK}{m[3]}", text, count=1)


def page(kept: KeptZones) -> str:
    """The section as a page of its own."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><title>Zones (pFedHGP)</title>'
        f'<link rel="icon" href="data:,"><style>{style()}</style></head>\n'
        f'<body><div class="layout alone"><main>{section(kept)}</main></div></body></html>\n'
    )
