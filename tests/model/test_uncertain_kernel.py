"""Forecasts are wider where the shared kernel is uncertain: against exact GPs and a dense twin."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference as ref
from pfedhgp import FederatedGP, Matern32, Periodic
from pfedhgp.base.batching import on_numpy
from pfedhgp.base.numerics import numerics
from pfedhgp.data.scaling import Scaling
from pfedhgp.model import uncertain_kernel as uk
from pfedhgp.model.predictor import Predictor
from support.posteriors import make


@pytest.fixture(autouse=True)
def _in_our_numerics():
    with numerics():
        yield


def lengthscales(case) -> np.ndarray:
    return np.asarray(case.model.shared.block.kernels.lengthscale)


def changed(case, free):
    """The twin's shared kernels at other log parameters: lengthscales of each latent, then scales."""
    old = lengthscales(case)
    new = old * np.exp(free[: old.size]).reshape(old.shape)
    scale = np.exp(2.0 * free[old.size :])
    return [partial(ref.rbf, lengthscale=l, variance=v) for l, v in zip(new, scale, strict=True)]


def of_everybody(case):
    shared = on_numpy(case.model.shared)
    near = uk.Near.to(on_numpy(shared.block.basis(case.model.jitter)), shared.block.inputs)
    kernels = uk.Kernels(shared.block, near.inputs, case.model.jitter)
    latent = tuple(range(near.factor.shape[0]))
    return kernels, uk.Observed.of(near.factor, latent, shared.mean, shared.covariance)


def test_evidence_of_other_kernels_is_the_exact_marginal_likelihood():
    case = make(sizes=(9, 8), deviation=False, local_latents=0, everywhere=True, jitter=1e-10)
    kernels, observed = of_everybody(case)
    start = uk.log_evidence(kernels, np.zeros(kernels.size), observed)
    exact = ref.exact_log_marginal(case.Xs, case.Ys, case.twin)
    rng = np.random.default_rng(1)
    for _ in range(4):
        free = 0.4 * rng.normal(size=kernels.size)
        other = ref.Model(**{**vars(case.twin), "k_g": changed(case, free)})
        expected = ref.exact_log_marginal(case.Xs, case.Ys, other) - exact
        found = uk.log_evidence(kernels, free, observed) - start
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_one_clients_layers_under_other_kernels_are_the_exact_posterior():
    case = make(sizes=(11,), local_latents=0, everywhere=True, jitter=1e-10)
    predictor = Predictor.build(case.model, "client 0")
    X = np.linspace(-0.2, 1.6, 9)[:, None]
    near = uk.Near.to(predictor.shared, X)
    kernels = uk.Kernels(on_numpy(case.model.shared).block, near.inputs, case.model.jitter)
    observed, loadings = uk._of_client(predictor, near)
    free = np.array([0.2, -0.3, 0.25, -0.1])
    mean, variance = uk._moments(kernels, free, observed, loadings, X)
    other = ref.Model(**{**vars(case.twin), "k_g": changed(case, free)})
    exact = ref.exact_posterior(0, X, case.Xs, case.Ys, other)
    np.testing.assert_allclose(mean, exact.mean["total"].reshape(mean.shape), atol=2e-4)
    expected = np.diagonal(exact.cov["total", "total"]).reshape(mean.shape)
    np.testing.assert_allclose(variance, expected, atol=2e-4)


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 50),
    outputs=st.integers(1, 3),
    latents=st.integers(1, 2),
    deviation=st.booleans(),
)
def test_added_variance_is_that_of_the_dense_twin(seed, outputs, latents, deviation):
    scaling = Scaling(np.zeros(1), np.ones(1), np.zeros(outputs), np.linspace(0.5, 2.0, outputs))
    case = make(
        seed=seed,
        outputs=outputs,
        latents=latents,
        deviation=deviation,
        missing=0.1,
        jitter=1e-6,
        scaling=scaling,
    )
    X = np.linspace(0.0, 1.8, 7)[:, None]
    found = uk.added_variance(case.model, "client 1", X)
    nodes = uk._KEPT[case.model][1]
    assert nodes.free.shape == (6 * 2 * latents, 2 * latents)
    posterior = case.model.clients["client 1"]
    m, S = (np.asarray(part) for part in posterior.view(case.model.shared))
    blocks, K = (2 if deviation else 1) * latents, len(m)
    own = slice(0, K if deviation else 0)
    G = np.asarray(posterior.G)[own]
    mean = np.concatenate([m, np.asarray(posterior.offset)[own] - G @ m])
    into = np.concatenate([np.eye(K), -G])
    cov = into @ S @ into.T
    cov[K:, K:] += np.asarray(posterior.covariance)[own, own]
    B = np.concatenate([case.twin.B_g, case.twin.B_dev[1]], axis=1)[:, :blocks]

    def moments(free):
        new = changed(case, free) * (2 if deviation else 1)
        old = list(case.twin.k_g) * (2 if deviation else 1)
        Z = case.inducing.Z_g
        return ref.under_other_kernels(old, new, Z, 1e-6, (mean, cov), B, X)

    (centre, before), expected = moments(np.zeros(2 * latents)), np.zeros((len(X), outputs))
    for free, weight in zip(*nodes, strict=True):
        moved, variance = moments(free)
        expected += weight * (variance - before + (moved - centre) ** 2)
    expected = np.maximum(expected, 0.0) * np.linspace(0.5, 2.0, outputs) ** 2
    assert expected.max() > 1e-3
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-4)


