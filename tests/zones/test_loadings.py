"""Zones by loadings: two kinds of client that mix two shared functions, and what the numbers sent mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pfedhgp import FederatedGP, Markov
from pfedhgp.errors import InputError
from pfedhgp.gp.kernels import Matern12
from pfedhgp.inference.markov.loadings import knot_posterior, loadings_covariance
from pfedhgp.model.prediction import predict
from pfedhgp.zones.loadings import Loadings, LoadingsComparison, variation

KIND = {"a": 0, "b": 1, "c": 0, "d": 1, "e": 0}


def made(few: str = "") -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Kind 0 follows one rough function, kind 1 another; `few` has a quarter of its rows."""
    rng = np.random.default_rng(3)
    t = np.arange(60.0)
    both = rng.normal(size=60)
    own = both[None, :] + 0.7 * rng.normal(size=(2, 60))
    data = {}
    for name, kind in KIND.items():
        kept = slice(None, None, 4 if name == few else 1)
        y = own[kind] + 0.2 * rng.normal(size=60)
        data[name] = (t[kept, None], y[kept])
    return data


def fit(data: dict, **changes: object) -> FederatedGP:
    given = {
        "kernel": "matern12",
        "local_kernel": "matern12",
        "local": "state-space",
        "layers": ("global", "local"),
        "client_loadings": True,
        "latents": 2,
        "inducing": 60,
        "domain": ((0.0, 59.0),),
        "inference": Markov(rounds=12, evaluations=3),
    }
    return FederatedGP(**{**given, **changes}).fit(data)


@pytest.fixture(scope="module")
def model() -> FederatedGP:
    return fit(made())


def test_two_kinds_are_found_from_three_numbers_a_client(model: FederatedGP) -> None:
    before = len(model.messages_)
    zones = model.cluster(2)
    assert zones.distance == "loadings"
    assert zones.method == "average"
    assert zones.members() == [["a", "c", "e"], ["b", "d"]]
    assert zones.stability == {"draws": 1.0}
    assert zones.numbers == 3
    added = model.messages_[before:]
    assert [entry["from"] for entry in added] == ["server", "a", "b", "c", "d", "e"]
    assert added[1]["arrays"] == {"loadings": [1, 2], "information": []}


def test_distances_are_those_between_shared_layers_without_their_means(model: FederatedGP) -> None:
    """E Var over the knots of (c_i − c_j)ᵀg a priori: tr(H K H)/M with H = I − 1/M and a dense K."""
    zones, shared = model.cluster(2, draws=0), model.model_.shared.block
    times = np.asarray(shared.inputs)[:, 0]
    gaps = np.abs(times[:, None] - times[None])
    kernels = [np.exp(-gaps / each) for each in np.asarray(shared.kernels.lengthscale).reshape(-1)]
    H = np.eye(60) - 1.0 / 60.0
    own = {n: np.asarray(model.model_.clients[n].block.global_loadings)[0] for n in KIND}
    for i, one in enumerate(sorted(KIND)):
        for j, two in enumerate(sorted(KIND)):
            gap = own[one] - own[two]
            K = sum(d**2 * each for d, each in zip(gap, kernels, strict=True))
            expected = np.trace(H @ K @ H) / 60.0
            np.testing.assert_allclose(zones.between[i, j], expected, rtol=1e-8, atol=1e-12)


def test_an_offset_counts_little() -> None:
    """A function whose lengthscale is 100 domains, beside one of a tenth."""
    data = {name: (X[:20], y[:20]) for name, (X, y) in made().items()}
    found = fit(data, inference=Markov(rounds=1), inducing=20, domain=((0.0, 19.0),)).model_
    kernels = Matern12(np.array([[0.1], [100.0]]))
    block = replace(found.shared.block, kernels=kernels)
    gram = variation(replace(found, shared=replace(found.shared, block=block)))
    assert gram[0, 0] > 0.8
    assert 0.0 < gram[1, 1] < 0.005
    assert gram[0, 1] == 0.0


def test_rotating_the_shared_functions_changes_nothing(model: FederatedGP) -> None:
    known = Loadings.of(model.model_)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 2)))[0]
    turned = Loadings(
        known.names,
        known.numbers @ turn,
        turn.T @ known.covariances @ turn,
        known.mean @ turn,
        turn.T @ known.spread @ turn,
        turn.T @ known.gram @ turn,
    )
    one, two = LoadingsComparison(known, 2), LoadingsComparison(turned, 2)
    np.testing.assert_allclose(one.squared, two.squared, rtol=1e-8)
    np.testing.assert_allclose(known.information, turned.information, rtol=1e-6)


def test_uncertainty_is_that_of_a_regression_on_the_shared_functions(model: FederatedGP) -> None:
    """By dense matrices: (mᵀN⁻¹m + Σ S_n w_n/σ² + Σ_B⁻¹)⁻¹ with N = b²K + diag(σ²/w)."""
    shared, client = model.model_.shared, model.model_.clients["b"]
    q = knot_posterior(shared)
    states, own = client.states, client.block
    at = np.argmin(np.abs(states.times[:, None] - shared.block.inputs[:, 0][None]), axis=1)
    weights, noise = np.asarray(states.counts)[:, 0], float(own.noise.covariance(1)[0, 0])
    length = float(np.asarray(own.kernels.lengthscale).reshape(-1)[0])
    gaps = np.abs(states.times[:, None] - states.times[None])
    N = float(own.loadings[0, 0]) ** 2 * np.exp(-gaps / length) + np.diag(noise / weights)
    m = q.mean[at]
    precision = m.T @ np.linalg.solve(N, m) + np.linalg.inv(shared.block.loadings_covariance)
    precision += np.einsum("n,nrs->rs", weights / noise, q.covariance[at])
    found = loadings_covariance(shared.block, q, client)
    np.testing.assert_allclose(found, np.linalg.inv(precision), rtol=1e-6)


