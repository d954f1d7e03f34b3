"""How long a fit will take, before it begins: seconds of compiling, and seconds of its rounds.

    rounds · evaluations · Σ_clients cost(n, Q, M, M_i)

Figures are of two cores in 2026, and right to a factor of two or so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pfedhgp.base.batching import on_host
from pfedhgp.data.scaling import Scaling
from pfedhgp.federation import local_budget
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.messages import Message
from pfedhgp.federation.plan import Plan
from pfedhgp.gp.kernel_adjoints import has_adjoints
from pfedhgp.inference.merged_rows import merge_rows
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model.spec import Spec, with_periods

COMPILING = {"gpu": 20.0, "mean-field": 20.0, "cycles": 20.0, "state-space": 15.0, "other": 10.0}
"""Seconds before the first round for four small clients of one size (GPU: one output, on an H200)."""
COMPILING_AVERAGES = 7.0
EACH, PAIR, TRIPLE, FEATURE = 3e-5, 4.5e-8, 6e-11, 5e-8
"""Seconds of one client's bound and gradient: at least; for s² and s³ of its smaller matrix, that of cells or
that of weights; for each row, output and feature if that is the weights'."""
BESIDE_ROUNDS = 60
"""Evaluations that starting values and averages take."""


class Forecast:
    """Says what is to be expected, each thing once."""

    def __init__(self, plan: Plan, groups: Sequence[ClientGroup]) -> None:
        self.plan, self.groups = plan, groups
        self.said: set[str] = set()

    def before(self, request: Message) -> Iterator[tuple[str, float]]:
        """What a request begins that may take long: ("compiling" or "fitting", seconds)."""
        kind, how = request.kind, self.plan.inference
        if kind in self.said or kind in ("census", "extent"):
            return
        first, self.said = not self.said, self.said | {kind}
        compiled = compiled_part(self.plan, learn="learn" in request.arrays)
        if compiled is not None and first:
            yield "compiling", COMPILING[compiled]
        if not isinstance(how, Structured):
            return
        if compiled is not None and kind == "finish" and how.averaging is not None:
            yield "compiling", COMPILING_AVERAGES
        if kind == "start" and on_host():
            yield "fitting", seconds_of_rounds(self.plan, self.groups, request.arrays)


def compiled_part(plan: Plan, *, learn: bool = False) -> str | None:
    """Why a fit is compiled, as a key of `COMPILING`; None: it runs on the host. `learn`: inputs move."""
    if not on_host():
        return "gpu"
    if not isinstance(plan.inference, Structured):
        return "mean-field"
    if plan.cycles is not None:
        return "cycles"
    if plan.spec.state_space or plan.inference.probes:
        return "state-space"
    kernels = (plan.spec.kernel, plan.spec.local_kernel)
    moves = learn or plan.inference.learn_inducing is True
    return None if not moves and all(has_adjoints(k) for k in kernels) else "other"


def seconds_of_rounds(
    plan: Plan, groups: Sequence[ClientGroup], a: Mapping[str, np.ndarray]
) -> float:
    """Of all trainings and the averages, if clients do not stop their searches early; `a`: the start request.

    An evaluation takes about a third while kernels are held.
    """
    how = plan.inference
    assert isinstance(how, Structured)
    early = min(how.rounds, how.frozen_rounds)
    each = early * how.first_evaluations / 3 + (how.rounds - early) * how.evaluations
    spec = with_periods(plan.spec, np.asarray(a["periods"])) if "periods" in a else plan.spec
    sizes: dict[int, tuple[int, int]] = {}  # groups of equal sizes are alike
    total = 0.0
    for group in groups:
        n = group.padded_rows
        if n not in sizes:
            sizes[n] = _sizes(plan, spec, group, a)
        rows, local = sizes[n]
        total += len(group.clients) * cost(spec, rows, len(a["inputs"]), local)
    return total * (each * plan.restarts + BESIDE_ROUNDS)


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
    scaling, start = Scaling.from_arrays(a), Start.from_array(a["scales"])
    client = scaling.rows(group.clients[0])
    kernels = local_budget.local_kernels(spec, scaling, start)
    Z = local_budget.starting_inputs(plan, spec, kernels, client, start, say=False)
    few = merge_rows(client, spec, start, scaling.extent)
    return (group.padded_rows if few is client else len(few.X)), len(Z)