def test_steps_are_the_posterior_of_log_parameters():
    case = make(
        sizes=(60,), outputs=1, latents=1, deviation=False, local_latents=0, everywhere=True
    )
    kernels, observed = of_everybody(case)
    steps = uk.posterior_steps(kernels, observed)

    def exact(free):
        other = ref.Model(**{**vars(case.twin), "k_g": changed(case, free)})
        return ref.exact_log_marginal(case.Xs, case.Ys, other)

    slope = partial(ref.finite_difference, exact, eps=1e-3)
    hessian = np.stack([(slope(e * 0.02) - slope(-e * 0.02)) / 0.04 for e in np.eye(kernels.size)])
    values, vectors = np.linalg.eigh(-0.5 * (hessian + hessian.T))
    sd = np.sqrt(np.diag((vectors / (np.maximum(values, 0.0) + 1.0)) @ vectors.T))
    np.testing.assert_allclose(np.sqrt((steps**2).sum(axis=1)), sd, rtol=0.1)
    assert sd.min() < 0.6  # rows say something


def test_nothing_known_leaves_the_prior():
    case = make(sizes=(1,), outputs=1, latents=1, deviation=False, local_latents=0, noise="scalar")
    kernels, observed = of_everybody(case)
    quiet = observed._replace(P=1e-6 * observed.P, g=0.0 * observed.g)
    steps = uk.posterior_steps(kernels, quiet)
    np.testing.assert_allclose(np.sqrt((steps**2).sum(axis=1)), uk.PRIOR_SD, rtol=1e-6)


def test_of_very_many_inducing_inputs_the_nearest_are_enough(monkeypatch):
    rng = np.random.default_rng(3)
    case = make(
        sizes=(40, 40), outputs=1, latents=1, local_latents=0, everywhere=True, jitter=1e-6, seed=3
    )
    ahead = 1.0 + 0.1 * rng.uniform(size=5)[:, None]
    whole = uk.added_variance(case.model, "client 0", ahead)
    monkeypatch.setattr(uk, "MOST_INPUTS", 70)
    part = uk.added_variance(case.model, "client 0", ahead)
    assert uk.Near.to(Predictor.build(case.model, "client 0").shared, ahead).factor.shape[-1] == 70
    np.testing.assert_allclose(part, whole, rtol=0.25, atol=1e-4)


def test_a_model_without_shared_functions_has_nothing_to_add():
    case = make(latents=0, deviation=False)
    assert not uk.added_variance(case.model, "client 0", np.zeros((3, 1))).any()


@pytest.fixture(scope="module")
def waves() -> FederatedGP:
    """Three sites, a daily wave and two turns of weather."""
    rng, x = np.random.default_rng(0), np.arange(0.0, 12.0, 0.25)
    weather = 1.5 * np.sin(2 * np.pi * x / 6.0)
    sites = {
        f"site {i}": (x, 2 * np.sin(2 * np.pi * x) + weather + 0.3 * rng.normal(size=len(x)))
        for i in range(3)
    }
    return FederatedGP(kernel=Matern32() + Periodic(period=1.0), rounds=8, inducing=40).fit(sites)


@pytest.mark.filterwarnings("ignore::pfedhgp.errors.ConvergenceWarning")
def test_forecasts_are_wider_further_ahead_and_predictions_near_rows_are_not(waves):
    model = waves.model_
    inside = uk.added_variance(model, "site 0", np.array([[3.1], [6.4]]))
    ahead = uk.added_variance(model, "site 0", np.array([[12.2], [14.0], [17.0]]))
    noise = float(waves.noise_["site 0"]) ** 2
    print(inside, ahead, noise)
    assert inside.max() < 0.5 * noise
    assert 0.0 <= ahead[0, 0] < ahead[1, 0] < ahead[2, 0]
    assert ahead[2, 0] > noise
    found = waves.forecast("site 0", 5.0)
    plain = waves.predict("site 0", found.times)
    np.testing.assert_array_equal(found.mean, plain.mean)
    np.testing.assert_allclose(found.sd**2, plain.sd**2 + found.kernel_variance)
    low, high = found.interval(0.8)
    np.testing.assert_allclose(high - low, 2 * 1.2815515655446004 * found.sd)
