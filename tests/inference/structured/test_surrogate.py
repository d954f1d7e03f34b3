"""What a client's message says about other θ_g, and what the server makes of the sum of messages."""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import numpy as np
import pytest

import reference as ref
from pfedhgp.inference.structured.bound import ClientModel, GlobalEvidence
from pfedhgp.inference.structured.statistics import at_fixed_function, statistics
from pfedhgp.inference.structured.surrogate import Surrogate
from pfedhgp.model.blocks import theta_of, with_theta
from support import twins

CASES = {
    "outputs": {"Q": 2, "noise": "outputs", "missing": True},
    "scalar": {"tied": True, "k_g": twins.seasonal},
}
CHUNK = 4096
STEP = 2e-4  # of finite differences: a wave's fifth derivative in its log period is about 1e6


def model_of(problem: twins.Problem, client, rows) -> ClientModel:
    basis, jitter = problem.shared.basis(problem.jitter), problem.jitter
    return ClientModel(
        problem.structure, problem.shared, basis, client, rows, jitter, jitter, CHUNK
    )


class Setting:
    """A problem, each client's full statistics at the final q, and their sum."""

    def __init__(self, name: str) -> None:
        self.problem = problem = twins.make_problem(2, sizes=(8, 8), **CASES[name])
        self.structure, self.block, self.jitter = problem.structure, problem.shared, problem.jitter
        self.theta = np.asarray(theta_of(self.structure, self.block))
        self.clients, self.rows = twins.stacked(problem.clients), twins.stacked(problem.rows)
        _, h, J = (sum(v) for v in zip(*problem.summaries(), strict=True))
        send = twins.compiled(
            lambda client, rows, J, h, derivatives: statistics(
                model_of(problem, client, rows),
                GlobalEvidence(J, h),
                learn_inputs=True,
                derivatives=derivatives,
            )
        )
        self.messages = [
            send(client, rows, J - own[2], h - own[1], 1)
            for (client, rows), own in zip(problem.pairs(), problem.summaries(), strict=True)
        ]
        client, rows = problem.clients[0], problem.rows[0]
        self.brief = send(client, rows, *problem.summaries()[1][:0:-1], 0)
        self.surrogate = Surrogate(self.block, twins.add(self.messages))
        self.bound = twins.compiled(self.plain_bound)
        self.pieces = twins.compiled(self._pieces)

    def _pieces(self, theta):
        """(c, h, J) of the first client at θ_g, the shared function's values held fixed."""
        return at_fixed_function(model_of(self.problem, *next(self.problem.pairs())), theta)

    def plain_bound(self, theta):
        """The true ELBO with all statistics taken anew at θ_g."""
        moved = with_theta(self.structure, self.block, theta)
        return twins.total_bound(self.structure, moved, self.clients, self.rows, self.jitter)


@pytest.fixture(scope="module", params=CASES, ids=lambda name: name.replace(" ", "_"))
def setting(request) -> Setting:
    return Setting(request.param)


def test_exact_message_holds_the_dense_statistics(setting):
    problem = setting.problem
    Q = problem.shared.loadings.shape[0]
    for i, (message, dense) in enumerate(zip(setting.messages, problem.dense, strict=True)):
        expected = ref.client_statistics_dense(*dense)
        assert float(message.evidence) == pytest.approx(expected["c"], rel=1e-9)
        unloaded = ref.unloaded_statistics_dense(dense)
        twins.assert_close(message.U.ravel(), unloaded["U"].ravel())
        twins.assert_close(message.y, unloaded["e"].ravel())
        assert float(message.residual) == pytest.approx(-2.0 * dense.residual_term, rel=1e-9)
        B_dev = problem.model.B_dev[i]
        twins.assert_close(message.deviation_power, (B_dev @ B_dev.T).reshape(Q, Q), 1e-14)
        for layer, Z in (("deviation", problem.inducing.Z_g), ("local", problem.inducing.Z_l[i])):
            found = ref.sparse_posterior(
                i, Z, problem.Xs, problem.Ys, problem.model, problem.inducing
            )
            mean, cov = found.mean[layer], found.cov[layer, layer].reshape(*[len(Z), Q] * 2)
            square = (mean.T @ mean + np.einsum("nqnp->qp", cov)) / len(Z)
            if setting.structure.tied and layer == "deviation":
                square = B_dev @ B_dev.T  # φ is learned as such
            twins.assert_close(getattr(message, f"{layer}_square"), square.reshape(Q, Q), 1e-6)
        twins.assert_close(message.noise, problem.model.noise[i], 1e-13)
        assert float(message.clients) == 1.0


