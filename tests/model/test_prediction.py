"""Predictions against dense twins, the exact GP, and themselves."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import jax
import numpy as np
import pytest
from scipy.stats import norm

import reference as ref
from pfedhgp.base import batching
from pfedhgp.base.numerics import numerics
from pfedhgp.data.scaling import Scaling
from pfedhgp.errors import InputError, NumericsError
from pfedhgp.gp.linalg import psd_factor
from pfedhgp.model import at_inputs
from pfedhgp.model import predictor as predictor_module
from pfedhgp.model.prediction import Prediction, far_outside, predict
from pfedhgp.model.predictor import Predictor
from support.compiled import times_compiled
from support.posteriors import Case, make

CASES = {
    "loaded": {},
    "tied": {"outputs": 1, "latents": 1, "local_latents": 1, "tied": True, "noise": "scalar"},
    "scalar with loadings": {"outputs": 1, "latents": 2, "local_latents": 1},
    "missing cells": {"outputs": 3, "missing": 0.4, "sizes": (6, 1, 8)},
    "full noise, missing": {"outputs": 3, "noise": "full", "missing": 0.3},
    "two inputs": {"d": 2, "latents": 1, "local_latents": 3},
    "no deviation": {"deviation": False},
    "tied, no deviation": {
        "outputs": 1, "latents": 1, "local_latents": 1, "tied": True, "deviation": False,
    },
    "no local": {"local_latents": 0},
    "global only": {"local_latents": 0, "deviation": False},
    "local only": {"latents": 0, "deviation": False},
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES.keys())
def case(request) -> Case:
    return make(seed=3, **request.param)


def points(d: int, n: int = 6, seed: int = 9) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.1, 1.1, (n, d))


def blocks_of(joint: np.ndarray, Q: int) -> np.ndarray:
    """The diagonal Q × Q blocks."""
    n = len(joint) // Q
    return np.stack([joint[i * Q : (i + 1) * Q, i * Q : (i + 1) * Q] for i in range(n)])


def assert_matches(p: Prediction, expected: ref.Layers, noise: np.ndarray, atol: float) -> None:
    Q = p.mean.shape[1]

    def close(actual: np.ndarray, wanted: np.ndarray) -> None:
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=atol)

    total = expected.cov["total", "total"]
    close(p.mean, expected.mean["total"])
    close(p.covariance("joint", noise=False), total)
    close(p.covariance("joint"), total + np.kron(np.eye(len(p.mean)), noise))
    close(p.covariance(noise=False), blocks_of(total, Q))
    close(p.covariance(), blocks_of(total, Q) + noise)
    close(p.sd**2, np.diag(total).reshape(-1, Q) + np.diag(noise))
    for a in ref.LAYERS:
        layer = p.layers[a]
        close(layer.mean, expected.mean[a])
        close(layer.sd**2, np.diag(expected.cov[a, a]).reshape(-1, Q))
        close(layer.covariance("joint"), expected.cov[a, a])
        close(layer.covariance(), blocks_of(expected.cov[a, a], Q))
        for b in ref.LAYERS:
            close(p.cross_covariance(a, b, "joint"), expected.cov[a, b])
            close(p.cross_covariance(a, b), blocks_of(expected.cov[a, b], Q))


def test_equals_the_dense_posterior(case: Case):
    X = points(case.model.inputs)
    for i, name in enumerate(list(case.model.clients)[:2]):
        p = predict(case.model, name, X)
        assert p.known
        assert p.client == name
        assert_matches(p, case.expected(i, X), case.twin.noise[i], 1e-8)


@pytest.mark.parametrize("name", ["loaded", "tied", "full noise, missing", "no deviation"])
def test_exact_gp_when_inducing_inputs_cover_everything(name):
    case = make(seed=5, everywhere=True, jitter=1e-12, **CASES[name], sizes=(5, 5, 5))
    X = points(case.model.inputs)
    for i in (0, 2):
        p = predict(case.model, f"client {i}", X)
        assert_matches(p, case.exact(i, X), case.twin.noise[i], 1e-6)


def test_exact_covariance_at_the_training_inputs():
    case = make(seed=5, everywhere=True, jitter=1e-12, sizes=(5, 5, 5))
    p = predict(case.model, "client 0", case.Xs[0])
    exact = case.exact(0, case.Xs[0]).cov["total", "total"]
    np.testing.assert_allclose(p.covariance("joint", noise=False), exact, atol=1e-7)


def test_absent_layers_are_zero():
    for name, absent in {
        "no deviation": ["deviation"],
        "no local": ["local"],
        "global only": ["deviation", "local"],
        "local only": ["global", "deviation"],
    }.items():
        model = make(**CASES[name]).model
        for client in ("client 0", "somebody new"):
            p = predict(model, client, points(1))
            for layer in absent:
                assert not np.any(p.layers[layer].mean)
                assert not np.any(p.layers[layer].sd)
                assert not np.any(p.layers[layer].covariance("joint"))


def test_layer_means_add_up_and_variances_do_not():
    p = predict(make(seed=3).model, "client 0", points(1))
    np.testing.assert_allclose(sum(layer.mean for layer in p.layers.values()), p.mean, atol=1e-12)
    total = np.diagonal(p.covariance(noise=False), axis1=1, axis2=2)
    assert np.all(sum(layer.sd**2 for layer in p.layers.values()) > 1.05 * total)


def test_invariance_to_the_chunk():
    case = make(d=2)
    X = points(2, n=37)
    reference = predict(case.model, "client 1", X)
    for chunk in (5, 37, 64):
        p = predict(case.model, "client 1", X, chunk=chunk)
        pairs = [(p.mean, reference.mean), (p.sd, reference.sd)]
        pairs += [(p.covariance(kind), reference.covariance(kind)) for kind in ("outputs", "joint")]
        pairs += [(p.layers[a].sd, reference.layers[a].sd) for a in ref.LAYERS]
        for one, two in pairs:
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-12)


@pytest.mark.parametrize("client", ["client 2", "somebody new"])
def test_marginals_are_the_diagonal_of_the_joint(client):
    p = predict(make(outputs=3).model, client, points(1, n=11))
    joint = p.covariance("joint")
    np.testing.assert_allclose(p.sd**2, np.diag(joint).reshape(-1, 3), rtol=1e-12)
    np.testing.assert_allclose(p.covariance(), blocks_of(joint, 3), rtol=0, atol=1e-13)
    np.testing.assert_array_equal(joint, joint.T)
    assert np.linalg.eigvalsh(p.covariance("joint", noise=False)).min() > -1e-12
    for layer in p.layers.values():
        diagonal = np.diag(layer.covariance("joint")).reshape(-1, 3)
        np.testing.assert_allclose(layer.sd**2, diagonal, rtol=0, atol=1e-13)


def test_units_of_the_data():
    unit = make(seed=4, d=2)
    scaling = Scaling(
        np.array([10.0, -1.0]), np.array([30.0, 1.0]), np.array([5.0, -2.0]), np.array([3.0, 0.1])
    )
    model = dataclasses.replace(unit.model, scaling=scaling)
    X = points(2)
    here = predict(unit.model, "client 0", X)
    there = predict(model, "client 0", scaling.lower + X * (scaling.upper - scaling.lower))
    s = scaling.spread
    np.testing.assert_allclose(there.mean, here.mean * s + scaling.centre, rtol=1e-10)
    np.testing.assert_allclose(there.sd, here.sd * s, rtol=1e-10)
    np.testing.assert_allclose(there.covariance(), here.covariance() * np.outer(s, s), rtol=1e-8)
    twice = np.kron(np.ones(len(X)), s)
    joint = here.covariance("joint") * np.outer(twice, twice)
    np.testing.assert_allclose(there.covariance("joint"), joint, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(there.layers["local"].mean, here.layers["local"].mean * s, rtol=1e-9)
    layers = sum(layer.mean for layer in there.layers.values())
    np.testing.assert_allclose(layers, there.mean, rtol=1e-12)
    draws = there.sample(3, seed=1), here.sample(3, seed=1)
    np.testing.assert_allclose(draws[0], draws[1] * s + scaling.centre, rtol=1e-6, atol=1e-8)


def test_one_spread_for_all_outputs():
    model = make(seed=4).model
    one = Scaling(np.zeros(1), np.ones(1), np.array([1.0, 2.0]), np.array([2.0]))
    each = Scaling(np.zeros(1), np.ones(1), np.array([1.0, 2.0]), np.array([2.0, 2.0]))
    p, q = (
        predict(dataclasses.replace(model, scaling=s), "client 0", points(1)) for s in (one, each)
    )
    np.testing.assert_array_equal(p.sd, q.sd)
    np.testing.assert_array_equal(p.covariance("joint"), q.covariance("joint"))


def test_interval_is_the_normal_quantile():
    p = predict(make().model, "client 0", points(1))
    for level in (0.5, 0.95):
        lower, upper = p.interval(level)
        np.testing.assert_allclose(norm.cdf(upper, p.mean, p.sd), (1 + level) / 2, rtol=1e-12)
        np.testing.assert_allclose(norm.cdf(lower, p.mean, p.sd), (1 - level) / 2, rtol=1e-12)


@pytest.mark.parametrize("client", ["client 0", "somebody new"])
@pytest.mark.parametrize("noise", [True, False])
def test_samples_have_the_joint_moments(client, noise):
    count = 40_000
    X = points(1, n=4)
    X[2] = X[0]  # the same input twice: one function value, two noises
    p = predict(make(seed=8, inducing=(3, 3)).model, client, X)
    draws = p.sample(count, seed=11, noise=noise).reshape(count, -1)
    cov = p.covariance("joint", noise=noise)
    variance = np.diag(cov)
    error = (draws.mean(axis=0) - p.mean.ravel()) / np.sqrt(variance / count)
    assert np.max(np.abs(error)) < 4.5
    # the sd of an empirical covariance is √((c_ii c_jj + c_ij²)/count)
    spread = np.sqrt((np.outer(variance, variance) + cov**2) / count)
    assert np.max(np.abs(np.cov(draws.T) - cov) / spread) < 4.5
    if not noise:
        np.testing.assert_allclose(draws[:, :2], draws[:, 4:6], atol=1e-4)


def test_samples_repeat_with_the_seed():
    p = predict(make().model, "client 0", points(1))
    np.testing.assert_array_equal(p.sample(3, seed=1), p.sample(3, seed=1))
    assert np.all(p.sample(3, seed=1) != p.sample(3, seed=2))
    assert p.sample(0, seed=0).shape == (0, 6, 2)


def test_unseen_client_equals_a_client_without_rows_where_tied():
    case = make(seed=7, **CASES["tied"])
    X = points(1)
    p = predict(case.model, "somebody new", X)
    # the same clients and one more, of the same kind, without rows
    twin = case.twin
    more = ref.Model(
        twin.k_g, [*twin.k_l, twin.k_l[0]], twin.B_g, [*twin.B_dev, twin.B_dev[0]],
        [*twin.B_l, twin.B_l[0]], [*twin.noise, twin.noise[0]],
    )  # fmt: skip
    inducing = ref.Inducing(
        case.inducing.Z_g, [*case.inducing.Z_l, case.inducing.Z_l[0]], case.inducing.jitter
    )
    Xs, Ys = [*case.Xs, np.zeros((0, 1))], [*case.Ys, np.zeros((0, 1))]
    expected = ref.sparse_posterior(3, X, Xs, Ys, more, inducing)
    assert not p.known
    np.testing.assert_allclose(p.mean, expected.mean["total"], atol=1e-8)
    for a in ("global", "deviation"):
        np.testing.assert_allclose(p.layers[a].mean, expected.mean[a], atol=1e-8)
        np.testing.assert_allclose(p.layers[a].covariance("joint"), expected.cov[a, a], atol=1e-8)
    zero = p.cross_covariance("global", "deviation", "joint")
    np.testing.assert_allclose(zero, expected.cov["global", "deviation"], atol=1e-8)


def test_unseen_client_has_the_population_variances():
    case = make(seed=2, outputs=3)
    X = np.concatenate([points(1), points(1)[:1]])
    p, q = predict(case.model, "new", X), predict(case.model, "client 0", X)
    population = case.model.population
    np.testing.assert_allclose(p.layers["global"].mean, q.layers["global"].mean, atol=1e-12)
    np.testing.assert_allclose(p.mean, p.layers["global"].mean, atol=1e-12)
    g = q.layers["global"].covariance()
    parts = population.deviation_power + population.local_power + population.noise
    np.testing.assert_allclose(p.covariance(), g + parts, atol=1e-10)
    np.testing.assert_allclose(p.sd**2, np.einsum("nqq->nq", g + parts), atol=1e-10)
    kernel = np.mean([k(X, X) for k in case.twin.k_g], axis=0)
    np.testing.assert_allclose(
        p.layers["deviation"].covariance("joint"),
        np.kron(kernel, population.deviation_power),
        atol=1e-10,
    )
    same = np.eye(7)
    same[0, 6] = same[6, 0] = 1.0
    np.testing.assert_allclose(
        p.layers["local"].covariance("joint"), np.kron(same, population.local_power), atol=1e-10
    )


def test_invariance_to_padding_of_the_local_inducing_inputs():
    model = make(seed=1).model
    client = model.clients["client 0"]
    block, M, more = client.block, 6, 3
    kept = [np.arange(2 * M), *(2 * M + r * (5 + more) + np.arange(5) for r in range(2))]
    where = np.concatenate(kept)  # deviation weights, then (latent, inducing input)
    K = 2 * M + 2 * (5 + more)
    offset, G, covariance = np.zeros(K), np.zeros((K, 2 * M)), np.eye(K)
    offset[where], G[where] = client.offset, client.G
    covariance[np.ix_(where, where)] = client.covariance
    wider = dataclasses.replace(
        block,
        inputs=np.pad(block.inputs, ((0, more), (0, 0)), mode="edge"),
        active=np.pad(block.active, (0, more)),
    )
    padded = type(client)(wider, offset, G, covariance)
    changed = dataclasses.replace(model, clients={"client 0": padded})
    p, q = (predict(m, "client 0", points(1)) for m in (changed, model))
    np.testing.assert_allclose(p.mean, q.mean, rtol=0, atol=1e-11)
    np.testing.assert_allclose(p.covariance("joint"), q.covariance("joint"), rtol=0, atol=1e-11)


def test_a_client_has_its_own_jitter():
    model = make(seed=1, jitter=1e-8, local_jitter=1e-2).model
    with numerics():
        p = Predictor.build(model, "client 0")
        expected = model.clients["client 0"].block.basis(1e-2).factor
    np.testing.assert_allclose(p.local.factor, expected, rtol=1e-12)
    plain = dataclasses.replace(model, client_jitter={})
    X = points(1)
    assert (
        np.max(np.abs(predict(plain, "client 0", X).mean - predict(model, "client 0", X).mean))
        > 1e-4
    )


def test_a_failing_factorisation_is_named():
    case = make(seed=1)
    block = dataclasses.replace(
        case.model.clients["client 0"].block, inputs=np.full((5, 1), np.nan)
    )
    client = dataclasses.replace(case.model.clients["client 0"], block=block)
    model = dataclasses.replace(case.model, clients={"client 0": client})
    with pytest.raises(NumericsError, match=r"client 'client 0', matrix 'k\(Z_i, Z_i\)'"):
        predict(model, "client 0", points(1))


def test_nothing_recompiles_for_another_number_of_rows(monkeypatch):
    """On a device that compiles: on a CPU predictions run in NumPy (test_predictor_on_host.py)."""
    for module in (batching, at_inputs):
        monkeypatch.setattr(module, "on_host", lambda: False)
    monkeypatch.setattr(batching, "SMALL", 0)
    model = make(seed=1, inducing=(4, 7)).model
    predict(model, "client 0", points(1, n=20))
    before = times_compiled(predictor_module.moments)
    assert before > 0
    for n in (17, 18, 31, 32):
        for client in model.clients:
            predict(model, client, points(1, n=n))
    assert times_compiled(predictor_module.moments) == before


def test_float64_whatever_the_host_program_says():
    model, X = make(seed=1).model, points(1)
    expected = predict(model, "client 0", X)
    with jax.enable_x64(False):
        p = predict(model, "client 0", X)
        np.testing.assert_array_equal(p.mean, expected.mean)
        np.testing.assert_array_equal(p.covariance("joint"), expected.covariance("joint"))
        np.testing.assert_array_equal(p.sample(2, seed=0), expected.sample(2, seed=0))
        assert not jax.config.jax_enable_x64


def test_no_rows():
    p = predict(make().model, "client 0", np.zeros((0, 1)))
    assert p.mean.shape == p.sd.shape == (0, 2)
    assert p.covariance("joint").shape == (0, 0)
    assert p.covariance().shape == (0, 2, 2)


def test_wrong_arguments_are_named():
    model = make().model
    p = predict(model, "client 0", points(1))
    for call, text in (
        (lambda: predict(model, "client 0", np.zeros((3, 2))), r"`X` must have shape \(rows, 1\)"),
        (lambda: predict(model, "client 0", np.zeros(3)), r"`X` must have shape \(rows, 1\)"),
        (lambda: predict(model, "client 0", [[0.0], [np.nan]]), "`X` is not finite in row 1"),
        (lambda: predict(model, "client 0", [["a"]]), "`X` must be a table of numbers"),
        (lambda: predict(model, "client 0", points(1), chunk=0), "`chunk`"),
        (lambda: p.covariance("full"), "`kind` must be one of outputs, joint"),
        (lambda: p.interval(95), "`level` must be between 0 and 1"),
        (lambda: p.interval(float("nan")), "`level`"),
        (lambda: p.sample(-1, seed=0), "`count`"),
        (lambda: p.sample(1.5, seed=0), "`count`"),
        (
            lambda: p.cross_covariance("global", "total"),
            "`second` must be one of global, deviation, local",
        ),
    ):
        with pytest.raises(InputError, match=text):
            call()


def test_reads_well():
    p = predict(make().model, "new", points(1))
    assert repr(p) == "Prediction('new', rows=6, outputs=2, known=False)"
    assert repr(p.layers["local"]) == "Layer('local', shape=(6, 2))"


def test_far_outside_is_a_tenth_of_the_extent_beyond_it():
    X = np.array([[0.5, 0.5], [-0.09, 1.09], [-0.11, 0.5], [0.5, 1.2], [1.0, 0.0]])
    np.testing.assert_array_equal(far_outside(X), [False, False, True, True, False])


def test_psd_factor_of_a_singular_matrix():
    B = np.random.default_rng(0).normal(size=(5, 2))
    F = psd_factor(B @ B.T)
    np.testing.assert_allclose(F @ F.T, B @ B.T, atol=1e-12)


@pytest.mark.slow
def test_a_hundred_thousand_rows_fit_one_gibibyte():
    program = """
import sys
from pathlib import Path
import jax
jax.config.update("jax_enable_x64", True)
sys.path.insert(0, "tests")
import numpy as np
from support.posteriors import make
from pfedhgp.model.prediction import predict
model = make(outputs=4, inducing=(50, 100)).model
p = predict(model, "client 0", np.random.default_rng(0).uniform(size=(100_000, 1)))
assert p.mean.shape == (100_000, 4) and p.covariance().shape == (100_000, 4, 4)
status = Path("/proc/self/status").read_text()  # ru_maxrss would start at the parent's
print(float(status.split("VmHWM:")[1].split()[0]) / 2**20)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert float(done.stdout) < 1.0
