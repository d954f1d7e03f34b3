"""Whether a message from another machine is one of ours: checked before anything in it is used.

Both sides compare run, exchange and hash, and look for exactly the arrays that the schema expects, of their
shapes and within their ranges. Size is limited: a reply may have four times the bytes that are expected, a
request four times those of the largest of its kind that the settings allow. The round of a request follows
from its exchange.

The model gives the schema's symbols d, Q, R, k and P. M, E, F and B are in the request: the server chooses
them within the plan's limits, and both sides read them from its arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pfedhgp.diagnosis.federated import messages as diagnosis
from pfedhgp.diagnosis.federated.terms import LARGEST_SAMPLES, LARGEST_SIZE
from pfedhgp.diagnosis.strangers import REFERENCES
from pfedhgp.errors import MessageError
from pfedhgp.federation.envelope import Envelope, Refused
from pfedhgp.federation.messages import hash_arrays
from pfedhgp.federation.plan import LARGEST_INDUCING, Plan
from pfedhgp.federation.schema import (
    DELIVER,
    EXCHANGES,
    OTHER,
    OTHER_STARTS,
    OTHERS_IN_CONTEST,
    Content,
)
from pfedhgp.inference.arrays import tree_to_arrays
from pfedhgp.inference.messages import Field, Range
from pfedhgp.inference.starts.census import HISTOGRAM_BINS, LAG_EDGES
from pfedhgp.inference.starts.periodogram import PERIODS
from pfedhgp.inference.starts.totals import CLASSES
from pfedhgp.inference.structured.traits import count_traits
from pfedhgp.model.spec import Spec, open_periods, starting_kernels, with_periods

Arrays = Mapping[str, np.ndarray]
SLACK = 4
"""A message may be this many times as large as expected before it is refused unread."""
LARGEST_SHARES = 100 * 1024
"""Bytes that keys and shares of masks take in one message, at most: 1 kB for each of 100 sites."""
HEADER = 256
"""Bytes that an array takes beside its numbers, at most."""
SETUP = tuple(each.name for each in EXCHANGES.values() if each.setup)
"""Requests before the first start, all of round 0."""
MOST_FOLDS, MOST_CANDIDATES = 64, 256
"""Folds of a diagnosis in one message, and candidates for its covariance, at most."""
LARGEST_GRID = 16_384
"""Cells of a grid for zones, times outputs, at most."""
LARGEST_BASIS = 4096
"""Basis functions of a cycle layer that are accepted at most, if their number is left open."""
FIXED = {
    **{"H": HISTOGRAM_BINS, "L": len(LAG_EDGES) - 1, "W": len(PERIODS), "K": CLASSES},
    **diagnosis.FIXED,
}
"""Symbols that stand for the same number in every run."""

# ------------------------------------------------------------------------- what a message looks like


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
        most = _most_others(self.plan)
        known = [OTHER.format(number + 1) for number in range(most)]
        if set(found) != set(known[: len(found)]):
            raise MessageError(f"other starts are numbered from 1, and at most {most}")
        return {prefix: Case(self.plan, arrays) for prefix, arrays in found.items()}

    @property
    def spec(self) -> Spec:
        """The model that the request is about."""
        number = self.request.get("candidate")
        if number is None or not self.plan.chooses:
            return self.plan.spec
        models = self.plan.candidates
        if np.shape(number) or float(number) not in range(len(models)):
            raise MessageError(f"`candidate` must be below {len(models)}")
        return models[int(number)]

    @property
    def open_periods(self) -> bool:
        return any(open_periods(spec) for spec in self.plan.candidates)

    @property
    def decided_to_learn(self) -> bool:
        return self.plan.learn_inducing == "auto" and "learn" in self.request

    @property
    def learns_inputs(self) -> bool:
        """Z_g moves with θ_g. Plans that left it open are asked when it is decided (`inference_of`)."""
        moves = getattr(self.plan.inference, "learn_shared", True)
        opening = not (self.request["evaluations"] or self.request["derivatives"])
        return self.plan.learn_inducing is True and bool(moves) and not opening

    @cached_property
    def kernels(self) -> dict[str, np.ndarray]:
        """Parameters of the shared kernels, of the right shapes; an open period is a parameter too."""
        ones = np.ones(self.spec.inputs)
        spec = with_periods(self.spec, ones)
        kernels = starting_kernels(spec.kernel, scale=0.2, count=spec.latents, extent=ones)
        return tree_to_arrays(kernels)

    def length(self, name: str, most: int, axis: int = 0) -> int:
        """Rows or columns of a matrix in the request, which may come from anywhere and is checked first."""
        array = self._asked(name)
        if array is None or array.ndim != 2 or array.shape[axis] > most:
            side = ("rows", "columns")[axis]
            raise MessageError(f"the matrix `{name}` must have at most {most} {side}")
        return array.shape[axis]

    def entries(self, name: str, most: int) -> np.ndarray:
        """A list of finite numbers in the request."""
        array = self._asked(name)
        if array is None or array.ndim != 1 or len(array) > most or not np.isfinite(array).all():
            raise MessageError(f"`{name}` must have at most {most} numbers")
        return array

    def whole(self, name: str, most: int) -> int:
        """A whole number in the request."""
        array = self._asked(name)
        if array is None or np.shape(array) or float(array) not in range(most + 1):
            raise MessageError(f"`{name}` must be a whole number of at most {most}")
        return int(array)

    def _asked(self, name: str) -> np.ndarray | None:
        """An array of the request, or of the classifier in it."""
        return self.request.get(name, self.request.get(f"diagnosis.{name}"))


_SIZES: Mapping[str, Callable[[Case], int]] = {
    "d": lambda case: case.plan.spec.inputs,
    "Q": lambda case: case.plan.spec.outputs,
    "R": lambda case: case.spec.latents,
    "V": lambda case: 1 if case.plan.spec.client_loadings else case["Q"],
    "k": lambda case: sum(leaf.size for leaf in case.kernels.values()),
    "P": lambda case: case["k"] + (case.spec.structure.tied and case["Q"] * case["R"] + 1),
    "t": lambda case: count_traits(with_periods(case.spec, np.ones(case["d"]))),
    "M": lambda case: case.length(
        "free.inputs" if "free.inputs" in case.request else "inputs", _largest_inducing(case.plan)
    ),
    "E": lambda case: case.length("cycle_inputs", _largest_basis(case.plan)),
    "F": lambda case: case.length("cycle_factor", case["Q"] * case["E"], axis=1),
    "B": lambda case: 2 * int(case.request["bins"]),
    "C": lambda case: 0 if case.plan.diagnosis is None else len(case.plan.diagnosis.classes),
    "n": lambda case: (
        case.whole("samples", LARGEST_SAMPLES)
        if "samples" in case.request
        else case.length("grid", LARGEST_SAMPLES)
    ),
    "U": lambda case: int(case.entries("used", case["Q"]).sum()),
    "D": lambda case: case["U"] * case.whole("rank", _largest_rank(case.plan)),
    "g": lambda case: case["C"] if case.whole("own", 1) else 1,
    "f": lambda case: len(case.entries("folds", MOST_FOLDS)),
    "c": lambda case: case.length("candidates", MOST_CANDIDATES),
    "a": lambda case: len(case.entries("compared", MOST_CANDIDATES)),
    "r": lambda case: len(case.entries("references", REFERENCES)),
    "v": lambda case: 3 + case["U"],
    "G": lambda case: (
        len(case.entries("coverage", LARGEST_GRID))
        if "coverage" in case.request
        else case.whole("grid", LARGEST_GRID)
    ),
    "S": lambda case: case.whole("size", case["G"]),
}


def _largest_rank(plan: Plan) -> int:
    assert plan.diagnosis is not None
    return min(plan.diagnosis.largest_rank, LARGEST_SIZE)


def _most_others(plan: Plan) -> int:
    return OTHERS_IN_CONTEST if plan.chooses else OTHER_STARTS


def _largest_inducing(plan: Plan) -> int:
    if plan.inducing != "auto":
        return int(plan.inducing)
    return LARGEST_INDUCING if plan.largest_inducing is None else plan.largest_inducing


def _largest_basis(plan: Plan) -> int:
    if plan.cycles is None:
        return 0
    return LARGEST_BASIS if plan.cycles.basis == "auto" else int(plan.cycles.basis)


class Sent(NamedTuple):
    """What is expected of one array."""

    shape: tuple[int, ...]
    range: Range


Expected = Mapping[str, Sent]


def arrays_of(content: Content, case: Case) -> dict[str, Sent]:
    """The names, shapes and ranges of a message's arrays."""
    found: dict[str, Sent] = {}
    for item in content:
        if isinstance(item, Field):
            found |= {name: Sent(shape, item.range) for name, shape in case.named(item).items()}
            continue
        cases = case.others() if item.prefix == OTHER else {item.prefix: case}
        for prefix, own in cases.items() if item.when.holds(case) else ():
            found |= {prefix + name: each for name, each in arrays_of(item.content, own).items()}
    return found


