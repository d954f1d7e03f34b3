"""`Guard`: stands between a request that has the right form and the rows that would answer it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pfedhgp.base.checks import short
from pfedhgp.data.rows import ClientRows, digest_of
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.envelope import Envelope, Refused
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.policy import checks
from pfedhgp.federation.policy.book import Book
from pfedhgp.federation.policy.consent import Consent
from pfedhgp.federation.policy.settings import Policy
from pfedhgp.inference.arrays import State
from pfedhgp.inference.protocols import ClientParty

TRAINING = ("start", "round")


class Known(Protocol):
    """What a site knows of a run: its terms and its own rows."""

    @property
    def plan(self) -> Plan: ...

    @property
    def rows(self) -> ClientRows: ...


@dataclass
class Guard:
    """A site's policy at work. Every refusal is the code `policy`, with words for the site's own log."""

    policy: Policy
    book: Book
    consent: Consent

    def open(self, run: str, terms: str, known: Known, rows: str) -> None:
        """Before a run's first request is answered: whether the site takes part in it at all.

        Runs with the same `rows` count together.
        """
        checks.check_terms(self.policy, known.plan)
        counts = self.book.counts(rows)
        if run in counts.runs:
            return
        if len(counts.runs) >= self.policy.runs:
            raise Refused(
                "policy",
                f"{len(counts.runs)} runs on the same rows so far, and policy.toml has "
                f"`runs = {self.policy.runs}`",
            )
        about = f"run {len(counts.runs) + 1} of at most {self.policy.runs} on these rows"
        self.consent.ask(terms, f"  {len(known.rows.X)} rows of {short(known.rows.name)}, {about}")
        counts.runs.append(run)
        self.book.keep(rows, counts)

    def check(self, request: Envelope, known: Known, group: ClientGroup) -> None:
        """Whether an honest server could ask this; counts it before it is answered."""
        own, missed = request.parts()
        for arrays in (own, *missed.values()):
            checks.check_domain(known.plan, known.rows, arrays)
        if request.kind not in TRAINING:
            return
        for arrays in (own, *missed.values()):
            for part in _starts(arrays):
                self._look(part, known, group)
        if request.kind == "round" and self.policy.check_totals:
            for party, arrays in asked_parties(group, own):
                checks.check_totals(party, arrays)
        self._count(request.run, known, own)

    def _look(self, arrays: Mapping[str, np.ndarray], known: Known, group: ClientGroup) -> None:
        """Where a broadcast looks, and how closely."""
        inputs = arrays.get("inputs", arrays.get("free.inputs"))
        if inputs is None:
            return
        checks.check_grid(self.policy, np.asarray(inputs))
        if self.policy.shortest > 0.0 and inputs.size:
            spec = group.spec_of(arrays)
            checks.check_kernels(self.policy, spec, group, known.rows, arrays)

    def _count(self, run: str, known: Known, arrays: Mapping[str, np.ndarray]) -> None:
        policy, plan = self.policy, known.plan
        rows = digest_of([known.rows])
        counts = self.book.counts(rows)
        evaluations = int(arrays.get("evaluations", 0))
        if evaluations > checks.most_evaluations(plan):
            raise Refused("policy", f"{evaluations} evaluations are more than the terms say")
        asked = counts.asked.get(run, 0) + 1
        if asked > checks.requests_of_a_run(plan) + policy.repeats:
            raise Refused("policy", "more rounds than the terms and `repeats` in policy.toml allow")
        counts.asked[run] = asked
        counts.rounds += 1
        counts.evaluations += evaluations
        for name in ("rounds", "evaluations"):
            now, most = getattr(counts, name), getattr(policy, name)
            if now > most:
                why = f"{now} {name} about the same rows, and policy.toml has `{name} = {most}`"
                raise Refused("policy", why)
        self.book.keep(rows, counts)


def _starts(arrays: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """The arrays of each start or model that a request is about."""
    own = {name: array for name, array in arrays.items() if not name.startswith("other ")}
    count = len({name.partition(".")[0] for name in arrays if name.startswith("other ")})
    return [own, *(own | State(arrays).part(f"other {k}") for k in range(1, count + 1))]


def asked_parties(
    group: ClientGroup, arrays: Mapping[str, np.ndarray]
) -> list[tuple[ClientParty, dict[str, np.ndarray]]]:
    """The party that each part of a round is for, by the number of the start that the server chose."""
    if group.attempt not in group.parties:
        return []
    parts = _starts(arrays)
    if not group.others:
        return [(group.parties[group.attempt], parts[0])]
    known = {group.number: group.parties[group.attempt], **group.others}
    found = [(int(part.get("chosen", 0)), part) for part in parts]
    return [(known[number], part) for number, part in found if number in known]
