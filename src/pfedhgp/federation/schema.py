"""Every message, both ways: which arrays it has, and when. docs/messages.md is this table as a page.

Checks, size limits and the page come from here. Rows, weights and own loadings are in no message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pfedhgp.diagnosis.federated import messages as diagnosis
from pfedhgp.inference import messages as sent
from pfedhgp.inference.messages import COUNT, FLAG, NOT_NEGATIVE, POSITIVE, SPREAD, Field, Range
from pfedhgp.inference.starts.shared_scale import LEAST_BINS, MOST_BINS

if TYPE_CHECKING:
    from pfedhgp.federation.message_checks import Case

SYMBOLS: Mapping[str, str] = {
    "d": "inputs",
    "Q": "outputs",
    "R": "latents of the shared layer",
    "V": "Q, or 1 with `client_loadings`: then U and y are J and h",
    "M": "shared inducing inputs",
    "k": "parameters of the shared kernels",
    "P": "coordinates of θ_g: the kernel parameters, and with one output the variances",
    "E": "basis functions of the cycle layer",
    "F": "columns of the cycle layer's factor, at most Q·E",
    "H": "bins of the histogram",
    "L": "classes of distance",
    "W": "periods that are tried",
    "K": "classes of magnitude, 2⁻⁶³ to 2⁶⁴",
    "B": "bins along the input, twice the number that the request names",
    "G": "cells of the grid, times outputs",
    "S": "numbers of a sketch",
    "t": "traits: logarithms of a client's local kernel parameters, noise and, with one output, sizes",
    **diagnosis.SYMBOLS,
}
DELIVER, HELLO, RELEASE, ALARM = "deliver", "hello", "release", "alarm"
OTHER = "other {}."
"""Before the arrays of the other starts that are compared, and of the other models in a contest."""
OTHER_STARTS, OTHERS_IN_CONTEST = 2, 11
"""The most other starts that a message may have; if kernels are chosen, three for each of four models."""
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
MARKOV = When("inference is markov", lambda case: case.plan.inference.name == "markov")
NOT_MARKOV = When("inference is structured or mean-field", lambda case: not MARKOV.holds(case))
MEAN_FIELD = When(
    "inference is mean-field", lambda case: not (STRUCTURED.holds(case) or MARKOV.holds(case))
)
KNOWN_DOMAIN = When("`domain` is given", lambda case: case.plan.domain is not None)
UNKNOWN_DOMAIN = When("no `domain` is given", lambda case: case.plan.domain is None)
PLAIN = When("there are no `masks`", lambda case: not case.plan.masks)
MASKED = When("there are `masks`", lambda case: case.plan.masks)
OPEN_PERIOD = When("a kernel leaves its period open", lambda case: case.open_periods)
BINS_ASKED = When("the server asks for bins", lambda case: "bins" in case.request)
KERNELS_CHOSEN = When("kernels are chosen in training", lambda case: bool(case.plan.specs))
CONTEST = When("kernels or numbers of latents are chosen", lambda case: case.plan.chooses)
HAS_CYCLES = When("there is a cycle layer", lambda case: case.plan.cycles is not None)
DIAGNOSED = When("`diagnose`", lambda case: case.plan.diagnosis is not None)
STRETCHED = When("a few rows stretch the domain", lambda case: "crowd" in case.request)
DECIDED = When('`learn_inducing="auto"` decided that they move', lambda case: case.decided_to_learn)
NOT_FIRST = When("another start than the first was best", lambda case: "chosen" in case.request)
BY_LEVEL = When('`noise="level"`', lambda case: case.plan.spec.noise == "level")
OWN_LOADINGS = When("`client_loadings`", lambda case: case.plan.spec.client_loadings)
MOVES = When("the request asks for derivatives", lambda case: bool(case.request["derivatives"]))
MACHINES = When("sites are on other machines", lambda case: True)
LEARNS = When("inducing inputs are learned, after the opening", lambda case: case.learns_inputs)


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
_LAGS = Part(
    (*sent.LAGS, Part(sent.WAVES, OPEN_PERIOD), Part(sent.FORMS, KERNELS_CHOSEN)),
    title="sums by distance",
)
_CANDIDATE = Part(
    (Field("candidate", "", "number of the model, in the order of the settings", COUNT),), CONTEST
)
_LAYER = Part(sent.LAYER, title="the cycle layer")
_CYCLE_SUMS = Part(sent.CYCLE_SUMS, title="sums over cycles")
_COORDINATES = Part(sent.COORDINATES, title="mean-field coordinates")
_BLOCK = Part(
    (
        *sent.BLOCK,
        Part(sent.LOADINGS_COVARIANCE, OWN_LOADINGS),
        Part(sent.NOISE_LEVELS, BY_LEVEL),
    ),
    title="the shared block",
)
_BROADCAST = Part(
    (
        Part((_BLOCK, *sent.TOTALS), STRUCTURED),
        Part((_BLOCK, *sent.KNOT_REQUEST), MARKOV),
        Part((_COORDINATES,), MEAN_FIELD, "free."),
        *sent.JITTER,
        _CANDIDATE,
    ),
    title="the broadcast",
)
_CHOSEN = Part((Field("chosen", "", "number of the start that was best", COUNT),), NOT_FIRST)
_ATTEMPT = Field("attempt", "", "number of the restart, from 0", COUNT)
_SQUARES = Part((*sent.SQUARES, *sent.CLIENTS), title="mean squares")
_STATISTICS = Part(
    (
        *sent.SUMS,
        _SQUARES,
        Part(sent.CLIENT_LOADINGS, OWN_LOADINGS),
        Part(sent.DERIVATIVES, MOVES),
        Part(sent.INPUT_GRADIENT, LEARNS),
    ),
    title="structured statistics",
)
_FITTED = Part(
    (
        _BLOCK,
        Part(sent.POSTERIOR, NOT_MARKOV),
        Part(sent.KNOTS, MARKOV),
        *sent.JITTER,
        _ATTEMPT,
        _CANDIDATE,
    ),
    title="the fitted shared function",
)
_KNOT_SUMS = Part((*sent.KNOT_SUMS, Part(sent.LEVEL_SUMS, BY_LEVEL)), title="sums at the knots")
_POPULATION = (
    Field("deviation_power", "Q Q", "mean of f_δ f_δᵀ over clients"),
    Field("local_power", "Q Q", "mean of f_l f_lᵀ"),
    Field("noise", "Q Q", "mean of Σ"),
    Field(
        "division", "Q Q", "covariance of the error in the split into shared layer and deviations"
    ),
    Field("clients", "", "number of clients", COUNT),
    Part((Field("traits", "2 t", "mean and variance of a client's traits", SPREAD),), STRUCTURED),
    Part(
        (
            Field("traits", "2 3Q", "mean and variance of its log (ℓ, b², σ²)", SPREAD),
            Field("tails", "", "κ, the kurtosis of the noise", POSITIVE),
        ),
        MARKOV,
    ),
)
_SEED = Field("seed", "", "public seed of the sketch", COUNT)
_CELLS = Field("grid", "", "cells of the grid, times outputs", COUNT)
_REVEALED = Part(
    (Field("r2", "", "R² with which all that it sent for zones reproduces its rows, two digits"),),
    MACHINES,
)
_SKETCH = Field("sketch", "S", "random projection of the deviation + local function")
_COVERAGE = Field("coverage", "G", "share of the variance that its rows explain, by cell")

_DIAGNOSIS = tuple(
    Exchange(
        each.kind,
        each.when,
        each.meaning,
        only=DIAGNOSED,
        request=tuple(Part(fields, title=title) for title, fields in each.request.items()),
        reply=tuple(Part(fields, title=title) for title, fields in each.reply.items()),
        setup=True,
    )
    for each in diagnosis.EXCHANGES
)
_ALL = (
    Exchange(
        "magnitude",
        "first, about zero, and again about the centre that follows",
        "How large numbers are, so that later sums fit fixed point.",
        only=MASKED,
        request=sent.CENTRES,
        reply=sent.MAGNITUDES,
        setup=True,
    ),
    Exchange(
        "census",
        "first, or after `magnitude`",
        "Counts and sums of the rows, for scales that all agree on.",
        request=(Part((*sent.CENTRES, *sent.UNITS), MASKED),),
        reply=(
            *sent.COUNTS,
            Part(sent.MOMENTS, PLAIN),
            Part(sent.MASKED_MOMENTS, MASKED),
            Part((_LAGS,), KNOWN_DOMAIN),
        ),
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
            Part((Field("y_unit", "Q", "unit of outputs in sums by distance", POSITIVE),), MASKED),
        ),
        reply=(*sent.HISTOGRAM, _LAGS, Part(sent.BINS, BINS_ASKED)),
        setup=True,
    ),
    Exchange(
        "cycles",
        "before the start; again if cycles lack cells, until the layer has converged",
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
    *_DIAGNOSIS,
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
            Part((_KNOT_SUMS, Part((_KNOT_SUMS,), prefix=OTHER)), MARKOV),
            Part((_COORDINATES,), MEAN_FIELD),
        ),
        missed=("cycles",),
    ),
    Exchange(
        "round",
        "once a round",
        "Statistics after the client's step; with mean-field its gradient in each coordinate.",
        request=(_BROADCAST, _CHOSEN, Part((_BROADCAST, _CHOSEN), CONTEST, OTHER)),
        reply=(
            Part((_STATISTICS, Part((_STATISTICS,), CONTEST, OTHER)), STRUCTURED),
            Part((_KNOT_SUMS, Part((_KNOT_SUMS,), CONTEST, OTHER)), MARKOV),
            Part((_COORDINATES,), MEAN_FIELD),
        ),
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
        request=(
            _FITTED,
            Part(_POPULATION, prefix="population."),
            Part(diagnosis.CLASSIFIER, DIAGNOSED, "diagnosis."),
        ),
        reply=(Field(ALARM, "1", "1: alone, the site predicts its held-out rows better", FLAG),),
        missed=("cycles", "start"),
    ),
    Exchange(
        RELEASE,
        "in a run with differential privacy: all requests before the delivery",
        "With local, once: the site's noisy sums on the public basis, `gram`, `linear` and `scales`. With "
        "distributed and central, four times: `missing`, `linear` and moments of the site's own noisy "
        "matrix; asked about a `centre`, `spread`; twice, at `parameters`, `expected`. With distributed all "
        "answers are behind masks. The delivery then has the totals, the parameters and how sure they are.",
        federated=False,
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
        request=(_CELLS, Field("size", "", "numbers of the sketch", COUNT), _SEED),
        reply=(
            _SKETCH,
            Field("variance", "", "mean variance of the function"),
            Field("coverage", "", "mean share of the variance that its rows explain"),
            _REVEALED,
        ),
        federated=False,
    ),
    Exchange(
        "zones: loadings",
        "instead, if clients have loadings of their own",
        "How each client mixes the shared functions.",
        reply=(
            Field("loadings", "Q R", "B_g,i, the client's own loadings on the shared functions"),
            Field("information", "", "p: how sure they are, a precision in units of functions"),
            _REVEALED,
        ),
        federated=False,
    ),
    Exchange(
        "zones: coverage",
        "after a sketch, from each client with few rows",
        "Where its rows lie, which the server hands on to all clients.",
        request=(Part((_CELLS,), MACHINES),),
        reply=(_COVERAGE,),
        federated=False,
    ),
    Exchange(
        "zones: few rows",
        "then, once for each client with few rows",
        "A sketch of each client's function next to these rows.",
        request=(
            _COVERAGE,
            Field("size", "", "numbers of the sketch", COUNT),
            _SEED,
            Field("key", "", "a number that stands for the client with few rows", COUNT),
        ),
        reply=(_SKETCH, _REVEALED),
        federated=False,
    ),
    Exchange(
        "zones: groups",
        "then, to sites on other machines",
        "Which group the site is in. It sends nothing.",
        request=(
            Field("group", "", "number of its group, from 1; 0: it is in none", COUNT),
            Field("groups", "", "number of groups", COUNT),
        ),
        federated=False,
    ),
)
EXCHANGES: Mapping[str, Exchange] = {exchange.name: exchange for exchange in _ALL}
KINDS = tuple(dict.fromkeys(n.partition(":")[0] for n in EXCHANGES if n not in (DELIVER, HELLO)))
"""What messages call themselves: the name of their exchange up to a colon."""
