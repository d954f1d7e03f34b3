"""Sums over cycles: what they are, what they say of (Ψ, Σ_ε), and what is estimated from them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import invwishart

import reference as ref
from pfedhgp.base.choices import FORMS
from pfedhgp.errors import InputError
from pfedhgp.inference.cycles import stationary as cycle_stationary
from pfedhgp.inference.cycles.forms import (
    Shrinkage,
    choose_form,
    estimate,
    expected,
    held_out_evidence,
    in_form,
    mixed,
)
from pfedhgp.inference.cycles.scatter import (
    CycleSums,
    Orthonormal,
    halves_of,
    restricted_evidence,
    sums_over_cycles,
)
from pfedhgp.model.cycle_layer import CycleBasis, CycleLayer
from support import cycles as cy
from support import twins

GRID = np.linspace(0, 1, 9)[:, None]


@pytest.mark.parametrize("full", [False, True])
def test_exact_restricted_likelihood_is_that_of_the_contrasts(full):
    rng = np.random.default_rng(0)
    layer = cy.random_layer(rng, full=full)
    Y = rng.normal(size=(7, 9, 2))
    expected_value = ref.within_log_likelihood(Y.reshape(7, -1), cy.dense_covariance(layer, GRID))
    found = restricted_evidence(layer, sums_over_cycles(GRID, Y, layer.basis))
    assert found == pytest.approx(expected_value, rel=1e-9)


def test_exact_evidence_is_the_mean_and_the_contrasts():
    """Design 2: log p = log N(ȳ; 0, K + Σ_e/C) and the restricted likelihood."""
    rng = np.random.default_rng(1)
    layer = cy.random_layer(rng)
    Y = rng.normal(size=(4, 9, 2))
    Sigma, K = cy.dense_covariance(layer, GRID), 2.0 * np.eye(18) + 0.3
    whole = ref.cycles_log_evidence_dense(Y.reshape(4, -1), K, Sigma)
    mean = ref.log_gaussian(Y.mean(0).ravel(), 0.0, K + Sigma / 4)
    found = mean + restricted_evidence(layer, sums_over_cycles(GRID, Y, layer.basis))
    assert found == pytest.approx(whole, rel=1e-9)


def test_one_cycle_says_nothing_within():
    layer = cy.random_layer(np.random.default_rng(2))
    alone = sums_over_cycles(GRID, np.ones((1, 9, 2)), layer.basis)
    assert restricted_evidence(layer, alone) == 0.0
    assert not np.any(alone.T)
    with pytest.raises(InputError, match="at least two cycles"):
        estimate((alone, alone), layer.basis)


def test_invariance_to_order_and_what_is_kept_does_not_grow_with_cycles():
    rng = np.random.default_rng(3)
    basis = CycleBasis.on(np.linspace(0, 1, 4)[:, None])
    Y = rng.normal(size=(50, 9, 2))
    one, two = (
        sums_over_cycles(GRID, Y, basis),
        sums_over_cycles(GRID, Y[rng.permutation(50)], basis),
    )
    cy.same_sums(one, two, 1e-12)
    few = sums_over_cycles(GRID, Y[:5], basis)
    shapes = [{name: np.shape(value) for name, value in vars(w).items()} for w in (one, few)]
    assert shapes[0] == shapes[1]
    assert sum(a.nbytes for a in one.as_arrays().values()) == 8 * (3 + 16 + 36 + 4)


@pytest.mark.parametrize("C", [2, 3, 8])
def test_invariance_halves_add_up_and_are_independent_parts_of_the_likelihood(C):
    rng = np.random.default_rng(4)
    layer = cy.random_layer(rng)
    Y = rng.normal(size=(C, 9, 2))
    first, rest = halves_of(GRID, Y, layer.basis)
    cy.same_sums(first + rest, sums_over_cycles(GRID, Y, layer.basis), 1e-12)
    assert float(first.freedom + rest.freedom) == C - 1
    both = restricted_evidence(layer, first) + restricted_evidence(layer, rest)
    whole = ref.within_log_likelihood(Y.reshape(C, -1), cy.dense_covariance(layer, GRID))
    assert both == pytest.approx(whole, rel=1e-9)


def test_sums_travel_and_come_back():
    rng = np.random.default_rng(5)
    basis = CycleBasis.on(np.linspace(0, 1, 4)[:, None])
    cycle_sums = sums_over_cycles(GRID, rng.normal(size=(5, 9, 2)), basis)
    back = CycleSums.from_arrays(cycle_sums.as_arrays("rest."), "rest.")
    cy.same_sums(cycle_sums, back, 0.0)


@pytest.mark.parametrize("full", [False, True])
def test_expected_sums_of_incomplete_cycles_are_the_dense_conditional_ones(full):
    """Around the least-squares mean; conditional covariances count (C−1)/C."""
    rng = np.random.default_rng(6)
    layer = cy.random_layer(rng, full=full)
    Y = cy.with_gaps(rng, rng.normal(size=(6, 9, 2)))
    found = sums_over_cycles(GRID, Y, layer.basis, layer)
    Sigma, flat = cy.dense_covariance(layer, GRID), Y.reshape(6, -1)
    means, spread = ref.expected_scatter(flat - ref.mean_of_incomplete(flat, Sigma), Sigma)
    dense = means + 5 / 6 * spread
    A = np.kron(cy.dense_features(layer.basis, GRID), np.eye(2))  # weights (m, q)
    order = np.arange(10).reshape(5, 2).T.ravel()  # to (q, m)
    twins.assert_close(found.T, (A.T @ dense @ A)[np.ix_(order, order)], 1e-9)
    blocks = dense.reshape(9, 2, 9, 2)
    twins.assert_close(found.scatter, sum(blocks[i, :, i] for i in range(9)), 1e-9)


def truth(kind: str, n: int = 24) -> np.ndarray:
    """Σ_e of two channels: white, an RBF times a channel covariance, or three bumps that vary alone."""
    x = np.linspace(0, 1, n)[:, None]
    noise = 0.05**2 * np.eye(2 * n)
    if kind == "white":
        return 400 * noise
    if kind == "stationary":
        channels = np.array([[1.0, 0.6], [0.6, 0.8]])
        return np.kron(np.exp(-0.5 * (x - x.T) ** 2 / 0.2**2), channels) + noise
    bumps = [(0.2, 0.1, (1.0, 0.3)), (0.45, 0.2, (-0.5, 1.5)), (0.8, 0.12, (0.7, -0.7))]
    modes = [
        np.kron(np.exp(-0.5 * ((x - at) / width) ** 2), np.array(loads)[:, None])
        for at, width, loads in bumps
    ]
    return sum(mode @ mode.T for mode in modes) + noise


@pytest.mark.parametrize("kind", FORMS)
def test_estimates_come_near_the_truth_and_the_right_form_is_best_on_held_out_cycles(kind):
    rng = np.random.default_rng(7)
    x, Sigma = np.linspace(0, 1, 24)[:, None], truth(kind)
    basis = CycleBasis.on(np.linspace(0, 1, 12)[:, None])
    seen, held_out = (cy.draw(rng, Sigma, C, 2) for C in (40, 60))
    halves, new = halves_of(x, seen, basis), sums_over_cycles(x, held_out, basis)
    layers = {form: estimate(halves, basis, form=form) for form in FORMS}
    found = {form: restricted_evidence(layer, new) for form, layer in layers.items()}
    best = ref.within_log_likelihood(held_out.reshape(60, -1), Sigma)
    cells = 59 * 48
    assert found[kind] >= max(found.values()) - 0.001 * cells  # the richer forms may tie with it
    assert (best - found[kind]) / cells < {"white": 0.003, "stationary": 0.02, "free": 0.1}[kind]
    if kind != "white":
        assert found[kind] - found["white"] > 0.5 * cells
    if kind == "free":
        assert found["free"] - found["stationary"] > 0.05 * cells
    chosen, by_halves = choose_form(halves, basis)
    assert chosen == kind
    assert set(by_halves) == set(FORMS)


def test_stationary_parameters_are_recovered():
    rng = np.random.default_rng(8)
    x = np.linspace(0, 1, 24)[:, None]
    basis = CycleBasis.on(np.linspace(0, 1, 12)[:, None])
    Sigma = truth("stationary")
    layer = estimate(halves_of(x, cy.draw(rng, Sigma, 200, 2), basis), basis)
    np.testing.assert_allclose(layer.noise, 0.05**2 * np.eye(2), rtol=0.05, atol=1e-7)
    half = layer.half(x).reshape(48, -1)
    gap = half @ half.T - (Sigma - 0.05**2 * np.eye(48))
    assert np.abs(gap).max() < 0.15


@pytest.mark.parametrize("noise", ["scalar", "output", "full"])
@pytest.mark.parametrize("same", [False, True])
def test_cost_of_the_stationary_form_and_its_gradient(noise, same):
    """The value is the restricted likelihood's, also where eigenvalues coincide (`same`: Γ and Σ_ε ∝ I)."""
    rng = np.random.default_rng(9)
    basis = CycleBasis.on(np.linspace(0, 1, 5)[:, None])
    cycle_sums = sums_over_cycles(GRID, rng.normal(size=(6, 9, 2)), basis)
    sums = cycle_stationary.sums_of(Orthonormal.of(cycle_sums), basis)
    size = 1 + 3 + {"scalar": 1, "output": 2, "full": 3}[noise]
    vector = np.zeros(size) if same else rng.normal(size=size) * 0.3
    vector[0] = np.log(0.3)
    kernel = cycle_stationary.Matern32

    def cost(v):
        return float(cycle_stationary.value_and_grad(kernel, noise, np.asarray(v), sums)[0])

    def layer(v):
        scale, gamma, L = (np.asarray(p) for p in cycle_stationary.unpack(noise, v, 2, 1))
        K = ref.matern32(basis.inputs, basis.inputs, lengthscale=scale)
        root = np.linalg.cholesky(basis.weights_covariance(K))
        return CycleLayer(basis, np.kron(gamma, root), L @ L.T, "stationary")

    other = vector + 0.1 * rng.normal(size=size)
    difference = restricted_evidence(layer(vector), cycle_sums) - restricted_evidence(
        layer(other), cycle_sums
    )
    assert cost(other) - cost(vector) == pytest.approx(difference, rel=1e-9, abs=1e-9)
    _, gradient = cycle_stationary.value_and_grad(kernel, noise, vector, sums)
    twins.assert_close(gradient, twins.five_point(cost, vector), 1e-7)


