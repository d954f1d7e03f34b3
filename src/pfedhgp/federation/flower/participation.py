"""What came of asking sites, and the line that the participation log has for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pfedhgp.federation.envelope import Envelope


class Gathered(NamedTuple):
    """What came of asking sites: replies by site, codes of refusals by site, and the seconds it took."""

    replies: dict[str, Envelope]
    refusals: dict[str, str]
    seconds: float = 0.0

    def missing(self, names: Iterable[str]) -> dict[str, str]:
        """Why there is no reply, for those of the sites `names` that have none."""
        return {n: self.refusals.get(n, "no-answer") for n in names if n not in self.replies}


def entry_of(
    envelopes: Mapping[str, Envelope], found: Gathered, counted: Sequence[str], *, attempt: int
) -> dict[str, Any]:
    """The log's entry of an exchange: whose replies were counted, and why others' were not."""
    replies, asked = found.replies, next(iter(envelopes.values()))
    return {
        "exchange": asked.exchange,
        "kind": asked.kind,
        "round": asked.round,
        "attempt": attempt,
        "block": asked.block,
        "counted": list(counted),
        "missing": found.missing(envelopes),
        "audit": {name: replies[name].audit for name in counted},
        "seconds": round(found.seconds, 3),
        "site_seconds": {name: round(replies[name].seconds, 3) for name in counted},
        "bytes_up": sum(replies[name].nbytes for name in counted),
        "bytes_down": sum(envelopes[name].nbytes for name in counted),
    }
