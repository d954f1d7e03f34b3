"""A state as plain data, for `status.json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pfedhgp.federation.watch import server_state as servers
from pfedhgp.federation.watch.server_state import ServerState
from pfedhgp.federation.watch.site_state import SiteState
from pfedhgp.version import __version__


def status(state: ServerState | SiteState, now: float) -> dict[str, Any]:
    """All that the page shows. Times are Unix's, in seconds."""
    role = "server" if isinstance(state, ServerState) else "site"
    found: dict[str, Any] = {"role": role, "version": __version__, "time": now, **asdict(state)}
    found["lines"] = [told._asdict() for told in state.lines]
    if isinstance(state, ServerState):
        found["seconds_left"] = servers.seconds_left(state, now)
        for name, site in state.sites.items():
            word, why = servers.status_of(state, site, now)
            found["sites"][name] |= {"status": word, "why": why}
    else:
        found["refusals"] = [told._asdict() for told in state.refusals]
    return found
