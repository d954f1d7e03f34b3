"""The L-BFGS of `lbfgs` in NumPy: a batch of independent searches that are advanced together.

One iteration is one evaluation of each search, a trial point that is accepted (Armijo) or whose step is
shortened, as there. The inverse Hessian is in compact form: with pairs S and Y, R the upper triangle of
SᵀY, D its diagonal and γ the newest sᵀy/yᵀy,
    H g = γ g + S w − γ Y u,   u = R⁻¹ Sᵀg,   w = R⁻ᵀ ((D + γ YᵀY) u − γ Yᵀg)
R⁻¹ is kept instead of R: a pair that leaves takes its first row and column with it, a pair that comes adds
one column. So an iteration is a fixed number of array operations, whatever the number of searches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pfedhgp.inference.lbfgs import Pairs

Numbers = NDArray[np.float64]
Indices = NDArray[np.intp]
Loss = Callable[[Numbers, Indices], tuple[Numbers, Numbers]]
"""(points (k, D), which searches they belong to) → (values (k,), gradients (k, D))"""


class State(NamedTuple):
    """Where c searches are, and what they saw."""

    x: Numbers
    value: Numbers
    gradient: Numbers
    first_value: Numbers
    accepted: Indices
    """Points that were accepted, the start among them"""
    evaluations: Indices
    """How often each objective was evaluated"""
    S: Numbers
    Y: Numbers

    @property
    def pairs(self) -> Pairs:
        """For the next searches."""
        return Pairs(self.S, self.Y)


class _Search:
    """The searches that still run; every array has one row a search."""

    def __init__(
        self, start: Numbers, movable: Numbers, pairs: Pairs, gain: Numbers | float, share: float
    ) -> None:
        c, D = start.shape
        self.x, self.movable = start.copy(), movable > 0.0
        self.value, self.first_value = np.full(c, np.inf), np.full(c, np.inf)
        self.gradient, self.direction = np.zeros((c, D)), np.zeros((c, D))
        self.step, self.gain = np.ones(c), np.array(np.broadcast_to(gain, (c,)))
        self.share = np.full(c, share)
        self.S, self.Y = (np.array(each, np.float64) for each in pairs)
        products = self.S @ self.Y.swapaxes(1, 2)
        self.curvature = np.diagonal(products, axis1=1, axis2=2).copy()
        self.inverse = _inverse_triangle(products)
        """R⁻¹, zero for pairs that are not there"""
        self.products = self.Y @ self.Y.swapaxes(1, 2)
        """YᵀY"""
        self.accepted, self.evaluations = np.zeros(c, np.intp), np.zeros(c, np.intp)
        self.small, self.dry = np.zeros(c, np.intp), np.zeros(c, np.intp)
        """Steps in a row that gained little, and how often a step ran dry since one gained more"""

    def keep(self, going: NDArray[np.bool_]) -> None:
        """Leaves out the searches that have ended."""
        for name, array in vars(self).items():
            setattr(self, name, array[going])

    def result(self) -> State:
        return State(*(getattr(self, name) for name in State._fields))

    def take(self, x: Numbers, value: Numbers, gradient: Numbers) -> None:
        """Accepts or refuses one trial point a search."""
        gradient = np.where(self.movable, gradient, 0.0)
        slope = _dot(self.gradient, self.direction)
        finite = np.isfinite(value) & np.isfinite(gradient).all(axis=1)
        good = finite & (value <= self.value + 1e-4 * self.step * slope)
        self.evaluations += 1
        every = bool(good.all())
        if not every:
            self._refuse(~good, value, slope, finite)
        if every or good.any():
            self._accept(good, x, value, gradient)

    def _accept(
        self, good: NDArray[np.bool_], x: Numbers, value: Numbers, gradient: Numbers
    ) -> None:
        self.first_value = np.where(good & (self.accepted == 0), value, self.first_value)
        gained = self.value - value
        little, enough = gained < self.gain, gained < self.share * (self.first_value - value)
        small = np.where(enough, 2, np.where(little, self.small + 1, 0))
        self.small = np.where(good, small, self.small)
        self.dry[good & ~little] = 0
        self.accepted += good
        self._remember(good, x - self.x, gradient - self.gradient)
        rows = good[:, None]
        self.x, self.gradient = np.where(rows, x, self.x), np.where(rows, gradient, self.gradient)
        self.value = np.where(good, value, self.value)
        direction = self._newton()
        downhill = _dot(direction, self.gradient) < 0.0
        direction = np.where(downhill[:, None], direction, -self.gradient)
        # The newest pair is in the last place, so a search without one has none.
        known = downhill & (self.curvature[:, -1] > 0.0)
        step = np.where(known, 1.0, _first_step(self.gradient))
        self.direction = np.where(rows, direction, self.direction)
        self.step = np.where(good, step, self.step)

    def _refuse(
        self, bad: NDArray[np.bool_], value: Numbers, slope: Numbers, finite: NDArray[np.bool_]
    ) -> None:
        """Shortens the step by quadratic interpolation; forgets the curvature when that runs dry."""
        drop = value - self.value - self.step * slope
        curved = finite & (drop > 0.0)
        guess = -0.5 * slope * self.step**2 / np.where(curved, drop, 1.0)
        least = 0.1 * self.step
        step = np.where(curved, np.clip(guess, least, 0.5 * self.step), least)
        self.step = np.where(bad, step, self.step)
        dry = bad & (step < 1e-8)
        if dry.any():
            self.dry[dry] += 1
            self.step[dry] = 1e-3 * _first_step(self.gradient[dry])
            self.direction[dry] = -self.gradient[dry]
            for array in (self.curvature, self.S, self.Y, self.inverse, self.products):
                array[dry] = 0.0

    def _remember(self, good: NDArray[np.bool_], s: Numbers, y: Numbers) -> None:
        """Adds the pair (s, y) where its curvature is positive."""
        sy = _dot(s, y)
        useful = good & (sy > 1e-10 * _dot(y, y))
        k: slice | Indices = slice(None)
        if not useful.all():
            k = np.flatnonzero(useful)
            if not len(k):
                return
            s, y, sy = s[k], y[k], sy[k]
        for array, new in ((self.S, s), (self.Y, y), (self.curvature, sy)):
            array[k, :-1] = array[k, 1:]
            array[k, -1] = new
        for square in (self.inverse, self.products):
            square[k, :-1, :-1] = square[k, 1:, 1:]
        above = _times(self.S[k, :-1], y)
        self.inverse[k, :-1, -1] = _times(self.inverse[k, :-1, :-1], above) / -sy[:, None]
        self.inverse[k, -1, -1] = 1.0 / sy
        products = _times(self.Y[k], y)
        self.products[k, :, -1] = products
        self.products[k, -1] = products

    def _newton(self) -> Numbers:
        """−H g"""
        newest = self.products[:, -1, -1]
        gamma = np.where(newest > 0.0, self.curvature[:, -1] / newest, 1.0)[:, None]
        u = _times(self.inverse, _times(self.S, self.gradient))
        inner = _times(self.products, u) - _times(self.Y, self.gradient)
        w = _times(self.inverse.swapaxes(1, 2), self.curvature * u + gamma * inner)
        shared = gamma * (_times(self.Y.swapaxes(1, 2), u) - self.gradient)
        return shared - _times(self.S.swapaxes(1, 2), w)


def minimize(
    value_and_gradient: Loss,
    start: Numbers,
    *,
    evaluations: int,
    movable: Numbers,
    history: int = 10,
    settled: Numbers | float | None = None,
    share: float = 0.0,
    pairs: Pairs | None = None,
) -> State:
    """Minimises c objectives from `start` (c, D) with at most `evaluations` calls for all of them together.

    Coordinates whose `movable`, (D,) or (c, D), is 0 stay where they are. A search whose start is not finite
    ends at once. With `settled`, for all or for each, a search also ends when two accepted steps in a row
    gained less than that, when one gained less than `share` of all that was gained, or when its step has run
    dry twice. `pairs` are those of earlier searches.
    """
    start = np.array(start, np.float64)
    gain = -np.inf if settled is None else settled
    if pairs is None:
        empty = np.zeros((len(start), history, start.shape[1]))
        pairs = Pairs(empty, empty)
    free = np.broadcast_to(movable, start.shape)
    search = _Search(start, free, pairs.without_moves_of(free == 0.0), gain, share)
    which = np.arange(len(start))
    found = copy.deepcopy(search.result())
    with np.errstate(all="ignore"):
        for _ in range(evaluations):
            if not len(which):
                break
            x = search.x + search.step[:, None] * search.direction
            value, gradient = value_and_gradient(x, which)
            search.take(x, value, gradient)
            ended = search.accepted == 0
            if settled is not None:
                ended |= (search.small > 1) | (search.dry > 1)
            if ended.any():
                _put(found, search, which)
                search.keep(~ended)
                which = which[~ended]
    _put(found, search, which)
    return found


def _put(found: State, search: _Search, which: Indices) -> None:
    for array, new in zip(found, search.result(), strict=True):
        array[which] = new


def _first_step(gradient: Numbers) -> Numbers:
    norm = np.sqrt(_dot(gradient, gradient))
    return np.minimum(1.0, 1.0 / np.maximum(norm, 1e-12))


def _dot(a: Numbers, b: Numbers) -> Numbers:
    found: Numbers = np.einsum("cd,cd->c", a, b)
    return found


def _times(A: Numbers, x: Numbers) -> Numbers:
    """A x for each search."""
    found: Numbers = (A @ x[..., None])[..., 0]
    return found


def _inverse_triangle(products: Numbers) -> Numbers:
    """The inverse of the upper triangle; zero for pairs that are not there."""
    there = np.diagonal(products, axis1=1, axis2=2) > 0.0
    if not there.any():
        return np.zeros_like(products)
    both = there[:, :, None] & there[:, None, :]
    upper = np.where(both, np.triu(products), np.eye(products.shape[1]))
    found: Numbers = np.where(both, np.linalg.inv(upper), 0.0)
    return found
