"""What a residual costs, against the bound's own figure."""

from __future__ import annotations

import numpy as np

from pfedhgp.inference.structured.host import step as host
from pfedhgp.inference.structured.host.cells import residual_cost
from pfedhgp.inference.structured.host.features import features_of
from support.client_batches import batch
from support.host_batches import host_batch, some_cases


@some_cases("plain", "missing cells", "full noise", "tied", slow=())
def test_residual_cost_bounds_the_nats_that_are_lost(case):
    """½ Σ_n Σ_a res_a(n) b_aᵀP_n b_a is no more than the mean residual's cost, if rows are alike."""
    made = host_batch(batch(**case))
    at, objective = made.start, made.objective
    nats = host.send(made, at, derivatives=False)[1]
    found = features_of(at.natural_kernels(), objective.local_inputs)
    seen = objective.cells.weights.sum(1) > 0
    most = np.array([r[:, s].mean(0).max() for r, s in zip(found.residual, seen, strict=True)])
    cost = residual_cost(at.noise, objective.cells, at.loadings)
    assert np.all(nats > 0.0)
    assert np.all(nats <= cost * most)


def test_residual_cost_of_one_latent_is_what_a_residual_of_one_loses():
    made = host_batch(batch(local=1))
    at, objective = made.start, made.objective
    nats = host.send(made, at, derivatives=False)[1]
    found = features_of(at.natural_kernels(), objective.local_inputs)
    cost = residual_cost(at.noise, objective.cells, at.loadings)
    np.testing.assert_allclose(nats, cost * found.residual[:, 0].mean(1), rtol=1e-9)