def test_exact_derivatives_of_a_message_equal_finite_differences(setting):
    """∂(c, h, J)/∂θ_g with the shared function's values at Z_g held fixed."""
    message, k = setting.messages[0], setting.problem.k

    def flat(theta):
        return np.concatenate([np.ravel(piece) for piece in setting.pieces(theta)])

    d_c, d_h, d_J = np.split(twins.five_point(flat, setting.theta, STEP), [1, 1 + k])
    twins.assert_close(message.d_evidence, d_c[0], 1e-8)
    twins.assert_close(message.d_h, d_h.T, 1e-8)
    twins.assert_close(message.d_J, d_J.T.reshape(-1, k, k), 1e-8)


def test_exact_values_at_fixed_function_are_those_of_a_moved_model(setting):
    """(c, h, J) for v₀ at θ' are the dense ones at θ', in the coordinates v = T⁻¹v₀."""
    rng = np.random.default_rng(0)
    theta = setting.theta + 0.1 * rng.normal(size=setting.theta.shape)
    moved = with_theta(setting.structure, setting.block, np.asarray(theta))
    problem = setting.problem
    model = twins.model_of(setting.structure, moved, problem.clients)
    dense = ref.sparse_clients(problem.Xs, problem.Ys, model, problem.inducing)[0]
    expected = ref.client_statistics_dense(*dense)
    c, h, J = setting.pieces(theta)
    turn = []  # v = T⁻¹ v₀ from τ₀ L₀ v₀ = τ L v, latent by latent
    M = len(problem.inducing.Z_g)
    tau = float(setting.block.loadings[0, 0] / moved.loadings[0, 0])
    for k0, k1 in zip(problem.model.k_g, model.k_g, strict=True):
        L0, L1 = (
            np.linalg.cholesky(ref.inducing_covariance(k, problem.inducing.Z_g, problem.jitter))
            for k in (k0, k1)
        )
        turn.append((tau if setting.structure.tied else 1.0) * np.linalg.solve(L1, L0))
    whole = np.zeros((len(turn) * M,) * 2)
    for r, part in enumerate(turn):
        whole[r * M : r * M + M, r * M : r * M + M] = part
    assert float(c) == pytest.approx(expected["c"], rel=1e-9)
    twins.assert_close(h, whole.T @ expected["h"], 1e-8)
    twins.assert_close(J, whole.T @ expected["J"] @ whole, 1e-8)


def test_exact_gradient_and_hessian_of_the_bound_in_the_shared_parameters(setting):
    """From sums alone; against the true ELBO with every statistic taken anew at moved θ_g.

    The curvature in a message is by central differences of step 1e-4: good to 1e-7, but in a log
    period, whose fourth derivative is 1e5 here, only to 1e-5.
    """
    derivatives = twins.compiled(partial(Surrogate.derivatives, structure=setting.structure))
    gradient, hessian = derivatives(setting.surrogate, jitter=setting.jitter)
    expected = twins.five_point(setting.bound, setting.theta, STEP)
    twins.assert_close(gradient, expected, 1e-8)
    by_gradient = twins.compiled(jax.grad(setting.plain_bound))
    expected = twins.five_point(by_gradient, setting.theta, STEP)
    twins.assert_close(hessian, expected, 1e-5)


