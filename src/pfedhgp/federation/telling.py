"""privacy="sums": what a client answers of its rows, and how a server plans within that.

A client counts what all requests ask of its rows together (`inference.starts.told`), and answers none that
goes beyond its own rows. It decides by its rows and the requests alone, never by the server's word. With
masks its sums are hidden in a total of t clients at least, and it counts as if they had as many rows as it
has.

The server knows the clients' numbers of rows from the census, and asks for no more than they answer: fewer
inducing inputs, one start, and kernels that stay where they are as soon as a move would ask for too much.
Clients that cannot answer even that are not asked. They get the model in the end, and fit their own layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pfedhgp.base.choices import SUMS_PRIVACY
from pfedhgp.data.rows import ClientRows
from pfedhgp.data.scaling import Scaling
from pfedhgp.errors import BudgetWarning, InputError, TellsTooMuchError, warn, warn_caller
from pfedhgp.federation.plan import Plan
from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference.arrays import block_from_arrays
from pfedhgp.inference.starts import told
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.inference.starts.told import Question, most_told, rows_needed, usable_rows
from pfedhgp.model.spec import Spec, starting_kernels

ALIKE = 0.8
"""With masks, the part of the mean number of rows that a client must have at least."""
COUNTED = ("magnitude", "census", "extent", "start", "round", "finish")
"""Requests of which it is known how much they tell."""
SMOOTH = 1.0
"""A shared scale is no shorter than so many spacings of the inducing inputs, if these may not be more."""


def is_closed(plan: Plan) -> bool:
    """Whether the server keeps within what clients answer."""
    return plan.privacy == SUMS_PRIVACY


def outputs_told(spec: Spec) -> int:
    """V: the statistics' outputs. With loadings of the clients' own they are J and h, of one output."""
    return 1 if spec.client_loadings else spec.outputs


def masked_together(clients: int) -> int:
    """How many clients are in a masked total at least: t = ⌊2T/3⌋ + 1."""
    return 2 * clients // 3 + 1


def question_of(spec: Spec, scaling: Scaling, arrays: Mapping[str, np.ndarray]) -> list[Question]:
    """What a `start` or `round` request asks about; nothing without a shared layer."""
    if not spec.latents:
        return []
    like = starting_kernels(spec.kernel, scale=0.2, count=spec.latents, extent=scaling.extent)
    block = block_from_arrays(arrays, like)
    slopes = bool(np.any(arrays["derivatives"]))
    return [Question(block.kernels, np.asarray(block.inputs), float(arrays["jitter"]), slopes)]


def closed_plan(plan: Plan, *, usual: bool) -> Plan:
    """The plan itself, or with privacy="sums" one that clients answer.

    It refuses what cannot be kept within limits. With the `usual` number of latents, there may be fewer.
    """
    if not is_closed(plan):
        return plan
    refuse_open(f"inference={plan.inference.name!r}", plan.inference.name != "structured")
    refuse_open("a cycle layer", plan.cycles is not None)
    refuse_open("learn_inducing", plan.learn_inducing is not False)
    refuse_open("a choice of kernels or latents", plan.chooses)
    refuse_open("`restarts`", plan.restarts > 1)
    return replace(plan, ranks=fewer_latents(plan.spec)) if usual else plan


def refuse_open(what: str, there: bool) -> None:
    """Refuses `what`, if it is there: it asks for more than is counted here."""
    if there:
        raise InputError(
            f"{what} tells more of rows than privacy='sums' allows: leave it out, or choose privacy='none' "
            "(between machines, each site also needs --i-know)"
        )


def fewer_latents(spec: Spec) -> tuple[tuple[int, int], ...]:
    """The usual numbers of (shared, local) latents, and one shared one, if rows do not answer for more."""
    if spec.latents < 2 or spec.client_loadings or spec.own_deviation_kernel:
        return ()
    return ((spec.latents, spec.local_latents), (1, spec.local_latents))


# ------------------------------------------------------------------------------------------- clients


@dataclass(frozen=True)
class Limit:
    """What one client answers in all."""

    name: str
    rows: int
    outputs: int
    among: int = 1
    """So many clients are in the totals that the server gets"""

    @staticmethod
    def of(client: ClientRows, spec: Spec, among: int) -> Limit:
        return Limit(client.name, usable_rows(client.Y), outputs_told(spec), among)

    @property
    def most(self) -> int:
        return most_told(self.among * self.rows, self.outputs)

    def check(self, asked: int, latents: int) -> None:
        """Refuses what is too much, and says what to do."""
        if asked <= self.most:
            return
        need = -(-rows_needed(asked, self.outputs) // self.among)
        fewer = self.most // max(latents, 1)
        instead = f"at most {fewer} inducing inputs" if fewer else "more rows"
        raise TellsTooMuchError(
            f"client {self.name!r}: the server asks for {asked} functions of its inputs in all (latents × "
            f"inducing inputs), and its {self.rows} rows answer {self.most}: use {instead}, {need} rows, or "
            "masks; or answer all the same (--i-know, the site's own setting)"
        )


@dataclass
class Told:
    """What a group of clients has told of its rows. It only grows."""

    limits: tuple[Limit, ...]
    directions: np.ndarray

    @staticmethod
    def nothing(clients: Sequence[ClientRows], spec: Spec, among: int) -> Told:
        limits = tuple(Limit.of(client, spec, among) for client in clients)
        return Told(limits, told.nothing(spec.inputs))

    def check_kind(self, kind: str) -> None:
        """Refuses requests of which it is not known how much they tell."""
        if kind not in COUNTED:
            raise TellsTooMuchError(
                f"a {kind!r} request is not answered with privacy='sums': leave it out, or answer "
                "all the same (--i-know, the site's own setting)"
            )

    def add(self, questions: Sequence[Question], latents: int) -> None:
        """Counts the questions of one request, or refuses it."""
        asked, after = told.counted(self.directions, questions)
        for limit in self.limits:
            limit.check(asked, latents)
        self.directions = after


# -------------------------------------------------------------------------------------------- server


@dataclass(frozen=True)
class Rows:
    """What the census says of how much clients may be asked."""

    total: int
    clients: int
    by_client: Mapping[str, int] = field(default_factory=dict)
    """Empty with masks"""

    def allowed(self, plan: Plan, asked: int = 0) -> int:
        """The most that the server asks for in all; with `asked`, all who can answer that are counted."""
        V = outputs_told(plan.spec)
        if plan.masks:
            least = ALIKE * self.total / self.clients
            return most_told(int(masked_together(self.clients) * least), V)
        return told.allowance(list(self.by_client.values()), V, asked)

    def unable(self, plan: Plan, asked: int) -> list[str]:
        """Clients that do not answer so much."""
        V = outputs_told(plan.spec)
        return [name for name, rows in self.by_client.items() if most_told(rows, V) < asked]


def most_inducing(plan: Plan, spec: Spec, rows: Rows) -> int:
    """The most shared inducing inputs that clients answer for; refuses if there is none."""
    found = rows.allowed(plan) // max(spec.latents, 1)
    if not found:
        need = rows_needed(spec.latents, outputs_told(spec))
        raise InputError(
            f"privacy='sums': no client has enough rows to tell anything of {spec.latents} shared "
            f"functions ({need} at least): use more rows, fewer latents or outputs, or masks; or choose "
            "privacy='none' (between machines, each site also needs --i-know)"
        )
    return found


def smooth_enough(start: Start, inputs: np.ndarray) -> Start:
    """The start with a shared scale that so few inducing inputs can carry."""
    spacing = max(len(inputs) ** (1.0 / inputs.shape[1]) - 1.0, 1.0) ** -1.0
    return replace(start, shared=max(start.shared, SMOOTH * spacing))


@dataclass
class Asked:
    """What a server has asked of all clients, and the most that it may ask."""

    limit: int
    directions: np.ndarray
    unable: tuple[str, ...] = ()

    @staticmethod
    def nothing(plan: Plan, rows: Rows, asked: int) -> Asked:
        """Before the start, which asks for R M."""
        limit = max(rows.allowed(plan, asked), asked)
        return Asked(limit, told.nothing(plan.spec.inputs), tuple(rows.unable(plan, asked)))

    def affords(self, kernels: Kernel, inputs: np.ndarray, jitter: float, *, slopes: bool) -> bool:
        """Whether clients would answer this question too."""
        question = Question(kernels, np.asarray(inputs), float(jitter), slopes)
        return told.counted(self.directions, [question])[0] <= self.limit

    def add(self, questions: Sequence[Question]) -> None:
        self.directions = told.counted(self.directions, questions)[1]


def warn_of_limits(asked: Asked, inducing: int, wanted: int, *, masks: bool) -> None:
    """One line if rows are too few for what the data need; one if clients are left out."""
    if inducing < wanted:
        other = "" if masks else ", `masks`,"
        warn_caller(
            f"privacy='sums': {inducing} global inducing inputs instead of {wanted}, so that rows cannot be "
            f"solved for. More rows a client{other} or privacy='local' allow more",
            BudgetWarning,
        )
    if asked.unable:
        shown = ", ".join(repr(name) for name in asked.unable[:3])
        more = f" and {len(asked.unable) - 3} others" if len(asked.unable) > 3 else ""
        has, they = ("has", "it gets") if len(asked.unable) == 1 else ("have", "they get")
        warn(
            f"privacy='sums': {shown}{more} {has} too few rows to be asked: {they} the model in the end"
        )
