"""privacy="sums": clients refuse what would give rows away, and the server asks for less."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.base.numerics import numerics, on_device
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import BudgetWarning, InputError, PFedHGPWarning, TellsTooMuchError
from pfedhgp.federation import inprocess
from pfedhgp.federation.agreement import Agreement
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.flower.exchange import Engine, Patience, QuorumError
from pfedhgp.federation.flower.site_model import site_model
from pfedhgp.federation.flower.state import Roster
from pfedhgp.federation.grouping import group_clients
from pfedhgp.federation.messages import Message
from pfedhgp.federation.planning import make_plan
from pfedhgp.federation.server import Server
from pfedhgp.federation.telling import Limit, masked_together
from pfedhgp.inference.starts.told import most_told
from pfedhgp.model.prediction import predict
from pfedhgp.settings import config as configs
from pfedhgp.settings.table import ModelSettings
from support.overheard import wavy_rows
from support.reference_federation import Clock, LocalLink, assert_same, replay, site_of


@contextmanager
def on_the_host():
    """As the estimator computes: nothing is compiled."""
    with numerics(), on_device("cpu"):
        yield


def plan_of(**settings):
    return make_plan(ModelSettings(**settings), 1, settings.pop("outputs", 1))


def sizes(*counts, outputs=1):
    """Clients with so many rows."""
    full = wavy_rows(len(counts), max(counts), outputs, seed=7)
    pairs = zip(full, counts, strict=True)
    return [ClientRows(row.name, row.X[:n], row.Y[:n]) for row, n in pairs]


def trained(plan, rows):
    """(server, groups, requests) of a whole training."""
    server, groups, asked = Server(plan), group_clients(plan, rows, batch=True), []

    def record(message, receiver):
        if message.sender == "server" and message.kind in ("start", "round"):
            asked.append((message, receiver))

    with on_the_host():
        inprocess.run(server, groups, record=record)
    return server, groups, asked


def start_of(plan, rows):
    """The start request of a server with such a plan, and what came before."""
    server, groups = Server(plan), [ClientGroup(plan, [row]) for row in rows]
    with on_the_host():
        while server.phase != "start":
            request = server.request()
            server.gather(list(inprocess.answers(request, groups, None)))
        return server.request()


@pytest.mark.filterwarnings("ignore::pfedhgp.errors.BudgetWarning")
def test_the_server_asks_for_what_clients_answer():
    """Whatever the data need: fewer inducing inputs, one start, and no more in any later round."""
    rows = sizes(60, 60, 90)
    server, groups, asked = trained(plan_of(privacy="sums"), rows)
    limit = most_told(60)
    for request, _ in asked:
        assert len(request.arrays["inputs"]) <= limit
        assert not any(name.startswith("other ") for name in request.arrays)
    assert server.summary()["told"]["asked"] <= limit
    for group in groups:
        assert group.told.directions.shape[1] == server.run.asked.directions.shape[1] <= limit
    open_server, *_ = trained(plan_of(), rows)
    assert open_server.history[-1]["inducing"] > limit, "which these data need"


def test_kernels_are_learned_as_long_as_clients_answer():
    """With many rows nothing is in the way; with few, kernels stay where they are."""
    many, _, asked = trained(plan_of(privacy="sums", inducing=6, rounds=4), sizes(600, 600))
    assert any(request.arrays["derivatives"] for request, _ in asked)
    assert not many.run.best.prepared.counted.by_client.keys() ^ {"client 0", "client 1"}
    kernels = {float(np.ravel(request.arrays["kernel"])[0]) for request, _ in asked}
    assert len(kernels) > 1, "they moved"
    with pytest.warns(BudgetWarning, match=r"instead of \d+.*, `masks`, or privacy='local'"):
        _, _, asked = trained(plan_of(privacy="sums", rounds=4), sizes(60, 60))
    assert not any(request.arrays["derivatives"] for request, _ in asked)


def test_a_client_refuses_an_open_plan_whatever_it_says():
    """The limit is the client's: a server with another plan gets no answer."""
    rows = sizes(60, 60)
    request = start_of(plan_of(), rows)
    plan = plan_of()
    closed = ClientGroup(plan, rows[:1], answers_all=False)
    with on_the_host(), pytest.raises(TellsTooMuchError) as caught:
        closed.answer(request)
    text = str(caught.value)
    assert "60 rows answer 7" in text
    assert "at most 7 inducing inputs" in text
    assert "--i-know" in text
    with on_the_host():
        assert ClientGroup(plan, rows[:1], answers_all=True).answer(request)


