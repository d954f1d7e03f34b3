"""Sites and a server of secure aggregation in this process; sites may die in any phase."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from pfedhgp.federation.masks.aggregator import Aggregator
from pfedhgp.federation.masks.keys import Identity
from pfedhgp.federation.masks.roster import Roster, Scope
from pfedhgp.federation.masks.site import MaskedSite


def needs_cryptography() -> None:
    """Skips a module where `cryptography` is missing; `make test-flower`, which has it, allows no skip."""
    if importlib.util.find_spec("cryptography") is not None:
        return
    if os.environ.get("PFEDHGP_REQUIRE_FLOWER") == "1":
        pytest.fail("cryptography is missing: PFEDHGP_REQUIRE_FLOWER=1 asks for it", pytrace=False)
    pytest.skip("cryptography is missing: `make test-flower` brings it", allow_module_level=True)


@dataclass
class Masks:
    """A run: `exchange` is one of it, with all its trips."""

    sites: dict[str, MaskedSite]
    server: Aggregator
    number: int = 0
    last: dict[str, object] = field(default_factory=dict)
    """What the last exchange's trips said, for tests that say something else"""

    def begin(self, about: str, values: Mapping[str, np.ndarray], names: Sequence[str]) -> None:
        """Asks all that can take part; `names` answer."""
        self.number += 1
        asked = self.server.ask(self.number, about)
        for name in asked:
            if name in names:
                told = self.server.adverts_for(name)
                self.server.take(self.sites[name].answer(self.number, about, told, values[name]))

    def exchange(
        self,
        values: Mapping[str, np.ndarray],
        *,
        about: str = "",
        die_before: Mapping[str, Collection[str]] | None = None,
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        """The unmasked total and its survivors; sites die before they `answer`, `sign` or `reveal`."""
        dead = {phase: set(names) for phase, names in (die_before or {}).items()}
        alive = [name for name in self.sites if name not in dead.get("answer", ())]
        self.begin(about or f"question {self.number + 1}", values, alive)
        survivors = self.server.settle()
        alive = [name for name in survivors if name not in dead.get("sign", ())]
        for name in alive:
            self.server.add_signature(name, self.sites[name].sign(self.number, survivors))
        signatures = dict(self.server.signatures)
        alive = [name for name in alive if name not in dead.get("reveal", ())]
        told = [
            self.sites[n].reveal(self.number, survivors, signatures, self.server.boxes_for(n))
            for n in alive
        ]
        total = self.server.total(told)
        for name in self.sites:  # those who were away come back with a key for the next exchange
            if name not in self.server.adverts:
                self.server.add_advert(self.sites[name].advertise(self.number + 1))
        return total, survivors


def scope_of(count: int) -> tuple[Scope, dict[str, Identity]]:
    identities = {f"site {i:02d}": Identity.new() for i in range(count)}
    roster = Roster({name: own.public for name, own in identities.items()})
    return Scope(roster, "a run"), identities


def masks_of(count: int) -> Masks:
    """A run whose sites know each other's cards and have keys for its first exchange."""
    scope, identities = scope_of(count)
    sites = {
        name: MaskedSite.joining(name, own, scope, scope.roster.digest)
        for name, own in identities.items()
    }
    server = Aggregator(scope)
    for site in sites.values():
        server.add_card(site.card())
    for site in sites.values():
        site.meet(server.cards.values())
    for site in sites.values():
        server.add_advert(site.advertise(1))
    return Masks(sites, server)