def test_uncertainty_is_that_beside_the_others_if_the_model_was_averaged(
    model: FederatedGP,
) -> None:
    """q(u) has learned from the client's own rows: loadings given q(u) seem surer than they are."""
    shared, known = model.model_.shared, Loadings.of(model.model_)
    q = knot_posterior(shared)
    for name, covariance in zip(known.names, known.covariances, strict=True):
        half = np.asarray(model.model_.clients[name].loadings_half)[:, 0]
        np.testing.assert_allclose(covariance, half.T @ half, rtol=1e-12)
        at_q = loadings_covariance(shared.block, q, model.model_.clients[name])
        assert np.trace(covariance) > np.trace(at_q)


def test_information_has_the_covariance_s_trace(model: FederatedGP) -> None:
    known = Loadings.of(model.model_)
    for p, covariance in zip(known.information, known.covariances, strict=True):
        V = np.linalg.inv(p * known.metric + np.linalg.inv(known.spread))
        np.testing.assert_allclose(known.variances(p), V, rtol=1e-6)
        np.testing.assert_allclose(np.sum(known.metric * V), np.sum(known.metric * covariance))


def test_r2_is_that_of_the_shared_layer_at_the_rows(model: FederatedGP) -> None:
    data = made()
    zones = model.cluster(2, data=data, draws=0)
    assert zones.r2_of == "rows"
    for name, (X, y) in data.items():
        shared = predict(model.model_, name, X).layers["global"].mean[:, 0]
        left = np.sum((y - shared) ** 2) / np.sum((y - y.mean()) ** 2)
        np.testing.assert_allclose(zones.r2[name], 1.0 - left, rtol=1e-5)
        assert zones.r2_shared[name] < zones.r2[name]


def test_a_client_with_few_rows_joins_its_kind() -> None:
    zones = fit(made(few="b")).cluster(2, draws=0)
    assert zones.members() == [["a", "c", "e"], ["b", "d"]]
    assert zones.coverage["b"] < zones.coverage["d"]


def test_uncertain_clients_join_last(model: FederatedGP) -> None:
    """A client whose loadings are the population's mean, drawn a little towards its kind."""
    known = Loadings.of(model.model_)
    i = known.names.index("d")
    weak = 0.05 / np.max(known._modes[1])
    shown = weak * known.variances(weak) @ known.metric
    numbers, covariances = known.numbers.copy(), known.covariances.copy()
    numbers[i] = known.mean + (shown @ (known.numbers[i] - known.mean).reshape(-1)).reshape(1, 2)
    covariances[i] = known.variances(weak)
    found = LoadingsComparison(replace(known, numbers=numbers, covariances=covariances), 2)
    assert list(found.sparse) == [i]
    assert found.label(2, "average").tolist() == [0, 1, 0, 1, 0]


def test_models_with_averaging_know_their_uncertainty() -> None:
    given = {"inference": "structured", "local": "inducing", "local_kernel": "rbf"}
    data = {name: (X[:16], y[:16]) for name, (X, y) in made().items()}
    found = fit(data, **given, kernel="rbf", inducing=6, local_inducing=4, rounds=2)
    known = Loadings.of(found.model_)
    assert np.all(known.covariances[:, range(2), range(2)] > 0)
    assert np.all(np.isfinite(known.information))
    assert np.all(known.information > 0)
    assert found.cluster(2, draws=2).distance == "loadings"


def test_a_sketch_can_still_be_asked_for(model: FederatedGP) -> None:
    assert model.cluster(2, by="sketch", grid=60, draws=0).distance == "function"
    assert model.cluster(2, size=20, grid=60, draws=0).distance == "function"
    with pytest.warns(match="two sketches"):
        model.cluster(2, by="sketch", grid=60, seed=1, draws=0)
    zones = model.cluster(2, grid=60, draws=0)
    assert zones.distance == "loadings"
    assert zones.earlier == (0, 1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"by": "rows"}, "loadings, sketch"),
        ({"by": "loadings", "distance": "operator"}, "operator"),
        ({"by": "loadings", "size": 20}, "size"),
    ],
)
def test_bad_settings_are_one_line(model: FederatedGP, wrong: dict, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        model.cluster(2, **wrong)
    assert "\n" not in str(caught.value)


def test_models_without_client_loadings_are_refused_in_one_line() -> None:
    data = {name: (X[:12], y[:12]) for name, (X, y) in made().items()}
    plain = FederatedGP(inducing=4, local_inducing=4, rounds=1, averaging=False).fit(data)
    with pytest.raises(InputError, match="client_loadings") as caught:
        plain.cluster(2, by="loadings")
    assert "\n" not in str(caught.value)
    assert plain.cluster(2, grid=30, draws=0).distance == "function"
