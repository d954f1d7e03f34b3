"""Every message, both ways: which arrays it has, and when. docs/messages.md is this table as a page.

A message is made of fields; some are there only under a condition, and some below a prefix (`first.rows`).
The arrays that a check expects, their size limits and the page all come from here. No message has a row, or a
client's weights, inducing inputs or loadings: these never leave a client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pfedhgp.inference import messages as sent
from pfedhgp.inference.messages import COUNT, FLAG, NOT_NEGATIVE, Field, Range
from pfedhgp.inference.starts.shared_scale import LEAST_BINS, MOST_BINS

if TYPE_CHECKING:
    from pfedhgp.federation.message_checks import Case

SYMBOLS: Mapping[str, str] = {
    "d": "inputs",
    "Q": "outputs",
    "R": "latents of the shared layer",
    "M": "shared inducing inputs",
    "k": "parameters of the shared kernels",
    "P": "coordinates of θ_g: the kernel parameters, and with one output the variances",
    "E": "basis functions of the cycle layer",
    "F": "columns of the cycle layer's factor, at most Q·E",
    "H": "bins of the histogram",
    "L": "classes of distance",
    "W": "periods that are tried",
    "B": "bins along the input, twice the number that the request names",
    "G": "cells of the grid, times outputs",
    "S": "numbers of a sketch",
}
DELIVER, HELLO = "deliver", "hello"
OTHER = "other {}."
"""Before the arrays of the other starts that the first exchange of training compares."""
OTHER_STARTS = 2
"""The most other starts that a message may have."""
BINS = Range(
    f"whole, {LEAST_BINS} to {MOST_BINS}",
    lambda a: COUNT.holds(a) and np.all((a >= LEAST_BINS) & (a <= MOST_BINS)),
)


class When(NamedTuple):
    """A condition, in words and as a test."""

    words: str
    holds: Callable[[Case], bool]


ALWAYS = When("", lambda case: True)
STRUCTURED = When("inference is structured", lambda case: case.plan.inference.name == "structured")
MEAN_FIELD = When("inference is mean-field", lambda case: not STRUCTURED.holds(case))
KNOWN_DOMAIN = When("`domain` is given", lambda case: case.plan.domain is not None)
UNKNOWN_DOMAIN = When("no `domain` is given", lambda case: case.plan.domain is None)
OPEN_PERIOD = When("a kernel leaves its period open", lambda case: case.open_periods)
BINS_ASKED = When("the server asks for bins", lambda case: "bins" in case.request)
HAS_CYCLES = When("there is a cycle layer", lambda case: case.plan.cycles is not None)
STRETCHED = When("a few rows stretch the domain", lambda case: "crowd" in case.request)
DECIDED = When('`learn_inducing="auto"` decided that they move', lambda case: case.decided_to_learn)
NOT_FIRST = When("another start than the first was best", lambda case: "chosen" in case.request)
MOVES = When("the request asks for derivatives", lambda case: bool(case.request["derivatives"]))
LEARNS = When(
    "shared inducing inputs are learned, after the opening", lambda case: case.learns_inputs
)


@dataclass(frozen=True)
class Part:
    """Content that is there `when` a condition holds, with `prefix` before its names.

    What several messages have in common has a `title`, and a table of its own on the page.
    """

    content: Content
    when: When = ALWAYS
    prefix: str = ""
    title: str = ""


Content = tuple[Field | Part, ...]


@dataclass(frozen=True)
class Exchange:
    """A request of the server and the clients' replies."""

    name: str
    when: str
    meaning: str
    only: When = ALWAYS
    """Runs that have it."""
    request: Content = ()
    reply: Content = ()
    missed: tuple[str, ...] = ()
    """Requests that a site which was away gets with this one, each below `missed/<kind>/`."""
    setup: bool = False
    """Whether it comes before training, and so in round 0."""
    federated: bool = True
    """Whether sites on other machines answer it."""


_SCALING = Part(
    (
        Field("lower", "d", "where the domain of each input begins"),
        Field("upper", "d", "where it ends"),
        Field("centre", "Q", "centre of each output"),
        Field("spread", "Q", "spread of each output", NOT_NEGATIVE),
    ),
    title="the scaling",
)
_LAGS = Part((*sent.LAGS, Part(sent.WAVES, OPEN_PERIOD)), title="sums by distance")
_LAYER = Part(sent.LAYER, title="the cycle layer")
_CYCLE_SUMS = Part(sent.CYCLE_SUMS, title="sums over cycles")
_COORDINATES = Part(sent.COORDINATES, title="mean-field coordinates")
_BLOCK = Part(sent.BLOCK, title="the shared block")
_BROADCAST = Part(
    (
        Part((_BLOCK, *sent.TOTALS), STRUCTURED),
        Part((_COORDINATES,), MEAN_FIELD, "free."),
        *sent.JITTER,
    ),
    title="the broadcast",
)
_ATTEMPT = Field("attempt", "", "number of the restart, from 0", COUNT)
_SQUARES = Part((*sent.SQUARES, *sent.CLIENTS), title="mean squares")
_STATISTICS = Part(
    (*sent.SUMS, _SQUARES, Part(sent.DERIVATIVES, MOVES), Part(sent.INPUT_GRADIENT, LEARNS)),
    title="structured statistics",
)
_FITTED = Part(
    (_BLOCK, *sent.POSTERIOR, *sent.JITTER, _ATTEMPT), title="the fitted shared function"
)
_POPULATION = (
    Field("deviation_power", "Q Q", "mean of f_δ f_δᵀ over clients"),
    Field("local_power", "Q Q", "mean of f_l f_lᵀ"),
    Field("noise", "Q Q", "mean of Σ"),
    Field(
        "division", "Q Q", "covariance of the error in the split into shared layer and deviations"
    ),
    Field("clients", "", "number of clients", COUNT),
)
_SEED = Field("seed", "", "public seed of the sketch")
_SKETCH = Field("sketch", "S", "random projection of the deviation + local function")
_COVERAGE = Field("coverage", "G", "share of the variance that its rows explain, by cell")

