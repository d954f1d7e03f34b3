"""The structured solver's server: what it keeps between exchanges, and its step.

The step is the exact maximum over B_g, a Newton step in θ_g inside a trust region, and a closed form for φ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pfedhgp.base.arrays_of import namespace
from pfedhgp.base.batching import batchable, on_host, on_numpy
from pfedhgp.gp import linalg
from pfedhgp.gp.kernel_adjoints import has_adjoints
from pfedhgp.inference import host_lbfgs, lbfgs
from pfedhgp.inference.arrays import (
    State,
    block_arrays,
    block_of,
    block_to_arrays,
    statistics_from_arrays,
)
from pfedhgp.inference.ending import NOISE
from pfedhgp.inference.grams import residual_of
from pfedhgp.inference.jitter import expect_finite, sufficient_jitter
from pfedhgp.inference.own_weights import population_of
from pfedhgp.inference.protocols import Arrays
from pfedhgp.inference.starts.candidates import halved
from pfedhgp.inference.structured import surrogate_adjoints, traits
from pfedhgp.inference.structured.bound import GlobalEvidence
from pfedhgp.inference.structured.surrogate import Surrogate
from pfedhgp.inference.structured.traits import SUMS, count_traits
from pfedhgp.model.blocks import GlobalBlock, Structure, of_global, theta_of, with_theta
from pfedhgp.model.posterior import GlobalPosterior, Population
from pfedhgp.model.spec import Spec

if TYPE_CHECKING:
    from pfedhgp.inference.structured.settings import Structured


LOADINGS_EVALUATIONS = 60
"""Most evaluations in the search for B_g, in each of the server's steps."""
SETTLED = 1e-9
"""The search for B_g ends when two steps in a row gained less than this, in nats."""


@batchable(static=2, effort="low", host=True)
def improve(
    structure: Structure,
    learn_shared: bool,
    surrogate: Surrogate,
    anchor: Array,
    radius: Array,
    jitter: Array,
) -> tuple[GlobalBlock, Array]:
    """The next block and the gain that the model of the bound promises; radius 0 freezes θ_g."""
    new = surrogate.block
    gain: Any = np.float64(0.0)
    if learn_shared and not (namespace(radius) is np and radius == 0.0):
        new, gain = _moved(structure, surrogate, anchor, radius, jitter)
    if structure.tied or structure.client_loadings:
        return new, gain
    loadings, more = _best_loadings(structure, surrogate)
    return replace(new, loadings=loadings), gain + more


def _best_loadings(structure: Structure, surrogate: Surrogate) -> tuple[Array, Array]:
    """argmax over B of F(θ₀, B) − ½|B|², and what it gains."""
    B = surrogate.block.loadings
    start = B.reshape(-1)
    if namespace(surrogate.sums.U, B) is np:
        batch = host_lbfgs.minimize(
            surrogate_adjoints.loadings_objective(surrogate),
            start[None],
            evaluations=LOADINGS_EVALUATIONS,
            movable=np.tile(of_global(surrogate.block), len(B)),
            settled=SETTLED,
        )
        return batch.x[0].reshape(B.shape), batch.first_value[0] - batch.value[0]

    def objective(z: Array) -> Array:
        return 0.5 * jnp.sum(z**2) - surrogate.elbo(structure, z.reshape(B.shape))

    found = lbfgs.minimize(
        objective,
        start,
        evaluations=LOADINGS_EVALUATIONS,
        movable=jnp.tile(of_global(surrogate.block), len(B)),
        settled=SETTLED,
    )
    return found.x.reshape(B.shape), found.first_value - found.value


def _moved(
    structure: Structure, surrogate: Surrogate, anchor: Array, radius: Array, jitter: Array
) -> tuple[GlobalBlock, Array]:
    """A Newton step in θ_g."""
    block = surrogate.block
    theta = theta_of(structure, block)
    xp = namespace(theta, surrogate.sums.U)
    gradient: Any
    hessian: Any
    if xp is not np:
        gradient, hessian = surrogate.derivatives(structure, jitter)
    elif has_adjoints(block.kernels):
        gradient, hessian = surrogate_adjoints.derivatives(structure, surrogate, jitter)
    else:
        gradient, hessian = on_numpy(_derivatives(structure, surrogate, jitter))
    gradient = gradient - 0.25 * (theta - anchor)
    hessian = hessian - 0.25 * xp.eye(theta.shape[0], dtype=theta.dtype)
    delta, gain = newton_in_box(gradient, hessian, radius)
    return with_theta(structure, block, theta + delta), gain