def test_exact_gradient_in_the_global_inducing_inputs_adds_up_from_messages(setting):
    """Σ d_inputs is ∂ELBO/∂Z_g: at the best q, only the explicit dependence counts."""
    Z = np.asarray(setting.block.inputs)

    def bound(flat):
        block = eqx.tree_at(lambda b: b.inputs, setting.block, flat.reshape(Z.shape))
        return twins.total_bound(
            setting.structure, block, setting.clients, setting.rows, setting.jitter
        )

    expected = twins.five_point(twins.compiled(bound), Z.ravel(), STEP)
    twins.assert_close(setting.surrogate.sums.d_inputs.ravel(), expected, 1e-8)


def test_a_message_without_derivatives_is_the_same_but_for_them(setting):
    brief, full = setting.brief, setting.messages[0]
    for name in ("d_evidence", "d_h", "d_J", "curvature"):
        np.testing.assert_array_equal(getattr(brief, name), 0.0)
        assert getattr(brief, name).shape == getattr(full, name).shape
    for name in ("evidence", "U", "y", "shared_residual", "residual", "d_inputs", "noise"):
        np.testing.assert_array_equal(getattr(brief, name), getattr(full, name))


def test_exact_value_of_the_surrogate_is_the_bound(setting):
    loadings = setting.block.loadings
    found = twins.surrogate_elbo(setting.structure, setting.surrogate, loadings)
    assert float(found) == pytest.approx(float(setting.bound(setting.theta)), rel=1e-10)
    assert float(found) == pytest.approx(ref.pooled_elbo(setting.problem.dense), rel=1e-9)


# ------------------------------------------------------------------------------------------- carried


carried = twins.compiled(
    lambda surrogate, structure, target, jitter: surrogate.carried(structure, target, jitter),
    static_argnums=1,
)


features = twins.compiled(lambda block, x, jitter: block.basis(jitter).features(x))


def elsewhere(setting: Setting, size: float = 0.2) -> twins.GlobalBlock:
    """Another θ_g, and other loadings."""
    rng = np.random.default_rng(1)
    theta = setting.theta + size * rng.normal(size=setting.theta.shape)
    block = with_theta(setting.structure, setting.block, np.asarray(theta))
    if setting.structure.tied:
        return block
    B = np.asarray(rng.normal(size=block.loadings.shape))
    return eqx.tree_at(lambda b: b.loadings, block, B)


def test_equivalence_of_carried_and_loaded_at_the_own_block(setting):
    J, h = carried(setting.surrogate, setting.structure, setting.block, setting.jitter)
    _, h_sum, J_sum = (sum(v) for v in zip(*setting.problem.summaries(), strict=True))
    twins.assert_close(J, J_sum)
    twins.assert_close(h, h_sum)


def test_invariance_carried_is_linear_in_the_sums_and_positive(setting):
    target = elsewhere(setting)
    total = carried(setting.surrogate, setting.structure, target, setting.jitter)
    parts = [
        carried(Surrogate(setting.block, m), setting.structure, target, setting.jitter)
        for m in setting.messages
    ]
    for index in (0, 1):
        twins.assert_close(sum(p[index] for p in parts), total[index], 1e-11)
    for J, _ in (total, *parts):
        values = np.linalg.eigvalsh(0.5 * (J + J.T))
        assert values.min() > -1e-10 * values.max()


