"""The server's step in NumPy: its gradients against JAX's, its results against the compiled step's."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfedhgp import RBF, Matern12, Matern32, Matern52, Periodic, RationalQuadratic
from pfedhgp.base.arrays_of import namespace
from pfedhgp.base.batching import on_numpy
from pfedhgp.gp import kernels
from pfedhgp.inference.arrays import statistics_to_arrays
from pfedhgp.inference.structured import server, surrogate_adjoints, traits
from pfedhgp.inference.structured.bound import Statistics
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.inference.structured.surrogate import Surrogate
from pfedhgp.model.blocks import GlobalBlock, Structure, theta_of, with_theta
from pfedhgp.model.spec import build_spec
from support import twins

KERNELS = {
    "rbf": lambda s: RBF(s * np.array([0.5, 0.8])),
    "one lengthscale": lambda s: RBF(s * 0.5),
    "matern12": lambda s: Matern12(s * np.array([0.9, 1.3])),
    "matern32": lambda s: Matern32(s * np.array([0.4, 0.6])),
    "matern52": lambda s: Matern52(s * np.array([0.4, 0.6])),
    "rational": lambda s: RationalQuadratic(s * np.array([0.4, 0.6]), alpha=0.7),
    "periodic": lambda s: Periodic(s * np.array([0.8]), period=s * np.array([0.6]), dims=(1,)),
    "sixty turns": lambda s: RBF(s * 0.5) + Periodic(1.0, period=s * np.array([1 / 60]), dims=(1,)),
    "sum": lambda s: (
        (
            0.6 * RBF(s * np.array([0.5]), dims=(0,)) + 0.4 * Matern32(s * np.array([0.3, 0.5]))
        ).kernel
    ),
    "product": lambda s: RBF(s * np.array([0.5, 0.5])) * Periodic(1.3, period=0.5 * s),
}
STACKS = "two stacks"
JITTER = 1e-6


def stacked_kernels(kernel: str, R: int) -> kernels.Kernel:
    """R latents, or two stacks of R/2 that have different kernels."""
    if kernel == STACKS:
        parts = (KERNELS[name](1.0) for name in ("rbf", "sum"))
        return kernels.Stacks(tuple(kernels.stack([part] * (R // 2)) for part in parts))
    return kernels.stack([KERNELS[kernel](scale) for scale in (1.0, 1.4)[:R]])


def surrogate_of(kernel: str, *, tied: bool = False, R: int = 2, Q: int = 3, M: int = 7):
    """Sums that clients could have sent, in NumPy; of no clients in particular."""
    rng = np.random.default_rng(3)
    R, Q = (1, 1) if tied else (R, Q)
    stacked = stacked_kernels(kernel, R)
    block = GlobalBlock(
        stacked, rng.uniform(size=(M, 2)), np.abs(rng.normal(size=(Q, R))) + 0.2, np.array(0.4)
    )
    P = len(theta_of(Structure(tied=tied), block))

    def spd(*shape: int) -> np.ndarray:
        G = rng.normal(size=(*shape, shape[-1] + 3))
        return G @ np.swapaxes(G, -1, -2) / shape[-1]

    def symmetric(*shape: int) -> np.ndarray:
        G = rng.normal(size=shape)
        return 0.5 * (G + np.swapaxes(G, -1, -2))

    sums = Statistics(
        evidence=np.array(-31.0),
        U=3.0 * spd(R * Q * M),
        y=3.0 * rng.normal(size=R * Q * M),
        shared_residual=0.1 * spd(R, Q),
        d_evidence=rng.normal(size=P),
        d_h=rng.normal(size=(P, R * M)),
        d_J=0.3 * symmetric(P, R * M, R * M),
        curvature=-spd(P),
        deviation_power=spd(Q),
        deviation_square=spd(Q),
        local_square=spd(Q),
        noise=spd(Q),
        clients=np.array(5.0),
        residual=np.array(0.3),
    )
    return Structure(tied=tied), on_numpy(Surrogate(block, sums))


def jaxed(tree):
    return jax.tree.map(jnp.asarray, tree)


def numpy_only(tree) -> bool:
    return all(isinstance(leaf, np.ndarray | np.generic) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
    ("kernel", "tied"),
    [(STACKS, False), *((kernel, tied) for kernel in KERNELS for tied in (False, True))],
)
def test_gradient_and_hessian_in_the_shared_parameters(kernel, tied):
    structure, surrogate = surrogate_of(kernel, tied=tied)
    found = surrogate_adjoints.derivatives(structure, surrogate, JITTER)
    expected = twins.compiled(lambda s: s.derivatives(structure, JITTER))(jaxed(surrogate))
    assert numpy_only(found)
    twins.assert_close(found[0], expected[0], 1e-9)
    twins.assert_close(found[1], expected[1], 1e-6)
    np.testing.assert_allclose(found[1], found[1].T, atol=1e-6 * np.abs(found[1]).max())


def test_gradient_in_the_loadings():
    structure, surrogate = surrogate_of("rbf")
    size = surrogate.block.loadings.size
    points = np.random.default_rng(0).normal(size=(4, size))
    objective = surrogate_adjoints.loadings_objective(surrogate)
    here = jaxed(surrogate)

    @twins.compiled
    @jax.value_and_grad
    def expected(z):
        return 0.5 * jnp.sum(z**2) - here.elbo(structure, z.reshape(here.block.loadings.shape))

    for point in points:
        value, gradient = objective(point[None], np.array([0]))
        twins.assert_close(value[0], expected(point)[0], 1e-12)
        twins.assert_close(gradient[0], expected(point)[1], 1e-11)


@pytest.mark.parametrize(
    ("tied", "learn", "radius"),
    [
        (False, True, 0.3),
        (False, True, 0.0),
        (False, False, 0.3),
        (True, True, 0.3),
        (True, True, 5.0),
    ],
)
def test_the_step_is_the_compiled_one(tied, learn, radius):
    structure, surrogate = surrogate_of("matern52", tied=tied)
    anchor = theta_of(structure, surrogate.block) - 0.2
    rest = (anchor, np.float64(radius), np.float64(JITTER))
    block, gain = server.improve(structure, learn, surrogate, *rest)
    expected, promised = server.improve.alone(structure, learn, *jaxed((surrogate, *rest)))
    assert numpy_only(block)
    for found, other in zip(jax.tree.leaves(block), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-6)
    assert float(gain) == pytest.approx(float(promised), rel=1e-7)
    if not tied:
        # What the search minimises is flat at its end. The ELBO alone is not: it would double the few 1e-9
        # in B_g that searches ending by different rules are apart.
        ends = [objective_at(structure, surrogate, b.loadings) for b in (block, expected)]
        assert ends[0] == pytest.approx(ends[1], rel=1e-12)


def objective_at(structure, surrogate, loadings) -> float:
    B = np.asarray(loadings)
    return 0.5 * np.sum(B**2) - float(surrogate.elbo(structure, B))


@pytest.mark.parametrize("tied", [False, True], ids=["loadings", "tied"])
@pytest.mark.parametrize("where", ["same inputs", "moved inputs", "more inputs"])
def test_values_and_carried_evidence_are_the_compiled_ones(where, tied):
    structure, surrogate = surrogate_of("matern32", tied=tied)
    block = surrogate.block
    target = with_theta(structure, block, theta_of(structure, block) + 0.1)
    if where != "same inputs":
        M = block.inputs.shape[0] + (where == "more inputs")
        target = dataclasses.replace(target, inputs=np.random.default_rng(1).uniform(size=(M, 2)))
    found = surrogate.carried(structure, target, JITTER)
    expected = twins.compiled(lambda s, b: s.carried(structure, b, JITTER))(surrogate, target)
    assert numpy_only(found)
    for here, there in zip(found, expected, strict=True):
        twins.assert_close(here, there, 1e-9)
    value = surrogate.elbo(structure, target.loadings)
    assert numpy_only(value)
    there = twins.surrogate_elbo(structure, jaxed(surrogate), target.loadings)
    twins.assert_close(value, there, 1e-12)


def test_sums_of_nobody_give_nan_and_no_exception():
    """J ≪ 0; the server then says that its step is not finite."""
    structure, surrogate = surrogate_of("rbf")
    sums = dataclasses.replace(surrogate.sums, U=-1e9 * np.eye(len(surrogate.sums.y)))
    bad = Surrogate(surrogate.block, sums)
    assert np.isnan(bad.elbo(structure, bad.block.loadings))
    for radius in (0.0, 0.3):
        rest = (theta_of(structure, bad.block), np.float64(radius), np.float64(JITTER))
        block, _ = server.improve(structure, True, bad, *rest)
        np.testing.assert_array_equal(block.loadings, bad.block.loadings)
        assert np.isnan(block.kernels.lengthscale).all() == (radius > 0.0)


class Wave(RBF):
    """A user's kernel, whose derivatives JAX alone knows."""

    def of_squared(self, squared):
        return namespace(squared).exp(-0.7 * squared)


