"""`Policy`: what a site allows a server. policy.toml at the site; lines that it lacks have strict values.

The server never sees it. A request that goes beyond it is refused with the code `policy`; the site's own log
says which line it was.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pfedhgp.base.checks import Check, flag, number, refusal, whole
from pfedhgp.errors import InputError

if TYPE_CHECKING:
    from pfedhgp.federation.plan import Plan


@dataclass(frozen=True)
class Policy:
    """The strict values: an honest server with agreed terms needs no more."""

    agreed_terms: bool = True
    ask: bool = False
    runs: int = 3
    rounds: int = 100
    evaluations: int = 10_000
    inducing: int = 256
    repeats: int = 5
    public_grid: bool = True
    shortest: float = 0.001
    check_totals: bool = True
    reveal: float = 0.0

    def __post_init__(self) -> None:
        for name, line in LINES.items():
            object.__setattr__(self, name, line.check(getattr(self, name), name))


class Line(NamedTuple):
    """A line of policy.toml: how its value is checked, and what it means."""

    check: Check
    meaning: str


def _share(value: Any, name: str) -> float:
    found = number(least=0.0)(value, name)
    if found > 1.0:
        raise refusal(name, "a number from 0 to 1", value)
    return found


LINES: Mapping[str, Line] = {
    "agreed_terms": Line(
        flag,
        "Take part only on terms that you agreed to: those of --config, or those that you approved\n"
        "with --ask. false: on any terms that the server names, with any columns.",
    ),
    "ask": Line(flag, "A person must approve every new run on the terminal, as with --ask."),
    "runs": Line(
        whole(0),
        "Runs on the same rows, at most. Two runs tell a server more about the rows than one.",
    ),
    "rounds": Line(
        whole(0),
        "Training requests that are answered about the same rows, in all runs together. One run\n"
        "has no more than its terms say, plus `repeats`.",
    ),
    "evaluations": Line(
        whole(0), "Evaluations of this site's search about the same rows, in all runs together."
    ),
    "inducing": Line(whole(0), "Shared inducing inputs in a request, at most."),
    "repeats": Line(
        whole(0),
        "How often a run may ask again for a step that it says was lost. Bad connections need some.",
    ),
    "public_grid": Line(
        flag,
        "Shared inducing inputs must be the public grid of the domain. false: the server may lay\n"
        "them anywhere, on your rows too. Terms with inducing inputs that move need false.",
    ),
    "shortest": Line(
        number(least=0.0),
        "Shortest lengthscale, as a share of the domain. Rows that are closer together, and\n"
        "terms that name a shorter one, lower it.",
    ),
    "check_totals": Line(
        flag, "Totals must contain what this site sent before. false: they are taken as they are."
    ),
    "reveal": Line(
        _share,
        "R² up to which a sketch for zones may reveal this site's rows, as with --reveal.\n"
        "0: no sketch is sent.",
    ),
}
OFF = Policy(
    agreed_terms=False,
    runs=10**9,
    rounds=10**9,
    evaluations=10**12,
    inducing=10**9,
    repeats=10**9,
    public_grid=False,
    shortest=0.0,
    check_totals=False,
    reveal=1.0,
)
"""Allows everything: for tests of attacks, and to see what the policy is for."""


def of_a_trial(plan: Plan) -> Policy:
    """For a trial on one machine: checks requests as ever, and allows whatever the trial's terms need."""
    given = 0 if plan.inducing == "auto" else int(plan.inducing)
    return Policy(
        runs=OFF.runs,
        rounds=OFF.rounds,
        evaluations=OFF.evaluations,
        inducing=max(Policy.inducing, given, plan.largest_inducing or 0),
        public_grid=not plan.learn_inducing,
    )


def read(path: Path) -> Policy:
    """The policy of a TOML file; refuses unknown lines and wrong values in one line."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8: save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not TOML: {error}") from None
    strange = [name for name in tree if name not in LINES]
    if strange:
        known = ", ".join(LINES)
        raise InputError(f"{path}: `{strange[0]}` is no line of a policy; known: {known}")
    try:
        return Policy(**tree)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def to_toml(policy: Policy) -> str:
    """The policy with its comments; `read` is the inverse."""
    said = [
        "# What this site allows a server of a federation (docs/deploy.md).",
        "# `pfedhgp client --policy THIS_FILE` reads it. A line that is missing has the strict value,",
        "# which is the one that `pfedhgp policy` writes.",
    ]
    for each in fields(policy):
        value = getattr(policy, each.name)
        text = str(value).lower() if isinstance(value, bool) else repr(value)
        comment = "\n".join(f"# {part}" for part in LINES[each.name].meaning.split("\n"))
        said.append(f"\n{comment}\n{each.name} = {text}")
    return "\n".join(said) + "\n"
