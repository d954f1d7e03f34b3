"""A client's residuals against dense matrices written out, and where tails are kept."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.base.batching import on_numpy
from pfedhgp.gp.tails import FEWEST, Tails
from pfedhgp.inference.structured.own_tails import residuals
from pfedhgp.model.blocks import deviation_loadings

ROWS = 80


@pytest.fixture(scope="module")
def model() -> FederatedGP:
    rng, x = np.random.default_rng(0), np.linspace(0.0, 8.0, ROWS)
    heavy = 0.1 * rng.standard_t(1.5, size=(3, ROWS))
    data = {f"site {i}": (x, np.sin(x) + 0.2 * i + heavy[i]) for i in range(3)}
    data["few"] = (x[: FEWEST - 1], np.sin(x[: FEWEST - 1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FederatedGP(rounds=3, inducing=10, local_inducing=10).fit(data)


def test_each_residual_is_a_cell_beyond_those_before_it(model):
    """One at a time, by conditioning on the earlier ones."""
    fitted = model.model_
    shared, block = on_numpy(fitted.shared.block), on_numpy(fitted.clients["site 1"].block)
    x = np.linspace(0.0, 1.0, 12)[:, None]
    y = np.cos(5.0 * x)
    found = residuals(fitted.structure, shared, block, x, y)
    sizes = [shared.loadings, deviation_loadings(fitted.structure, shared, block), block.loadings]
    kernels = [shared.kernels, shared.kernels, block.kernels]
    C = float(np.asarray(block.noise.covariance(1)).item()) * np.eye(12)
    for size, kernel in zip(sizes, kernels, strict=True):
        C += float(np.asarray(size).item()) ** 2 * np.asarray(kernel(x, x, stacked=1))[0]
    for t in range(12):
        gain = np.linalg.solve(C[:t, :t], C[:t, t])
        left = y[t, 0] - gain @ y[:t, 0]
        assert found[t] == pytest.approx(left / np.sqrt(C[t, t] - gain @ C[:t, t]), rel=1e-9)


def test_tails_are_kept_and_come_back(model, tmp_path):
    model.save(tmp_path / "RUN")
    again = FederatedGP.load(tmp_path / "RUN").model_
    heavy = []
    for name, kept in model.model_.sums.items():
        if name == "few":
            assert kept.tails is None
            assert again.sums[name].tails is None
        else:
            np.testing.assert_array_equal(again.sums[name].tails, kept.tails)
            heavy.append(Tails.from_array(kept.tails[0]).heaviness)
    assert max(heavy) > 0.2  # noise of t(1.5)
