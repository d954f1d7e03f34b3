"""Fits with masks find what fits without them find, and the server's side sees totals alone."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

from support.masked_sites import needs_cryptography
from support.reference_federation import rows_of

needs_cryptography()
from pfedhgp import RBF, FederatedGP, Periodic  # noqa: E402
from pfedhgp.base.numerics import numerics  # noqa: E402
from pfedhgp.errors import InputError, MessageError, NonFiniteMessageError  # noqa: E402
from pfedhgp.federation import inprocess  # noqa: E402
from pfedhgp.federation.grouping import group_clients  # noqa: E402
from pfedhgp.federation.masks import in_process  # noqa: E402
from pfedhgp.federation.masks.in_process import MaskedClients  # noqa: E402
from pfedhgp.federation.masks.roster import MaskError  # noqa: E402
from pfedhgp.federation.messages import Message  # noqa: E402
from pfedhgp.federation.planning import make_plan  # noqa: E402
from pfedhgp.federation.server import Server  # noqa: E402
from pfedhgp.settings.table import ModelSettings  # noqa: E402

pytestmark = pytest.mark.flower
GRID = np.linspace(0.0, 5.0, 20)[:, None]
SMALL = {"inducing": 8, "local_inducing": 6, "rounds": 4, "averaging": False}


def table(outputs: int = 1, clients: int = 4, rows: int = 30) -> dict[str, tuple]:
    """Outputs far from zero, of different sizes, with missing cells."""
    found = {}
    for i in range(clients):
        rng = np.random.default_rng([5, i])
        X = np.sort(rng.uniform(0.0, 5.0, (rows, 1)), axis=0)
        Y = np.sin(X + np.arange(outputs)) + 0.3 * np.cos(2.0 * X + i)
        Y = 293.0 + 10.0 ** np.arange(outputs) * (Y + 0.1 * rng.normal(size=Y.shape))
        Y[rng.uniform(size=Y.shape) < 0.1] = np.nan
        found[f"s{i}"] = (X, Y)
    return found


def press() -> dict[str, tuple]:
    grid, found = np.linspace(0.0, 1.0, 12), {}
    for i in range(3):
        rng = np.random.default_rng([9, i])
        wave = np.sin(6.0 * grid + 0.2 * i) + 0.3 * rng.normal(size=(8, 1, 1))
        found[f"press {i}"] = (grid, wave + 0.05 * rng.normal(size=(8, 1, 12)))
    return found


CASES = {
    "one output": ({}, table()),
    "two outputs": ({}, table(2)),
    "a known domain": ({"domain": [(0.0, 5.0)]}, table()),
    "a choice of kernels": ({"kernel": ["rbf", "matern32"]}, table()),
    "a restart": ({"restarts": 2, "rounds": 2}, table()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_fit_with_masks_is_the_fit_without(case):
    """Bounds within 1e-3 nats a client, predictions within 1e-3 standard deviations."""
    settings, data = CASES[case]
    plain = FederatedGP(**{**SMALL, **settings}).fit(data)
    masked = FederatedGP(**{**SMALL, **settings}, masks=True).fit(data)
    assert abs(plain.bound_ - masked.bound_) < 1e-3 * len(data)
    for name in data:
        one, two = plain.predict(name, GRID), masked.predict(name, GRID)
        assert np.max(np.abs(one.mean - two.mean) / one.sd) < 1e-3
        np.testing.assert_allclose(two.sd, one.sd, rtol=1e-3)
    with pytest.warns(UserWarning, match="no client"):
        one, two = plain.predict("new", GRID), masked.predict("new", GRID)
    np.testing.assert_allclose(two.sd, one.sd, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"cycles": "stationary"}, {"local": "state-space"}])
def test_cycles_and_states_with_masks(settings):
    data = press() if "cycles" in settings else table()
    plain, masked = (
        FederatedGP(**{**SMALL, **settings}, masks=masks).fit(data) for masks in (False, True)
    )
    assert abs(plain.bound_ - masked.bound_) < 1e-3 * len(data)


def test_what_reaches_the_server_are_masked_replies_signatures_and_shares(monkeypatch):
    """No reply of a client is in it, and every masked one looks like noise."""
    seen, told = [], {}

    class Watched(in_process.Aggregator):
        def take(self, reply):
            seen.append(reply)
            super().take(reply)

    monkeypatch.setattr(in_process, "Aggregator", Watched)
    model = FederatedGP(**SMALL, masks=True).fit(table())
    large = [reply for reply in seen if reply.values.size > 500]
    assert len(large) >= 4
    for reply in large:
        counts = np.bincount(reply.values.astype("<u8").view(np.uint8), minlength=256)
        expected = 8 * reply.values.size / 256
        assert chi2.sf(np.sum((counts - expected) ** 2) / expected, 255) > 1e-6
    for entry in model.messages_:
        if entry["to"] == "server":
            told.setdefault(frozenset(entry["arrays"]), []).append(entry["kind"])
    names = [{"masked", "sealed shares"}, {"signature"}, {"shares"}]
    assert set(told) == {frozenset(each) for each in names}
    assert {len(kinds) for kinds in told.values()} == {4 * model.exchanges_}
    assert model.history_[-1]["bytes_up"] > 0


def test_bytes_of_long_messages_are_those_of_plain_ones():
    """At most 1.05 times with 128 inducing inputs and 4 clients: keys and shares do not grow."""
    up = {}
    for masks in (False, True):
        model = FederatedGP(inducing=128, local_inducing=6, rounds=2, averaging=False, masks=masks)
        history = model.fit(table(rows=60)).history_
        up[masks] = history[-1]["bytes_up"]
    assert up[False] < up[True] < 1.05 * up[False]


def federation(masks: bool = True, **settings):
    rows = rows_of(["a", "b", "c", "d"])
    plan = make_plan(ModelSettings(**SMALL, masks=masks, **settings), 1, 1)
    return Server(plan), group_clients(plan, rows, batch=False), rows


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel": RBF() + Periodic()},
        {"client_loadings": True},
        pytest.param({"learn_inducing": True}, marks=pytest.mark.slow),
        pytest.param({"inference": "mean-field"}, marks=pytest.mark.slow),
    ],
    ids=["an open period", "client loadings", "learned inducing inputs", "mean-field"],
)
def test_totals_are_the_sums_of_the_replies(settings):
    """Exchange by exchange: where a search amplifies any rounding, whole fits do not compare."""
    server, groups, rows = federation(**settings)
    masked = MaskedClients(server.plan, [row.name for row in rows])
    kinds = []
    with numerics():
        while (request := server.request()) is not None and len(kinds) < 7:
            replies = [reply for group in groups for reply in group.answer(request)]
            sums, senders, received = masked.total(request, replies)
            for name, total in sums.items():
                expected = sum(reply.arrays[name] for reply in replies)
                np.testing.assert_allclose(total, expected, rtol=1e-12, atol=1e-6)
            kinds.append(request.kind)
            server.take(sums, senders, received)
    assert kinds[:5] == ["magnitude", "magnitude", "census", "extent", "start"]
    assert kinds[5:] == ["round"] * 2


class Stop(Exception):
    """Ends a fit at a place."""


class StopsAfter:
    """A callback that ends the fit when the phase `kind` is over."""

    def __init__(self, kind):
        self.kind, self.kinds = kind, []

    def __call__(self, record):
        return None

    def phase(self, kind):
        if self.kinds.count(self.kind) == 2 or (self.kind in self.kinds and kind != self.kind):
            raise Stop
        self.kinds.append(kind)


@pytest.mark.parametrize("after", ["magnitude", "census", "extent", "start", "round"])
def test_a_run_that_stopped_goes_on_with_new_keys(tmp_path, after):
    """From the checkpoint, as without masks: centres and units are in it."""
    whole = FederatedGP(**SMALL, masks=True).fit(table())
    with pytest.raises(Stop):
        FederatedGP(**SMALL, masks=True, callbacks=(StopsAfter(after),)).fit(
            table(), checkpoint=tmp_path / "run"
        )
    again = FederatedGP(**SMALL, masks=True)
    again.fit(table(), checkpoint=tmp_path / "run", resume=True)
    assert again.bound_ == pytest.approx(whole.bound_, abs=1e-9)
    assert again.exchanges_ == whole.exchanges_


def test_two_clients_and_too_many_are_refused():
    with pytest.raises(InputError, match="at least 3 sites, there are 2"):
        FederatedGP(**SMALL, masks=True).fit(table(clients=2))
    with pytest.raises(InputError, match="at most 100"):
        FederatedGP(**SMALL, masks=True).fit(table(clients=101, rows=3))


def test_what_needs_single_clients_is_refused_by_name():
    model = FederatedGP(**SMALL, masks=True).fit(table())
    with pytest.raises(InputError, match="grouping clients needs numbers of single clients"):
        model.cluster(2)
    with pytest.raises(InputError, match="diagnosis needs numbers of single clients"):
        model.fit(press(), block={name: list(range(8)) for name in press()})
    with pytest.raises(InputError, match="learn_inducing='auto' cannot be combined"):
        FederatedGP(masks=True, learn_inducing="auto").fit(table())

    class Curious:
        def __call__(self, record):
            return None

        def replied(self, exchange):
            raise AssertionError("it must not see a reply")

    with pytest.raises(InputError, match="`replied`"):
        FederatedGP(**SMALL, masks=True, callbacks=(Curious(),)).fit(table())


def test_a_client_refuses_to_send_what_is_not_finite_or_not_agreed():
    server, groups, rows = federation()
    masked = MaskedClients(server.plan, [row.name for row in rows])
    request = server.request()
    replies = [reply for group in groups for reply in group.answer(request)]
    broken = {**replies[0].arrays, "x_mantissa": np.full((1, 128), np.nan)}
    wrong = Message("magnitude", 0, "a", broken, request.block)
    with pytest.raises(NonFiniteMessageError, match="x_mantissa"):
        masked.total(request, [wrong, *replies[1:]])
    wrong = Message("magnitude", 0, "a", {"x": np.zeros(1)}, request.block)
    with pytest.raises(MessageError, match="agreed arrays"):
        masked.total(request, [wrong, *replies[1:]])
    assert masked.number == 0


def test_a_total_that_counts_wrong_is_refused(monkeypatch):
    """A client that counts itself twice."""
    server, groups, _ = federation()
    honest = groups[0].answer

    def twice(request):
        (reply,) = honest(request)
        if "clients" not in reply.arrays:
            return [reply]
        more = {**reply.arrays, "clients": np.asarray(2.0)}
        return [Message(reply.kind, reply.round, reply.sender, more, reply.block)]

    monkeypatch.setattr(groups[0], "answer", twice)
    with numerics(), pytest.raises(MaskError, match="4 clients are summed"):
        inprocess.run(server, groups)
