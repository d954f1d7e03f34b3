"""A new client on a model that has clients, and on one that has none: a server's, or a late site's."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.base.numerics import numerics
from pfedhgp.data.rows import ClientRows
from pfedhgp.inference.structured.adoption import adopt
from pfedhgp.model.kept_sums import KeptSums

LAYERS = (("global", "deviation", "local"), ("global", "deviation"))


def table(outputs: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    found = {}
    for i in range(3):
        rng = np.random.default_rng([7, i])
        X = np.sort(rng.uniform(0.0, 5.0, (14, 1)), axis=0)
        Y = np.sin(X + np.arange(outputs)) + 0.3 * np.cos(3.0 * X + i)
        found[f"s{i}"] = (X, Y + 0.1 * rng.normal(size=Y.shape))
    return found


@pytest.mark.filterwarnings("ignore:not used")
@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("outputs", [1, 2])
def test_a_model_without_clients_adopts_as_one_with_clients(layers, outputs):
    """The local layer does not depend on whether another client's block is there to be looked at."""
    rows = table(outputs)
    X, Y = rows.pop("s2")
    fitted = FederatedGP(inducing=6, local_inducing=5, rounds=2, layers=layers, averaging=False)
    fitted.fit(rows)
    model = fitted.model_
    new, count = ClientRows("new", X, Y), fitted.model_.clients["s0"].block.loadings.shape[1]
    options = {"noise": "scalar" if outputs == 1 else "output", "local_inducing": 5}
    with numerics():
        expected = adopt(model, new, **options)
        found = adopt(replace(model, clients={}), new, local_latents=count, **options)
    assert count == (0 if "local" not in layers else outputs)
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if isinstance(one, KeptSums):
            assert vars(one).keys() == vars(two).keys()
            jax.tree.map(np.testing.assert_array_equal, vars(one), vars(two))
        else:
            np.testing.assert_array_equal(one, two)


def test_the_estimator_adopts_on_a_model_without_clients():
    """Its settings say how many local functions there are."""
    rows = table(2)
    X, Y = rows.pop("s2")
    whole = FederatedGP(inducing=6, local_inducing=5, rounds=2, averaging=False).fit(rows)
    expected = whole.adopt("new", X, Y).predict("new", X)
    whole.model_ = replace(whole.model_, clients={})
    found = whole.adopt("new", X, Y).predict("new", X)
    np.testing.assert_array_equal(found.mean, expected.mean)
    assert np.ptp(found.layers["local"].mean) > 0.0