def of_request(plan: Plan, kind: str, request: Arrays) -> Expected:
    """What a request has to look like, given its own numbers of inducing inputs and basis functions."""
    return arrays_of(EXCHANGES[kind].request, Case(plan, request))


def of_reply(plan: Plan, kind: str, request: Arrays) -> Expected:
    """What a client answers to a request."""
    return arrays_of(EXCHANGES[kind].reply, Case(plan, request))


def _largest_arrays(plan: Plan, kind: str) -> Expected:
    """The largest request of a kind that the plan allows, with every part that may be there."""
    d, E, M = plan.spec.inputs, _largest_basis(plan), _largest_inducing(plan)
    wide = plan.spec.outputs * E
    shapes: dict[str, tuple[int, ...]] = {
        "inputs": (M, d),
        "cycle_inputs": (E, d),
        "cycle_factor": (wide, wide),
    }
    if plan.diagnosis is not None:
        shapes |= {"grid": (LARGEST_SAMPLES, d), "candidates": (MOST_CANDIDATES, 4)}
        shapes |= {"folds": (plan.diagnosis.folds + 1,), "compared": (MOST_CANDIDATES,)}
        shapes["references"] = (REFERENCES,)
    others = [OTHER.format(n + 1) for n in range(_most_others(plan))]
    shapes |= {other + "inputs": (M, d) for other in others}
    optional = dict.fromkeys(("bins", "chosen", "crowd", "learn"), ())
    # Views of one number, which take no memory.
    arrays = {name: np.broadcast_to(0.0, shape) for name, shape in (shapes | optional).items()}
    models = range(len(plan.candidates))
    largest = max(models, key=lambda n: plan.candidates[n].latents)
    arrays |= {prefix + "candidate": np.asarray(float(largest)) for prefix in ("", *others)}
    if plan.diagnosis is not None:
        arrays |= {"used": np.ones(plan.spec.outputs), "own": np.ones(())}
        arrays |= {"rank": np.asarray(float(_largest_rank(plan)))}
    return of_request(plan, kind, arrays)


