"""Small whole fits of what other tests only evaluate: kernels, learned inducing inputs, budgets that grow."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp import RBF, FederatedGP, Structured
from pfedhgp.inference.starts import budget

X = np.linspace(0.0, 1.0, 20)
RNG = np.random.default_rng(3)
SITES = {
    name: (X, np.sin(6.0 * X) + shift * X + 0.1 * RNG.normal(size=20))
    for name, shift in (("a", 0.0), ("b", 1.0))
}
SMALL = {
    "averaging": False,
    "rounds": 2,
    "inducing": 6,
    "local_inducing": 6,
    "domain": [(0.0, 1.0)],
}


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["matern12", "matern52", "rational_quadratic"])
def test_every_kernel_trains_to_a_better_bound_than_its_start(kernel):
    model = FederatedGP(**SMALL, kernel=kernel, inference=Structured(frozen_rounds=0)).fit(SITES)
    started, ended = model.history_[0]["bound"], model.history_[-1]["bound"]
    assert ended > started + 2.0
    shared = model.model_.shared.block.kernels
    given = model.model_.settings["starting_scales"]["shared"]
    assert not np.allclose(np.asarray(shared.lengthscale), given, rtol=1e-3)  # θ_g has moved
    if kernel == "rational_quadratic":
        alphas = [np.asarray(c.block.kernels.alpha) for c in model.model_.clients.values()]
        assert not np.allclose(alphas[0], alphas[1], rtol=1e-6)  # each client's own


@pytest.mark.slow
def test_learned_inducing_inputs_train_to_a_better_bound_than_their_start():
    settings = Structured(frozen_rounds=0, learn_inducing=True)
    model = FederatedGP(**SMALL, inference=settings).fit(SITES)
    assert model.history_[-1]["bound"] > model.history_[0]["bound"] + 2.0
    Z = np.asarray(model.model_.shared.block.inputs)
    assert np.abs(Z - budget.box_points(6, 1)).max() > 1e-3


@pytest.mark.slow
def test_a_fit_grows_its_inducing_inputs_where_the_residual_says_that_they_are_short():
    """The kernel is said to be five times as long as it is, so the start's inputs are too few."""
    rng = np.random.default_rng(1)
    x = np.linspace(0.0, 1.0, 60)
    K = np.exp(-0.5 * ((x[:, None] - x) / 0.06) ** 2)
    f = np.linalg.cholesky(K + 1e-8 * np.eye(60)) @ rng.normal(size=60)
    model = FederatedGP(
        averaging=False,
        rounds=7,
        kernel=RBF(0.3),
        layers=("global",),
        domain=[(0.0, 1.0)],
        inference=Structured(frozen_rounds=0),
    ).fit({name: (x, f + 0.05 * rng.normal(size=60)) for name in "ab"})
    sizes = [record["inducing"] for record in model.history_]
    bounds = [record["bound"] for record in model.history_]
    grown = next(i for i, size in enumerate(sizes) if size > sizes[0])
    assert sizes == sorted(sizes)
    assert len(model.model_.shared.block.inputs) >= sizes[-1]
    assert bounds[-1] > max(bounds[:grown]) + 20.0  # what the start's inputs left out
