"""The audit that attacks: five attacks on a run's own messages, beside what its defence promises.

`promised` says what may be expected; a finding says what was found, with its 95% interval. Attacks that
cannot be tried say why.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

from pfedhgp.attacks import games, rows_found
from pfedhgp.attacks.captured import Captured, captured
from pfedhgp.attacks.channels import Channel, Releases, Sums
from pfedhgp.attacks.intervals import Measured
from pfedhgp.attacks.noisy_totals import NoisyTotals
from pfedhgp.attacks.rows_found import RowsFound
from pfedhgp.data.rows import ClientRows
from pfedhgp.data.scaling import Scaling
from pfedhgp.errors import InputError
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.telling import is_closed
from pfedhgp.federation.totals_fit import Terms
from pfedhgp.privacy.discrete_gaussian import Below


@dataclass(frozen=True)
class Effort:
    """How much is tried."""

    clients: int = 2
    """Clients whose rows are solved for: the smallest ones"""
    rows: int = 40
    """Rows in the game of membership"""
    outputs: int = 16
    """Outputs in the game of attributes"""
    splits: int = 3
    """Times that clients' rows are split for linkage"""
    noisy: int = 200
    """Rows and outputs where messages are random: more are needed, and are cheap"""


USUAL = Effort()


@dataclass(frozen=True)
class Finding:
    """One line of the audit."""

    attack: str
    measure: str
    found: Measured | None
    """None: it was not tried; `why` says why not"""
    chance: float | None
    """What somebody finds who has no message of the client"""
    promised: str
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        found = None if self.found is None else vars(self.found)
        return {**vars(self), "found": found}


NOTHING = "nothing"
OPEN = dict.fromkeys(("reconstruction", "membership", "attribute", "property", "linkage"), NOTHING)
CLOSED = {**OPEN, "reconstruction": "no more rows than the histogram shows (a rule, no proof)"}
UNLESS = "unless all other clients, or the server and two thirds of the clients, work together"
MASKED = {
    "reconstruction": "nobody's own rows",
    "membership": f"hidden, {UNLESS}",
    "attribute": f"hidden, {UNLESS}",
    "property": "hidden in the total",
    "linkage": "hidden in the total",
}
HIDDEN = {
    "membership": "AUC",
    "attribute": "R²",
    "property": "signs right",
    "linkage": "halves matched",
}
OF_SITES = ("property", "linkage")
"""Attacks on clients rather than rows"""
OF_A_TRUSTED_SERVER = dict.fromkeys(OPEN, "nothing: the server is trusted")
IN_TOTALS = "the server has no message of a single client: it needs all others to tell theirs"


def audit_sums(
    plan: Plan, rows: Sequence[ClientRows], *, effort: Effort | None = None, seed: int = 0
) -> list[Finding]:
    """Attacks on the sums of a run."""
    if len(rows) < 2:
        raise InputError("attacks on a run need two clients at least")
    found, effort = captured(plan, rows), effort or USUAL
    why = rows_found.why_not(found, rows)
    if plan.masks:
        solved = None if why else rows_found.from_totals(found, rows, seed)
        findings = _rows(solved, why or "too many rows for this attack", MASKED)
        return findings + [
            Finding(a, m, None, None, MASKED[a], IN_TOTALS) for a, m in HIDDEN.items()
        ]
    promised = CLOSED if is_closed(plan) else OPEN
    solved = None if why else rows_found.from_sums(found, rows, effort.clients)
    able = [client for client in rows if client.name in found.replies["start"]]
    findings = _rows(solved, why or "all clients have too many rows for this attack", promised)
    return findings + _games(Sums(found), able, promised, effort, seed)


def audit_site(found: Captured, rows: ClientRows, *, effort: Effort | None = None) -> list[Finding]:
    """Attacks on what one site sent. It keeps no histogram: rows are looked for without one."""
    effort, why = effort or USUAL, rows_found.why_not(found, [rows])
    promised = MASKED if found.plan.masks else CLOSED if is_closed(found.plan) else OPEN
    solved = None if why else rows_found.from_sums(found, [rows], 1)
    findings = _rows(solved, why or "too many rows for this attack", promised)
    return [
        *findings,
        *_on_rows(Sums(found), [rows], promised, effort, 0),
        *_alone(promised),
    ]


def audit_releases(
    channel: Releases,
    rows: Sequence[ClientRows],
    epsilon: float,
    *,
    effort: Effort | None = None,
    seed: int = 0,
) -> list[Finding]:
    """Attacks on the releases of a private fit, or on that of one site."""
    promised, effort = promises_of(channel.mu, epsilon), effort or USUAL
    solved = rows_found.from_release(channel, rows, effort.clients)
    findings = _rows(solved, "this attack knows one input only", promised)
    many = replace(effort, rows=effort.noisy, outputs=effort.noisy)
    if len(rows) == 1:
        return [*findings, *_on_rows(channel, rows, promised, many, seed), *_alone(promised)]
    return findings + _games(channel, rows, promised, many, seed)


