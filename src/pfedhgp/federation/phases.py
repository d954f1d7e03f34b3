"""The server's phases, and what they hand on: the census, what training starts from, what it ended with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from pfedhgp.data.scaling import Scaling
from pfedhgp.diagnosis.training import Training
from pfedhgp.federation import telling
from pfedhgp.federation.plan import LARGEST_INDUCING, Plan
from pfedhgp.federation.robust.declared import Declared
from pfedhgp.inference.arrays import block_to_arrays
from pfedhgp.inference.cycles.exchange import CycleServer
from pfedhgp.inference.starts import candidates, census, ranks
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.inference.starts.census import Scales
from pfedhgp.model.global_posterior import to_arrays
from pfedhgp.model.posterior import GlobalPosterior, Population
from pfedhgp.model.spec import Spec, with_periods

Sums = dict[str, np.ndarray]


class Phase(Protocol):
    """One kind of exchange: what the server asks for, and what it does with the summed replies.

    A phase that has `see` gets each reply before it is summed.
    """

    @property
    def kind(self) -> str: ...

    def request(self) -> dict[str, np.ndarray]:
        """The arrays of the broadcast."""

    def take(self, sums: Sums, senders: Sequence[str]) -> Outcome:
        """Takes the sum of the replies of `senders`."""


class Outcome(NamedTuple):
    """The phase that comes next (None: the server is done), and the record of a round of training."""

    phase: Phase | None
    record: dict[str, Any] | None = None


@dataclass(frozen=True)
class Counted:
    """The census: sums over all clients' rows."""

    sums: Sums
    clients: int
    by_client: Mapping[str, int] = field(default_factory=dict)
    """With privacy="sums": rows of each client's least observed output; empty with masks"""

    @property
    def told(self) -> telling.Rows:
        """What says how much clients may be asked."""
        cells = self.cells
        return telling.Rows(
            int(cells[cells > 0].min(initial=self.rows)), self.clients, self.by_client
        )

    @property
    def rows(self) -> int:
        return int(self.sums["rows"][0])

    @property
    def rows_a_client(self) -> float:
        return self.rows / self.clients

    @property
    def cells(self) -> np.ndarray:
        """Observed cells of each output."""
        return np.diagonal(self.sums["y_pairs"])

    @property
    def cells_a_client(self) -> float:
        return float(self.cells.sum()) / self.clients

    @property
    def x_centre(self) -> np.ndarray:
        return np.asarray(self.sums["x_sum"] / self.sums["rows"])

    @property
    def x_spread(self) -> np.ndarray:
        return census.pooled_spread(self.sums)


