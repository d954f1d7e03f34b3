"""What a federation's server remembers of its sites, from one exchange to the next and in its checkpoint."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pfedhgp.inference.state import State, below

ROSTER = "the sites of a federation"


@dataclass
class Roster:
    """What the server remembers of the sites: its part of a checkpoint, beside the server's own."""

    sites: tuple[str, ...]
    agreement: str
    run: str = field(default_factory=lambda: secrets.token_hex(16))
    counted: dict[str, int] = field(default_factory=dict)
    """The last exchange in which a site was counted."""
    knows: dict[str, list[int]] = field(default_factory=dict)
    """The attempts (restarts) whose start a site has had."""
    last_round: dict[int, list[str]] = field(default_factory=dict)
    """By attempt: who is in the sums of its last exchange."""
    setup: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    """The requests that a late site needs: `cycles`, and `start 0`, `start 1`… by attempt."""
    log: list[dict[str, Any]] = field(default_factory=list)
    """The participation log."""
    delivered: list[str] = field(default_factory=list)
    """Who has the model; kept beside the checkpoint, for it changes between two."""
    changes: dict[str, list[str]] = field(default_factory=dict)
    """Sites `withdrawn` from the list and `joined` since the last exchange: for the next entry of the log."""
    names: tuple[str, ...] = (ROSTER,)

    def state(self) -> State:
        arrays: dict[str, np.ndarray] = {}
        for kind, request in self.setup.items():
            arrays |= below(kind, request)
        plain = {
            "sites": list(self.sites),
            "agreement": self.agreement,
            "run": self.run,
            "counted": self.counted,
            "knows": self.knows,
            "last_round": {str(k): v for k, v in self.last_round.items()},
            "setup": list(self.setup),
            "log": self.log,
        }
        return State(arrays, plain)

    def restore(self, state: State) -> None:
        """As it was, but for the list of sites: it is today's, and what is new in it is noted."""
        plain = state.plain
        before = plain["sites"]
        changes = {
            "withdrawn": [name for name in before if name not in self.sites],
            "joined": [name for name in self.sites if name not in before],
        }
        self.changes = {what: names for what, names in changes.items() if names}
        self.run = plain["run"]
        self.counted = {name: int(n) for name, n in plain["counted"].items()}
        self.knows = {name: list(attempts) for name, attempts in plain["knows"].items()}
        self.last_round = {int(k): list(v) for k, v in plain["last_round"].items()}
        self.setup = {kind: state.part(kind) for kind in plain["setup"]}
        self.log = list(plain["log"])
