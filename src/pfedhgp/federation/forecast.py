"""How long a fit will take, before it begins: seconds of compiling, and seconds of its rounds.

    Σ_clients cost(n, Q, M, M_i) · evaluations, over the cores that compute clients side by side

Figures are of two cores in 2026, and right to a factor of two or so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pfedhgp.base.batching import on_host
from pfedhgp.data.rows import ClientRows
from pfedhgp.data.scaling import Scaling
from pfedhgp.federation import local_budget
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.compiling import COMPILING, COMPILING_AVERAGES, compiled_part
from pfedhgp.federation.messages import Message
from pfedhgp.federation.plan import Plan
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.inference.structured.host.search import cores
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model.spec import Spec, with_periods

EACH, PAIR, TRIPLE, FEATURE = 3e-5, 4.5e-8, 6e-11, 5e-8
"""Seconds of one client's bound and gradient: at least; for s² and s³ of its smaller matrix, that of cells or
that of weights; for each row, output and feature if that is the weights'."""
USUAL_FIRST, USUAL, SUMS, OPENING = 25, 10, 5, 6
"""Evaluations of a search while kernels are held, and later; what a round's sums take in units of one, and
what the start takes."""
USUAL_ROUNDS = 15
"""Until training has settled; a limit below that counts as it is."""
LARGE = 3e-3
"""Clients whose evaluation takes longer are computed on all cores."""


class Forecast:
    """Says what is to be expected, each thing once."""

    def __init__(self, plan: Plan, groups: Sequence[ClientGroup]) -> None:
        self.plan, self.groups = plan, groups
        self.said: set[str] = set()

    def _clients(self) -> list[ClientRows]:
        return [client for group in self.groups for client in group.clients]

    def before(self, request: Message) -> Iterator[tuple[str, float]]:
        """What a request begins that may take long: ("compiling" or "fitting", seconds)."""
        kind, how = request.kind, self.plan.inference
        if kind in self.said or kind in ("census", "extent"):
            return
        first, self.said = not self.said, self.said | {kind}
        compiled = compiled_part(self.plan, self._clients(), learn="learn" in request.arrays)
        if compiled is not None and first:
            yield "compiling", COMPILING[compiled]
        if not isinstance(how, Structured):
            return
        if compiled is not None and kind == "finish" and how.averaging is not None:
            yield "compiling", COMPILING_AVERAGES
        if kind == "start" and on_host():
            yield "fitting", seconds_of_rounds(self.plan, self.groups, request.arrays)


def seconds_of_rounds(
    plan: Plan, groups: Sequence[ClientGroup], a: Mapping[str, np.ndarray]
) -> float:
    """Of all trainings and the averages, if searches are as long as usual; `a`: the start request.

    An evaluation takes about two thirds while kernels are held.
    """
    how = plan.inference
    assert isinstance(how, Structured)
    rounds = min(how.rounds, USUAL_ROUNDS)
    early = min(rounds, how.frozen_rounds)
    first, later = min(how.first_evaluations, USUAL_FIRST), min(how.evaluations, USUAL)
    each = early * 0.67 * first + (rounds - early) * later + rounds * SUMS
    spec = with_periods(plan.spec, np.asarray(a["periods"])) if "periods" in a else plan.spec
    sizes: dict[int, tuple[int, int]] = {}  # groups of equal sizes are alike
    total = 0.0
    for group in groups:
        n = group.padded_rows
        if n not in sizes:
            sizes[n] = _sizes(plan, spec, group, a)
        rows, local = sizes[n]
        count, one = len(group.clients), cost(spec, rows, len(a["inputs"]), local)
        own = each * plan.restarts + OPENING + _averages(how, spec, rows)
        total += own * count * one / (min(cores(), count) if one > LARGE else 1)
    return total


def _averages(how: Structured, spec: Spec, rows: int) -> float:
    """Evaluations that a client's last search and its average take, P being its parameters."""
    mixed = spec.latents * (0 if spec.tied or not spec.deviation else 1) + spec.local_latents
    P = spec.outputs * (mixed + 1) + spec.local_latents * spec.inputs
    if how.averaging is None or rows * spec.outputs > how.averaging.cells * P:
        return 0.0
    return min(how.evaluations, USUAL) + 4 * P + 1 + 0.6 * (2 * P + 4)


def cost(spec: Spec, n: int, M: int, M_i: int) -> float:
    """Seconds of one client's bound and gradient."""
    layers = spec.latents * (2 if spec.deviation else 1)
    cells, weights = n * spec.outputs, layers * M + spec.local_latents * M_i
    if cells <= weights:
        return EACH + PAIR * cells**2 + TRIPLE * cells**3
    features = spec.latents * M + spec.local_latents * M_i
    return EACH + FEATURE * cells * features + TRIPLE * weights**3


def _sizes(
    plan: Plan, spec: Spec, group: ClientGroup, a: Mapping[str, np.ndarray]
) -> tuple[int, int]:
    """Rows that training sees, and local inducing inputs at the start, of the group's first client."""
    few, start, scaling = (
        group.training_rows(a)[0],
        Start.from_array(a["scales"]),
        Scaling.from_arrays(a),
    )
    kernels = local_budget.local_kernels(spec, scaling, start)
    client = group.scaled[0]
    Z = local_budget.starting_inputs(plan, spec, kernels, client, start, say=False)
    return (group.padded_rows if few is client else len(few.X)), len(Z)
