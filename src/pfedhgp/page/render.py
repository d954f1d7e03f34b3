"""A state as HTML, in sections that a page replaces one by one when they change. Pure functions.

Everything that comes from outside (names, reasons, lines) is escaped by the templates.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pfedhgp.federation.watch import server_state as servers
from pfedhgp.federation.watch.server_state import STATUSES, TROUBLE, ServerState, SiteView
from pfedhgp.federation.watch.site_state import SiteState
from pfedhgp.page import words
from pfedhgp.page.chart import bound_chart
from pfedhgp.version import __version__

SHOWN_SITES = 24
"""Sites without trouble that are shown before one has to ask for more."""
KINDS = {
    "census": "counts and sums of raw rows, for common scales",
    "extent": "where the inputs lie",
    "cycles": "sums over cycles",
    "start": "sums at the starting values",
    "round": "sums of a training round",
    "finish": "sums for the population",
    "release": "noisy sums, or a part of totals (differential privacy)",
    "deliver": "the receipt of the model",
}
"""What a site sends, by kind of message."""


@dataclass(frozen=True)
class ShownSite:
    """A row of the table of sites."""

    view: SiteView
    status: str
    why: str


@functools.cache
def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader("pfedhgp.page", "."), autoescape=True, undefined=StrictUndefined
    )
    found.trim_blocks = found.lstrip_blocks = True
    found.filters |= {
        "size": words.size,
        "duration": words.duration,
        "clock": words.clock,
        "bound": words.bound,
        "short": words.short,
    }
    return found


def style() -> str:
    """The report's own style, and what the live page adds to it."""
    package = resources.files("pfedhgp")
    files = (package / "report" / "style.css", package / "page" / "live.css")
    return "".join(file.read_text("utf-8") for file in files)


def script() -> str:
    return (resources.files("pfedhgp") / "page" / "live.js").read_text("utf-8")


def page(state: ServerState | SiteState, now: float) -> str:
    """The whole page as it is sent first."""
    found = sections(state, now)
    parts = {name: Markup(text) for name, text in found.items() if name != "title"}
    return _templates().get_template("page.html").render(title=found["title"], parts=parts)


def sections(state: ServerState | SiteState, now: float) -> dict[str, str]:
    """HTML by the id of the element that it belongs into; `title` is plain text."""
    is_server = isinstance(state, ServerState)
    template = _templates().get_template("server.html" if is_server else "site.html")
    about = _server(state, now) if isinstance(state, ServerState) else _site(state, now)
    module = template.make_module({**about, "state": state, "now": now, "version": __version__})
    names = ("top", "main", "lines", "foot")
    found = {name: str(getattr(module, name)()) for name in names}
    return {"title": about["title"], **found}


# -------------------------------------------------------------------------------------- the server


def _server(state: ServerState, now: float) -> dict[str, Any]:
    sites = [ShownSite(s, *servers.status_of(state, s, now)) for s in state.sites.values()]
    sites.sort(key=lambda site: STATUSES.index(site.status))
    trouble = [site for site in sites if site.status in TROUBLE]
    fine = [site for site in sites if site.status not in TROUBLE]
    room = max(SHOWN_SITES - len(trouble), 0)
    heading, more = _server_words(state, now)
    left = servers.seconds_left(state, now)
    return {
        "title": f"{heading} · pFedHGP server",
        "heading": heading,
        "more": more,
        "left": left,
        "elapsed": (state.ended or now) - state.started,
        "counts": {k: v for k, v in servers.by_status(state, now).items() if v},
        "connected": sum(site.connected for site in state.sites.values()),
        "shown": [*trouble, *fine[:room]],
        "hidden": fine[room:],
        "trouble": len(trouble),
        "chart": bound_chart(state.bounds, state.rounds),
        "kinds": KINDS,
        "trouble_words": TROUBLE,
    }


def _server_words(state: ServerState, now: float) -> tuple[str, str]:
    """What the server is doing, in a few words and in a sentence."""
    connected = sum(site.connected for site in state.sites.values())
    here = f"{connected} of {words.counted(len(state.sites), 'site')} connected"
    waiting = sum(site.asked is not None for site in state.sites.values())
    since = "" if state.asked is None else f" for {words.duration(now - state.asked)}"
    working = f"Waiting for {words.counted(waiting, 'site')}{since}." if waiting else ""
    match state.phase:
        case "starting":
            return "Starting", "Flower's SuperLink is starting."
        case "waiting":
            return "Waiting for sites", f"{here}."
        case "preparing" if not connected:  # the first question is there, and nobody to answer it
            return "Waiting for sites", f"{here}."
        case "preparing" if state.kind == "release":
            return f"Private sums: exchange {state.exchange}", f"{here}. {working}"
        case "preparing":
            return f"Preparing: {state.kind or 'census'}", f"{here}. {working}"
        case "training":
            return f"Round {state.round + 1} of at most {state.rounds}", f"{here}. {working}"
        case "delivering":
            got = sum(site.has_model for site in state.sites.values())
            return "Delivering the model", f"{got} of {len(state.sites)} sites have it."
        case "done":
            got = sum(site.has_model for site in state.sites.values())
            return "Done", f"{got} of {len(state.sites)} sites have the model."
    return "Stopped", state.why


# ---------------------------------------------------------------------------------------- the site


def _site(state: SiteState, now: float) -> dict[str, Any]:
    since = None if state.since is None else now - state.since
    match state.phase:
        case "connecting":
            heading = "Waiting for the server"
            more = state.why or f"Connecting to {state.server}."
        case "working":
            heading = f"Working on exchange {state.exchange}"
            more = f"{state.kind}: {KINDS.get(state.kind, '')}, for {words.duration(since)}."
        case "waiting":
            heading, more = "Waiting for the next message", f"For {words.duration(since)}."
        case "has the model":
            heading, more = "The model is here", f"{state.home}/model"
        case "done":
            heading, more = "Done", f"The model is in {state.home}/model."
        case _:
            heading, more = "Stopped", state.why
    return {
        "title": f"{heading} · pFedHGP site {words.short(state.name)}",
        "heading": heading,
        "more": more,
        "elapsed": (state.ended or now) - state.started,
        "kinds": KINDS,
    }