def test_expected_sums_of_a_layer_have_it_as_their_estimate():
    rng = np.random.default_rng(10)
    layer = cy.random_layer(rng, rank=10)
    cycle_sums = sums_over_cycles(GRID, rng.normal(size=(3, 9, 2)), layer.basis)
    one = expected(cycle_sums, layer)
    Sigma = cy.dense_covariance(layer, GRID)
    A = np.kron(cy.dense_features(layer.basis, GRID), np.eye(2))
    order = np.arange(10).reshape(5, 2).T.ravel()
    twins.assert_close(one.T, (A.T @ Sigma @ A)[np.ix_(order, order)], 1e-9)
    blocks = Sigma.reshape(9, 2, 9, 2)
    twins.assert_close(one.scatter, sum(blocks[i, :, i] for i in range(9)), 1e-9)
    many = one.times(1e6)
    again = estimate((many.times(0.5), many.times(0.5)), layer.basis, form="free")
    assert restricted_evidence(again, one) == pytest.approx(
        restricted_evidence(layer, one), abs=0.02
    )


def test_a_mix_is_between_a_client_that_differs_and_one_that_does_not():
    """A client like the others leans on the shared layer; one unlike them, with many cycles, does not."""
    rng = np.random.default_rng(11)
    x = np.linspace(0, 1, 24)[:, None]
    basis = CycleBasis.on(np.linspace(0, 1, 12)[:, None])
    others = halves_of(x, cy.draw(rng, truth("stationary"), 200, 2), basis)
    worths = {}
    for kind in ("stationary", "free"):
        values = np.zeros(3)
        for _ in range(3):
            seen, held_out = (cy.draw(rng, truth(kind), C, 2) for C in (12, 60))
            halves, new = halves_of(x, seen, basis), sums_over_cycles(x, held_out, basis)
            together = (others[0] + halves[0], others[1] + halves[1])
            shared = estimate(together, basis, form="free")
            layer, worths[kind] = mixed(halves, shared, form="free", noise="output")
            own = estimate(halves, basis, form="free")
            values += [restricted_evidence(each, new) for each in (layer, own, shared)]
        assert values[0] > 0.2 * min(values[1:]) + 0.8 * max(values[1:])
    assert worths["stationary"] > 10 * worths["free"]


