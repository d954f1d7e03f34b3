"""kernel="auto", latents="auto": models compete in the same exchanges."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp import RBF, FederatedGP, Markov, Matern32, Periodic, Structured
from pfedhgp.data.columns import Columns, InputColumn
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError
from pfedhgp.federation.grouping import group_clients
from pfedhgp.federation.message_checks import (
    check_arrays,
    largest_request,
    of_reply,
    of_request,
)
from pfedhgp.federation.planning import make_plan
from pfedhgp.federation.server import Server
from pfedhgp.inference.starts import contest
from pfedhgp.settings.config import checked
from pfedhgp.settings.for_columns import with_kernels
from support.markov_stations import SETTINGS, stations

ONE_INPUT = Columns("client", (InputColumn("x"),), ("y",))
QUICK = Structured(rounds=4, evaluations=15, first_evaluations=20, averaging=None)
KNOTS = {
    **SETTINGS,
    "latents": "auto",
    "inducing": 20,
    "domain": ((0.0, 10.0),),
    "inference": Markov(rounds=4, evaluations=3, frozen_rounds=1),
}


def waves(clients: int = 3, n: int = 40):
    """A common wave with a bump at each client."""
    rng = np.random.default_rng(0)
    found = {}
    for i in range(clients):
        x = np.sort(rng.uniform(0.0, 10.0, n))
        saw = (x / 1.7) % 1.0 + np.exp(-((x - 3.0 * i) ** 2))
        found[f"c{i}"] = (x, saw + 0.05 * rng.normal(size=n))
    return found


@pytest.fixture(scope="module")
def chosen():
    return FederatedGP(kernel="auto", inference=QUICK).fit(waves())


def test_waves_are_found_and_the_choice_is_kept(chosen, tmp_path):
    choice = chosen.model_.settings["choice"]
    assert "periodic" in choice[0]["kernel"]
    assert choice[0]["round"] is None
    assert all(each["behind"] > 0.0 and each["round"] >= 1 for each in choice[1:])
    chosen.save(tmp_path / "M")
    again = FederatedGP.load(tmp_path / "M")
    assert again.model_.settings["choice"] == choice
    assert contest.in_words(choice).startswith(choice[0]["kernel"])
    x = np.linspace(0.0, 10.0, 7)
    np.testing.assert_allclose(again.predict("c1", x).mean, chosen.predict("c1", x).mean)


def test_a_contest_takes_no_exchange_more(chosen):
    assert chosen.exchanges_ == 2 + 1 + 4


def test_bounds_are_those_of_training_alone():
    """A model that is trained beside another has the bound of a training of its own."""
    data = waves()
    both = FederatedGP(
        kernel=[RBF(), Matern32(1.0)], local_kernel="rbf", inference=QUICK, inducing=12
    ).fit(data)
    alone = FederatedGP(
        kernel=both.model_.kernel, local_kernel="rbf", inference=QUICK, inducing=12
    ).fit(data)
    assert len(both.model_.settings["choice"]) == 2
    assert both.bound_ == pytest.approx(alone.bound_, rel=1e-8)


@pytest.mark.parametrize(
    ("settings", "outputs"),
    [
        ({"kernel": ["rbf", "rbf + periodic", Matern32(2.0)]}, 1),
        ({"latents": "auto"}, 3),
        ({"latents": "auto", "client_loadings": True}, 1),
        (KNOTS, 1),
    ],
)
def test_messages_are_those_of_the_schema_and_a_stopped_contest_goes_on(settings, outputs):
    how = {"inference": QUICK, "inducing": 8, **settings}
    plan = make_plan(with_kernels(checked(FederatedGP(**how)), ONE_INPUT), 1, outputs)
    rows = [
        ClientRows(k, x[:, None], np.stack([y**p for p in range(1, outputs + 1)], axis=1))
        for k, (x, y) in waves().items()
    ]
    server, groups = Server(plan), group_clients(plan, rows, batch=True)
    side_by_side = 0
    while (request := server.request()) is not None:
        check_arrays(request.arrays, of_request(plan, request.kind, request.arrays))
        assert request.nbytes < largest_request(plan, request.kind)
        replies = [reply for group in groups for reply in group.answer(request)]
        for reply in replies:
            check_arrays(reply.arrays, of_reply(plan, request.kind, request.arrays))
        side_by_side += any(name.startswith("other ") for name in request.arrays)
        server.gather(replies)
        if server.current is not None:  # every party is put away, and taken up again
            kept = server.state()
            fresh, others = Server(plan), group_clients(plan, rows, batch=True)
            fresh.restore(kept)
            for group, other in zip(groups, others, strict=True):
                other.restore(group.state())
            server, groups = fresh, others
    straight = Server(plan)
    clients = group_clients(plan, rows, batch=True)
    while (request := straight.request()) is not None:
        straight.gather([reply for group in clients for reply in group.answer(request)])
    assert side_by_side >= 2
    assert server.best.bound == straight.best.bound
    assert server.run.choice == straight.run.choice


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel": "auto", "inference": "mean-field"}, "mean-field"),
        ({"kernel": "auto", "cycles": "stationary"}, "cycle layer"),
        ({"latents": "auto", "inference": "mean-field"}, "`latents`.*mean-field"),
        ({"local_latents": "auto", "cycles": "stationary"}, "`latents`.*cycle layer"),
        ({"kernel": []}, "list of kernels"),
        ({"kernel": ["rbf", ["rbf"]]}, "list of kernels"),
        ({"kernel": "auto: rbf, wave"}, "'wave' is not a kernel"),
        ({"latents": "many"}, "'auto'"),
        ({"local_latents": 0}, "local_latents"),
    ],
)
def test_what_cannot_be_chosen_is_refused_in_one_line(settings, message):
    several = {name: (x, np.stack([y] * 3, axis=1)) for name, (x, y) in waves().items()}
    with pytest.raises(InputError, match=message) as error:
        FederatedGP(**settings).fit(several if "latents" in message else waves())
    assert "\n" not in str(error.value)


def test_a_list_with_periodic_parts():
    asked = checked(FederatedGP(kernel="auto: rbf, matern32 + periodic(2.0)"))
    plan = make_plan(with_kernels(asked, ONE_INPUT), 1, 1)
    assert [contest.label(spec)["kernel"] for spec in plan.specs] == ["rbf", "matern32 + periodic"]
    assert isinstance(plan.specs[1].kernel.kernel.kernels[1], Periodic)


# ------------------------------------------------------------------------------- numbers of latents


def several_outputs(latents: int = 3, outputs: int = 5, clients: int = 3, n: int = 30):
    """Three shared waves in five outputs, and one wave of its own at each client."""
    rng = np.random.default_rng(0)
    B, found = rng.normal(size=(outputs, latents)), {}
    for i in range(clients):
        x = np.sort(rng.uniform(0.0, 10.0, n))
        h = np.stack([np.sin(x), np.cos(0.7 * x), np.sin(1.9 * x + 1.0)], axis=1)
        own = 0.3 * np.sin(3.0 * x + i)[:, None] * rng.normal(size=outputs)
        found[f"c{i}"] = (x, h @ B.T + own + 0.05 * rng.normal(size=(n, outputs)))
    return found


@pytest.fixture(scope="module")
def numbered():
    return FederatedGP(latents="auto", local_latents="auto", inference=QUICK).fit(several_outputs())


def test_numbers_of_latents_are_found_and_kept(numbered, tmp_path):
    choice = numbered.model_.settings["choice"]
    assert choice[0]["latents"] == numbered.model_.shared.block.loadings.shape[1]
    assert choice[0]["latents"] > 1
    assert {(each["latents"], each["local_latents"]) for each in choice} >= {(1, 1), (2, 2), (4, 2)}
    chosen = f"with {choice[0]['latents']} + {choice[0]['local_latents']} latents chosen"
    assert chosen in contest.in_words(choice)
    assert contest.subject(choice) == "kernels and latents"
    numbered.save(tmp_path / "M")
    again = FederatedGP.load(tmp_path / "M")
    assert again.latents == "auto"
    assert again.model_.settings["choice"] == choice
    x, y = several_outputs()["c0"]
    again.adopt("new", x, y)
    assert again.predict("new", x[:3]).mean.shape == (3, 5)
    assert numbered.exchanges_ == 2 + 1 + 4


def test_the_chosen_numbers_have_the_bound_of_a_training_of_their_own(numbered):
    size = numbered.model_.history[-1]["inducing"]
    assert {record["inducing"] for record in numbered.model_.history} == {size}
    first = numbered.model_.settings["choice"][0]
    numbers = {name: first[name] for name in ("latents", "local_latents")}
    alone = FederatedGP(**numbers, inference=QUICK, inducing=size)
    assert alone.fit(several_outputs()).bound_ == pytest.approx(numbered.bound_, rel=1e-8)


def test_below_three_outputs_there_is_nothing_to_choose():
    for outputs in (1, 2):
        plan = make_plan(checked(FederatedGP(latents="auto", local_latents="auto")), 1, outputs)
        assert not plan.chooses
        assert plan.spec.latents == outputs
    exact = {"local": "state-space", "local_kernel": "matern32"}
    plan = make_plan(checked(FederatedGP(local_latents="auto", **exact)), 1, 4)
    assert not plan.chooses  # one local function an output


def test_the_number_of_functions_that_clients_mix_is_found(tmp_path):
    """Stations mix two shared functions; each station has one output."""
    rows = stations()[0]
    solver = Markov(rounds=7, evaluations=3, frozen_rounds=2, averaging=False)
    settings = {**SETTINGS, "latents": "auto", "inference": solver}
    model = FederatedGP(**settings).fit(rows)
    choice = model.model_.settings["choice"]
    assert {each["latents"] for each in choice} == {1, 2, 3, 4, 5}
    assert choice[0]["latents"] == 2
    assert min(each["round"] for each in choice[1:]) > solver.frozen_rounds
    assert model.exchanges_ == 1 + 1 + 7
    alone = FederatedGP(**{**settings, "latents": 2}).fit(rows)
    assert model.bound_ == pytest.approx(alone.bound_, rel=1e-8)
    model.save(tmp_path / "M")
    assert FederatedGP.load(tmp_path / "M").model_.settings["choice"] == choice


def test_kernels_and_latents_are_chosen_together():
    settings = FederatedGP(kernel=["rbf", "matern52"], latents="auto", inference=QUICK)
    plan = make_plan(checked(settings), 1, 4)
    assert len(plan.candidates) == 2 * 4
    assert [(s.latents, s.local_latents) for s in plan.candidates[:4]] == [(2, 2)] * 2 + [
        (1, 2)
    ] * 2
    assert plan.to_json()["ranks"][0] == [2, 2]
    data = {name: (x, y[:, :4]) for name, (x, y) in several_outputs(n=20).items()}
    choice = settings.fit(data).model_.settings["choice"]
    assert all(each["local_latents"] == 2 for each in choice)
    assert {each["latents"] for each in choice} >= {2, 3}