def test_a_users_kernel_takes_the_compiled_derivatives():
    structure, surrogate = surrogate_of("rbf")
    block = dataclasses.replace(surrogate.block, kernels=Wave(surrogate.block.kernels.lengthscale))
    surrogate = dataclasses.replace(surrogate, block=block)
    rest = (theta_of(structure, block) - 0.2, np.float64(0.3), np.float64(JITTER))
    found, _ = server.improve(structure, True, surrogate, *rest)
    expected, _ = server.improve.alone(structure, True, *jaxed((surrogate, *rest)))
    assert numpy_only(found)
    np.testing.assert_allclose(found.kernels.lengthscale, expected.kernels.lengthscale, rtol=1e-9)


@pytest.mark.parametrize("tied", [False, True], ids=["loadings", "tied"])
def test_a_model_without_a_global_layer_takes_its_step(tied):
    structure, surrogate = surrogate_of("rbf", tied=tied)
    block, sums = surrogate.block, surrogate.sums
    block = dataclasses.replace(
        block,
        kernels=RBF(block.kernels.lengthscale[:0]),
        loadings=block.loadings[:, :0],
    )
    P = int(tied)  # φ alone, which nothing depends on
    sums = dataclasses.replace(
        sums,
        U=np.zeros((0, 0)),
        y=np.zeros(0),
        shared_residual=sums.shared_residual[:0],
        d_evidence=np.zeros(P),
        d_h=np.zeros((P, 0)),
        d_J=np.zeros((P, 0, 0)),
        curvature=np.zeros((P, P)),
    )
    empty = Surrogate(block, sums)
    gradient, hessian = surrogate_adjoints.derivatives(structure, empty, JITTER)
    assert (gradient.shape, hessian.shape) == ((P,), (P, P))
    theta = theta_of(structure, block)
    found, gain = server.improve(structure, True, empty, theta, np.float64(0.3), JITTER)
    assert found.loadings.shape == block.loadings.shape
    assert float(found.phi) == float(block.phi)
    assert float(gain) == 0.0
    assert float(empty.elbo(structure, block.loadings)) == -31.0


