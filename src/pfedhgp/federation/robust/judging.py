"""Which replies of an exchange are summed: those that fit each other, from four sites on.

A site whose reply does not fit is left out of every field of this exchange, by name and with the reason. It
is asked again in the next exchange like all others, and comes back when it passes. Under masks nobody sees a
reply, so there is nothing to judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from pfedhgp.diagnosis.federated import messages as diagnosis
from pfedhgp.federation.messages import Message
from pfedhgp.federation.opening import Opening
from pfedhgp.federation.phases import Phase, RunState
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.robust import census_test, clipping, magnitudes, model_test
from pfedhgp.federation.robust.model_test import Evidence
from pfedhgp.federation.robust.usual_deviation import with_usual_deviations
from pfedhgp.federation.training import Rounds, Starts
from pfedhgp.inference.arrays import State
from pfedhgp.inference.messages import STATISTICS, unpack
from pfedhgp.inference.structured.bound import apply_loadings

LEAST_SITES = 4
"""From so many sites on, replies are compared: of three, two dishonest ones would decide."""
CENSUS = "its means or variances contradict those of the other sites"
GRID = "its cycles are on another grid than most sites'"
LARGE = "`{}` is out of all proportion to the other sites'"
MISFIT = "its sums do not fit what the other sites say, p = {:.1e}"
CLIPPED = "its gradient was clipped to {:.0%} of its distance from the other sites'"
COMPARED = {
    "cycles": tuple(f"{half}.{name}" for half in ("first", "rest") for name in ("T", "scatter")),
    diagnosis.CURVES: ("total",),
    diagnosis.SPREAD: ("gaps", "squares", "neighbours"),
    diagnosis.SUMS: ("means", "between", "within", "outside"),
}
"""Arrays that have no limit of their own, by kind of exchange."""
DERIVATIVES = ("d_evidence", "d_h", "d_J", "curvature", "d_inputs")


SETTLING, OWN_LOADINGS_ALPHA = 3, 1e-9
"""With loadings of their own, clients' J and h are at loadings that are not certain, and in the first rounds
not found yet: the test waits for these rounds, and asks for more."""


class Judged(NamedTuple):
    """The replies that are summed, and why others are not."""

    kept: list[Message]
    left_out: dict[str, dict[str, Any]]
    """By site: `why` in words, and `p` if there is a p-value"""
    clipped: Mapping[str, float] = MappingProxyType({})
    """By site: how much of its distance from the others was left"""


def judge(plan: Plan, run: RunState, phase: Phase, replies: Sequence[Message]) -> Judged:
    """All replies are kept if `robust` is off or sites are too few."""
    replies = list(replies)
    if plan.robust == "off" or plan.masks or len(replies) < LEAST_SITES:
        return Judged(replies, {})
    arrays = [reply.arrays for reply in replies]
    rows = [run.declared[r.sender].rows if r.sender in run.declared else 0.0 for r in replies]
    found: dict[int, dict[str, Any]] = {}
    if phase.kind == "census":
        found = {i: {"why": CENSUS} for i in census_test.left_out(arrays)}
    elif phase.kind in (diagnosis.RUNS, diagnosis.CURVES):
        found = {i: {"why": GRID} for i in _on_another_grid(phase.kind, arrays)}
    elif isinstance(phase, Starts | Rounds) and plan.inference.name == "mean-field":
        return _clipped(replies)
    elif isinstance(phase, Starts | Rounds) and plan.inference.name == "structured":
        last = {each["name"] for each in run.left_out if each["exchange"] == run.exchanges}
        suspects = [i for i, reply in enumerate(replies) if reply.sender in last]
        found = _against_the_model(phase, arrays, suspects)
    names = DERIVATIVES if isinstance(phase, Starts | Rounds) else COMPARED.get(phase.kind, ())
    for i, name in magnitudes.too_large(arrays, rows, names).items() if names else ():
        found.setdefault(i, {"why": LARGE.format(name)})
    kept = [reply for i, reply in enumerate(replies) if i not in found]
    if 2 * len(kept) < len(replies):  # no majority is left: nobody can say who is right
        return Judged(replies, {})
    return Judged(kept, {replies[i].sender: why for i, why in sorted(found.items())})


def _on_another_grid(kind: str, arrays: Sequence[Mapping[str, np.ndarray]]) -> list[int]:
    """Sites whose number or places of samples are not those of most sites."""
    name = "samples" if kind == diagnosis.RUNS else "grid"
    keys = [np.ascontiguousarray(a[name]).tobytes() for a in arrays]
    usual = max(dict.fromkeys(keys), key=keys.count)
    return [i for i, key in enumerate(keys) if key != usual]


def _against_the_model(
    phase: Starts | Rounds, arrays: Sequence[Mapping[str, np.ndarray]], suspects: Sequence[int]
) -> dict[int, dict[str, Any]]:
    """By `model_test`: at most of the starts that are compared, or for the model that leads."""
    if isinstance(phase, Rounds):
        openings = [(0, phase.leader)]
    else:
        openings = list(enumerate(phase.openings))
    own_loadings = openings[0][1].prepared.spec.client_loadings
    if own_loadings and (isinstance(phase, Starts) or phase.number <= SETTLING):
        return {}
    alpha = OWN_LOADINGS_ALPHA if own_loadings else model_test.ALPHA
    tested = [
        model_test.verdicts(_all_evidence(opening, k, arrays), alpha, suspects)
        for k, opening in openings
        if opening.prepared.spec.latents and len(opening.party.block.inputs)
    ]
    if not tested:
        return {}
    fails = np.mean([~each.passes for each in tested], axis=0) > 0.5
    p = np.median([each.p_values for each in tested], axis=0)
    return {int(i): {"why": MISFIT.format(p[i]), "p": float(p[i])} for i in np.flatnonzero(fails)}


def _all_evidence(
    opening: Opening, k: int, arrays: Sequence[Mapping[str, np.ndarray]]
) -> list[Evidence]:
    """J_i and h_i of all sites; with one output, where φ_i can be taken out, at usual φ_i."""
    found = [evidence_of(opening, k, a) for a in arrays]
    spec = opening.prepared.spec
    one = spec.latents * spec.outputs == 1 and not spec.client_loadings
    if not one or not spec.deviation or not spec.structure.tied:
        return found
    name = f"other {k}.deviation_power" if k else "deviation_power"
    powers = np.array([float(a[name].reshape(-1)[0]) for a in arrays])
    loading = float(np.asarray(opening.party.block.loadings).reshape(-1)[0])
    return with_usual_deviations(found, powers / loading**2) if loading else found


def evidence_of(opening: Opening, k: int, arrays: Mapping[str, np.ndarray]) -> Evidence:
    """J_i and h_i at the shared loadings, from a reply; `k` is its number among the compared starts."""
    own = State(arrays).part(f"other {k}") if k else arrays
    found = unpack(STATISTICS, {name: own[name] for name in ("U", "y")})
    if opening.prepared.spec.client_loadings:
        return Evidence(found["U"], found["y"])
    B = np.asarray(opening.party.block.loadings)
    J, h = apply_loadings(found["U"], found["y"], B, B.shape[1])
    return Evidence(np.asarray(J), np.asarray(h))


def _clipped(replies: list[Message]) -> Judged:
    """Gradients within reach of most others'."""
    found, share = clipping.clip_to_centre([reply.arrays for reply in replies])
    kept = [replace(reply, arrays=own) for reply, own in zip(replies, found, strict=True)]
    named = zip(replies, share, strict=True)
    return Judged(kept, {}, {reply.sender: float(part) for reply, part in named if part < 1.0})