@dataclass(frozen=True)
class Prepared:
    """What training starts from: all that the server knows of the data before the first round."""

    plan: Plan
    counted: Counted
    spec: Spec
    """The plan's, with the periods that the data say"""
    scaling: Scaling
    scales: Scales
    shared_is_short: bool = False
    """Whether clients have the shorter of the two scales in common"""
    periods: np.ndarray | None = None
    """Starting period of each input, in the data's units, if a kernel leaves its period open"""
    crowd: np.ndarray | None = None
    """(lower, upper) of nearly all rows, if a few others stretch the domain"""
    cycles: CycleServer | None = None
    shortlist: tuple[int, ...] = ()
    """Numbers of the models that are trained side by side, if there is a choice"""
    candidate: int = 0
    """Number of the model that `spec` is"""
    most: int | None = None
    """The most global inducing inputs while models are trained side by side"""

    def about(self, candidate: int) -> Prepared:
        """The same for another model of the plan."""
        spec = self.plan.candidates[candidate]
        if self.periods is not None:
            spec = with_periods(spec, self.periods)
        return replace(self, spec=spec, candidate=candidate)

    @property
    def named(self) -> dict[str, np.ndarray]:
        """What messages say of which model they are about, if there is a choice."""
        return {"candidate": np.asarray(float(self.candidate))} if self.plan.chooses else {}

    @property
    def moment(self) -> np.ndarray:
        """E[yyᵀ] of the scaled outputs."""
        sums, spread = self.counted.sums, self.scaling.spread
        pairs = np.maximum(sums["y_pairs"], 1.0)
        return np.asarray(sums["y_cross"] / pairs / (spread[:, None] * spread[None, :]))

    @property
    def cells(self) -> int:
        """Cells of all rows, observed or not: a rate may follow their number."""
        return self.counted.rows * self.spec.outputs

    @property
    def most_inducing(self) -> int:
        """No more than there are rows; with cycles, which lie on one grid, than a client has rows."""
        rows = self.counted.rows if self.cycles is None else self.counted.rows_a_client
        most = min(self.largest_inducing, max(int(rows), 1), self.most or self.largest_inducing)
        return min(most, self.most_told)

    @property
    def most_told(self) -> int:
        """With privacy="sums", no more inducing inputs than clients answer for."""
        if not telling.is_closed(self.plan) or not self.spec.latents:
            return self.largest_inducing
        return telling.most_inducing(self.plan, self.spec, self.counted.told)

    def most_latents(self, inputs: int) -> int:
        """R of a model that may be tried beside the first: messages have (R Q M)² numbers.

        With client loadings they have (R M)², and at knots R² M, which is never too long.
        """
        if self.plan.inference.name == "markov":
            return ranks.MOST_MIXED
        each = 1 if self.spec.client_loadings else self.spec.outputs
        return candidates.LARGEST_MESSAGE // max(each * inputs, 1)

    @property
    def largest_inducing(self) -> int:
        """What the plan allows; by default fewer if messages, of the size (R Q M)², would be long."""
        if self.plan.largest_inducing is not None:
            return self.plan.largest_inducing
        each = max(self.spec.latents * self.spec.outputs, 1)
        return int(np.clip(candidates.LARGEST_MESSAGE // each, 128, LARGEST_INDUCING))


@dataclass(frozen=True)
class Best:
    """The training with the highest bound: what the server ended with."""

    bound: float | None
    attempt: int
    shared: GlobalPosterior
    population: Population | None
    jitter: float
    start: Start
    prepared: Prepared

    def as_arrays(self) -> dict[str, np.ndarray]:
        """The global block and q(v_g), as clients get them in the end."""
        return {
            **block_to_arrays(self.shared.block),
            **to_arrays(self.shared),
            "jitter": np.asarray(self.jitter),
            "attempt": np.asarray(float(self.attempt)),
            **self.prepared.named,
        }


@dataclass
class RunState:
    """What the server keeps from one phase to the next."""

    round: int = 0
    exchanges: int = 0
    attempt: int = 0
    """The number of restarts so far"""
    stop_asked: bool = False
    present: list[str] = field(default_factory=list)
    """The clients whose replies were counted last"""
    compared: bool = False
    """Whether the first start was chosen among several"""
    learn: bool = False
    """Whether inducing inputs move, if that was left open"""
    history: list[dict[str, Any]] = field(default_factory=list)
    starts: dict[int, Start] = field(default_factory=dict)
    """Where each attempt started"""
    choice: list[dict[str, Any]] = field(default_factory=list)
    """What became of each model that was trained, if there was a choice: see `contest`"""
    asked: telling.Asked | None = None
    """With privacy="sums": what clients have been asked, and those that are not"""
    declared: dict[str, Declared] = field(default_factory=dict)
    """What each client said of its rows in the census: its later replies must fit it"""
    left_out: list[dict[str, Any]] = field(default_factory=list)
    """Replies that were not summed because they did not fit the others': name, exchange, kind and why"""
    known: Sums = field(default_factory=dict)
    """With masks: public centre and unit of each column"""
    counted: Counted | None = None
    prepared: Prepared | None = None
    diagnosis: Training | None = None
    """The classifier of cycles that sites trained together, if that was asked for"""
    best: Best | None = None
