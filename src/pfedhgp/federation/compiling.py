"""Whether a fit is compiled, and why: what `host.step` cannot take, JAX compiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pfedhgp.base.batching import on_host
from pfedhgp.data.rows import ClientRows
from pfedhgp.federation.plan import Plan
from pfedhgp.inference.structured.client_step import StepOptions
from pfedhgp.inference.structured.host.cells import MOST_GROUPS
from pfedhgp.inference.structured.host.step import supported
from pfedhgp.inference.structured.settings import Structured

COMPILING = {"gpu": 20.0, "mean-field": 20.0, "cycles": 20.0, "state-space": 15.0, "other": 10.0}
"""Seconds before the first round for four small clients of one size (GPU: one output, on an H200)."""
COMPILING_AVERAGES = 7.0


def compiled_part(
    plan: Plan, clients: Sequence[ClientRows] = (), *, learn: bool = False
) -> str | None:
    """Why a fit is compiled, as a key of `COMPILING`; None: it runs on the host.

    `learn`: inducing inputs move although the plan leaves that open. Clients with more rows than the host
    takes are not foreseen: most can be merged.
    """
    if not on_host():
        return "gpu"
    how, spec = plan.inference, plan.spec
    if not isinstance(how, Structured):
        return "mean-field"
    if plan.cycles is not None:
        return "cycles"
    moves = learn or how.learn_inducing is True
    options = StepOptions(spec.structure, moves, how.chunk, how.probes, how.learn_shared)
    fits = supported(options, spec.kernel, spec.local_kernel)
    if fits and (spec.noise != "full" or _patterns(clients) <= MOST_GROUPS):
        return None
    return "state-space" if spec.state_space or how.probes else "other"


def _patterns(clients: Sequence[ClientRows]) -> int:
    """How many patterns of observed cells the rows have."""
    if not clients:
        return 0
    seen = np.concatenate([~np.isnan(c.Y).reshape(-1, c.Y.shape[-1]) for c in clients])
    found = np.unique(seen, axis=0)
    return int(found.any(axis=1).sum())