# ----------------------------------------------------------------------------------------- checks


def check_arrays(arrays: Arrays, expected: Expected) -> None:
    """The names, shapes and dtypes of `expected`, and nothing else; finite, and within their ranges."""
    if set(arrays) != set(expected):
        lacking, more = sorted(set(expected) - set(arrays)), len(set(arrays) - set(expected))
        raise Refused("malformed", f"it lacks {lacking or 'no array'}, and has {more} unknown")
    for name, array in arrays.items():
        if array.dtype != np.float64 or array.shape != expected[name].shape:
            shapes = f"{array.shape} of {array.dtype} and not {expected[name].shape} of float64"
            raise Refused("malformed", f"`{name}` is {shapes}")
    for name, array in arrays.items():
        if not np.all(np.isfinite(array)):
            raise Refused("not-finite", f"`{name}`")
        if not expected[name].range.holds(array):
            raise Refused("out-of-range", f"`{name}` must be: {expected[name].range.words}")


def size_of(expected: Expected) -> int:
    """Bytes on the wire, about."""
    return sum(8 * int(np.prod(sent.shape)) + HEADER for sent in expected.values())


def largest_reply(expected: Expected) -> int:
    """Bytes from which a reply is refused unread."""
    return SLACK * max(size_of(expected), HEADER)


