"""Clients hold rows, answer requests and keep their own parameters. A client alone is a group of one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pfedhgp.base.choices import NO_PRIVACY
from pfedhgp.base.trees import stack_trees
from pfedhgp.data.rows import ClientRows, digest_of, in_order
from pfedhgp.data.scaling import Scaling
from pfedhgp.diagnosis.federated import messages as diagnosis_messages
from pfedhgp.diagnosis.federated.party import Party, answers
from pfedhgp.errors import InputError, MessageError, warn
from pfedhgp.federation import first_sums, local_budget
from pfedhgp.federation.messages import Message
from pfedhgp.federation.opening import inference_of, shared_kernels
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.telling import Told, question_of
from pfedhgp.inference.arrays import State, below, block_from_arrays
from pfedhgp.inference.cycles import exchange
from pfedhgp.inference.cycles.forms import Halves
from pfedhgp.inference.jitter import WEIGHTS, expect_finite
from pfedhgp.inference.merged_rows import merge_rows
from pfedhgp.inference.protocols import ClientParty
from pfedhgp.inference.rows import cycle_rows, equal_shapes, noise_of, white_rows
from pfedhgp.inference.starts import totals
from pfedhgp.inference.starts.candidates import Start, client_block, with_own_loadings
from pfedhgp.inference.structured.own_tails import with_tails
from pfedhgp.model.blocks import Rows
from pfedhgp.model.cycle_layer import CycleLayer
from pfedhgp.model.global_posterior import from_arrays
from pfedhgp.model.kept_sums import KeptSums, of_rows
from pfedhgp.model.posterior import ClientPosterior
from pfedhgp.model.spec import Spec, with_periods

FORGOTTEN = ("magnitude", "census", "extent", "start", "round", "finish", *diagnosis_messages.KINDS)
"""Requests that a resumed run does not answer again; `starts` keeps what matters of them."""
KEPT_TOGETHER = 2**28
"""The most numbers that all clients of a process keep for updates: 2 GiB."""


class ClientGroup:
    """Clients that compute together because their arrays have equal shapes after padding."""

    def __init__(
        self,
        plan: Plan,
        clients: Sequence[ClientRows],
        padded_rows: int | None = None,
        diagnosis: Sequence[Party] = (),
        *,
        answers_all: bool | None = None,
        among: int = 1,
    ) -> None:
        """`diagnosis` has each client's cycles, if they train a classifier of them.

        `answers_all`: whether they answer whatever they are asked; None: if the plan has privacy="none". With
        masks, `among` says how many clients are in a total at least.
        """
        self.plan, self.clients = plan, tuple(clients)
        self.padded_rows = padded_rows or max(len(c.X) for c in clients)
        self.names = tuple(client.name for client in clients)
        self.diagnosis = tuple(diagnosis)
        self.scaling: Scaling | None = None
        self.scaled: tuple[ClientRows, ...] = ()
        """The clients' rows in scaled units; with state-space local layers, in order of time."""
        self._merged: tuple[ClientRows, ...] = ()
        self.rows: Rows | None = None
        """The same as the parties take them."""
        self.spec: Spec = plan.spec
        self.parties: dict[int, ClientParty] = {}
        self.others: dict[int, ClientParty] = {}
        """Those at the other starts that are still compared, by their number in the start request."""
        self.number = 0
        """Number of the start whose parties are in `parties`."""
        self.starts: dict[int, dict[str, np.ndarray]] = {}
        self.heard: dict[str, dict[str, np.ndarray]] = {}
        self.attempt = 0
        self.posteriors: dict[str, ClientPosterior] = {}
        self.kept: dict[str, KeptSums] = {}
        """What clients keep for updates."""
        self.most_kept = KEPT_TOGETHER
        """The most numbers that one of them keeps."""
        self.layers: dict[str, CycleLayer] = {}
        self._halves: dict[str, Halves] = {}
        open_plan = plan.privacy == NO_PRIVACY
        everything = open_plan if answers_all is None else answers_all
        self.few_rows = not (open_plan and everything)
        """Whether counts and sums before training stand for at least five rows."""
        self.told = None if everything else Told.nothing(clients, plan.spec, among)
        """What was told of the rows, if that is limited."""

    @property
    def own_layers(self) -> dict[str, CycleLayer]:
        """Cycle layers of the clients that have one of their own."""
        shared = self.plan.cycles is None or self.plan.cycles.sharing == "shared"
        return {} if shared else dict(self.layers)

    def answer(self, request: Message) -> list[Message]:
        """One reply from each client; `finish` may have none."""
        if self.told is not None:
            self.told.check_kind(request.kind)
        replies: list[dict[str, np.ndarray]]
        if request.kind in diagnosis_messages.KINDS:
            replies = answers(self.diagnosis, request.kind, request.arrays)
        else:
            replies = getattr(self, f"_on_{request.kind}")(request)
        if request.kind not in FORGOTTEN:
            self.heard[request.kind] = {name: np.asarray(a) for name, a in request.arrays.items()}
        return [
            Message(request.kind, request.round, name, arrays, request.block)
            for name, arrays in zip(self.names if replies else (), replies, strict=True)
        ]

    def _on_magnitude(self, request: Message) -> list[dict[str, np.ndarray]]:
        return [totals.magnitudes(client.X, client.Y, request.arrays) for client in self.clients]

    def _on_census(self, request: Message) -> list[dict[str, np.ndarray]]:
        few, asked = self.few_rows, request.arrays
        return [first_sums.census_of(self.plan, c, asked, few=few) for c in self.clients]

    def _on_extent(self, request: Message) -> list[dict[str, np.ndarray]]:
        few, asked = self.few_rows, request.arrays
        return [first_sums.extent_of(self.plan, c, asked, few=few) for c in self.clients]

    def _on_cycles(self, request: Message) -> list[dict[str, np.ndarray]]:
        a = request.arrays
        self._scale(a)
        replies = []
        for client in self.scaled:
            assert client.cycles is not None
            arrays, self._halves[client.name] = exchange.reply(client.X, client.cycles, a)
            replies.append(arrays)
        return replies

    def _scale(self, a: Mapping[str, np.ndarray]) -> Scaling:
        """Scales the rows, once: several requests say how, and all say the same."""
        if self.scaling is None:
            self.scaling = scaling = Scaling.from_arrays(a)
            in_time = self.plan.spec.state_space
            ordered = (in_order(client) if in_time else client for client in self.clients)
            self.scaled = tuple(scaling.rows(client) for client in ordered)
        if any(np.any(a[name] != known) for name, known in self.scaling.as_arrays().items()):
            raise MessageError("the server sent another scaling than before: start the run again")
        return self.scaling

    def _on_start(self, request: Message) -> list[dict[str, np.ndarray]]:
        self.prepare(request.arrays)
        self._warn_of_strays(request.arrays)
        return self._train(request)

    def prepare(self, a: Mapping[str, np.ndarray]) -> None:
        """Makes the parties at the starting values that a start request gives."""
        self._scale(a)
        self.spec = self.spec_of(a)
        if self.plan.cycles is not None and not self.layers:
            shared, form = exchange.layer_from_arrays(a), self.plan.spec.noise
            self.layers = {
                name: exchange.own_layer(self.plan.cycles, shared, self._halves[name], form)
                for name in self.names
            }
        if self.rows is None:
            few = self.training_rows(a)
            rows = [self._rows_of(*pair) for pair in zip(self.scaled, few, strict=True)]
            self.rows = stack_trees(equal_shapes(rows))
        self.attempt = int(a["attempt"])
        count = sum(name.startswith("other ") and name.endswith(".scales") for name in a)
        self.number = 0
        self.parties[self.attempt] = self._party(_start_number(0, a), say=self.attempt == 0)
        self.others = {k: self._party(_start_number(k, a), say=False) for k in range(1, count + 1)}
        self.starts[self.attempt] = {name: np.asarray(array) for name, array in a.items()}

    def spec_of(self, a: Mapping[str, np.ndarray]) -> Spec:
        """The model that a request is about; its open periods are those of the last start request."""
        spec = self.plan.candidates[int(a.get("candidate", 0))]
        periods = a.get("periods", self.starts.get(self.attempt, {}).get("periods"))
        return spec if periods is None else with_periods(spec, np.asarray(periods))

    def _party(self, a: Mapping[str, np.ndarray], *, say: bool) -> ClientParty:
        """The clients at one start; only the first start warns (`say`)."""
        scaling, plan, spec = self._scale(a), self.plan, self.spec_of(a)
        assert self.rows is not None
        start = Start.from_array(a["scales"])
        seed = None if self.attempt == 0 else plan.seed + self.attempt
        kernels, blocks = local_budget.local_kernels(spec, scaling, start), []
        for index, client in enumerate(self.scaled):
            Z = local_budget.starting_inputs(plan, spec, kernels, client, start, say=say)
            own_seed = None if seed is None else seed * 1_000_003 + index
            own = local_budget.allow_for_residual(plan, kernels, start, Z, client.X)
            block = client_block(spec, own, client.Y, Z, kernels, own_seed)
            if spec.client_loadings:
                block = with_own_loadings(block, client.name, a, plan.seed + self.attempt)
            if client.name in self.layers:
                noise = noise_of(self.layers[client.name], spec.noise)
                block = replace(block, noise=noise)
            blocks.append(block)
        return inference_of(plan, "learn" in a).clients(
            spec,
            shared_kernels(spec, scaling),
            stack_trees(local_budget.pad_inputs(blocks)),
            self.rows,
        )

    def training_rows(self, a: Mapping[str, np.ndarray]) -> tuple[ClientRows, ...]:
        """The rows that training sees, scaled and merged once; `a`: a start request. Cycles stay."""
        scaling = self._scale(a)
        if self.plan.cycles is not None:
            return self.scaled
        if not self._merged:
            spec, start = self.spec_of(a), Start.from_array(a["scales"])
            merged = (merge_rows(client, spec, start, scaling.extent) for client in self.scaled)
            self._merged = tuple(merged)
        return self._merged

    def _rows_of(self, client: ClientRows, few: ClientRows) -> Rows:
        full = self.plan.spec.noise == "full"
        if client.name not in self.layers:
            length = self.padded_rows if few is client else None
            return white_rows(few, full_noise=full, length=length)
        assert client.cycles is not None
        layer = self.layers[client.name]
        return cycle_rows(client.X, client.cycles, layer, separate=full, client=client.name)

    def _choose(self, a: Mapping[str, np.ndarray]) -> None:
        """Keeps the parties at the starts that the server goes on with, and forgets the others."""
        if self.others:
            known = {self.number: self.parties[self.attempt], **self.others}
            count = sum(name.endswith(".chosen") for name in a)
            numbers = [int(a[f"other {k}.chosen"]) for k in range(1, count + 1)]
            self.number = int(a.get("chosen", 0))
            if not {self.number, *numbers} <= set(known):
                raise MessageError("a round was asked for at a start that was dropped before")
            self.parties[self.attempt] = known[self.number]
            self.others = {number: known[number] for number in numbers}
            self.spec = self.spec_of(a)
            if not numbers:
                self.starts[self.attempt] = _start_number(self.number, self.starts[self.attempt])

    def _warn_of_strays(self, a: Mapping[str, np.ndarray]) -> None:
        """Names clients whose rows stretch the domain, without naming the rows."""
        if "crowd" not in a:
            return
        lower, upper = a["crowd"]
        for client in self.clients:
            stray = int(np.sum(np.any((lower > client.X) | (upper < client.X), axis=1)))
            if stray:
                warn(
                    f"client {client.name!r} has {stray} of {len(client.X)} rows with inputs far from "
                    "nearly all others: they stretch the domain. Correct or drop them, or give `domain`"
                )

    # checkpoints ------------------------------------------------------------------------------

    def state(self) -> State:
        """The clients' part of a checkpoint: their blocks and last statistics, never rows."""
        trainers: dict[str, Any] = {}
        plain: dict[str, Any] = {"rows": digest_of(self.clients), "attempt": self.attempt}
        plain |= {"trainers": trainers, "heard": list(self.heard)}
        arrays: dict[str, np.ndarray] = {}
        for kind, heard in self.heard.items():
            arrays |= below(f"heard {kind}", heard)
        for k, site in enumerate(self.diagnosis):
            arrays |= below(f"diagnosis {k}", site.state())
        for attempt, party in self.parties.items():
            own = party.state()
            arrays |= below(f"start {attempt}", self.starts[attempt])
            arrays |= below(f"trainer {attempt}", own.arrays)
            trainers[str(attempt)] = dict(own.plain)
        for number, other in self.others.items():
            arrays |= below(f"other {number - 1}", other.state().arrays)
        plain |= {"number": self.number, "others": list(self.others)}
        if self.told is not None:
            arrays["told"] = self.told.directions
        return State(arrays, plain)

    def restore(self, state: State) -> None:
        """Puts `state` back; refuses it if the rows have changed since."""
        if state.plain["rows"] != digest_of(self.clients):
            raise InputError(
                f"the rows of client {self.names[0]!r} (or of one grouped with it) are not those that "
                "the run began with: start it again"
            )
        for k, site in enumerate(self.diagnosis):
            site.restore(state.part(f"diagnosis {k}"))
        for kind in state.plain["heard"]:  # what followed from a request follows from it again
            self.answer(Message(kind, 0, "server", state.part(f"heard {kind}")))
        for name, plain in state.plain["trainers"].items():
            self.prepare(state.part(f"start {name}"))
            if int(name) == int(state.plain["attempt"]) and self.others:
                self._keep(state.plain)
            self.parties[int(name)].restore(State(state.part(f"trainer {name}"), plain))
        self.attempt = int(state.plain["attempt"])
        if self.told is not None and "told" in state.arrays:
            self.told.directions = state.arrays["told"]
        for number in state.plain.get("others", list(self.others)):
            self.others[number].restore(State(state.part(f"other {number - 1}"), {}))

    def _keep(self, plain: Mapping[str, Any]) -> None:
        """The parties that a checkpoint has, of those that a start request made."""
        number, numbers = int(plain.get("number", 0)), plain.get("others", list(self.others))
        known = {0: self.parties[self.attempt], **self.others}
        self.number, self.parties[self.attempt] = number, known[number]
        self.others = {int(n): known[int(n)] for n in numbers}
        self.spec = self.spec_of(_start_number(number, self.starts[self.attempt]))

    # clients that were away -----------------------------------------------------------------------

    def catch_up(self, missed: Sequence[Message]) -> None:
        """Takes the requests that were missed and set things up (`cycles`, `start`); sends nothing."""
        for request in missed:
            if request.kind == "start":
                self.prepare(request.arrays)
            else:
                self.answer(request)

    def forget_last_reply(self, attempt: int) -> None:
        """What the clients last sent in this attempt is not in the totals that come next."""
        for party in (self.parties.get(attempt), *self.others.values()):
            if party is not None:
                party.forget_last_reply()

    def leave_out(self, attempt: int, names: Collection[str]) -> None:
        """What these clients last sent in this attempt is not in the totals that come next."""
        stays = np.array([name not in names for name in self.names])
        if stays.all():
            return
        for party in (self.parties.get(attempt), *self.others.values()):
            if party is not None:
                party.forget_last_reply(stays)

    def _on_round(self, request: Message) -> list[dict[str, np.ndarray]]:
        if self.attempt not in self.parties:
            raise MessageError("a round was asked for before the start")
        self._choose(request.arrays)
        for party in (self.parties[self.attempt], *self.others.values()):
            local_budget.grow(self.plan, party, self.scaled)
            local_budget.shrink(self.plan, party, self.scaled)
        return self._train(request)

    def _on_finish(self, request: Message) -> list[dict[str, np.ndarray]]:
        a, scaling = request.arrays, self.scaling
        assert scaling is not None
        party = self.parties[int(a["attempt"])]
        self.spec = self.spec_of(a)
        local_budget.warn_of_cap(self.plan, self.spec, party, self.names)
        block = block_from_arrays(a, shared_kernels(self.spec, scaling))
        shared = from_arrays(block, a, float(a["jitter"]))
        found = party.posteriors(shared, float(a["jitter"]))
        for name, posterior in zip(self.names, found, strict=True):
            expect_finite("the posterior", posterior, matrix=WEIGHTS, client=name)
        self.posteriors = dict(zip(self.names, found, strict=True))
        sums = with_tails(
            party.kept(shared, float(a["jitter"]), found),
            self.spec.structure,
            shared.block,
            found,
            self.scaled,
        )
        self.kept = {
            rows.name: of_rows(own, rows)
            for rows, own in zip(self.clients, sums, strict=True)
            if own is not None and rows.counts is None and own.precision.size <= self.most_kept
        }
        return party.final_replies(shared, found)

    def hide_among(self, count: int) -> None:
        """With masks: so many clients are in a total at least."""
        if self.told is not None:
            self.told.limits = tuple(replace(each, among=count) for each in self.told.limits)

    def _count_questions(self, a: Mapping[str, np.ndarray]) -> None:
        """Refuses a request that, with those before, asks for more than the clients tell of their rows."""
        if self.told is not None:
            assert self.scaling is not None
            own = [_start_number(k, a) for k in range(1 + len(self.others))]
            asked = [q for each in own for q in question_of(self.spec_of(each), self.scaling, each)]
            self.told.add(asked, self.spec.latents)

    def _train(self, request: Message) -> list[dict[str, np.ndarray]]:
        a, kind = request.arrays, request.kind
        self._count_questions(a)
        replies = self.parties[self.attempt].answer(a, kind, self.names)
        for k, other in enumerate(self.others.values(), 1):
            found = other.answer(_start_number(k, a), kind, self.names)
            replies = [own | below(f"other {k}", b) for own, b in zip(replies, found, strict=True)]
        return replies


def _start_number(k: int, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A start request as if its start `k` were the only one."""
    common = {name: array for name, array in arrays.items() if not name.startswith("other ")}
    return {**common, **State(arrays).part(f"other {k}")}