# ---------------------------------------------------------------------------------------- the server


@pytest.mark.parametrize("tied", [False, True], ids=["loadings", "tied"])
def test_the_server_compiles_nothing(tied, compilations):
    structure, surrogate = surrogate_of("sum", tied=tied)
    before = len(compilations)
    (sums,) = statistics_to_arrays(jax.tree.map(lambda a: a[None], surrogate.sums))
    outputs, latents = surrogate.block.loadings.shape
    spec = build_spec(
        inputs=surrogate.block.inputs.shape[1],
        outputs=outputs,
        kernel=kernels.RBF(),
        local_kernel=kernels.RBF(),
        layers=("global", "deviation", "local"),
        latents=latents,
        local_latents=1 if tied else 2,
        noise="auto",
    )
    assert spec.structure == structure
    sums["traits"] = np.zeros((traits.SUMS, traits.count_traits(spec)))
    party = server.StructuredServer(Structured(jitter=JITTER), spec, surrogate.block)
    for _ in range(5):
        party.request()
        party.gather(sums)
        party.advance()
    party.restore(party.state())
    party.gather(sums)
    posterior = party.finish()
    assert numpy_only((party.population(), posterior, party.block))
    assert np.isfinite(party.shared_nats())
    assert party.radius > 0.3
    assert len(compilations) == before
