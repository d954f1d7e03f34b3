"""Local inducing inputs that training does not need any more are taken back."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.federation import local_budget
from pfedhgp.federation.local_budget import FEWER, shrink
from pfedhgp.gp.kernels import RBF
from pfedhgp.inference.starts import budget
from pfedhgp.inference.structured.settings import Structured

COST = 500.0
AIM = budget.MARGIN * budget.NATS


class Party:
    """Two clients with 200 inputs at 250 rows: the first has long lengthscales, the second short ones."""

    def __init__(self, *, nats: float = 1e-6, cost: float = COST) -> None:
        self.X = np.sort(np.random.default_rng(0).uniform(size=(2, 250, 1)), axis=1)
        self.clients = [SimpleNamespace(X=X) for X in self.X]
        kernels = RBF(np.array([[[0.03], [0.05]], [[0.004], [0.005]]]))
        self.blocks = SimpleNamespace(kernels=kernels, active=np.ones((2, 200)))
        self.local_nats, self.cost = np.full(2, nats), np.full(2, cost)
        self.inputs: list[np.ndarray | None] = [None, None]

    def residual_cost(self) -> np.ndarray:
        return self.cost

    def replace_inputs(self, inputs: list[np.ndarray | None]) -> None:
        self.inputs = inputs


def shrunk(party: Party, inducing: str | int = "auto") -> list[int | None]:
    shrink(SimpleNamespace(local_inducing=inducing), party, party.clients)
    return [None if Z is None else len(Z) for Z in party.inputs]


def test_what_is_left_costs_as_little_as_at_the_start():
    party = Party()
    found = shrunk(party)
    assert found[0] is not None
    assert found[0] < FEWER * 200
    assert found[1] is None  # short lengthscales need them all
    Z, first = party.inputs[0], RBF(np.array([[0.03], [0.05]]))
    assert COST * budget.residual(first, Z, party.X[0], Structured().jitter) <= 1.01 * AIM
    wide = Z[np.linspace(0, len(Z) - 1, 2 * len(Z) // 3).astype(int)]
    assert COST * budget.residual(first, wide, party.X[0], Structured().jitter) > AIM


def test_a_layer_that_is_nearly_flat_keeps_some():
    party = Party()
    party.blocks.kernels = RBF(np.full((2, 2, 1), 40.0))
    assert shrunk(party) == [budget.ALL_ROWS] * 2
    assert np.ptp(party.inputs[0]) == np.ptp(party.X[0])


@pytest.mark.parametrize(
    ("party", "inducing"),
    [
        (Party(), 200),  # a number that was given
        (Party(nats=AIM), "auto"),  # what is there is needed
        (Party(cost=np.nan), "auto"),  # kernels are where they began
    ],
)
def test_inputs_that_stay(party, inducing):
    assert shrunk(party, inducing) == [None, None]


def test_a_fit_ends_with_fewer_inputs_and_the_same_predictions(monkeypatch):
    """The waves are longer than the start expects them to be."""
    rng, rows = np.random.default_rng(0), {}
    for name in ("a", "b"):
        x = np.sort(rng.uniform(0.0, 10.0, 240))
        y = np.sin(x) + 0.5 * np.sin(6.0 * x + rng.uniform(0.0, 6.0))
        rows[name] = (x[:, None], (y + 0.1 * rng.normal(size=240))[:, None])
    fits = []
    for part in (FEWER, 0.0):
        monkeypatch.setattr(local_budget, "FEWER", part)
        fits.append(FederatedGP(rounds=4, tolerance=0.0).fit(rows))
    counts = [sum(c.block.active.sum() for c in m.model_.clients.values()) for m in fits]
    assert counts[0] < FEWER * counts[1]
    inputs = np.linspace(0.0, 10.0, 50)[:, None]
    mine, theirs = (m.predict("a", inputs) for m in fits)
    assert np.max(np.abs(mine.mean - theirs.mean) / theirs.sd) < 0.02
    np.testing.assert_allclose(mine.sd, theirs.sd, rtol=0.01)
