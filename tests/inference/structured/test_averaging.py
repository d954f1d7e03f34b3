"""Averaging over a client's parameters: the Gaussian, and what predictions make of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import digamma

import reference as ref
from pfedhgp import RBF, FederatedGP
from pfedhgp.inference.structured import averaging, final_posteriors
from pfedhgp.inference.structured.bound import GlobalEvidence
from pfedhgp.inference.structured.client_step import StepOptions
from pfedhgp.inference.structured.host import step as host
from pfedhgp.inference.structured.traits import Expected, traits_of
from pfedhgp.model import files, prediction
from pfedhgp.model.blocks import ClientBlock, deviation_loadings, to_free
from pfedhgp.model.posterior import Tangents, limits_in_words
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


def of_thirty_rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 1.0, (30, 1))
    return {
        name: (X, np.sin(7.0 * X + shift) + 0.1 * rng.normal(size=X.shape))
        for name, shift in (("a", 0.0), ("b", 0.4))
    }


def test_parameters_are_refined_before_their_curvature_is_taken(monkeypatch):
    """After one round a client is far from its best; the Gaussian is taken after one more search."""
    caught = []
    average = host.average

    def averaging_of(batch, settings):
        caught.append(batch)
        return average(batch, settings)

    def refining(batch, final):
        caught.append(batch)
        return refine(batch, final)

    refine = host.refined
    monkeypatch.setattr(host, "refined", refining)
    monkeypatch.setattr(host, "average", averaging_of)
    FederatedGP(rounds=1, inducing=8, local_inducing=8).fit(of_thirty_rows())
    before, after = caught
    steep = [
        np.linalg.norm(batch.objective.value_and_gradient(batch.start.rows())[1], axis=1)
        for batch in (before, after)
    ]
    assert len(steep[0]) == 2
    assert np.all(steep[1] < 0.3 * steep[0])


@pytest.mark.slow
def test_compiled_clients_are_refined_too(monkeypatch):
    """The same for clients that the host does not serve, here by a kernel of the user's."""
    caught = {}
    refine = final_posteriors.refined

    def refining(clients, final, others):
        caught["before"] = clients.blocks
        return refine(clients, final, others)

    def catching(*arguments):
        caught["arguments"] = arguments
        return averaging.batched_average(*arguments)

    monkeypatch.setattr(final_posteriors, "refined", refining)
    monkeypatch.setattr(final_posteriors, "batched_average", catching)
    FederatedGP(kernel=Own(), rounds=1, inducing=8, local_inducing=8).fit(of_thirty_rows())
    options, _, shared, jitter, others, after, *more = caught["arguments"]

    def steepness(blocks, i):
        own = jax.tree.map(lambda leaf: jnp.asarray(leaf[i]), (others, blocks, *more))
        found = averaging.target(options, shared, jitter, *own)
        return float(jnp.linalg.norm(jax.grad(found.log_density)(found.best)))

    now, before = ([steepness(each, i) for i in range(2)] for each in (after, caught["before"]))
    assert np.all(np.array(now) < 0.3 * np.array(before))


class Own(RBF):
    """JAX alone knows its gradient."""


# -------------------------------------------------------------- how far the bound allows a direction


def swings(log_density, value, centre=(0.0,), factor=((1.0,),)):
    """`secants` of a density and a function of ψ, which stands for all that predictions are made of."""
    centre, factor = jnp.asarray(centre), jnp.asarray(factor)

    def look(z):
        made = Tangents(value(z), jnp.zeros((1, 0)), jnp.zeros((1, 0)), z)
        return log_density(z), made

    return averaging.secants(look, look(centre), centre, factor)


def test_a_gaussians_directions_are_whole_and_a_linear_functions_secants_its_tangents():
    rng = np.random.default_rng(1)
    F, A, centre = rng.normal(size=(3, 3)), rng.normal(size=(2, 3)), rng.normal(size=3)
    precision = jnp.asarray(np.linalg.inv(F @ F.T))

    def log_density(z):
        return -0.5 * (z - centre) @ precision @ (z - centre)

    found = swings(log_density, lambda z: jnp.asarray(A) @ z, centre, F)
    np.testing.assert_array_equal(found.reach, 1.0)
    np.testing.assert_allclose(found.kernels, (A @ F).T, atol=1e-12)
    np.testing.assert_allclose(found.weights, F.T, atol=1e-12)
    np.testing.assert_allclose(found.middle.kernels, 0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("log_density", "reach"),
    [
        pytest.param(lambda z: -0.5 * z**2 / 0.3**2, 0.25, id="of sd .3: a nat is lost at .42"),
        pytest.param(lambda z: -0.5 * z**2 / 0.8**2 + 9.0 * z, 1.0, id="a slope alone"),
        pytest.param(lambda z: 20.0 * z**2, 0.125, id="rising: a nat is gained at .22"),
        pytest.param(lambda z: 200.0 * z**2, 0.0, id="rising, far too steeply"),
        pytest.param(lambda z: jnp.where(jnp.abs(z) > 0.6, jnp.nan, 0.0), 0.5, id="NaN from .6 on"),
        pytest.param(lambda z: jnp.where(jnp.abs(z) > 0.0, -jnp.inf, 0.0), 0.0, id="nowhere else"),
        pytest.param(lambda z: jnp.where(z > 0.3, -1e3, 0.0), 0.25, id="a cliff on one side"),
    ],
)
def test_a_direction_is_as_long_as_the_bound_allows(log_density, reach):
    found = swings(lambda z: log_density(z[0]), lambda z: jnp.exp(z))
    np.testing.assert_array_equal(found.reach, [reach])
    np.testing.assert_allclose(found.kernels, [[np.sinh(reach)]], atol=1e-12)
    np.testing.assert_allclose(found.middle.kernels, [[np.cosh(reach) - 1.0 if reach else 0.0]])


