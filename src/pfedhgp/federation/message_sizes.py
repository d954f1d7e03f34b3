"""What a message's symbols stand for and which of its parts are there, given the plan and the request.

The model gives d, Q, R, k and P. M, E, F and B are in the request: the server chooses them within the plan's
limits, and both sides read them from its arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pfedhgp.errors import MessageError
from pfedhgp.federation.plan import LARGEST_INDUCING, Plan
from pfedhgp.federation.schema import EXCHANGES, OTHER, OTHER_STARTS, Expected, expected
from pfedhgp.inference.arrays import tree_to_arrays
from pfedhgp.inference.fields import Field
from pfedhgp.inference.starts.census import HISTOGRAM_BINS, LAG_EDGES
from pfedhgp.inference.starts.periodogram import PERIODS
from pfedhgp.model.spec import open_periods, starting_kernels, with_periods

Arrays = Mapping[str, np.ndarray]
LARGEST_BASIS = 4096
"""Basis functions of a cycle layer that are accepted at most, if their number is left open."""
FIXED = {"H": HISTOGRAM_BINS, "L": len(LAG_EDGES) - 1, "W": len(PERIODS)}
"""Symbols that stand for the same number in every run."""


def of_request(plan: Plan, kind: str, request: Arrays) -> Expected:
    """What a request has to look like, given its own numbers of inducing inputs and basis functions."""
    return expected(EXCHANGES[kind].request, Case(plan, request))


def of_reply(plan: Plan, kind: str, request: Arrays) -> Expected:
    """What a client answers to a request."""
    return expected(EXCHANGES[kind].reply, Case(plan, request))


def largest_request(plan: Plan, kind: str) -> Expected:
    """The largest request of a kind that the plan allows, with every part that may be there."""
    d, E, M = plan.spec.inputs, _largest_basis(plan), _largest_inducing(plan)
    wide = plan.spec.outputs * E
    shapes = {"inputs": (M, d), "cycle_inputs": (E, d), "cycle_factor": (wide, wide)}
    shapes |= {OTHER.format(n + 1) + "inputs": (M, d) for n in range(OTHER_STARTS)}
    optional = dict.fromkeys(("bins", "chosen", "crowd", "learn"), ())
    # Views of one number, which take no memory.
    arrays = {name: np.broadcast_to(0.0, shape) for name, shape in (shapes | optional).items()}
    return of_request(plan, kind, arrays)


@dataclass(frozen=True)
class Case:
    """One exchange of a run: `case["M"]` is what M stands for, the properties say which parts are there."""

    plan: Plan
    request: Arrays

    def __getitem__(self, symbol: str) -> int:
        return FIXED[symbol] if symbol in FIXED else _SIZES[symbol](self)

    def named(self, field: Field) -> dict[str, tuple[int, ...]]:
        """The field's arrays by name; those of a kernel are as many as its parameters."""
        if not field.name.endswith("*"):
            return {field.name: field.sent_shape(self)}
        return {field.name[:-1] + name: np.shape(leaf) for name, leaf in self.kernels.items()}

    def others(self) -> dict[str, Case]:
        """The starts that are compared with the first, by the prefix of their arrays."""
        found: dict[str, dict[str, np.ndarray]] = {}
        for name, array in self.request.items():
            prefix, dot, own = name.partition(".")
            if dot and prefix.startswith(OTHER.partition("{")[0]):
                found.setdefault(prefix + dot, {})[own] = array
        known = [OTHER.format(number + 1) for number in range(OTHER_STARTS)]
        if set(found) != set(known[: len(found)]):
            raise MessageError(f"other starts are numbered from 1, and at most {OTHER_STARTS}")
        return {prefix: Case(self.plan, arrays) for prefix, arrays in found.items()}

    # which parts are there -----------------------------------------------------------------------

    @property
    def structured(self) -> bool:
        return self.plan.inference.name == "structured"

    @property
    def open_periods(self) -> bool:
        return open_periods(self.plan.spec)

    @property
    def decided_to_learn(self) -> bool:
        return self._learn_inducing == "auto" and "learn" in self.request

    @property
    def learns_inputs(self) -> bool:
        """Z_g moves with θ_g. Plans that left it open are asked when it is decided (`inference_of`)."""
        moves = getattr(self.plan.inference, "learn_shared", True)
        opening = not (self.request["evaluations"] or self.request["derivatives"])
        return self._learn_inducing is True and bool(moves) and not opening

    @property
    def _learn_inducing(self) -> bool | str:
        return getattr(self.plan.inference, "learn_inducing", False)

    @cached_property
    def kernels(self) -> dict[str, np.ndarray]:
        """Parameters of the shared kernels, of the right shapes; an open period is a parameter too."""
        ones = np.ones(self.plan.spec.inputs)
        spec = with_periods(self.plan.spec, ones)
        kernels = starting_kernels(spec.kernel, scale=0.2, count=spec.latents, extent=ones)
        return tree_to_arrays(kernels)

    def length(self, name: str, most: int, axis: int = 0) -> int:
        """Of a matrix of the request, which may come from anywhere: it is checked before it is believed."""
        array = self.request.get(name)
        if array is None or array.ndim != 2 or array.shape[axis] > most:
            side = ("rows", "columns")[axis]
            raise MessageError(f"the matrix `{name}` must have at most {most} {side}")
        return array.shape[axis]


_SIZES: Mapping[str, Callable[[Case], int]] = {
    "d": lambda case: case.plan.spec.inputs,
    "Q": lambda case: case.plan.spec.outputs,
    "R": lambda case: case.plan.spec.latents,
    "k": lambda case: sum(leaf.size for leaf in case.kernels.values()),
    "P": lambda case: case["k"] + (case.plan.spec.structure.tied and case["Q"] * case["R"] + 1),
    "M": lambda case: case.length(
        "free.inputs" if "free.inputs" in case.request else "inputs", _largest_inducing(case.plan)
    ),
    "E": lambda case: case.length("cycle_inputs", _largest_basis(case.plan)),
    "F": lambda case: case.length("cycle_factor", case["Q"] * case["E"], axis=1),
    "B": lambda case: 2 * int(case.request["bins"]),
}


def _largest_inducing(plan: Plan) -> int:
    if plan.inducing != "auto":
        return int(plan.inducing)
    return LARGEST_INDUCING if plan.largest_inducing is None else plan.largest_inducing


def _largest_basis(plan: Plan) -> int:
    if plan.cycles is None:
        return 0
    return LARGEST_BASIS if plan.cycles.basis == "auto" else int(plan.cycles.basis)
