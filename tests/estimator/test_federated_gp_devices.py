"""What a device computes by compiled code is what a CPU computes in NumPy."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.base import batching
from pfedhgp.inference.structured import averaging, client_step, posterior
from support.compiled import times_compiled
from support.kept_twins import assert_kept_as_one_by_one

HEAVY = (
    client_step.batched_opening,
    client_step.batched_step,
    posterior.batched_posteriors,
    averaging.batched_average,
)


@pytest.fixture
def as_on_a_device(monkeypatch):
    """A function after which everything is computed as beside a GPU."""

    def begin() -> None:
        real = batching.on_host
        for name, module in list(sys.modules.items()):
            if name.startswith("pfedhgp") and getattr(module, "on_host", None) is real:
                monkeypatch.setattr(module, "on_host", lambda: False)

    return begin


def test_ragged_clients_are_predicted_alike_and_compile_few_programs(as_on_a_device):
    """With rows whose inputs are not the local layer's: there the host leaves out a jitter of 1e-8."""
    rng = np.random.default_rng(0)
    sites = {}
    for i, n in enumerate((9, 14, 23)):
        x = np.sort(rng.uniform(0.0, 6.0, n))
        sites[f"site {i}"] = (x, np.sin(x + 0.2 * i) + 0.1 * rng.normal(size=n))

    def fit() -> FederatedGP:
        return FederatedGP(inducing=6, local_inducing=5, rounds=4, tolerance=0.0).fit(sites)

    host = fit()
    as_on_a_device()
    before = [times_compiled(each) for each in HEAVY]
    device = fit()
    after = [times_compiled(each) for each in HEAVY]
    assert all(a > b for a, b in zip(after, before, strict=True)), "it was not compiled"
    assert sum(after) - sum(before) <= 6
    x = np.linspace(0.0, 6.0, 31)
    for name in sites:
        one, other = host.predict(name, x), device.predict(name, x)
        np.testing.assert_allclose(other.mean, one.mean, rtol=0, atol=1e-6 * one.sd.min())
        np.testing.assert_allclose(other.sd, one.sd, rtol=1e-6)
    assert_kept_as_one_by_one(device.model_, sites)