def test_invariance_carried_evidence_names_the_same_function(setting):
    """J⁻¹h, as function values B L v at the inducing inputs, stays: J and h move together."""
    target = setting.block
    if setting.structure.tied:
        target = elsewhere(setting)
    else:
        target = eqx.tree_at(lambda b: b.loadings, elsewhere(setting), target.loadings)
    R, M = target.loadings.shape[1], target.inputs.shape[0]

    def likeliest(block):
        J, h = carried(setting.surrogate, setting.structure, block, setting.jitter)
        # A ridge of precision on u itself, the same for both, as J need not be of full rank.
        L = np.asarray(block.basis(setting.jitter).factor)
        tau = float(block.loadings[0, 0]) if setting.structure.tied else 1.0
        scale = np.zeros((R * M, R * M))
        for r in range(R):
            scale[r * M : r * M + M, r * M : r * M + M] = tau * L[r]
        return scale @ np.linalg.solve(np.asarray(J) + scale.T @ scale, np.asarray(h))

    twins.assert_close(likeliest(target), likeliest(setting.block), 1e-7)


def test_equivalence_carried_to_more_inducing_inputs_says_the_same():
    """Where the new inputs hold all old ones, the old evidence is carried over exactly."""
    problem = twins.make_problem(
        4, sizes=(8, 8), Q=2, M=4, k_g=twins.matern32, jitter=1e-12, noise="outputs"
    )
    sums = twins.add(
        [
            twins.sums_only(problem.structure, problem.shared, c, r, problem.jitter)
            for c, r in problem.pairs()
        ]
    )
    more = np.random.default_rng(5).uniform(0, 3, (3, 1))
    Z = np.concatenate([problem.shared.inputs, np.asarray(more)])
    target = eqx.tree_at(lambda b: b.inputs, problem.shared, Z)
    surrogate = Surrogate(problem.shared, sums)
    J, h = jax.device_get(carried(surrogate, problem.structure, target, problem.jitter))
    J0, h0 = jax.device_get(carried(surrogate, problem.structure, problem.shared, problem.jitter))
    assert J.shape == (14, 14)
    # The same evidence on the function: equal posterior moments at any inputs of the old set.
    x = problem.shared.inputs

    def at_old_inputs(block, J, h):
        A = np.asarray(features(block, x, problem.jitter))
        S = np.linalg.inv(np.eye(len(h)) + J)
        m = S @ h
        R, M, _ = A.shape
        mean = np.stack([A[r].T @ m[r * M : r * M + M] for r in range(R)])
        cov = [A[r].T @ S[r * M : r * M + M, r * M : r * M + M] @ A[r] for r in range(R)]
        return mean, np.stack(cov)

    for found, expected in zip(
        at_old_inputs(target, J, h), at_old_inputs(problem.shared, J0, h0), strict=True
    ):
        twins.assert_close(found, expected, 1e-8)

    def gain(J, h):
        """½ hᵀ(I+J)⁻¹h − ½ log|I+J|"""
        whole = np.eye(len(h)) + J
        return 0.5 * h @ np.linalg.solve(whole, h) - 0.5 * np.linalg.slogdet(whole)[1]

    assert gain(J, h) == pytest.approx(gain(J0, h0), rel=1e-8)


def test_statistics_of_a_model_without_a_global_layer():
    """Local-only: no θ_g, no weights, and the bound is the sum of the clients' own."""
    problem = twins.make_problem(6, sizes=(8, 8), R=0, deviation=False, Q=2)
    nothing = GlobalEvidence(np.zeros((0, 0)), np.zeros(0))

    @twins.compiled
    def send(client, rows):
        return statistics(model_of(problem, client, rows), nothing)

    messages = [send(client, rows) for client, rows in problem.pairs()]
    surrogate = Surrogate(problem.shared, twins.add(messages))
    bound = twins.surrogate_elbo(problem.structure, surrogate, problem.shared.loadings)
    assert float(bound) == pytest.approx(ref.pooled_elbo(problem.dense), rel=1e-9)
    gradient, hessian = twins.compiled(lambda s: s.derivatives(problem.structure, 1e-8))(surrogate)
    assert gradient.shape == (0,)
    assert hessian.shape == (0, 0)
    J, h = carried(surrogate, problem.structure, problem.shared, 1e-8)
    assert J.shape == (0, 0)
    assert h.shape == (0,)