def newton_in_box(gradient: Array, hessian: Array, radius: Array) -> tuple[Array, Array]:
    """argmax of gᵀΔ + ½ΔᵀHΔ with H made negative definite, and the whole step shortened into |Δ| ≤ radius."""
    xp = namespace(gradient, hessian)
    if xp is np and not np.isfinite(hessian).all():  # NumPy's eigh would raise an error
        return np.nan * gradient, gradient @ gradient * np.nan
    values, vectors = xp.linalg.eigh(0.5 * (hessian + hessian.T))
    concave = -xp.maximum(xp.abs(values), 1e-6)
    delta = -vectors @ ((vectors.T @ gradient) / concave)
    largest = xp.max(xp.abs(delta), initial=0.0)
    delta = delta * xp.minimum(1.0, radius / xp.maximum(largest, 1e-300))
    return delta, gradient @ delta + 0.5 * delta @ (hessian @ delta)


def scale_of_deviations(power: Array, count: Array) -> Array:
    """argmax over φ of Π N(B̃; 0, φ) and a weak inverse-gamma prior, in log φ: (½Σ|B̃|² + b)/(½ entries + a).

    A prior is needed: without one, B̃ = 0 and φ = 0 together have an infinite density.
    """
    shape, scale = 0.5, 0.05
    return (0.5 * power + scale) / (0.5 * count + shape)


LOADINGS_WEIGHT, LOADINGS_SCALE = 2.0, 0.1
"""How many clients the expected spread of loadings counts for, and its variance, in scaled units."""


class PopulationSums(NamedTuple):
    """Σ b, Σ E[bbᵀ] and the number of clients, b = vec B_g,i."""

    loadings: np.ndarray
    square: np.ndarray
    clients: float

    @staticmethod
    def of(sums: Mapping[str, Any]) -> PopulationSums | None:
        """None where clients have no loadings of their own."""
        if sums.get("client_loadings") is None:
            return None
        own, square = (np.asarray(sums[f"client_loadings{end}"]) for end in ("", "_square"))
        return PopulationSums(own, square, float(sums["clients"]))


def with_population(block: GlobalBlock, sums: PopulationSums | None) -> GlobalBlock:
    """B_g and Σ_B as the mean and the covariance of clients' own loadings, from their sums.

    Σ_B = (Σ E[(b − b̄)(b − b̄)ᵀ] + ν s² I)/(T + ν): with the weak prior it stays away from 0, where clients
    could no longer differ.
    """
    if sums is None:
        return block
    count = sums.clients
    mean = sums.loadings / count
    flat = mean.reshape(-1)
    around = sums.square - count * np.outer(flat, flat)
    expected = LOADINGS_WEIGHT * LOADINGS_SCALE * np.eye(len(flat))
    spread = (0.5 * (around + around.T) + expected) / (count + LOADINGS_WEIGHT)
    return replace(block, loadings=mean, loadings_covariance=spread)


