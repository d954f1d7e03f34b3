"""L-BFGS as a state machine that evaluates the objective exactly once per iteration.

Library versions nest a line search inside an iteration; under vmap every client then waits for the
slowest line search of the batch. Here one iteration is one evaluation: a trial point is accepted (Armijo)
and a new direction taken, or the step is shortened. A batch of clients does equal work, and a budget
of evaluations is met exactly. NaN counts as a failed trial. A search that has settled keeps what it has, and
a batch ends with its last search.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from pfedhgp.base.arrays_of import Array, namespace

Vector = Float[Array, " D"]
HISTORY = 40
"""The most pairs that a search keeps for the next one."""


class Pairs(NamedTuple):
    """Steps of a search and how gradients changed along them, newest last; zero: not there.

    A later search of nearly the same objective starts with them, and so with its curvature.
    """

    S: Float[Array, "*c h D"]
    Y: Float[Array, "*c h D"]

    @staticmethod
    def none(searches: int, size: int) -> Pairs:
        """Room for two pairs a coordinate: then nothing that was learned is lost."""
        empty = np.zeros((searches, min(2 * size, HISTORY), size))
        return Pairs(empty, empty)

    def of_some(self, which: Array | slice) -> Pairs:
        """Those of some searches."""
        return Pairs(self.S[which], self.Y[which])

    def without_moves_of(self, held: Bool[Array, "*c D"]) -> Pairs:
        """Without steps that moved a coordinate which is held now: they would move it again."""
        xp = namespace(self.S)
        moved = xp.any((self.S != 0.0) & held[..., None, :], axis=-1, keepdims=True)
        return Pairs(*(xp.where(moved, 0.0, each) for each in self))


class State(NamedTuple):
    """Where the search is, and what it saw."""

    x: Vector
    value: Array
    gradient: Vector
    direction: Vector
    step: Array
    S: Float[Array, "h D"]
    Y: Float[Array, "h D"]
    curvature: Float[Array, " h"]
    first_value: Array
    accepted: Array
    evaluations: Array
    """How often the objective was evaluated"""
    small: Array
    dry: Array
    """Steps in a row that gained little, and how often a step ran dry since one gained more"""

    @property
    def pairs(self) -> Pairs:
        """For the next search."""
        return Pairs(self.S, self.Y)


def minimize(
    objective: Callable[[Vector], Array],
    start: Vector,
    *,
    evaluations: int | Array,
    movable: Vector,
    history: int = 10,
    settled: float | Array | None = None,
    share: float | Array = 0.0,
    pairs: Pairs | None = None,
) -> State:
    """Minimises `objective` from `start` with `evaluations` calls of it and its gradient.

    Coordinates whose `movable` is 0 stay where they are. `evaluations` may be traced, and the objective is
    compiled once: the first iteration is the evaluation at the start. With `settled`, the search also ends
    when two accepted steps in a row gained less than that each, when one gained less than `share` of all that
    was gained, or when its step has run dry twice. `pairs` are those of an earlier search.
    """
    value_and_grad = jax.value_and_grad(objective)
    zero = jnp.zeros_like(start)
    empty, none = jnp.zeros((history, start.shape[0]), start.dtype), jnp.zeros((), jnp.int32)
    S, Y = (empty, empty) if pairs is None else pairs.without_moves_of(movable == 0.0)
    gain, most = -jnp.inf if settled is None else settled, jnp.asarray(evaluations)
    state = State(
        x=start,
        value=jnp.asarray(jnp.inf, start.dtype),
        gradient=zero,
        direction=zero,
        step=jnp.ones((), start.dtype),
        S=S,
        Y=Y,
        curvature=jnp.sum(S * Y, axis=1),
        first_value=jnp.asarray(jnp.inf, start.dtype),
        accepted=none,
        evaluations=jnp.zeros_like(most),
        small=none,
        dry=none,
    )

    def going(state: State) -> Array:
        more = state.evaluations < most
        return more if settled is None else more & (state.small < 2) & (state.dry < 2)

    def evaluate(state: State) -> State:
        x = state.x + state.step * state.direction
        value, gradient = value_and_grad(x)
        # A choice, not a product: a product would keep NaN.
        gradient = jnp.where(movable > 0.0, gradient, 0.0)
        slope = jnp.dot(state.gradient, state.direction)
        finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient))
        good = finite & (value <= state.value + 1e-4 * state.step * slope)
        state = state._replace(evaluations=state.evaluations + 1)
        accepted = _accept(state, x, value, gradient, gain, share)
        refused = _refuse(state, value, slope, finite)
        return jax.tree.map(lambda a, b: jnp.where(good, a, b), accepted, refused)

    last: State = jax.lax.while_loop(going, evaluate, state)
    return last


def _first_step(gradient: Vector) -> Array:
    return jnp.minimum(1.0, 1.0 / jnp.maximum(jnp.linalg.norm(gradient), 1e-12))


def _accept(
    state: State,
    x: Vector,
    value: Array,
    gradient: Vector,
    gain: float | Array,
    share: float | Array,
) -> State:
    first = jnp.where(state.accepted == 0, value, state.first_value)
    gained = state.value - value
    little, enough = gained < gain, gained < share * (first - value)
    s, y = x - state.x, gradient - state.gradient
    sy = jnp.dot(s, y)
    useful = sy > 1e-10 * jnp.dot(y, y)
    S = jnp.where(useful, jnp.concatenate([state.S[1:], s[None]]), state.S)
    Y = jnp.where(useful, jnp.concatenate([state.Y[1:], y[None]]), state.Y)
    kept = jnp.concatenate([state.curvature[1:], jnp.where(useful, sy, 1.0)[None]])
    curvature = jnp.where(useful, kept, state.curvature)
    direction = -_two_loop(gradient, S, Y, curvature)
    downhill = jnp.dot(direction, gradient) < 0.0
    direction = jnp.where(downhill, direction, -gradient)
    known = downhill & jnp.any(curvature > 0.0)
    step = jnp.where(known, 1.0, _first_step(gradient))
    return State(
        x,
        value,
        gradient,
        direction,
        step,
        S,
        Y,
        curvature,
        first,
        state.accepted + 1,
        state.evaluations,
        jnp.where(enough, 2, jnp.where(little, state.small + 1, 0)),
        jnp.where(little, state.dry, 0),
    )


def _refuse(state: State, value: Array, slope: Array, finite: Array) -> State:
    """Shortens the step by quadratic interpolation; forgets the curvature when that runs dry."""
    drop = value - state.value - state.step * slope
    guess = -0.5 * slope * state.step**2 / jnp.where(drop > 0.0, drop, 1.0)
    step = jnp.where(
        finite & (drop > 0.0), jnp.clip(guess, 0.1 * state.step, 0.5 * state.step), 0.1 * state.step
    )
    dry = step < 1e-8
    return state._replace(
        dry=jnp.where(dry, state.dry + 1, state.dry),
        step=jnp.where(dry, _first_step(state.gradient) * 1e-3, step),
        direction=jnp.where(dry, -state.gradient, state.direction),
        curvature=jnp.where(dry, 0.0, state.curvature),
        S=jnp.where(dry, 0.0, state.S),
        Y=jnp.where(dry, 0.0, state.Y),
    )


def _two_loop(gradient: Vector, S: Array, Y: Array, curvature: Array) -> Vector:
    """The inverse-Hessian product of L-BFGS; slots with curvature 0 are empty."""
    filled = curvature > 0.0
    rho = jnp.where(filled, 1.0 / jnp.where(filled, curvature, 1.0), 0.0)

    def down(q: Vector, slot: tuple) -> tuple[Vector, Array]:
        s, y, r = slot
        alpha = r * jnp.dot(s, q)
        return q - alpha * y, alpha

    def up(q: Vector, slot: tuple) -> tuple[Vector, None]:
        s, y, r, alpha = slot
        return q + s * (alpha - r * jnp.dot(y, q)), None

    q, alphas = jax.lax.scan(down, gradient, (S, Y, rho), reverse=True)
    newest = jnp.dot(Y[-1], Y[-1])
    gamma = jnp.where(filled[-1], curvature[-1] / jnp.where(newest > 0.0, newest, 1.0), 1.0)
    q, _ = jax.lax.scan(up, gamma * q, (S, Y, rho, alphas))
    return q