_ALL = (
    Exchange(
        "census",
        "first",
        "Counts and sums of the rows, for scales that all agree on.",
        reply=(*sent.MOMENTS, Part((_LAGS,), KNOWN_DOMAIN)),
        setup=True,
    ),
    Exchange(
        "extent",
        "after the census",
        "Where rows lie along each input, and how fast outputs vary.",
        only=UNKNOWN_DOMAIN,
        request=(
            Field("centre", "d", "mean of each input over all clients"),
            Field("spread", "d", "standard deviation of each input", NOT_NEGATIVE),
            Part((Field("bins", "", "number of bins for sums along the input", BINS),), BINS_ASKED),
        ),
        reply=(*sent.HISTOGRAM, _LAGS, Part(sent.BINS, BINS_ASKED)),
        setup=True,
    ),
    Exchange(
        "cycles",
        "before the start; again if cycles lack cells, until the layer has settled",
        "Sums over cycles around their mean: of the first half of the cycles, and of the rest.",
        only=HAS_CYCLES,
        request=(_SCALING, _LAYER),
        reply=(
            Part((_CYCLE_SUMS,), prefix="first."),
            Part((_CYCLE_SUMS,), prefix="rest."),
            *sent.CYCLES,
        ),
        setup=True,
    ),
    Exchange(
        "start",
        "at the start of training, and of each restart",
        "Statistics at each start that is compared; with mean-field it is the first round.",
        request=(
            _BROADCAST,
            *sent.SCALES,
            Part((_BROADCAST, *sent.SCALES), prefix=OTHER),
            _SCALING,
            Part((_LAYER,), HAS_CYCLES),
            Part((Field("periods", "d", "starting period along each input"),), OPEN_PERIOD),
            Part((Field("crowd", "2 d", "limits around nearly all rows"),), STRETCHED),
            Part((Field("learn", "", "shared inducing inputs move", FLAG),), DECIDED),
            _ATTEMPT,
        ),
        reply=(
            Part((_STATISTICS, Part((_STATISTICS,), prefix=OTHER)), STRUCTURED),
            Part((_COORDINATES,), MEAN_FIELD),
        ),
        missed=("cycles",),
    ),
    Exchange(
        "round",
        "once a round",
        "Statistics after the client's step; with mean-field its gradient in each coordinate.",
        request=(
            _BROADCAST,
            Part((Field("chosen", "", "number of the start that was best", COUNT),), NOT_FIRST),
        ),
        reply=(Part((_STATISTICS,), STRUCTURED), Part((_COORDINATES,), MEAN_FIELD)),
        missed=("cycles", "start"),
    ),
    Exchange(
        "finish",
        "after the last round",
        "The fitted shared function. Mean-field clients reply with their mean squares.",
        request=(_FITTED,),
        reply=(Part((_SQUARES,), MEAN_FIELD),),
        missed=("cycles", "start"),
    ),
    Exchange(
        DELIVER,
        "last, to sites on other machines",
        "The fitted shared function and what an unseen client is like, for the site's model file.",
        request=(_FITTED, Part(_POPULATION, prefix="population.")),
        missed=("cycles", "start"),
    ),
    Exchange(
        HELLO,
        "when a site without a key connects",
        "Asks a site for its name.",
        federated=False,
    ),
    Exchange(
        "zones",
        "if `cluster` is called",
        "A random sketch of each client's own function.",
        request=(
            Field("grid", "", "cells of the grid, times outputs"),
            Field("size", "", "numbers of the sketch"),
            _SEED,
        ),
        reply=(
            _SKETCH,
            Field("variance", "", "mean variance of the function"),
            Field("coverage", "", "mean share of the variance that its rows explain"),
        ),
        federated=False,
    ),
    Exchange(
        "zones: coverage",
        "then, from each client with few rows",
        "Where its rows lie, which the server hands on to all clients.",
        reply=(_COVERAGE,),
        federated=False,
    ),
    Exchange(
        "zones: few rows",
        "then, once for each client with few rows",
        "A sketch of each client's function next to these rows.",
        request=(_COVERAGE, _SEED),
        reply=(_SKETCH,),
        federated=False,
    ),
)
EXCHANGES: Mapping[str, Exchange] = {exchange.name: exchange for exchange in _ALL}
KINDS = tuple(dict.fromkeys(n.partition(":")[0] for n in EXCHANGES if n not in (DELIVER, HELLO)))
"""What messages call themselves: the name of their exchange up to a colon."""
