"""The arrays of a federated diagnosis: every one is declared here, once. See `pfedhgp.inference.messages`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from pfedhgp.diagnosis.candidates import PAIRS
from pfedhgp.diagnosis.federated.folds import BINS
from pfedhgp.diagnosis.federated.tails import COARSE, FINE
from pfedhgp.inference.messages import COUNT, FLAG, NOT_NEGATIVE, POSITIVE, Field, Range

RUNS, CURVES, SPREAD, SUMS, JUDGE, AVERAGE, STRANGERS, LIMITS = KINDS = tuple(
    f"diagnosis-{name}"
    for name in ("runs", "curves", "spread", "sums", "judge", "average", "strangers", "limits")
)
SYMBOLS: Mapping[str, str] = {
    "C": "classes of a diagnosis",
    "n": "samples of a cycle",
    "U": "channels that move",
    "D": "coordinates of a cycle",
    "g": "matrices: C if classes have their own, else 1",
    "f": "folds that a message is about",
    "c": "candidates for the covariance",
    "a": "covariances that are compared by how well they show strangers",
    "r": 'covariances by which "none of these" goes: 1 or 2',
    "v": "kinds of surprise: 3 + U",
    "b": "bins of the hash of a run",
    "s": "pairs of a temperature and an evenly dealt share, and one more",
    "z": "bins of a ratio, 6% wide",
    "x": "bins of a ratio, 0.4% wide",
}
FIXED = {"b": BINS, "s": len(PAIRS) + 1, "z": len(COARSE), "x": len(FINE)}
FOLD = Range("whole, ≥ −1", lambda a: np.all((a >= -1.0) & (a == np.floor(a))))
SHARE = Range("from 0 to 1", lambda a: np.all((a >= 0.0) & (a <= 1.0)))

ALONE = (Field("alone", "", "each cycle counts as a run", FLAG),)
COUNTS = (
    Field("samples", "", "number of samples of a cycle", COUNT),
    Field("runs", "C b", "number of runs of each class, by a hash of their values", COUNT),
    Field("cycles", "C", "number of cycles of each class", COUNT),
)
SAMPLES = (Field("samples", "", "number of samples of a cycle", COUNT),)
CURVE_SUMS = (
    Field("grid", "n d", "where the samples are; the same at every site"),
    Field("seen", "C Q n", "number of cycles with a value there", COUNT),
    Field("total", "C Q n", "sum of the values there"),
)
USED = Field("used", "Q", "whether the channel moves", FLAG)
GRID = Field("grid", "n d", "where the samples are")
CURVE_MEANS = (Field("curves", "C Q n", "mean of each class, channel and sample"),)
GAP_SUMS = (
    Field("gaps", "Q", "squared distances from the class's mean, summed", NOT_NEGATIVE),
    Field("squares", "Q", "squared values, summed", NOT_NEGATIVE),
    Field("neighbours", "Q", "products of neighbouring cycles about the class's mean, summed"),
    Field("alike", "Q", "what that would be if they were equal", NOT_NEGATIVE),
    Field("pairs", "", "number of neighbouring cycles", COUNT),
)
SPACE = (
    GRID,
    USED,
    Field("centre", "U n", "mean curve of each channel"),
    Field("unit", "U", "one unit of each channel", POSITIVE),
    Field("rank", "", "coordinates of a channel", COUNT),
    *CURVE_MEANS,
    Field("fold", "C b", "fold of each run, by the hash of its values", FOLD),
    *ALONE,
    Field("own", "", "classes have matrices of their own", FLAG),
    Field("folds", "f", "folds that are asked for; −1: runs that are never held out", FOLD),
)
RUN_SUMS = (
    Field("runs", "f C", "B, number of runs", COUNT),
    Field("cycles", "f C", "number of cycles", COUNT),
    Field("inverse", "f C", "Σ 1/n_b over runs of n_b cycles", NOT_NEGATIVE),
    Field("means", "f C D", "Σ ȳ_b, sum of run means"),
    Field("between", "f g D D", "Σ ȳ_b ȳ_bᵀ", triangle="symmetric"),
    Field("within", "f g D D", "Σ (y − ȳ_b)(y − ȳ_b)ᵀ over cycles", triangle="symmetric"),
    Field("outside", "f U", "what the coordinates leave out, squared and summed", NOT_NEGATIVE),
)
CANDIDATES = (
    Field(
        "candidates",
        "c 4",
        "covariances: number of the target, shrinkage, a class's own or shared, heavy or not",
        NOT_NEGATIVE,
    ),
)
LOSSES = (
    Field(
        "losses", "c s", "log-loss of held-out runs at each pair (τ, ε); last, runs that are right"
    ),
    Field("lda", "3", "runs that LDA has right, its log-loss, and held-out runs, summed"),
)
COMPARED = Field("compared", "a", "numbers of the candidates that are compared", COUNT)
AVERAGED = (
    USED,
    *CANDIDATES,
    Field("weights", "c", "weight of each candidate", SHARE),
    Field("temperatures", "c", "τ of each candidate", POSITIVE),
    Field("even", "c", "ε of each candidate: the share that is dealt out evenly", SHARE),
    Field("cycles", "", "number of training cycles", COUNT),
    COMPARED,
)
SCORES = (
    Field(
        "scores", "3", "runs that the average has right, its log-loss, and held-out runs, summed"
    ),
    Field(
        "largest",
        "a C v z",
        "held-out runs by their largest ratio, with each class left out",
        COUNT,
    ),
)
STRANGER_LIMITS = (
    USED,
    *CANDIDATES,
    COMPARED,
    Field("limits", "a C v", "largest ratio of a known run, with each class left out", POSITIVE),
)
BEYOND = (
    Field("beyond", "a C z", "cycles of the class left out, by how far they are beyond", COUNT),
)
REFERENCE = (
    USED,
    *CANDIDATES,
    Field("references", "r", "numbers of the candidates that are used", COUNT),
    Field("noise", "U", "mean square outside of the coordinates, of each channel", NOT_NEGATIVE),
)
SURPRISE = (
    Field("largest", "r v x", "held-out runs by their largest ratio", COUNT),
    Field(
        "directions", "r 2", "directions between classes, summed over sites; number of sites", COUNT
    ),
    Field(
        "typical",
        "2 x",
        "held-out runs by d²/D under the first of these: of their cycles, of their means",
        NOT_NEGATIVE,
    ),
)

CLASSIFIER = (
    GRID,
    USED,
    Field("centre", "U n", "mean curve of each channel"),
    Field("unit", "U", "one unit of each channel", POSITIVE),
    Field("rank", "", "coordinates of a channel", COUNT),
    Field("own", "", "classes have matrices of their own", FLAG),
    Field("runs", "C", "B, number of runs", COUNT),
    Field("cycles", "C", "number of cycles", COUNT),
    Field("inverse", "C", "Σ 1/n_b over runs of n_b cycles", NOT_NEGATIVE),
    Field("means", "C D", "Σ ȳ_b, sum of run means"),
    Field("between", "g D D", "Σ ȳ_b ȳ_bᵀ", triangle="symmetric"),
    Field("within", "g D D", "Σ (y − ȳ_b)(y − ȳ_b)ᵀ over cycles", triangle="symmetric"),
    Field("outside", "U", "what the coordinates leave out, squared and summed", NOT_NEGATIVE),
)
"""What a site classifies with; candidates, weights and thresholds are in the delivery's summary."""