class StructuredServer:
    """θ_g, B_g, φ and the last sums. `request` says what to broadcast, `gather` takes the clients' sums."""

    def __init__(self, settings: Structured, spec: Spec, block: GlobalBlock) -> None:
        self.settings, self.spec = settings, spec
        self.block = block = on_numpy(block) if on_host() else block
        self.jitter = sufficient_jitter(block, settings.jitter)
        self.anchor = theta_of(spec.structure, block)
        size = block.loadings.shape[1] * block.inputs.shape[0]
        self.J, self.h = np.zeros((size, size)), np.zeros(size)
        self.round = 0
        self.affords: Callable[..., bool] | None = None
        """Whether clients answer about (kernels, inputs, jitter), with slopes or without; None: always"""
        self.held = False
        """Whether θ_g stays where it is from now on"""
        self.radius = settings.radius
        self.before: GlobalBlock | None = None
        self.bounds: list[float] = []
        self.total: Surrogate | None = None
        count = count_traits(spec)
        self.traits, self.traits_at = np.zeros((SUMS, count)), traits.Population.unknown(count)

    def request(self) -> dict[str, np.ndarray]:
        frozen = self.round <= self.settings.frozen_rounds
        count = self.settings.first_evaluations if frozen else self.settings.evaluations
        count = count if self.round else 0
        return {
            **block_to_arrays(self.block),
            "J": np.asarray(self.J),
            "h": np.asarray(self.h),
            "jitter": np.asarray(self.jitter),
            "kernels_free": np.asarray(0.0 if frozen else 1.0),
            "evaluations": np.asarray(float(count)),
            "traits": self.traits,
            "traits_at": np.stack(self.traits_at),
            "derivatives": np.asarray(1.0 if self._moves_before(self.round + 1) else 0.0),
        }

    def _moves_before(self, number: int) -> bool:
        """Whether θ_g moves on the way to round `number`: not while it is held, nor to the last round.

        Nothing could take back a step to the last round that lowers the bound. Training of a few rounds takes
        the chance.
        """
        held, rounds = self.settings.frozen_rounds, self.settings.rounds
        if not self.settings.learn_shared or self.held:
            return False
        return held < number < rounds or held < number == rounds <= held + 3

    def gather(self, sums: Arrays) -> float:
        """Takes the summed statistics and returns the bound at the block that was broadcast."""
        count = len(self.anchor) if self.settings.learn_shared else 0
        self.total = Surrogate(self.block, statistics_from_arrays(sums, count))
        bound = float(_elbo(self.spec.structure, self.total, self.block.loadings))
        expect_finite("the bound", bound, matrix="I + ΣJ")
        self.bounds.append(bound)
        self.traits_at = traits.updated(self.traits, self.traits_at, traits.wide_of(self.spec))
        self.traits = np.asarray(self.total.sums.traits)
        self.round += 1
        return bound

    def advance(self, inputs: np.ndarray | None = None) -> None:
        assert self.total is not None
        structure, total = self.spec.structure, self.total
        self._set_radius()
        moving = self._moves_before(self.round)
        new = self._improved(self.radius if moving else 0.0)
        if self._fell() and self.before is not None:
            new = with_theta(structure, new, theta_of(structure, self.before))
        if self.spec.deviation and not structure.tied:
            entries = total.sums.clients * self.spec.outputs * halved(self.spec)
            phi = scale_of_deviations(np.trace(total.sums.deviation_power), entries)
            new = replace(new, phi=np.asarray(phi))
        new = with_population(new, PopulationSums.of(vars(total.sums)))
        if inputs is None and total.sums.d_inputs is not None and moving:
            inputs = self._moved_inputs(np.asarray(total.sums.d_inputs))
        if inputs is not None:
            new = replace(new, inputs=np.asarray(inputs))
        expect_finite("the server's step", new, matrix="the global block")
        new = self._affordable(new)
        self.jitter = sufficient_jitter(new, self.jitter)
        self.before, self.block = self.block, new
        self.J, self.h = _carried(structure, total, new, np.float64(self.jitter))
        expect_finite("the evidence at the new block", (self.J, self.h), matrix="ΣJ, Σh")

    def _affordable(self, new: GlobalBlock) -> GlobalBlock:
        """`new`, or the same at the old θ_g if clients would not answer there. From then on θ_g is held."""
        if self.affords is None:
            return new
        slopes = self._moves_before(self.round + 1)
        jitter = sufficient_jitter(new, self.jitter)
        if not self.affords(new.kernels, new.inputs, jitter, slopes=slopes):
            self.held = True
            if not self.affords(new.kernels, new.inputs, jitter, slopes=False):
                theta = theta_of(self.spec.structure, self.block)
                return with_theta(self.spec.structure, new, theta)
        return new

    def _improved(self, radius: float) -> GlobalBlock:
        """The block after `improve`, θ_g moved by at most `radius`."""
        learn, jitter = self.settings.learn_shared, np.float64(self.jitter)
        structure, radius = self.spec.structure, np.float64(radius)
        return improve(structure, learn, self.total, self.anchor, radius, jitter)[0]

    def _moved_inputs(self, gradient: np.ndarray) -> np.ndarray:
        """Z_g uphill by at most a tenth of its spacing times the trust radius; back if the bound fell."""
        now = np.asarray(self.block.inputs)
        if self._fell() and self.before is not None and self.before.inputs.shape == now.shape:
            return np.asarray(self.before.inputs)
        spacing = len(now) ** (-1.0 / now.shape[1])
        steepest = max(float(np.abs(gradient).max()), 1e-300)
        step = 0.1 * self.radius / self.settings.radius * spacing
        return np.clip(now + step * gradient / steepest, 0.0, 1.0)

    def finish(self) -> GlobalPosterior:
        """The exact step in B_g at the last θ_g, and q(v_g) solved there."""
        assert self.total is not None
        structure, total = self.spec.structure, self.total
        block = with_population(self._improved(0.0), PopulationSums.of(vars(total.sums)))
        J, h = _carried(structure, total, block, np.float64(self.jitter))
        self.block = block
        self.bounds[-1] = float(_elbo(structure, total, block.loadings))
        mean, covariance = _moments(J, h)
        expect_finite("q(v_g)", (block, mean, covariance), matrix="I + ΣJ")
        return GlobalPosterior(block, mean, covariance)

    def shared_nats(self) -> float:
        """What the global inducing inputs cost, per client: ½ Σ res/σ² of the global and deviation layers."""
        assert self.total is not None
        sums, B = self.total.sums, self.block.loadings
        count = max(float(sums.clients), 1.0)
        of_global = residual_of(sums.shared_residual, B)
        typical = sums.deviation_power / (count * max(B.shape[1], 1))
        of_deviation = np.einsum("rqp,qp->", sums.shared_residual, typical)
        return 0.5 * float(of_global + of_deviation) / count

    def population(self) -> Population:
        assert self.total is not None
        sums = self.total.sums
        found = population_of(
            self.spec.structure,
            sums.deviation_square,
            sums.local_square,
            sums.noise,
            sums.clients,
        )
        told = traits.predicted(self.traits, self.traits_at, traits.wide_of(self.spec))
        return replace(found, traits=np.stack(told))

    def state(self) -> State:
        """What the next exchange depends on; the sums of the last one are used up."""
        arrays = {
            **block_arrays("block", self.block),
            **block_arrays("before", self.before),
            "anchor": np.asarray(self.anchor),
            "J": np.asarray(self.J),
            "h": np.asarray(self.h),
            "bounds": np.asarray(self.bounds, np.float64),
            "traits": self.traits,
            "traits_at": np.stack(self.traits_at),
        }
        plain = {"jitter": self.jitter, "turn": self.round, "radius": self.radius}
        return State(arrays, {**plain, "held": self.held})

    def restore(self, state: State) -> None:
        like = self.block.kernels
        block = block_of(state, "block", like)
        assert block is not None
        self.block, self.before = block, block_of(state, "before", like)
        self.anchor, self.J, self.h = (np.asarray(state.array(n)) for n in ("anchor", "J", "h"))
        self.bounds = state.array("bounds").tolist()
        if "traits" in state.arrays and state.array("traits").shape == self.traits.shape:
            self.traits = state.array("traits")
            self.traits_at = traits.Population(*state.array("traits_at"))
        self.jitter, self.radius = float(state.plain["jitter"]), float(state.plain["radius"])
        self.round, self.held = int(state.plain["turn"]), bool(state.plain.get("held", False))

    def _fell(self) -> bool:
        """Whether the last step lowered the bound by more than clients' own noise in it."""
        if len(self.bounds) < 2 or self.round <= self.settings.frozen_rounds + 1:
            return False
        clients = float(self.total.sums.clients) if self.total else 1.0
        return self.bounds[-1] < self.bounds[-2] - NOISE * clients

    def _set_radius(self) -> None:
        if self.round <= self.settings.frozen_rounds + 1:
            return
        grown = min(1.7 * self.radius, self.settings.largest_radius)
        self.radius = 0.4 * self.radius if self._fell() else grown


@batchable(static=1)
def _derivatives(structure: Structure, surrogate: Surrogate, jitter: Array) -> tuple[Array, Array]:
    return surrogate.derivatives(structure, jitter)


@batchable(static=1, host=True)
def _elbo(structure: Structure, total: Surrogate, loadings: Array) -> Array:
    return total.elbo(structure, loadings)


@batchable(static=1, host=True)
def _carried(
    structure: Structure, total: Surrogate, block: GlobalBlock, jitter: float
) -> GlobalEvidence:
    return total.carried(structure, block, jitter)


_moments = batchable(host=True)(linalg.posterior_moments)