def largest_request(plan: Plan, kind: str) -> int:
    """Bytes from which a request is refused; a site that was away is told earlier requests with it."""
    parts = [kind, *(each for each in EXCHANGES[kind].missed if _is_asked(plan, each))]
    sizes = (size_of(_largest_arrays(plan, each)) for each in parts)
    return SLACK * (HEADER + sum(sizes) + (LARGEST_SHARES if plan.masks else 0))


def finish_is_answered(plan: Plan) -> bool:
    """Whether clients reply to the last request; if so, the delivery is an exchange of its own."""
    return bool(of_reply(plan, "finish", {}))


def check_request(request: Envelope, plan: Plan, last: tuple[int, int] | None = None) -> None:
    """At the site: what the server asks, and the requests that it says were missed.

    `last` is exchange and round of the last request that the site has answered, if that was after the setup.
    """
    check_kind(request, plan)
    own, missed = request.parts()
    allowed = [each for each in EXCHANGES[request.kind].missed if _is_asked(plan, each)]
    if not set(missed) <= set(allowed):
        raise Refused("malformed", f"of earlier requests it may have {allowed or 'none'}")
    for kind, arrays in ((request.kind, own), *missed.items()):
        try:
            expected = of_request(plan, kind, arrays)
        except MessageError as error:
            raise Refused("malformed", str(error)) from None
        check_arrays(arrays, expected)
    # The delivery has no hash, because no arrays come back.
    if request.block != ("" if request.kind == DELIVER else hash_arrays(own)):
        raise Refused("malformed", "the hash is not that of the arrays")
    _check_round(request, plan, last)


def check_kind(request: Envelope, plan: Plan) -> None:
    """Whether a federation on these terms asks such a thing at all."""
    if not _is_asked(plan, request.kind):
        raise Refused("malformed", "a federation on these terms has no such request")


def _is_asked(plan: Plan, kind: str) -> bool:
    exchange = EXCHANGES.get(kind)
    return exchange is not None and exchange.federated and exchange.only.holds(Case(plan, {}))


def _check_round(request: Envelope, plan: Plan, last: tuple[int, int] | None) -> None:
    """Rounds and exchanges go on together from the first start, the round 0, through all restarts.

    So a round follows from its exchange. A cycle layer may be asked for more than once, and a diagnosis has
    several exchanges: then the round lies within a bound, and follows from the last one that was answered.
    """
    # Masks begin with one or two exchanges about magnitudes.
    for before in (1, 2) if plan.masks else (0,):
        if _belongs(request, plan, last, before):
            return
    raise Refused("malformed", "the round does not belong to the exchange")


def _belongs(request: Envelope, plan: Plan, last: tuple[int, int] | None, first: int) -> bool:
    """Whether round and exchange fit, if `first` exchanges came before the census."""
    setup = first + 1 + (plan.domain is None) + (plan.cycles is not None)
    open_end = plan.cycles is not None or plan.diagnosis is not None
    if request.kind in SETUP:
        known = {"magnitude": first, "census": first + 1, "extent": first + 2, "cycles": setup}
        place = known.get(request.kind, setup + 1)
        again = request.kind not in ("magnitude", "census", "extent") and request.exchange > place
        return request.round == 0 and (request.exchange == place or again)
    # If `finish` is answered, the delivery is one exchange more in the same round.
    more = request.kind == DELIVER and finish_is_answered(plan)
    before = request.exchange - request.round - more
    if open_end and last is not None:
        return before == last[0] - last[1]
    return before == setup + 1 or (open_end and before > setup + 1)
