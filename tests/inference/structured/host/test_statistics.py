"""What clients send, and its derivatives in θ_g, against the compiled solver."""

from __future__ import annotations

from functools import partial

import jax

from pfedhgp.inference.structured import client_step
from pfedhgp.inference.structured.host import step as host
from support.client_batches import batch, on_jax
from support.host_batches import CASES, compared, each_client, every_case, host_batch


@partial(jax.jit, static_argnums=(0, 1))
def sums_and_nats(options, derivatives, broadcast, others, block, rows, jitter):
    """What one client sends."""
    model = client_step.model_of(options, broadcast, block, rows, jitter)
    return client_step.send(options, model, others, 1 if derivatives else None)


SUMS = ("evidence", "U", "y", "shared_residual", "deviation_power", "deviation_square", "local_square",
        "noise", "clients", "residual")  # fmt: skip
WITH_DERIVATIVES = (
    "deviation kernel", "two inputs, replicates, one noise", "full noise, replicates", "no deviations",
    "no global layer", "tied", "tied, no deviations", "tied, no global layer",
)  # fmt: skip


@every_case
def test_sums_and_their_derivatives(case):
    """Derivatives do not know the form of the noise, nor replicates: with several groups, once."""
    given = batch(**case)
    wanted = case in [CASES[name] for name in WITH_DERIVATIVES]
    sums, nats = host.send(host_batch(given), host_batch(given).start, derivatives=wanted)
    broadcast = on_jax(given.broadcast)
    for i, own in each_client(given, "others", "blocks", "rows", "jitter"):
        expected, lost = sums_and_nats(given.options, wanted, broadcast, *own)
        compared(nats[i], lost, scale=float(expected.residual))
        for name in SUMS:
            compared(getattr(sums, name)[i], getattr(expected, name), rel=1e-8)
        if not wanted:
            continue
        for name in ("d_evidence", "d_h", "d_J"):
            compared(getattr(sums, name)[i], getattr(expected, name), rel=1e-6)
        compared(sums.curvature[i], expected.curvature, rel=1e-5)