def test_a_function_is_taken_at_both_ends_however_crooked_between_them():
    """Its derivative at ψ̄ is 400 times what a standard deviation does to it."""
    found = swings(lambda z: -0.5 * z[0] ** 2, lambda z: 0.1 * z + jnp.sin(40.0 * z))
    np.testing.assert_allclose(found.kernels, [[0.1 + np.sin(40.0)]], atol=1e-12)


def test_directions_and_clients_are_limited_one_by_one():
    """In a batch one client needs no second look, another three: each has what it has alone."""
    widths = jnp.asarray([[1.0, 0.9], [0.1, 1.0], [0.5, 0.3]])

    def one(width):
        return swings(lambda z: -0.5 * jnp.sum((z / width) ** 2), jnp.sin, jnp.zeros(2), jnp.eye(2))

    together = jax.jit(jax.vmap(one))(widths)
    np.testing.assert_array_equal(together.reach, [[1.0, 1.0], [0.125, 1.0], [0.5, 0.25]])
    for i, width in enumerate(widths):
        alone = one(width)
        jax.tree.map(
            lambda a, b, i=i: np.testing.assert_allclose(a[i], b, atol=1e-12), together, alone
        )


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
    """One client's posterior, and its blocks at ψ̄ ∓ sFe_p; its own block is the prior's centre."""
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
    free = to_free(block)
    mean = traits_of(structure, free)
    expected = Expected(mean, np.full(mean.shape, 0.25))
    arguments = (shared, JITTER, GlobalEvidence(J, h), block, expected, rows, JITTER)

    @jax.jit
    def averaged_at(shared, jitter, others, *own):
        target = averaging.target(options, shared, jitter, others, *own)
        return averaging.average(target, averaging.Averaging(), structure, shared, others)

    posterior = averaged_at(*arguments)

    @jax.jit
    def ends(reach, *arguments):
        target = averaging.target(options, *arguments)
        centre, factor = averaging.gaussian(target.log_density, target.best, REACH)
        centre = target.at_mean_variances(centre, jnp.sum(factor**2, axis=1))
        columns = reach[:, None] * factor.T
        return jax.vmap(
            lambda column: jax.vmap(lambda sign: target.block_at(centre + sign * column))(
                jnp.array([-1.0, 1.0])
            )
        )(columns)

    return posterior, ends(posterior.tangents.reach, *arguments)


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
    posterior, moved = averaged(case)
    clients = {**case.model.clients, f"client {CLIENT}": posterior}
    model = replace(case.model, clients=clients)
    X = np.linspace(0.05, 0.95, 4)[:, None]
    return case, model, posterior, moved, X


def secants(case, moved, X) -> dict[str, np.ndarray]:
    """Half the difference of the dense posterior's layer means at both ends of each direction, (nQ, P)."""
    count = moved.active.shape[0]
    found: dict[str, list[np.ndarray]] = {}
    for p in range(count):
        down, up = (
            layers_at(case, jax.tree.map(lambda v, p=p, s=s: v[p, s], moved), X) for s in (0, 1)
        )
        for name in ("global", "deviation", "local", "total"):
            gap = (up.mean[name] - down.mean[name]).reshape(-1)
            found.setdefault(name, []).append(gap / 2.0)
    return {name: np.stack(columns, axis=1) for name, columns in found.items()}


def test_prediction_is_the_twins_at_the_mean_parameters_plus_its_secants(fitted):
    """Mean and covariance of every layer, at one input and jointly, against the dense posterior."""
    case, model, posterior, moved, X = fitted
    p = prediction.predict(model, f"client {CLIENT}", X)
    at_mean = layers_at(case, posterior.block, X)
    by_hand = secants(case, moved, X)
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
    _, model, posterior, _, X = fitted
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
    _, model, _, _, X = fitted
    files.save(model, tmp_path / "run")
    again = files.load(tmp_path / "run")
    before, after = (prediction.predict(m, f"client {CLIENT}", X) for m in (model, again))
    np.testing.assert_array_equal(before.mean, after.mean)
    np.testing.assert_array_equal(before.sd, after.sd)


# ------------------------------------------------------------------------------- what is said of it


def test_where_averaging_was_limited_is_said():
    """In a warning and in the report's words: directions, those left out, clients."""
    empty = Tangents(*(jnp.zeros((3, 0)) for _ in range(4)))
    clients = {
        name: SimpleNamespace(tangents=replace(empty, reach=jnp.asarray(reach)))
        for name, reach in (("a", [1.0, 1.0, 1.0]), ("b", [0.5, 0.0, 1.0]), ("c", [0.25, 1.0, 1.0]))
    }
    assert limits_in_words(clients) == (
        "averaging over parameters was limited at 2 of 3 clients, the first is 'b' (2 of their 6 "
        "directions shortened, 1 left out): training has not converged, or the rows say little about these "
        "parameters"
    )
    assert limits_in_words(clients, unless_only_shortened=True) == limits_in_words(clients)
    short = {name: clients[name] for name in "ac"}
    assert "(1 of their 3 directions shortened, 0 left out)" in limits_in_words(short)
    assert limits_in_words(short, unless_only_shortened=True) is None
    assert limits_in_words({"a": clients["a"]}) is None
    assert limits_in_words({"old": SimpleNamespace(tangents=empty)}) is None
    assert limits_in_words({"plain": SimpleNamespace(tangents=None)}) is None