def test_requests_add_up_also_after_a_restart():
    """Each asks for no more than allowed, all together for more; a group that was restored remembers."""
    rows, plan = sizes(60, 60), plan_of(privacy="sums", inducing=5)
    request = start_of(plan, rows)
    group = ClientGroup(plan, rows[:1])
    with on_the_host():
        group.answer(request)
        again = ClientGroup(plan, rows[:1])
        again.restore(group.state())
        assert again.told.directions.shape == group.told.directions.shape
        shorter = dict(request.arrays)
        shorter["kernel"] = 0.2 * shorter["kernel"]
        for one in (group, again):
            one.answer(request)
            with pytest.raises(TellsTooMuchError):
                one.answer(Message("start", 0, "server", shorter, request.block))


def test_small_clients_are_not_asked_and_get_a_model():
    """They send counts before training alone, and fit their own layers at the end."""
    rows = sizes(200, 200, 200, 20)
    data = {row.name: (row.X, row.Y) for row in rows}
    with pytest.warns(PFedHGPWarning, match="'client 3' has too few rows to be asked"):
        model = FederatedGP(privacy="sums", inducing=10).fit(data)
    told = {e["kind"] for e in model.messages_ if e["from"] == "client 3"}
    assert told == {"census", "extent"}
    assert model.clients_ == tuple(data)
    assert model.model_.settings["told"]["not_asked"] == 1
    whole = wavy_rows(4, 200, 1, seed=7)[3]
    alone = FederatedGP(layers=("local",)).fit({"client 3": data["client 3"]})
    x, y = whole.X[20:], whole.Y[20:]
    errors = [np.mean((m.predict("client 3", x).mean - y) ** 2) for m in (model, alone)]
    assert errors[0] < errors[1], "the others' shared function helps it"


def test_nobody_has_enough_rows():
    with pytest.raises(InputError, match=r"no client has enough rows .*30 at least"):
        trained(plan_of(privacy="sums"), sizes(20, 20))


def test_fewer_latents_where_rows_do_not_answer_for_two():
    """Four outputs and 100 rows answer for four functions: one latent with four inputs, not two with two."""
    plan = make_plan(ModelSettings(privacy="sums", rounds=1), 1, 4)
    with pytest.warns(BudgetWarning):
        server, _, asked = trained(plan, sizes(100, 100, outputs=4))
    assert server.best.prepared.spec.latents == 1
    assert {request.arrays["inputs"].shape for request, _ in asked} == {(most_told(100, 4), 1)}
    given = make_plan(ModelSettings(privacy="sums", latents=2, rounds=1), 1, 4)
    with pytest.warns(BudgetWarning):
        server, *_ = trained(given, sizes(100, 100, outputs=4))
    assert server.best.prepared.spec.latents == 2


def test_masks_count_the_rows_of_all():
    """Of T clients at least t are in a total: with masks a client counts t times its rows."""
    assert [masked_together(T) for T in (3, 4, 12)] == [3, 3, 9]
    assert Limit("a", 60, 1, among=3).most == most_told(180)
    with pytest.raises(
        TellsTooMuchError, match=r"its 60 rows answer 12: use at most 12 .*, 61 rows"
    ):
        Limit("a", 60, 1, among=3).check(13, 1)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"inference": "mean-field"}, "mean-field"),
        ({"cycles": "stationary"}, "cycle layer"),
        ({"learn_inducing": True}, "learn_inducing"),
        ({"kernel": "auto"}, "choice"),
        ({"restarts": 2}, "restarts"),
    ],
)
def test_what_cannot_be_counted_is_refused_by_name(settings, word):
    with pytest.raises(InputError, match=rf"{word}.* privacy='sums' .*--i-know"):
        plan_of(privacy="sums", **settings)