def test_what_the_others_say_is_the_shared_layer_without_a_clients_own_cycles():
    """(T̃_a + T̃_b + κ Ω₀)/(f_a + f_b + κ) less T̃_a, by hand; and the layer's worth is that denominator."""
    rng = np.random.default_rng(13)
    target = cy.random_layer(rng, rank=10)
    cycle_sums = [
        sums_over_cycles(GRID, 3.0 * rng.normal(size=(C, 9, 2)), target.basis) for C in (9, 6)
    ]
    both = Shrinkage(
        Orthonormal.of(cycle_sums[0]), cycle_sums[0] + cycle_sums[1], target, target.noise
    )
    layer = both.layer(4.0)
    assert layer.worth == 8 + 5 + 4
    own = Shrinkage(both.sums, cycle_sums[0], layer, target.noise)
    expected_omega = (both.T - own.T + 4.0 * both.target) / (5 + 4)
    values, vectors = np.linalg.eigh(expected_omega)
    by_hand = vectors @ np.diag(np.maximum(values, 1.0)) @ vectors.T
    twins.assert_close(own.others(layer.worth), by_hand, 1e-8)
    np.testing.assert_array_equal(own.others(0.0), own.target)


def test_a_mix_predicts_better_than_either_where_clients_depart_from_a_common_layer():
    """Two clients, Ψ_i ~ IW(8 Ψ): a shared layer that kept a client's own cycles would always win."""
    rng = np.random.default_rng(1)
    x = np.linspace(0, 1, 24)[:, None]
    basis = CycleBasis.on(np.linspace(0, 1, 12)[:, None])
    shapes = np.exp(-0.5 * ((x - np.linspace(0.05, 0.95, 8)) / 0.07) ** 2)
    half = np.tril(rng.normal(size=(8, 8))) * np.geomspace(1.5, 0.15, 8)
    seen, new = [], []
    for _ in range(2):
        own = invwishart.rvs(8 + 8 + 1, 8 * half @ half.T, random_state=rng)
        root = shapes @ np.linalg.cholesky(own)
        smooth = np.einsum("nk,ckq->cnq", root, rng.normal(size=(240, 8, 1)))
        cycles = smooth + 0.1 * rng.normal(size=smooth.shape)
        seen.append(halves_of(x, cycles[:40], basis))
        new.append(sums_over_cycles(x, cycles[40:], basis))
    total = (seen[0][0] + seen[1][0], seen[0][1] + seen[1][1])
    shared = estimate(total, basis, form="free")
    found = {"shared": 0.0, "own": 0.0, "mixed": 0.0}
    for halves, held_out in zip(seen, new, strict=True):
        layer, kappa = mixed(halves, shared, form="free", noise="output")
        assert kappa < 100.0
        own = estimate(halves, basis, form="free")
        for name, each in (("shared", shared), ("own", own), ("mixed", layer)):
            found[name] += restricted_evidence(each, held_out) / 398
    assert found["mixed"] > found["shared"] + 0.1
    assert found["mixed"] > found["own"] + 0.1


