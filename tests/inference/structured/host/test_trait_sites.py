"""A curvature in the traits that is kept, against one that is taken anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.inference.structured.host import few_cells, objective
from pfedhgp.inference.structured.host import step as host
from pfedhgp.inference.structured.host.search import gradients, kernel_count
from pfedhgp.inference.structured.host.trait_sites import NEAR, trait_sites
from pfedhgp.inference.structured.traits import Expected, Reference
from support.client_batches import batch
from support.host_batches import compared, host_batch, some_cases


def asking(case: dict, seed: int) -> host.HostBatch:
    """Clients beside a population that changes with the seed."""
    given = batch(**case)
    rng, shape = np.random.default_rng(seed), given.expected.mean.shape
    asked = Reference(given.expected.mean + rng.normal(size=shape), rng.uniform(0.1, 2.0, shape))
    mean, precision = given.expected.mean + rng.normal(size=shape), rng.uniform(1.0, 9.0, shape)
    return host_batch(replace(given, expected=Expected(mean, precision, asked)))


def told(made, at, last, *, kernels_free=True):
    slope = gradients(made.objective, at.rows()[:, None])[:, 0]
    return trait_sites(made.objective, at, slope, last, kernels_free=kernels_free)


@pytest.fixture
def large(monkeypatch):
    """Clients that are computed one by one."""
    for module in (objective, few_cells):
        monkeypatch.setattr(module, "AT_ONCE", 1)


def test_small_clients_keep_none():
    made = asking({}, 1)
    assert told(made, made.start, None).curvature is None


@pytest.mark.usefixtures("large")
@some_cases("plain", "full noise", "tied", slow=())
def test_a_kept_curvature_has_todays_prior_in_it(case):
    first, later = asking(case, 1), asking(case, 2)
    at = first.start
    kept = told(first, at, None).curvature
    found, expected = told(later, at, kept), told(later, at, None)
    compared(found.sites, expected.sites, rel=1e-5)
    np.testing.assert_array_equal(found.curvature.at, kept.at)
    np.testing.assert_array_equal(found.curvature.hessian, kept.hessian)


@pytest.mark.usefixtures("large")
def test_a_client_that_has_moved_takes_it_anew():
    made = asking({}, 1)
    kept = told(made, made.start, None).curvature
    rows = made.start.rows()
    rows[1, -1] += 1.1 * NEAR
    rows[2, -1] += 0.5 * NEAR
    at = made.start.from_rows(rows)
    found, expected = told(made, at, kept), told(made, at, None)
    compared(found.curvature.hessian[1], expected.curvature.hessian[1])
    compared(found.sites[1], expected.sites[1])
    for i in (0, 2):
        np.testing.assert_array_equal(found.curvature.hessian[i], kept.hessian[i])


@pytest.mark.usefixtures("large")
def test_kernels_that_were_held_are_not_known():
    made = asking({}, 1)
    kernels = kernel_count(made.start)
    held = told(made, made.start, None, kernels_free=False)
    whole = told(made, made.start, None)
    assert np.isnan(held.curvature.at[:, :kernels]).all()
    assert not held.sites[:, :, :kernels].any()
    compared(
        held.curvature.hessian[:, kernels:, kernels:],
        whole.curvature.hessian[:, kernels:, kernels:],
    )
    again = told(made, made.start, held.curvature, kernels_free=False)
    compared(again.sites, held.sites)
    compared(told(made, made.start, held.curvature).sites, whole.sites)
