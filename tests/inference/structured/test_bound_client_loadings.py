"""Clients with loadings of their own on the shared functions: exact where inducing inputs are the inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import reference
from pfedhgp.base.numerics import numerics
from pfedhgp.errors import InputError
from pfedhgp.estimator import FederatedGP
from pfedhgp.gp.kernels import RBF
from pfedhgp.gp.noise import DiagonalNoise
from pfedhgp.inference.arrays import statistics_from_arrays
from pfedhgp.inference.structured.bound import ClientModel, GlobalEvidence, elbo
from pfedhgp.inference.structured.server import PopulationSums, with_population
from pfedhgp.inference.structured.settings import Structured, StructuredClients
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows, Structure
from support.client_batches import batch

LENGTHS, LOCAL, NOISE = (0.3, 0.6), 0.2, (0.05, 0.08)
JITTER = 1e-12


def federation(seed: int = 0):
    """Three clients of two outputs, two shared functions, one local function each."""
    rng = np.random.default_rng(seed)
    Xs = [np.sort(rng.uniform(size=(n, 1)), axis=0) for n in (7, 5, 6)]
    Ys = [rng.normal(size=(len(X), 2)) for X in Xs]
    Z = np.concatenate(Xs)
    shared = GlobalBlock(
        RBF(np.array(LENGTHS)[:, None]),
        Z,
        np.zeros((2, 2)),
        np.asarray(0.4),
        np.eye(4),
    )
    clients = [
        ClientBlock(
            RBF(np.array([[LOCAL]])),
            X,
            np.ones(len(X)),
            rng.normal(size=(2, 2)) * 0.5,
            rng.normal(size=(2, 1)),
            DiagonalNoise(np.log(np.array(NOISE))),
            rng.normal(size=(2, 2)),
        )
        for X in Xs
    ]
    return Xs, Ys, shared, clients


def dense_covariance(Xs, clients) -> np.ndarray:
    """Σ_r b_ir b_jrᵀ k_r + δ_ij (Σ_r b̃_ir b̃_irᵀ k_r + local + noise) of cells (row, output)."""
    blocks = [[None] * len(Xs) for _ in Xs]
    for i, (X, a) in enumerate(zip(Xs, clients, strict=True)):
        for j, (W, b) in enumerate(zip(Xs, clients, strict=True)):
            total = 0.0
            for r, length in enumerate(LENGTHS):
                K = reference.rbf(X, W, lengthscale=length)
                total = total + np.kron(
                    K, np.outer(a.global_loadings[:, r], b.global_loadings[:, r])
                )
                if i == j:
                    total = total + np.kron(K, np.outer(a.deviation[:, r], a.deviation[:, r]))
            if i == j:
                K = reference.rbf(X, X, lengthscale=LOCAL)
                total = total + np.kron(K, a.loadings @ a.loadings.T)
                total = total + np.kron(np.eye(len(X)), np.diag(np.array(NOISE) + 1e-8))
            blocks[i][j] = total
    return np.block(blocks)


def summed(Xs, Ys, shared, clients) -> tuple[float, GlobalEvidence]:
    with numerics():
        parts = [
            ClientModel(
                Structure(client_loadings=True),
                shared,
                shared.basis(JITTER),
                client,
                Rows(X, Y, np.ones_like(Y)),
                JITTER,
                JITTER,
                1024,
            ).summary()
            for X, Y, client in zip(Xs, Ys, clients, strict=True)
        ]
        total = GlobalEvidence(sum(p.J for p in parts), sum(p.h for p in parts))
        return float(elbo(sum(p.c for p in parts), total)), total


def test_exact_bound_with_client_loadings_is_the_dense_joint_gaussian():
    Xs, Ys, shared, clients = federation()
    found, _ = summed(Xs, Ys, shared, clients)
    y = np.concatenate([Y.reshape(-1) for Y in Ys])
    expected = reference.log_gaussian(y, 0.0, dense_covariance(Xs, clients))
    assert found == pytest.approx(expected, rel=1e-6)


def test_exact_bound_does_not_depend_on_the_order_of_clients():
    Xs, Ys, shared, clients = federation(1)
    found, total = summed(Xs, Ys, shared, clients)
    again, other = summed(Xs[::-1], Ys[::-1], shared, clients[::-1])
    assert found == pytest.approx(again, rel=1e-12)
    np.testing.assert_allclose(total.J, other.J, rtol=1e-10, atol=1e-10)


def test_exact_sums_of_split_rows_add_up_to_those_of_the_whole():
    """Without layers of their own, clients with the same loadings are one client whose rows are split."""
    Xs, Ys, shared, clients = federation(5)
    nothing = [replace(c, deviation=0.0 * c.deviation, loadings=0.0 * c.loadings) for c in clients]
    whole, total = summed(Xs[:1], Ys[:1], shared, nothing[:1])
    halves = (slice(None, None, 2), slice(1, None, 2))
    split, parts = summed(
        [Xs[0][h] for h in halves], [Ys[0][h] for h in halves], shared, [nothing[0]] * 2
    )
    assert split == pytest.approx(whole, rel=1e-12)
    for found, expected in (
        (parts.J, total.J),
        (parts.h, total.h),
    ):  # relative to the whole matrix:
        within = 1e-9 * np.abs(expected).max()  # L⁻¹ rounds small entries beside entries of 50
        np.testing.assert_allclose(found, expected, rtol=0, atol=within)


def test_exact_special_case_of_equal_loadings_is_the_papers_model():
    """c_i = c̄: the sums of a client with B_g of its own are those of a client without."""
    Xs, Ys, shared, clients = federation(2)
    B = np.random.default_rng(3).normal(size=(2, 2))
    own, total = summed(Xs, Ys, shared, [replace(c, global_loadings=B) for c in clients])
    papers = replace(shared, loadings=B, loadings_covariance=None)
    all_the_same = [replace(c, global_loadings=None) for c in clients]
    expected, other = summed(Xs, Ys, papers, all_the_same)
    assert own == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(total.h, other.h, rtol=1e-10, atol=1e-10)


def test_a_reply_has_j_and_h_loaded_and_smaller_than_without():
    given = batch(structure=Structure(client_loadings=True), missing=True)
    party = StructuredClients(
        Structured(), _spec(given), given.broadcast.block.kernels, given.blocks, given.rows
    )
    with numerics():
        sums = party.improve(given.broadcast, given.others, ("a", "b", "c"))
    R, M = 2, 5
    assert np.shape(sums.U) == (3, R * M, R * M)
    assert np.shape(sums.client_loadings) == (3, 2, R)
    spread = np.asarray(sums.client_loadings_square[0])
    flat = np.asarray(sums.client_loadings[0]).reshape(-1)
    assert np.linalg.eigvalsh(spread - np.outer(flat, flat)).min() > 0


def _spec(given):
    from pfedhgp.model.spec import build_spec

    return build_spec(
        inputs=1,
        outputs=2,
        kernel=RBF(),
        local_kernel=RBF(),
        layers=("global", "deviation", "local"),
        latents=2,
        local_latents=2,
        noise="output",
        client_loadings=True,
    )


def test_the_population_is_the_mean_and_the_spread_of_clients_loadings():
    rng = np.random.default_rng(4)
    loadings = rng.normal(size=(500, 2, 2)) * 0.5 + np.array([[1.0, 0.0], [0.0, 2.0]])
    flat = loadings.reshape(500, -1)
    sums = PopulationSums(loadings.sum(0), flat.T @ flat, 500.0)
    _, _, shared, _ = federation()
    block = with_population(shared, sums)
    np.testing.assert_allclose(block.loadings, loadings.mean(0), rtol=1e-12)
    np.testing.assert_allclose(block.loadings_covariance, np.cov(flat.T), atol=0.02)
    lone = with_population(shared, PopulationSums(loadings[0], np.outer(flat[0], flat[0]), 1.0))
    assert np.linalg.eigvalsh(lone.loadings_covariance).min() > 0.05


@pytest.fixture(scope="module")
def towns():
    """Two shared waves; every other client has the second one the other way round."""
    rng = np.random.default_rng(0)
    rows, truth = {}, {}
    for i in range(6):
        c = (1.0, 1.0 if i % 2 else -1.0)

        def f(x, c=c):
            return c[0] * np.sin(1.3 * x) + c[1] * np.cos(0.7 * x + 1.0)

        x = np.sort(rng.uniform(0, 6, 25)) + 4.0 * (i >= 3)  # no client sees the whole
        rows[f"t{i}"] = (x[:, None], f(x) + 0.1 * rng.standard_normal(25))
        truth[f"t{i}"] = f
    domain = ((0.0, 10.0),)
    model = FederatedGP(client_loadings=True, latents=2, rounds=8, domain=domain).fit(rows)
    return rows, truth, model


def test_clients_with_own_loadings_predict_better_than_with_the_same(towns):
    rows, truth, model = towns
    plain = FederatedGP(rounds=8, domain=((0.0, 10.0),)).fit(rows)
    grid = np.linspace(0, 10, 41)[:, None]

    def error(m):
        gaps = [m.predict(n, grid).mean.ravel() - f(grid[:, 0]) for n, f in truth.items()]
        return float(np.sqrt(np.mean(np.square(gaps))))

    assert error(model) < 0.8 * error(plain)


def test_a_model_with_client_loadings_comes_back_from_its_files(towns, tmp_path):
    _, _, model = towns
    model.save(tmp_path / "m")
    again = FederatedGP.load(tmp_path / "m")
    grid = np.linspace(0, 10, 7)[:, None]
    for name in ("t0", "somebody else"):
        a, b = model.predict(name, grid), again.predict(name, grid)
        np.testing.assert_allclose(a.mean, b.mean, rtol=1e-12)
        np.testing.assert_allclose(a.sd, b.sd, rtol=1e-12)


def test_an_unseen_client_is_less_sure_by_the_spread_of_loadings(towns):
    """Half of the clients have the second wave the other way round: nobody knows for a new one."""
    _, truth, model = towns
    grid = np.linspace(0, 10, 41)[:, None]
    unseen = model.predict("somebody else", grid)
    known = model.predict("t0", grid)
    assert unseen.layers["global"].sd.mean() > 5 * known.layers["global"].sd.mean()
    for f in (truth["t0"], truth["t1"]):
        low, high = unseen.interval(0.95)
        assert np.mean((f(grid[:, 0]) > low.ravel()) & (f(grid[:, 0]) < high.ravel())) > 0.9


def test_adopt_learns_the_loadings_of_a_new_client(towns):
    _, truth, model = towns
    rng = np.random.default_rng(5)
    x = np.sort(rng.uniform(0, 10, 12))
    model.adopt("new", x[:, None], truth["t0"](x) + 0.1 * rng.standard_normal(12))
    grid = np.linspace(0.5, 9.5, 41)[:, None]
    gap = model.predict("new", grid).mean.ravel() - truth["t0"](grid[:, 0])
    assert np.sqrt(np.mean(gap**2)) < 0.2


def test_what_client_loadings_need_is_said_in_one_line(towns):
    rows, _, _ = towns
    with pytest.raises(InputError, match="mean-field has none"):
        FederatedGP(client_loadings=True, inference="mean-field").fit(rows)
    with pytest.raises(InputError, match="needs the global layer"):
        FederatedGP(client_loadings=True, layers=("local",)).fit(rows)


def test_replies_of_client_loadings_survive_packing():
    from pfedhgp.inference.arrays import statistics_to_arrays

    given = batch(structure=Structure(client_loadings=True))
    party = StructuredClients(
        Structured(), _spec(given), given.broadcast.block.kernels, given.blocks, given.rows
    )
    with numerics():
        sums = party.improve(given.broadcast, given.others, ("a", "b", "c"))
    back = statistics_from_arrays(statistics_to_arrays(sums)[1], 2)
    np.testing.assert_allclose(back.U, sums.U[1], rtol=1e-15, atol=1e-12)
    np.testing.assert_allclose(back.client_loadings_square, sums.client_loadings_square[1])