def test_a_request_that_is_not_counted_is_not_answered():
    rows, plan = sizes(60), plan_of()
    group = ClientGroup(replace(plan, privacy="sums"), rows)
    with pytest.raises(TellsTooMuchError, match="'cycles' request"):
        group.answer(Message("cycles", 0, "server", {}))


def test_counts_before_training_stand_for_five_rows():
    rows, plan = sizes(43), plan_of(privacy="sums")
    group = ClientGroup(plan, rows)
    with on_the_host():
        (told,) = group.answer(Message("census", 0, "server", {}))
        centre, spread = rows[0].X.mean(0), rows[0].X.std(0)
        asked = {"centre": centre, "spread": spread, "bins": np.asarray(16.0)}
        (where,) = group.answer(Message("extent", 0, "server", asked))
        four = ClientGroup(plan, [replace(rows[0], X=rows[0].X[:4], Y=rows[0].Y[:4])])
        (nothing,) = four.answer(Message("census", 0, "server", {}))
    assert told.arrays["rows"] == 43
    assert not any(np.any(array) for array in nothing.arrays.values())
    pairs, bins = where.arrays["lag_pairs"], where.arrays["bin_rows"]
    for counts in (pairs, bins):
        assert np.all((counts == 0) | (counts >= 5))
    assert where.arrays["histogram"].sum() == 43


# ---------------------------------------------------------------- sites of a federation, without a network


def federation(folder, rows, terms, *, answers_all=False, delivered=None):
    sites = {r.name: site_of(folder / r.name, r, delivered, answers_all=answers_all) for r in rows}
    server, clock = Server(terms.plan), Clock()
    roster = Roster(tuple(sites), terms.to_json())
    patience = Patience(timeout=30.0, quorum=2, grace=5.0, pause=1.0)
    return Engine(server, roster, LocalLink(sites), patience, clock=clock, sleep=clock.sleep)


def terms(**run):
    columns = {"inputs": ["x"], "outputs": ["y"]}
    return Agreement.of(configs.check({"data": columns, "inference": {"rounds": 2}, "run": run}))


@pytest.mark.filterwarnings("ignore:privacy='sums'")
def test_by_default_the_server_asks_for_little_and_small_sites_get_the_model(tmp_path):
    """The run is that of one process; the site of 20 rows is asked for counts alone, and has a model."""
    rows, delivered = sizes(80, 80, 20), {}
    agreed = terms()
    assert json.loads(agreed.to_json())["settings"]["run"]["privacy"] == "sums"
    engine = federation(tmp_path, rows, agreed, delivered=delivered)
    with on_the_host():
        assert engine.run() == {}
        assert_same(engine.server, replay(agreed.plan, rows, engine.roster.log), 0.0)
        late = site_model(*delivered["client 2"])
    assert engine.server.unable == ("client 2",)
    for entry in engine.roster.log:
        left_out = entry["kind"] in ("start", "round")
        assert entry["missing"] == ({"client 2": "few-rows"} if left_out else {})
    assert len(late.shared.block.inputs) <= 8
    assert np.isfinite(predict(late, "client 2", rows[2].X).sd).all()
    sent = (tmp_path / "client 2" / "audit.jsonl").read_text().splitlines()
    kinds = [e["kind"] for e in map(json.loads, sent) if e["direction"] == "sent"]
    assert kinds == ["census", "extent", "deliver"]


def test_an_open_server_gets_no_answer_from_closed_sites(tmp_path):
    """What the server's settings say does not matter: the sites know better, and say so in their own log."""
    engine = federation(tmp_path, sizes(60, 60, 60), terms(privacy="none"))
    with on_the_host(), pytest.raises(QuorumError):
        engine.run()
    refused = (tmp_path / "client 0" / "audit.jsonl").read_text().splitlines()[-1]
    assert json.loads(refused)["code"] == "closed"
    assert [e["kind"] for e in engine.roster.log] == ["census", "extent"]


def test_a_site_may_say_that_it_knows(tmp_path):
    engine = federation(tmp_path, sizes(60, 60), terms(privacy="none"), answers_all=True)
    with on_the_host():
        assert engine.run() == {}
    assert engine.server.history[-1]["inducing"] > 7