class Asked(NamedTuple):
    """An exchange: its kind, when it comes, what it is for, and the fields of both messages by title."""

    kind: str
    when: str
    meaning: str
    request: Mapping[str, tuple[Field, ...]]
    reply: Mapping[str, tuple[Field, ...]]


_SPACE, _SUMS = {"the coordinates": SPACE}, {"sums over runs": RUN_SUMS}
EXCHANGES = (
    Asked(
        RUNS,
        "after the extent; again if every class has one run",
        "How many runs and cycles of each class there are, for folds of whole runs.",
        {"": ALONE},
        {"": COUNTS},
    ),
    Asked(
        CURVES,
        "then",
        "The grid, and sums of the cycles of each class.",
        {"": SAMPLES},
        {"": CURVE_SUMS},
    ),
    Asked(
        SPREAD,
        "then",
        "How far cycles are from the mean of their class: the unit of each channel.",
        {"": (GRID, *CURVE_MEANS)},
        {"": GAP_SUMS},
    ),
    Asked(
        SUMS,
        "then, once or more often, each time for some folds",
        "Sums over the runs of each fold.",
        _SPACE,
        _SUMS,
    ),
    Asked(
        JUDGE,
        "then, in the same way",
        "How well held-out runs fit under each covariance; the sums are those of all other runs.",
        {**_SPACE, **_SUMS, "": CANDIDATES},
        {"": LOSSES},
    ),
    Asked(
        AVERAGE,
        "then",
        "How the average of the covariances does, and how surprising held-out runs are.",
        {"": AVERAGED},
        {"": SCORES},
    ),
    Asked(
        STRANGERS,
        "then, if covariances are compared",
        "How well each covariance shows cycles of a class that it does not know.",
        {"": STRANGER_LIMITS},
        {"": BEYOND},
    ),
    Asked(
        LIMITS,
        "then",
        'How surprising known runs are: the thresholds of "none of these".',
        {"": REFERENCE},
        {"": SURPRISE},
    ),
)
