"""Whether a reply can come from rows at all: looked at when it arrives, before anything is summed.

Shapes, finite numbers and simple ranges are the schema's (`message_checks`). Here is what the model says:
which form of reply has which limits is decided by the phase that asked.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pfedhgp.diagnosis.federated.messages import KINDS as DIAGNOSIS
from pfedhgp.federation.phases import Phase, RunState
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.robust import admissible_setup, admissible_training
from pfedhgp.federation.robust.admissible_training import Limits
from pfedhgp.federation.robust.declared import Declared
from pfedhgp.federation.robust.limits import Inadmissible, expect
from pfedhgp.federation.training import Finish, Rounds, Starts
from pfedhgp.inference.arrays import State

Arrays = Mapping[str, np.ndarray]


def check(plan: Plan, run: RunState, phase: Phase, sender: str, arrays: Arrays) -> Declared | None:
    """Raises `Inadmissible` unless `arrays`, a reply to the phase's request, can come from rows.

    Returns what the site declares, if this is the census.
    """
    if not all(np.all(np.isfinite(array)) for array in arrays.values()):
        raise Inadmissible("a number is not finite")
    known = run.declared.get(sender)
    with np.errstate(over="ignore", invalid="ignore"):
        if phase.kind == "census" and not plan.masks:
            return admissible_setup.census(plan, arrays)
        if phase.kind == "extent" and not plan.masks:
            admissible_setup.extent(arrays, known)
        elif phase.kind == "cycles":
            admissible_setup.cycles(arrays, known)
        elif phase.kind in DIAGNOSIS:
            admissible_setup.diagnosis(phase.kind, arrays)
        elif isinstance(phase, Starts | Rounds):
            _training(plan, phase, known, arrays)
        elif isinstance(phase, Finish) and arrays:
            prepared = phase.best.prepared
            block = phase.best.shared.block
            limits = Limits(prepared.spec, block, prepared.scaling, known)
            admissible_training.mean_squares(limits, arrays)
    return None


def _training(plan: Plan, phase: Starts | Rounds, known: Declared | None, arrays: Arrays) -> None:
    """Every model that is trained, or start that is compared, by itself."""
    openings = phase.openings if isinstance(phase, Starts) else phase.running
    for k, opening in enumerate(openings):
        own = State(arrays).part(f"other {k}") if k else _first(arrays)
        party, prepared = opening.party, opening.prepared
        limits = Limits(prepared.spec, party.block, prepared.scaling, known)
        if plan.inference.name == "structured":
            admissible_training.statistics(limits, own, jitter=float(party.jitter))
        elif plan.inference.name == "markov":
            levels = prepared.spec.noise == "level"
            admissible_training.knots(limits, own, levels=levels)
        else:
            expect(all(np.all(np.abs(a) < 1e12) for a in own.values()), "a gradient is too large")


def _first(arrays: Arrays) -> dict[str, np.ndarray]:
    return {name: array for name, array in arrays.items() if not name.startswith("other ")}
