"""Fits with a cycle layer, from data to prediction: `FederatedGP(cycles=...)`."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import reference as ref
from pfedhgp import FederatedGP
from pfedhgp.data.tables import clients_from
from pfedhgp.errors import InputError
from pfedhgp.federation.clients import ClientGroup
from support import cycles as cy
from support import twins
from support.press import GRID, SETTINGS, press


@pytest.fixture(scope="module")
def fitted() -> FederatedGP:
    return FederatedGP(cycles="stationary", **SETTINGS).fit(press())


def scaled(model: FederatedGP, data) -> list[np.ndarray]:
    """All cycles as (C, N) in scaled units, cell (n, q) at n·Q + q."""
    scaling = model.model_.scaling
    flat = [np.moveaxis(Y, 1, 2) for _, Y in data.values()]
    return [scaling.outputs(Y).reshape(len(Y), -1) for Y in flat]


def dense_prior(model: FederatedGP) -> tuple[np.ndarray, np.ndarray]:
    """(K of both clients' functions on the grid, Σ_e), by the reference."""
    found = model.model_
    blocks = [c.block for c in found.clients.values()]
    naive = twins.model_of(found.structure, found.shared.block, blocks)
    K = ref.exact_joint_covariance([GRID, GRID], naive, noise=False)
    return K, cy.dense_covariance(found.cycle_layer, GRID)


def test_exact_bound_and_predictions_are_the_dense_ones(fitted):
    """Inducing inputs at the grid: evidence and posterior of all cycles of both clients in one Gaussian."""
    K, Sigma = dense_prior(fitted)
    parts = scaled(fitted, press())
    sizes = [len(Y) for Y in parts]
    owner = np.repeat([0, 1], sizes)
    pick = np.kron(np.eye(2)[owner], np.eye(24))  # (all cells, both functions)
    cov = pick @ K @ pick.T + np.kron(np.eye(sum(sizes)), Sigma)
    y = np.concatenate([Y.ravel() for Y in parts])
    assert fitted.bound_ == pytest.approx(ref.log_gaussian(y, 0.0, cov), rel=2e-5)
    gain = K @ pick.T @ np.linalg.inv(cov)
    mean, posterior = gain @ y, K - gain @ pick @ K
    scaling = fitted.model_.scaling
    units = np.tile(np.broadcast_to(scaling.spread, (2,)), 12)
    for i, name in enumerate(fitted.clients_):
        own = slice(24 * i, 24 * (i + 1))
        p = fitted.predict(name, GRID)
        expected = (posterior[own, own] + Sigma) * np.outer(units, units)
        np.testing.assert_allclose(p.covariance("joint"), expected, atol=2e-5 * expected.max())
        np.testing.assert_allclose(p.sd.ravel(), np.sqrt(np.diag(expected)), rtol=1e-4)
        level = mean[own] * units + np.tile(scaling.centre, 12)
        np.testing.assert_allclose(p.mean.ravel(), level, atol=1e-4)


def test_new_cycles_are_more_probable_than_under_white_noise(fitted):
    """And the default is replicates as before: the same messages, and no layer in the model."""
    new = press(counts=(30, 30), seed=5)
    white = FederatedGP(**SETTINGS).fit(press())
    assert white.model_.cycle_layer is None
    assert "cycles" not in {m["kind"] for m in white.messages_}
    assert all(c.cycles is None for c in clients_from(press()).clients)
    scores = []
    for model in (fitted, white):
        total = 0.0
        for name, (_, Y) in new.items():
            p = model.predict(name, GRID)
            cov, flat = p.covariance("joint"), np.moveaxis(Y, 1, 2).reshape(30, -1)
            total += sum(ref.log_gaussian(y, p.mean.ravel(), cov) for y in flat)
        scores.append(total / 60)
    assert scores[0] > scores[1] + 2.0


def test_a_table_with_gaps_and_arrays_with_gaps_are_the_same_cycles():
    data = {name: (X, Y.copy()) for name, (X, Y) in press().items()}
    data["press 0"][1][1, 0, 3:6] = np.nan
    data["press 1"][1][2, :, 0] = np.nan
    rows = []
    for name, (X, Y) in data.items():
        for c, cycle in enumerate(Y):
            frame = {"k": name, "c": f"run {c}", "x": X[:, 0], "p": cycle[0], "q": cycle[1]}
            rows.append(pd.DataFrame(frame))
    table = pd.concat(rows).dropna(subset=["p", "q"], how="all").sample(frac=1.0, random_state=0)
    columns = {"client": "k", "inputs": "x", "outputs": ["p", "q"], "cycle": "c"}
    by_table = clients_from(table, **columns, whole_cycles=True).clients
    by_array = clients_from(data, whole_cycles=True).clients
    for one in by_array:
        (two,) = [c for c in by_table if c.name == one.name]
        np.testing.assert_array_equal(one.X, two.X)
        np.testing.assert_allclose(one.Y, two.Y, rtol=1e-13)
        np.testing.assert_array_equal(one.counts, two.counts)
        order = [np.argsort(np.nanmean(c.cycles, axis=(1, 2))) for c in (one, two)]
        np.testing.assert_array_equal(one.cycles[order[0]], two.cycles[order[1]])


@pytest.mark.slow
def test_exact_bound_of_incomplete_cycles_is_the_dense_evidence():
    data = press()
    data["press 0"][1][1, 0, 3:6] = np.nan
    data["press 1"][1][2, :, 0] = np.nan
    model = FederatedGP(cycles="stationary", **SETTINGS).fit(data)
    K, Sigma = dense_prior(model)
    parts = scaled(model, data)
    owner = np.repeat([0, 1], [len(Y) for Y in parts])
    pick = np.kron(np.eye(2)[owner], np.eye(24))
    y = np.concatenate([Y.ravel() for Y in parts])
    seen = np.flatnonzero(np.isfinite(y))
    cov = (pick @ K @ pick.T + np.kron(np.eye(len(owner)), Sigma))[np.ix_(seen, seen)]
    assert model.bound_ == pytest.approx(ref.log_gaussian(y[seen], 0.0, cov), rel=2e-5)
    kinds = [m["kind"] for m in model.messages_ if m["to"] == "server"]
    assert kinds.count("cycles") > 2  # EM asks again


@pytest.mark.slow
def test_layers_of_clients_and_the_shared_one(tmp_path):
    """A client with one cycle has the shared layer, as has an unseen one; files keep all of them."""
    model = FederatedGP(cycles="free", cycle_sharing="mixed", **SETTINGS).fit(press((6, 5, 1)))
    found = model.model_
    layers = [found.layer_of(name).factor for name in (*model.clients_, "nobody")]
    assert not np.array_equal(layers[0] @ layers[0].T, layers[1] @ layers[1].T)
    np.testing.assert_array_equal(layers[2], layers[3])
    model.save(tmp_path / "run")
    back = FederatedGP.load(tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in (*model.clients_, "nobody"):
            one, two = model.predict(name, GRID), back.predict(name, GRID)
            np.testing.assert_array_equal(one.covariance("joint"), two.covariance("joint"))
        unseen = model.predict("nobody", GRID)
        sure = unseen.covariance("joint") - unseen.covariance("joint", noise=False)
    units = np.tile(np.broadcast_to(found.scaling.spread, (2,)), 12)
    Sigma = cy.dense_covariance(found.cycle_layer, GRID) * np.outer(units, units)
    np.testing.assert_allclose(sure, Sigma, atol=1e-9)
    assert back.cycles == "free"
    assert back.cycle_sharing == "mixed"


@pytest.mark.slow
def test_an_adopted_client_has_the_shared_layer_and_learns_from_its_cycles(fitted):
    """Cycles of a known client, under another name: the function is found again."""
    before = fitted.model_
    try:
        fitted.adopt("twin", GRID, press()["press 0"][1])
        twin, original = (fitted.predict(name, GRID) for name in ("twin", "press 0"))
        assert np.abs(twin.mean - original.mean).max() < 0.3
        fitted.adopt("one cycle", GRID, press()["press 0"][1][0].T)
        one = fitted.predict("one cycle", GRID)
        bare = [p.covariance(noise=False).trace(axis1=1, axis2=2).mean() for p in (one, twin)]
        assert bare[0] > 1.5 * bare[1]
    finally:
        fitted.model_ = before


def test_auto_chooses_a_form_by_held_out_cycles_and_says_so():
    model = FederatedGP(cycles="auto", **SETTINGS).fit(press((14, 14)))
    evidence = model.model_.settings["cycle_evidence"]
    assert set(evidence) == {"white", "stationary", "free"}
    chosen = model.model_.settings["cycle_form"]
    assert evidence[chosen] > max(evidence.values()) - 6.0
    assert evidence[chosen] > evidence["white"] + 10.0
    assert model.model_.cycle_layer.form == chosen


@pytest.mark.parametrize(
    ("settings", "data", "words"),
    [
        ({"cycles": "smooth"}, press(), "`cycles` must be one of white, stationary, free, auto"),
        ({"cycles": "free", "cycle_sharing": "us"}, press(), "`cycle_sharing` must be one of"),
        (
            {"cycles": "free", "cycle_basis": 1},
            press(),
            "`cycle_basis` must be 'auto' or a whole number of at least 2",
        ),
        (
            {"cycles": "free", "inference": "mean-field"},
            press(),
            "a cycle layer needs inference='structured'",
        ),
        ({"cycles": "stationary"}, press((1, 1)), "at least two cycles: use cycles='white'"),
        (
            {"cycles": "stationary"},
            {"a": (np.zeros(3), np.zeros((2, 1, 3)))},
            "client 'a': the grid of its cycles has the same inputs twice",
        ),
    ],
)
def test_wrong_arguments_are_named(settings, data, words):
    with pytest.raises(InputError, match=words):
        FederatedGP(**settings).fit(data)


def test_wrong_tables_are_named():
    frame = pd.DataFrame({"k": "a", "x": [0.0, 0.0, 1.0], "y": [1.0, 2.0, 3.0], "c": [1, 1, 1]})
    columns = {"client": "k", "inputs": "x", "outputs": "y"}
    with pytest.raises(InputError, match="a cycle layer needs `cycle=`"):
        FederatedGP(cycles="free").fit(frame, **columns)
    with pytest.raises(InputError, match="client 'a': cycle '1' has two rows at the same inputs"):
        FederatedGP(cycles="free").fit(frame, **columns, cycle="c")


def test_a_group_keeps_no_more_for_more_cycles(monkeypatch):
    """What training sees of a client has the same shapes for 4 and for 40 cycles."""
    kept = []
    original = ClientGroup.answer

    def spy(self, request):
        if request.kind == "finish":
            rows = self.parties[0].rows
            kept.append([a.shape for a in (rows.cycles.weights, rows.X)])
        return original(self, request)

    monkeypatch.setattr(ClientGroup, "answer", spy)
    for count in (4, 40):
        FederatedGP(cycles="stationary", **SETTINGS).fit(press((count, count)))
    assert len(kept) == 2
    assert kept[0] == kept[1]