def test_incomplete_cycles_still_tell_the_layer():
    """EM on a fifth of the cells missing comes near what the complete cycles say."""
    rng = np.random.default_rng(12)
    x = np.linspace(0, 1, 24)[:, None]
    basis = CycleBasis.on(np.linspace(0, 1, 12)[:, None])
    seen, held_out = (cy.draw(rng, truth("stationary"), C, 2) for C in (30, 60))
    new = sums_over_cycles(x, held_out, basis)
    complete = estimate(halves_of(x, seen, basis), basis)
    gaps = cy.with_gaps(rng, seen)
    layer = CycleLayer(basis, np.zeros((24, 0)), np.eye(2), "white")
    values = []
    for _ in range(6):
        layer = estimate(halves_of(x, gaps, basis, layer), basis)
        values.append(restricted_evidence(layer, new))
    assert values[-1] > values[0]
    assert values[-1] > restricted_evidence(complete, new) - 0.02 * 59 * 48


def test_noise_has_the_form_that_is_asked_for():
    noise = np.array([[0.3, 0.1], [0.1, 0.5]])
    np.testing.assert_allclose(in_form(noise, "full"), noise, atol=1e-7)
    np.testing.assert_allclose(in_form(noise, "output"), np.diag([0.3, 0.5]), atol=1e-7)
    np.testing.assert_allclose(in_form(noise, "scalar"), 0.4 * np.eye(2), atol=1e-7)


def test_wrong_forms_are_named():
    basis = CycleBasis.on(np.linspace(0, 1, 4)[:, None])
    halves = halves_of(GRID, np.random.default_rng(0).normal(size=(2, 9, 1)), basis)
    with pytest.raises(InputError, match="white, stationary, free, got 'smooth'"):
        estimate(halves, basis, form="smooth")
    with pytest.raises(InputError, match="at least three cycles"):
        held_out_evidence(halves, basis, form="white")
