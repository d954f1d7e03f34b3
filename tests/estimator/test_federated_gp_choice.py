"""kernel="auto": models with different kernels compete in the same exchanges."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp import RBF, FederatedGP, Matern32, Periodic, Structured
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError
from pfedhgp.federation.grouping import group_clients
from pfedhgp.federation.message_checks import check_arrays, of_reply, of_request
from pfedhgp.federation.planning import make_plan
from pfedhgp.federation.server import Server
from pfedhgp.inference.starts import contest
from pfedhgp.settings.config import checked

QUICK = Structured(rounds=4, evaluations=15, first_evaluations=20, averaging=None)


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


def test_messages_are_those_of_the_schema_and_a_stopped_contest_goes_on():
    settings = checked(
        FederatedGP(kernel=["rbf", "rbf + periodic", Matern32(2.0)], inference=QUICK, inducing=8)
    )
    plan = make_plan(settings, 1, 1)
    rows = [ClientRows(k, x[:, None], y[:, None]) for k, (x, y) in waves().items()]
    server, groups = Server(plan), group_clients(plan, rows, batch=True)
    side_by_side = 0
    while (request := server.request()) is not None:
        check_arrays(request.arrays, of_request(plan, request.kind, request.arrays))
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
        ({"kernel": []}, "list of kernels"),
        ({"kernel": ["rbf", ["rbf"]]}, "list of kernels"),
        ({"kernel": "auto: rbf, wave"}, "'wave' is not a kernel"),
        ({"latents": "auto", "client_loadings": True}, "client_loadings"),
        ({"latents": "many"}, "'auto'"),
        ({"local_latents": 0}, "local_latents"),
    ],
)
def test_what_cannot_be_chosen_is_refused_in_one_line(settings, message):
    with pytest.raises(InputError, match=message) as error:
        FederatedGP(**settings).fit(waves())
    assert "\n" not in str(error.value)


def test_a_list_with_periodic_parts():
    plan = make_plan(checked(FederatedGP(kernel="auto: rbf, matern32 + periodic(2.0)")), 1, 1)
    assert [contest.label(spec)["kernel"] for spec in plan.specs] == ["rbf", "matern32 + periodic"]
    assert isinstance(plan.specs[1].kernel.kernel.kernels[1], Periodic)
