"""Predictions with a state-space local layer against the dense joint Gaussian; saved and loaded; refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.errors import InputError
from pfedhgp.model.predictor import Predictor
from support import reference_states as twin


def sites(outputs: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Two clients on their own times, one cell in six missing, rows in no order."""
    rng = np.random.default_rng(3)
    found = {}
    for name, shift in (("a", 0.0), ("b", 0.4)):
        t = rng.permutation(np.linspace(0.0, 10.0, 24) + 0.1 * shift)
        y = np.stack([np.sin((1 + q) * t) + shift * np.cos(4 * t) for q in range(outputs)], axis=1)
        y += 0.1 * rng.normal(size=y.shape)
        y[::6, 0] = np.nan
        found[name] = (t[:, None], y)
    return found


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)])
def fitted(request: pytest.FixtureRequest) -> tuple[FederatedGP, dict]:
    data = sites(request.param)
    model = FederatedGP(
        local="state-space", local_kernel="matern32", inducing=8, rounds=2, domain=[(0.0, 10.1)]
    )
    return model.fit(data), data


def dense_prediction(
    model: FederatedGP, data: dict, client: str, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """E and Cov of f at `at` given all clients' rows: features of v_g and v_δ, and dense local kernels."""
    fitted = model.model_
    scaling, shared = fitted.scaling, fitted.shared
    Q = fitted.outputs
    basis = shared.block.basis(fitted.jitter)
    B_g = np.asarray(shared.block.loadings)

    def features(X: np.ndarray) -> np.ndarray:
        return np.asarray(basis.features(scaling.inputs(X)))

    def own_loadings(name: str) -> np.ndarray:
        if fitted.structure.tied:
            own = np.asarray(fitted.clients[name].block.deviation)  # √(φ_i/φ), if it has one
            return np.sqrt(np.asarray(shared.block.phi)) * B_g * (own if own.size else 1.0)
        return np.asarray(fitted.clients[name].block.deviation)

    def layer(A: np.ndarray, B: np.ndarray) -> np.ndarray:
        return np.einsum("qr,rmn->nqrm", B, A).reshape(A.shape[2] * Q, -1)

    def local(name: str, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        block = fitted.clients[name].block
        lengths, b = np.asarray(block.kernels.lengthscale)[:, 0], np.asarray(block.loadings)
        t, u = scaling.inputs(X)[:, 0], scaling.inputs(Z)[:, 0]
        out = np.zeros((len(t), Q, len(u), Q))
        for q in range(Q):
            out[:, q, :, q] = b[q, q] ** 2 * twin.matern(t, u, lengths[q], 2)
        return out.reshape(len(t) * Q, len(u) * Q)

    names = list(data)
    A = {name: features(X) for name, (X, _) in data.items()}
    seen = {name: np.isfinite(Y).reshape(-1) for name, (_, Y) in data.items()}
    A_star = features(at)

    def prior(
        one: str, A_one: np.ndarray, X: np.ndarray, two: str, A_two: np.ndarray, Z: np.ndarray
    ):
        K = layer(A_one, B_g) @ layer(A_two, B_g).T
        if one == two:
            K = K + layer(A_one, own_loadings(one)) @ layer(A_two, own_loadings(two)).T
            K = K + local(one, X, Z)
        return K

    K = np.block([[prior(i, A[i], data[i][0], j, A[j], data[j][0]) for j in names] for i in names])
    noise = np.concatenate(
        [
            np.tile(
                np.diag(np.asarray(fitted.clients[n].block.noise.covariance(Q))), len(data[n][0])
            )
            for n in names
        ]
    )
    keep = np.concatenate([seen[n] for n in names])
    y = np.concatenate([scaling.outputs(data[n][1]).reshape(-1) for n in names])[keep]
    cross = np.concatenate([prior(client, A_star, at, n, A[n], data[n][0]) for n in names], axis=1)[
        :, keep
    ]
    inner = K[np.ix_(keep, keep)] + np.diag(noise[keep])
    mean = cross @ np.linalg.solve(inner, y)
    K_star = prior(client, A_star, at, client, A_star, at)
    left = np.maximum(1.0 - (A_star**2).sum(1), 0.0)  # what the global inducing inputs leave out
    for B in (B_g, own_loadings(client)):
        extra = np.einsum("rn,qr,pr->nqp", left, B, B)
        for i, block in enumerate(extra):
            K_star[i * Q : (i + 1) * Q, i * Q : (i + 1) * Q] += block
    cov = K_star - cross @ np.linalg.solve(inner, cross.T)
    spread = np.broadcast_to(scaling.spread, (Q,))
    centre = np.broadcast_to(scaling.centre, (Q,))
    return mean.reshape(-1, Q) * spread + centre, cov * np.outer(
        np.tile(spread, len(at)), np.tile(spread, len(at))
    )


def test_predictions_are_those_of_the_dense_model(fitted: tuple[FederatedGP, dict]) -> None:
    model, data = fitted
    at = np.array([[0.0], [0.37], [4.21], [float(data["b"][0][3, 0])], [9.9]])
    mean, cov = dense_prediction(model, data, "b", at)
    p = model.predict("b", at)
    np.testing.assert_allclose(p.mean, mean, rtol=1e-6, atol=1e-7)
    Q = mean.shape[1]
    each = np.stack([cov[i * Q : (i + 1) * Q, i * Q : (i + 1) * Q] for i in range(len(at))])
    np.testing.assert_allclose(p.covariance("outputs", noise=False), each, rtol=1e-6, atol=1e-8)
    whole = p.covariance("joint", noise=False)
    different = ~np.kron(np.eye(len(at), dtype=bool), np.ones((Q, Q), dtype=bool))
    predictor = Predictor.build(model.model_, "b")
    residual = predictor.shared  # between rows the residual of the global layer counts too
    assert residual is not None
    X = model.model_.scaling.inputs(at)
    A = np.asarray(residual.features(X))
    K = np.stack([np.exp(-0.5 * ((X - X.T) / length) ** 2) for length in _lengths(model)])
    left = K - np.einsum("rmn,rmk->rnk", A, A)
    B_d = np.asarray(predictor.loadings[1])
    B_g = np.asarray(predictor.loadings[0])
    spread = np.broadcast_to(model.model_.scaling.spread, (Q,))
    extra = sum(
        np.einsum("rnm,qr,pr->nqmp", left, B * spread[:, None], B * spread[:, None])
        for B in (B_g, B_d)
    ).reshape(whole.shape)
    np.testing.assert_allclose(whole[different], (cov + extra)[different], rtol=1e-5, atol=1e-7)


def _lengths(model: FederatedGP) -> np.ndarray:
    return np.asarray(model.model_.shared.block.kernels.lengthscale)[:, 0]  # type: ignore[attr-defined]


def test_a_saved_model_predicts_the_same(fitted: tuple[FederatedGP, dict], tmp_path: Path) -> None:
    model, _ = fitted
    model.save(tmp_path / "run")
    again = FederatedGP.load(tmp_path / "run")
    at = np.linspace(0.0, 10.0, 7)[:, None]
    for name in ("a", "b"):
        one, two = model.predict(name, at), again.predict(name, at)
        np.testing.assert_array_equal(one.mean, two.mean)
        np.testing.assert_array_equal(one.sd, two.sd)
    assert again.local == "state-space"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"local_kernel": "rbf"}, "Matérn"),
        ({"noise": "full"}, "full"),
        ({"local_latents": 2}, "local_latents"),
        ({"inference": "mean-field"}, "structured"),
        ({"layers": ("global",)}, "local layer"),
        ({"local": "kalman"}, "`local` must be one of inducing, state-space"),
    ],
)
def test_what_it_cannot_do_is_refused(settings: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        FederatedGP(**{"local": "state-space", **settings}).fit(sites(1))


def test_two_inputs_are_refused() -> None:
    data = {"a": (np.random.default_rng(0).normal(size=(9, 2)), np.arange(9.0))}
    with pytest.raises(InputError, match="one input"):
        FederatedGP(local="state-space").fit(data)