def audit_totals(
    terms: Terms,
    scaling: Scaling,
    mu: float,
    rows: Sequence[ClientRows],
    *,
    hidden: bool,
    effort: Effort | None = None,
    seed: int = 0,
    below: Below = secrets.randbelow,
) -> list[Finding]:
    """Attacks on a private run by totals, from one site's rows or all clients'.

    Whoever gets the model has totals with the whole noise. For the attacks on one row it knows all other rows
    too, and as many shares of the noise as are tolerated. If totals are not `hidden` from the server
    (central), the server has each client's sums, with a share of the noise or none.
    """
    effort = effort or USUAL
    many = replace(effort, rows=effort.noisy, outputs=effort.noisy)
    whole = replace(terms, clients=1, missing=0, at_server=False)
    outside = NoisyTotals(whole, scaling, mu, below)
    promised = promises_of(mu, terms.promise.epsilon)
    if hidden:
        solved = rows_found.from_noisy_totals(outside, rows) if len(rows) > 1 else None
        why = IN_TOTALS if len(rows) == 1 else "this attack knows one input and few rows only"
        of_sites = [Finding(a, HIDDEN[a], None, None, promised[a], IN_TOTALS) for a in OF_SITES]
        return [
            *_rows(solved, why, {**promised, "reconstruction": MASKED["reconstruction"]}),
            *_on_rows(outside, rows, promised, many, seed),
            *of_sites,
        ]
    server = NoisyTotals(terms, scaling, mu, below)
    solved = rows_found.from_release(server, rows, effort.clients)
    found = _rows(solved, "this attack knows one input and few rows only", OF_A_TRUSTED_SERVER)
    if len(rows) > 1:
        found += _games(server, rows, OF_A_TRUSTED_SERVER, effort, seed)
    else:
        found += _on_rows(server, rows, OF_A_TRUSTED_SERVER, effort, seed)
        found += _alone(OF_A_TRUSTED_SERVER)
    others = _on_rows(outside, rows, promised, many, seed)
    return [*_by(found, "by the server"), *_by(others, "by who gets the model")]


def _by(findings: Sequence[Finding], whom: str) -> list[Finding]:
    """The same, said of one of two attackers."""
    return [replace(each, measure=f"{each.measure}, {whom}") for each in findings]


def _alone(promised: dict[str, str]) -> list[Finding]:
    """Attacks that one site cannot try."""
    why = "it needs the messages of other sites"
    return [Finding(a, HIDDEN[a], None, None, promised[a], why) for a in OF_SITES]


def promises_of(mu: float, epsilon: float) -> dict[str, str]:
    """What no attacker can do better, for releases of Gaussian differential privacy μ."""
    normal = NormalDist()
    area, positives = normal.cdf(mu / math.sqrt(2.0)), normal.cdf(mu - normal.inv_cdf(0.99))
    return {
        "reconstruction": "chance",
        "membership": f"AUC at most {area:.3f}, {positives:.1%} true at 1% false (ε = {epsilon:g})",
        "attribute": "near 0",
        "property": "nothing: rows are protected, not sites",
        "linkage": "nothing: rows are protected, not sites",
    }


def _rows(solved: RowsFound | None, why: str, promised: dict[str, str]) -> list[Finding]:
    name = "reconstruction"
    if solved is None:
        return [Finding(name, "rows found", None, None, promised[name], why)]
    before = solved.before.value
    found = [
        Finding(name, "rows found (by chance: histogram)", solved.found, before, promised[name])
    ]
    if solved.explained is not None:
        n = solved.found.trials
        value = Measured(solved.explained, math.nan, math.nan, n)
        found.append(Finding(name, "R² of the outputs", value, None, promised[name]))
    return found


def _on_rows(
    channel: Channel,
    rows: Sequence[ClientRows],
    promised: dict[str, str],
    effort: Effort,
    seed: int,
) -> list[Finding]:
    told = games.membership(channel, rows, effort.rows, seed)
    of_one = games.attribute(channel, rows, effort.outputs, seed)
    return [
        Finding("membership", "AUC", told.area, 0.5, promised["membership"]),
        Finding(
            "membership", "true at 1% false", told.true_positives, 0.01, promised["membership"]
        ),
        Finding("attribute", "R²", of_one, 0.0, promised["attribute"]),
    ]


def _games(
    channel: Channel,
    rows: Sequence[ClientRows],
    promised: dict[str, str],
    effort: Effort,
    seed: int,
) -> list[Finding]:
    signs = games.property_of_sites(channel, rows, seed)
    matched = games.linkage(channel, rows, effort.splits, seed)
    return [
        *_on_rows(channel, rows, promised, effort, seed),
        Finding(
            "property",
            "signs right",
            signs,
            0.5,
            promised["property"],
            "" if signs else "no region has rows of two clients",
        ),
        Finding("linkage", "halves matched", matched, 1.0 / len(rows), promised["linkage"]),
    ]
