"""Averaging over a client's parameters: the Gaussian, and what predictions make of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import digamma

import reference as ref
from pfedhgp import FederatedGP
from pfedhgp.inference.structured import averaging
from pfedhgp.inference.structured import clients as structured_clients
from pfedhgp.inference.structured.client_step import StepOptions
from pfedhgp.model import files, prediction
from pfedhgp.model.blocks import ClientBlock, deviation_loadings
from support import posteriors

JITTER = 1e-8
REACH = averaging.Averaging().reach


# ------------------------------------------------------------------------------------ the Gaussian


def test_gaussian_of_a_gaussian_is_itself():
    rng = np.random.default_rng(0)
    half = rng.normal(size=(4, 4))
    covariance = 0.02 * (half @ half.T + np.eye(4))
    mean = rng.normal(size=4)
    precision = jnp.asarray(np.linalg.inv(covariance))

    def log_density(z):
        return -0.5 * (z - mean) @ precision @ (z - mean)

    centre, F = averaging.gaussian(log_density, jnp.asarray(mean), REACH)
    np.testing.assert_allclose(centre, mean, atol=1e-9)
    np.testing.assert_allclose(F @ F.T, covariance, rtol=1e-6, atol=1e-9)


def test_gaussian_of_a_skewed_density_moves_from_its_mode_to_its_mean():
    """log of a gamma variable of shape k: mode log k, mean digamma(k); Laplace's variance is 1/k."""
    k = 6.0
    best = jnp.full(3, np.log(k))
    centre, F = averaging.gaussian(lambda z: jnp.sum(k * z - jnp.exp(z)), best, REACH)
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)  # of degree 5, for weight exp(−q²/2)
    weights /= weights.sum()
    slope = k - k * weights @ np.exp(nodes / np.sqrt(k))
    precision = k**1.5 * weights @ (nodes * np.exp(nodes / np.sqrt(k)))
    np.testing.assert_allclose(np.linalg.inv(F @ F.T), precision * np.eye(3), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(centre - best, slope / precision, rtol=1e-6)
    assert precision == pytest.approx(k * np.exp(0.5 / k), rel=2e-3)  # E[−∇²], the integral itself
    shift = digamma(k) - np.log(k)  # −.086, to which one step comes nearer than a tenth
    np.testing.assert_allclose(centre - best, shift, rtol=0.1)


def test_gaussian_does_not_follow_weak_directions_further_than_its_reach():
    centre, F = averaging.gaussian(
        lambda z: jnp.sum(50.0 * z - jnp.exp(0.01 * z)), jnp.zeros(2), 2.0
    )
    assert np.linalg.norm(centre) <= 2.0 + 1e-9
    assert np.all(np.linalg.eigvalsh(F @ F.T) <= 4.0 + 1e-9)


def test_gaussian_takes_no_step_over_a_cliff():
    """Slopes far out say "on", where the density has fallen off: only a part of the step is taken."""

    def log_density(z):
        return jnp.sum(
            -0.5 * z**2 + 2.0 * jnp.maximum(z - 1.0, 0.0) - 60.0 * jnp.tanh(4.0 * z) ** 8
        )

    best = jnp.zeros(2)
    centre, _ = averaging.gaussian(log_density, best, REACH)
    assert log_density(centre) >= log_density(best) - jnp.sum(centre**2)
    free = averaging.gaussian(lambda z: jnp.sum(z - jnp.exp(z)), best, REACH)[0]
    assert np.all(free < -0.2)  # a skewed density without a cliff: the whole step


@pytest.mark.slow
def test_parameters_are_refined_before_their_curvature_is_taken(monkeypatch):
    """After one round a client is far from its best; the Gaussian is taken after one more search."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 1.0, (30, 1))
    clients = {
        name: (X, np.sin(7.0 * X + shift) + 0.1 * rng.normal(size=X.shape))
        for name, shift in (("a", 0.0), ("b", 0.4))
    }
    caught = {}
    refine = structured_clients.StructuredClients._refined

    def refining(self, final, rest):
        caught["before"] = self.blocks
        return refine(self, final, rest)

    def catching(*arguments):
        caught["arguments"] = arguments
        return averaging.batched_average(*arguments)

    monkeypatch.setattr(structured_clients.StructuredClients, "_refined", refining)
    monkeypatch.setattr(structured_clients, "batched_average", catching)
    FederatedGP(rounds=1, inducing=8, local_inducing=8).fit(clients)
    options, _, shared, jitter, rest, after, *more = caught["arguments"]

    def steepness(blocks, i):
        own = jax.tree.map(lambda leaf: jnp.asarray(leaf[i]), (rest, blocks, *more))
        found = averaging.target(options, shared, jitter, *own)
        return float(jnp.linalg.norm(jax.grad(found.log_density)(found.best)))

    now, before = ([steepness(each, i) for i in range(2)] for each in (after, caught["before"]))
    assert np.all(np.array(now) < 0.3 * np.array(before))


# ------------------------------------------------------------------- predictions, against the twin


SCALAR = dict(outputs=1, latents=1, local_latents=1, tied=True, noise="scalar")
CASES = {
    "loadings": {},
    "scalar": SCALAR,
    "missing cells, full noise": dict(noise="full", missing=0.2),
    "no local layer": dict(local_latents=0),
    "no deviation": dict(deviation=False),
}
CLIENT = 1


def averaged(case: posteriors.Case):
    """(posterior, target, factor) of one client of the case; its own block is the prior's anchor."""
    model = case.model
    structure, shared = model.structure, model.shared.block
    basis = jax.jit(type(shared).basis)(shared, JITTER)
    longest = max(len(X) for X in case.Xs)
    J = h = 0.0
    for i, name in enumerate(model.clients):
        if i != CLIENT:
            rows = posteriors.padded_rows(case.Xs[i], case.Ys[i], longest)
            block = model.clients[name].block
            h_i, J_i, _ = posteriors.solve_client(structure, shared, basis, block, rows, JITTER)
            J, h = J + J_i, h + h_i
    block = model.clients[f"client {CLIENT}"].block
    rows = posteriors.padded_rows(case.Xs[CLIENT], case.Ys[CLIENT], longest)
    options = StepOptions(structure, chunk=1024)
    arguments = (shared, JITTER, (J, h), block, block, rows, JITTER)
    posterior = jax.jit(partial(averaging.average, options, averaging.Averaging()))(*arguments)

    @jax.jit
    def gaussian(*arguments):
        target = averaging.target(options, *arguments)
        centre, factor = averaging.gaussian(target.log_density, target.best, REACH)
        step = 1e-5
        moved = jax.vmap(
            lambda column: jax.vmap(lambda h: target.block_at(centre + h * column))(
                jnp.array([-step, step])
            )
        )(factor.T)
        return moved, step

    moved, step = gaussian(*arguments)
    return posterior, moved, float(step)


def twin_with(case: posteriors.Case, block: ClientBlock) -> ref.Model:
    """The dense twin with another block for the one client."""
    twin = case.twin
    lengthscales = np.asarray(block.kernels.lengthscale)
    k_l = [partial(ref.matern32, lengthscale=l) for l in lengthscales]
    B_dev = np.asarray(deviation_loadings(case.model.structure, case.model.shared.block, block))
    swap = lambda old, new: [new if i == CLIENT else v for i, v in enumerate(old)]  # noqa: E731
    return replace(
        twin,
        k_l=swap(twin.k_l, k_l),
        B_dev=swap(twin.B_dev, B_dev),
        B_l=swap(twin.B_l, np.asarray(block.loadings)),
        noise=swap(twin.noise, np.asarray(block.noise.covariance(case.model.outputs))),
    )


def layers_at(case: posteriors.Case, block: ClientBlock, X: np.ndarray) -> ref.Layers:
    moved = replace(case, twin=twin_with(case, block))
    return moved.expected(CLIENT, X)


@pytest.fixture(scope="module", params=CASES)
def fitted(request):
    case = posteriors.make(inducing=(6, 5), **CASES[request.param])
    posterior, moved, step = averaged(case)
    clients = {**case.model.clients, f"client {CLIENT}": posterior}
    model = replace(case.model, clients=clients)
    X = np.linspace(0.05, 0.95, 4)[:, None]
    return case, model, posterior, moved, step, X


def slopes(case, moved, step, X) -> dict[str, np.ndarray]:
    """∂(layer mean)/∂e by central differences of the dense posterior's means, (nQ, P)."""
    count = moved.active.shape[0]
    found: dict[str, list[np.ndarray]] = {}
    for p in range(count):
        down, up = (
            layers_at(case, jax.tree.map(lambda v, p=p, s=s: v[p, s], moved), X) for s in (0, 1)
        )
        for name in ("global", "deviation", "local", "total"):
            gap = (up.mean[name] - down.mean[name]).reshape(-1)
            found.setdefault(name, []).append(gap / (2.0 * step))
    return {name: np.stack(columns, axis=1) for name, columns in found.items()}


def test_prediction_is_the_twins_at_the_mean_parameters_plus_its_slopes(fitted):
    """Mean and covariance of every layer, at one input and jointly, against the dense posterior."""
    case, model, posterior, moved, step, X = fitted
    p = prediction.predict(model, f"client {CLIENT}", X)
    at_mean = layers_at(case, posterior.block, X)
    by_hand = slopes(case, moved, step, X)
    outputs = case.model.outputs
    np.testing.assert_allclose(p.mean.reshape(-1), at_mean.mean["total"].reshape(-1), atol=1e-8)
    wanted = at_mean.cov["total", "total"] + by_hand["total"] @ by_hand["total"].T
    joint = p.covariance("joint", noise=False)
    np.testing.assert_allclose(joint, wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())
    for name, layer in p.layers.items():
        np.testing.assert_allclose(
            layer.mean.reshape(-1), at_mean.mean[name].reshape(-1), atol=1e-8
        )
        wanted = at_mean.cov[name, name] + by_hand[name] @ by_hand[name].T
        np.testing.assert_allclose(
            layer.covariance("joint"), wanted, rtol=1e-5, atol=1e-6 * max(np.abs(wanted).max(), 1.0)
        )
        np.testing.assert_allclose(layer.sd.reshape(-1) ** 2, np.diag(wanted), rtol=1e-5, atol=1e-6)
    blocks = p.covariance(noise=False)
    for n in range(len(X)):
        cells = slice(n * outputs, (n + 1) * outputs)
        np.testing.assert_allclose(blocks[n], joint[cells, cells], rtol=1e-9, atol=1e-12)


def test_averaging_widens_and_draws_have_its_covariance(fitted):
    _, model, posterior, _, _, X = fitted
    p = prediction.predict(model, f"client {CLIENT}", X)
    bare = replace(posterior, tangents=None)
    sure = replace(model, clients={**model.clients, f"client {CLIENT}": bare})
    q = prediction.predict(sure, f"client {CLIENT}", X)
    assert np.all(p.sd > q.sd)
    draws = p.sample(20_000, seed=1, noise=False).reshape(20_000, -1)
    wanted = p.covariance("joint", noise=False)
    scale = np.sqrt(np.outer(np.diag(wanted), np.diag(wanted)))
    assert np.max(np.abs(np.cov(draws.T) - wanted) / scale) < 0.05


def test_files_keep_what_averaging_left(fitted, tmp_path):
    _, model, _, _, _, X = fitted
    files.save(model, tmp_path / "run")
    again = files.load(tmp_path / "run")
    before, after = (prediction.predict(m, f"client {CLIENT}", X) for m in (model, again))
    np.testing.assert_array_equal(before.mean, after.mean)
    np.testing.assert_array_equal(before.sd, after.sd)
