"""An honest server never meets the strict policy: every model that a federation can train."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pfedhgp.base.numerics import numerics
from pfedhgp.data.rows import ClientRows
from pfedhgp.data.scaling import Scaling
from pfedhgp.federation.agreement import Agreement
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.envelope import Envelope
from pfedhgp.federation.flower.exchange import Engine, Patience
from pfedhgp.federation.flower.site import AgreedRows, Site
from pfedhgp.federation.flower.state import Roster
from pfedhgp.federation.opening import shared_kernels
from pfedhgp.federation.policy import checks
from pfedhgp.federation.policy.book import Book
from pfedhgp.federation.policy.consent import Consent
from pfedhgp.federation.policy.guard import Guard
from pfedhgp.federation.policy.settings import Policy, of_a_trial
from pfedhgp.federation.server import Server
from support.reference_federation import Clock, LocalLink, agreement, rows_of

NAMES = ("north", "south", "east")
TWO = {"data": {"inputs": ["x"], "outputs": ["y", "z"]}}
MARKOV = {
    "model": {
        "kernel": "matern12",
        "local": "state-space",
        "local_kernel": "matern12",
        "layers": ["global", "local"],
        "client_loadings": True,
        "inducing": 12,
        "domain": ["0..5"],
    },
    "inference": {"name": "markov", "rounds": 3},
}
KINDS = {
    "grows": {"model": {"inducing": "auto", "domain": ["0..5"]}, "inference": {"rounds": 4}},
    "period": {"model": {"kernel": "rbf + periodic"}},
    "chosen kernels": {"model": {"kernel": "auto", "inducing": "auto"}},
    "restarts": {"inference": {"restarts": 2}},
    "two outputs": TWO,
    "own loadings": {**TWO, "model": {"client_loadings": True, "layers": ["global", "local"]}},
    "markov": {**TWO, **MARKOV},
}
FAST = ("grows", "own loadings")


def guarded(home: Path, row: ClientRows, terms: Agreement, policy: Policy) -> Site:
    """A site whose rows are in memory, with a policy."""

    def read(text: str) -> AgreedRows:
        return AgreedRows(Agreement.from_json(text), row, answers_all=True)

    def save_model(agreed: AgreedRows, group: ClientGroup, request: Envelope) -> None:
        """Nobody predicts here."""

    guard = Guard(policy, Book(home), Consent(home, terms.to_json()))
    return Site(home, row.name, read, save_model, guard=guard)


def wide(row: ClientRows, outputs: int) -> ClientRows:
    """The same rows with more outputs."""
    waves = np.sin(np.arange(len(row.Y))[:, None] * np.arange(outputs))
    Y = row.Y * 0.5 ** np.arange(outputs) + 0.3 * waves
    return ClientRows(row.name, row.X, Y)


@pytest.mark.parametrize(
    "kind", [k if k in FAST else pytest.param(k, marks=pytest.mark.slow) for k in KINDS]
)
@pytest.mark.filterwarnings("ignore::pfedhgp.errors.PFedHGPWarning")
def test_an_honest_run_is_never_refused(tmp_path, kind):
    """South is away once, so that its last sums are not in the totals."""
    terms = agreement(**KINDS[kind])
    rows = [wide(row, terms.plan.spec.outputs) for row in rows_of(NAMES)]
    sites = {row.name: guarded(tmp_path / row.name, row, terms, Policy()) for row in rows}

    def away(name, request, reply):
        return None if (name, request.kind, request.round) == ("south", "round", 1) else reply

    clock = Clock()
    engine = Engine(
        Server(terms.plan),
        Roster(NAMES, terms.to_json()),
        LocalLink(sites, away),
        Patience(timeout=30.0, quorum=1, grace=5.0, pause=1.0),
        clock=clock,
        sleep=clock.sleep,
    )
    with numerics():
        assert engine.run() == {}
    missing = [entry["missing"] for entry in engine.roster.log if entry["missing"]]
    assert missing == [{"south": "no-answer"}]


def test_mean_fields_kernels_are_read_from_their_coordinates():
    plan = agreement(inference={"name": "mean-field"}).plan
    scaling = Scaling(np.zeros(1), np.ones(1), np.zeros(1), np.ones(1))
    like = shared_kernels(plan.spec, scaling)
    sent = {"free.kernels.lengthscale": np.log(np.expm1(np.full((1, 1), 3e-4)))}
    assert checks.kernels_of(like, sent).lengthscale == pytest.approx(3e-4)


def test_terms_that_the_policy_cannot_go_with_are_refused_at_once(tmp_path, caplog):
    row = rows_of(["north"])[0]
    asked = Envelope("ab" * 16, 1, "census", 0, "server")
    for tables, words in (
        ({"model": {"learn_inducing": True}}, "`public_grid = true`"),
        ({"inference": {"rounds": 400}}, "401 training requests, and policy.toml has `rounds"),
        ({"model": {"inducing": 300}}, "300 inducing inputs, and policy.toml has `inducing = 256`"),
    ):
        terms = agreement(**tables)
        site = guarded(tmp_path, row, terms, Policy())
        request = Envelope(**{**vars(asked), "agreement": terms.to_json()})
        assert site.answer(request).code == "policy"
        assert words in caplog.records[-1].getMessage()
        site = guarded(tmp_path / words[:4], row, terms, of_a_trial(terms.plan))
        assert site.answer(request).code != "policy"
