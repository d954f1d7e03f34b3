"""A private fit by totals: three questions to clients, and what the server makes of the totals.

    totals → spread → scales → shared function → own layers

`totals` and `spread` are answered with noise. Whatever else is in an answer is computed from the client's
gram matrix, which was noised in full at the client and stays there. With privacy="distributed" the server
gets totals over clients alone. With privacy="central" it gets each client's answers, and must be trusted: a
client's share of the noise is too little to protect it from the server, and between machines the server draws
all of that noise. What the server delivers is private in both.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError
from pfedhgp.federation.private_fit import BOUND, Promise, released_rows, unit_of
from pfedhgp.privacy.accounting import mu_for
from pfedhgp.privacy.client_unit import of_a_row
from pfedhgp.privacy.denoising import Cells, cells_of
from pfedhgp.privacy.discrete_gaussian import Below
from pfedhgp.privacy.from_totals import (
    Centre,
    OneOutput,
    Spread,
    centre_of,
    moments_of,
    posterior,
    residual_scales,
    stacked,
)
from pfedhgp.privacy.kernel_family import KernelFamily
from pfedhgp.privacy.ledger import Ledger, Limit, request_of
from pfedhgp.privacy.noise_shares import in_total, share_of, with_share
from pfedhgp.privacy.release import PublicBasis, exact_sums, noisy_gram
from pfedhgp.privacy.shared_function import LONGER, START, SharedFunction
from pfedhgp.privacy.totals import (
    SHARES,
    OwnGram,
    Scales,
    kappa_of,
    modes,
    part_of_spread,
    part_of_totals,
    residuals,
    total_scales,
)
from pfedhgp.privacy.twin import Found, Parameters, best_of, widened

OWN, TOTALS, SPREAD, SCALES = "own", "totals", "spread", "scales"
SEARCHES = 2
"""Searches for parameters; before each, clients say what they expect at those found so far."""
Arrays = Mapping[str, np.ndarray]
Ask = Callable[[str, Arrays], tuple[dict[str, np.ndarray], int]]
"""From a question to the total of the answers, and of how many clients it is."""


@dataclass(frozen=True)
class Terms:
    """What all clients know: the promise, the basis, and how many share the noise."""

    promise: Promise
    public: PublicBasis
    clients: int
    """T: those who share the noise; nobody, if the server draws it"""
    missing: int
    """f: clients that may drop out or collude"""
    at_server: bool = False
    """whether the server draws the noise of totals, and clients add none: central, between machines"""

    @cached_property
    def cells(self) -> Cells:
        return cells_of(self.public)

    @cached_property
    def family(self) -> KernelFamily:
        return KernelFamily.of(self.public)

    @cached_property
    def modes(self) -> np.ndarray:
        return modes(self.public)

    @property
    def outputs(self) -> int:
        return len(self.promise.output_bounds)

    def scales(self, mu: float) -> Scales:
        """Standard deviations that μ asks for in totals."""
        each = of_a_row(mu, self.promise.rows_per_client)
        return total_scales(each, BOUND, self.outputs, len(self.public.inputs))

    def shares(self, mu: float) -> Scales:
        """What each client adds; its own gram matrix it noises in full."""
        own, *totals = self.scales(mu)
        if self.at_server:
            return Scales(own, 0.0, 0.0, 0.0)
        return Scales(own, *(share_of(each, self.clients, self.missing) for each in totals))

    def noise(self, mu: float, count: int) -> Scales:
        """Of the noise in a total of so many clients."""
        if self.at_server:
            return self.scales(mu)
        return Scales(*(in_total(each, count) for each in self.shares(mu)))

    def with_servers_noise(
        self, totals: Arrays, mu: float, below: Below = secrets.randbelow
    ) -> dict[str, np.ndarray]:
        """Totals of exact answers as the server may use them: the noise is drawn once, for all clients."""
        of = self.scales(mu)
        drawn = {"missing": of.gram, "linear": of.linear, "spread": of.spread}
        return {
            name: with_share(total, drawn[name], below) if name in drawn else total
            for name, total in totals.items()
        }


@dataclass
class TotalsClient:
    """One client, with its scaled rows. With a ledger, the same question gets the same answer at no cost.

    Without a `limit` the promise is the limit of all releases of the ledger, and this fit gets what is left.

    `among` names what noise is drawn for: in one process all clients' own releases (`stamp`), between
    machines one exchange. If one client has other rows, everybody draws new noise: two totals with the
    others' same noise would differ by that client's part and its share alone.

    With an `epoch` the ledger knows the rows by it, and not by their hash: see `release_request`.
    """

    terms: Terms
    rows: ClientRows
    ledger: Ledger | None = None
    limit: Limit | None = None
    below: Below = secrets.randbelow
    among: str = ""
    epoch: str = ""
    _grams: tuple[OwnGram, ...] | None = field(default=None, repr=False)

    @cached_property
    def mu(self) -> float:
        """What this client's rows may cost in this fit."""
        return float(self._own["mu"])

    @cached_property
    def stamp(self) -> str:
        """SHA-256 of its own noisy gram matrix: another one for other rows."""
        return request_of({"own": self._own["gram"]})

    @cached_property
    def used(self) -> ClientRows:
        """The rows that leave a trace in its answers."""
        return released_rows(self.terms.promise, self.rows, self.ledger)

    @cached_property
    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """S and b, which stay here."""
        return exact_sums(self.terms.public, self.used.X, self.used.Y, BOUND)

    def grams(self, mu: float) -> tuple[OwnGram, ...]:
        """Ŝ and W of each output; κ is by the common μ."""
        if self._grams is None:
            terms, noisy = self.terms, self._own["gram"]
            about = (terms.scales(self.mu).own, kappa_of(terms.scales(mu).own), terms.cells)
            self._grams = tuple(OwnGram.of(each, *about) for each in noisy)
        return self._grams

    def answer(self, question: str, asked: Arrays, mu: float) -> dict[str, np.ndarray]:
        """One client's part of a total; μ is the same for all clients."""
        if question == TOTALS:
            return self._totals(mu)
        if question == SPREAD:
            return self._spread(asked["centre"], mu)
        if question == SCALES:
            return self._scales(asked, mu)
        raise InputError(f"a private fit has no question {question!r}")

    def unpaid(self, mu: float) -> float:
        """μ that this fit still takes of the budget: nothing once its totals are in the ledger."""
        if self.ledger is None or self.ledger.has(self._request(TOTALS, mu)):
            return 0.0
        own = 0.0 if self.has_own else SHARES.own
        return mu * float(np.sqrt(own + SHARES.gram + SHARES.linear + SHARES.spread))

    @property
    def has_own(self) -> bool:
        """Whether the ledger has its noisy gram matrix, so that its part can be computed again."""
        return self.ledger is not None and self.ledger.has(self._request(OWN, self._mu_of_own))

    def part(self, mu: float) -> list[tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]]:
        """Its part in the totals of each output, without noise: WS, Wb, and what Ŝ says."""
        terms = self.terms
        return [
            (own.weight @ S, own.weight @ b, moments_of(own, terms.family, terms.cells))
            for own, S, b in zip(self.grams(mu), *self.sums, strict=True)
        ]

    def _totals(self, mu: float) -> dict[str, np.ndarray]:
        terms, grams = self.terms, self.grams(mu)

        def make(_: float) -> dict[str, np.ndarray]:
            return part_of_totals(grams, self.sums, terms.shares(mu), self.below)

        found = self._released(TOTALS, SHARES.gram + SHARES.linear, make, mu)
        return {**found, **stacked([moments_of(g, terms.family, terms.cells) for g in grams])}

    def _spread(self, centre: np.ndarray, mu: float) -> dict[str, np.ndarray]:
        terms, rows, grams = (
            self.terms,
            self.used,
            self.grams(mu),
        )  # a ledger releases one at a time

        def make(_: float) -> dict[str, np.ndarray]:
            residual = residuals(terms.public, rows.X, rows.Y, BOUND, centre)
            return part_of_spread(grams, residual, terms.modes, terms.shares(mu), self.below)

        return self._released(SPREAD, SHARES.spread, make, mu, centre)

    def _scales(self, asked: Arrays, mu: float) -> dict[str, np.ndarray]:
        terms = self.terms
        given = (asked["gain"], asked["error"], map(Parameters.from_log, asked["parameters"]))
        found = [
            residual_scales(own, terms.family, terms.cells, terms.modes, Centre(*each))
            for own, *each in zip(self.grams(mu), *given, strict=True)
        ]
        return {"expected": np.stack(found)}

    @cached_property
    def _own(self) -> dict[str, np.ndarray]:
        """S̃, noised in full, and the μ of the whole fit."""
        terms = self.terms

        def make(mu: float) -> dict[str, np.ndarray]:
            whole = mu / np.sqrt(SHARES.own)
            scale, gram = terms.scales(whole).own, self.sums[0]
            noisy = gram if scale == 0.0 else noisy_gram(gram, scale, self.below)
            return {"gram": noisy, "mu": np.asarray(whole, np.float64)}

        return self._released(OWN, SHARES.own, make, self._mu_of_own)

    @property
    def _mu_of_own(self) -> float | None:
        """None: what is left of the promise."""
        promise = self.terms.promise
        return None if self.limit is None else mu_for(promise.epsilon, promise.delta)

    def _released(
        self,
        step: str,
        share: float,
        make: Callable[[float], dict[str, np.ndarray]],
        mu: float | None,
        *question: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """By the ledger: what it has for the same question, or a new answer at its cost."""
        terms, promise = self.terms, self.terms.promise
        if self.ledger is None:
            whole = mu_for(promise.epsilon, promise.delta) if mu is None else mu
            return make(whole * float(np.sqrt(share)))
        if step != OWN and not self.among:
            raise ValueError("a client with a ledger must know among whom its noise is shared")
        return self.ledger.release(
            self._request(step, mu, *question),
            purpose=f"{step} on {len(terms.public.inputs)} basis functions, for totals",
            limit=self.limit or Limit(promise.epsilon, promise.delta),
            make=make,
            mu=None if mu is None else mu * float(np.sqrt(share)),
            share=share,
        )

    def _request(self, step: str, mu: float | None, *question: np.ndarray) -> str:
        """What the ledger calls a release: the same for the same rows, terms and question."""
        terms, rows = self.terms, self.rows
        whose = {"epoch": self.epoch} if self.epoch else {"X": rows.X, "Y": rows.Y}
        return request_of(
            {
                **whose,
                "inputs": terms.public.inputs,
                "lengthscales": terms.public.lengthscales,
                "promise": terms.promise,
                "terms": (terms.clients, terms.missing),
                **unit_of(terms.promise),
                "step": (step, mu, "" if step == OWN else self.among),
                **{f"question {i}": each for i, each in enumerate(question)},
            }
        )


@dataclass(frozen=True, eq=False)
class Learned:
    """The shared function by totals, and all that a client needs to take its own part out again."""

    public: PublicBasis
    parameters: tuple[Parameters, ...]
    outputs: tuple[OneOutput, ...]
    wider: tuple[np.ndarray, ...]
    """what averaging over parameters adds to covariances"""
    evidence: float
    mu: float

    def shared(self) -> SharedFunction:
        """By all clients' totals."""
        return self._of(self.outputs)

    def without(self, client: TotalsClient) -> SharedFunction:
        """By the others' totals, computed at the client from its own sums."""
        parts = zip(self.outputs, client.part(self.mu), strict=True)
        return self._of(tuple(one.without(*part) for one, part in parts))

    def _of(self, outputs: tuple[OneOutput, ...]) -> SharedFunction:
        found: list[Found] = []
        for one, parameters, wider in zip(outputs, self.parameters, self.wider, strict=True):
            each = posterior(one, parameters)
            evidence = self.evidence / len(outputs)
            found.append(each._replace(covariance=each.covariance + wider, evidence=evidence))
        return SharedFunction(self.public, self.parameters, tuple(found))


def learned_from_totals(terms: Terms, mu: float, ask: Ask) -> Learned:
    """The server's part: everything from totals, at no further cost."""
    totals, count = ask(TOTALS, {})
    ones = outputs_of(terms, mu, totals, count)
    start = Parameters(LONGER * terms.public.lengthscales, **START)
    gains = [centre_of(one, start).gain for one in ones]
    centre = np.stack([K @ one.linear for K, one in zip(gains, ones, strict=True)])
    spread, answered = ask(SPREAD, {"centre": centre})
    noise = terms.noise(mu, answered).spread
    about = [start] * len(ones)
    for _ in range(SEARCHES):
        centres = [centre_of(*each) for each in zip(ones, about, gains, strict=True)]
        asked = {
            "parameters": np.stack([each.to_log() for each in about]),
            "gain": np.stack(gains),
            "error": np.stack([each.error for each in centres]),
        }
        total, count = ask(SCALES, asked)
        expected = total["expected"] * (answered / count)  # others may have dropped out
        spreads = [
            Spread(total, noise, terms.modes, *each)
            for total, *each in zip(spread["spread"], expected, about, strict=True)
        ]
        ats = [partial(each.posterior, one) for each, one in zip(spreads, ones, strict=True)]
        searches = [best_of(at, terms.public, start) for at in ats]
        about = [each.parameters for each in searches]
    wider, evidence = [], 0.0
    for at, search in zip(ats, searches, strict=True):
        best = at(search.parameters)
        wider.append(widened(at, terms.public, search).covariance - best.covariance)
        evidence += best.evidence
    return Learned(terms.public, tuple(about), ones, tuple(wider), evidence, mu)


def outputs_of(terms: Terms, mu: float, totals: Arrays, count: int) -> tuple[OneOutput, ...]:
    """Totals by output, with the noise that so many clients have put into them."""
    noise = terms.noise(mu, count)
    return tuple(
        OneOutput.of(
            terms.family, terms.cells, {n: each[q] for n, each in totals.items()}, noise, count
        )
        for q in range(terms.outputs)
    )
