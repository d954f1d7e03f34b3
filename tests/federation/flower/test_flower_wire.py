"""Records in and out of Flower: round trips, and what is refused before it is unpacked. And the gate."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pfedhgp.errors import InputError
from support.flower_processes import needs_flower

needs_flower()
import httpx  # noqa: E402
from flwr.app import (  # noqa: E402
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    RecordDict,
)
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from pfedhgp.federation.flower import wire  # noqa: E402
from pfedhgp.federation.flower.address import heartbeat_of  # noqa: E402
from pfedhgp.federation.flower.app import client_app  # noqa: E402
from pfedhgp.federation.flower.control import register  # noqa: E402
from pfedhgp.federation.flower.envelope import Envelope, Refused  # noqa: E402
from pfedhgp.federation.flower.grid_link import TRAIN, GridLink  # noqa: E402
from pfedhgp.federation.flower.superlink import FleetOnly  # noqa: E402
from pfedhgp.federation.flower.supernode import answering, forgetting  # noqa: E402
from pfedhgp.federation.schema import HELLO  # noqa: E402

pytestmark = pytest.mark.flower
ARRAYS = {
    "scalar": np.asarray(0.1),
    "empty": np.zeros((0, 3)),
    "turned": np.arange(6.0).reshape(2, 3).T,
    "missed/start/J": np.array([np.inf, -0.0, np.nan]),
}
ENVELOPE = Envelope(
    run="ab" * 16, exchange=3, kind="round", round=1, sender='ü"\n', arrays=ARRAYS, lapsed=True
)


def test_envelopes_survive_flower():
    back = wire.from_records(wire.to_records(ENVELOPE), most_bytes=1000)
    assert back.plain() == ENVELOPE.plain()
    assert list(back.arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(back.arrays[name], array)
        assert back.arrays[name].shape == array.shape
    assert back.message().kind == "round"
    assert [m.kind for m in back.missed()] == ["start"]


def _changed(about=None, data=None, drop=()):
    records = wire.to_records(ENVELOPE)
    plain = {k: v for k, v in {**records["about"], **(about or {})}.items() if k not in drop}
    numbers = records["arrays"]["numbers"] if data is None else data
    arrays = ArrayRecord({"numbers": numbers})
    return RecordDict({"about": ConfigRecord(plain), "arrays": arrays})


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (lambda: RecordDict(), "malformed"),
        (lambda: _changed({"schema": 99}), "schema"),
        (lambda: _changed({"kind": "gossip"}), "malformed"),
        (lambda: _changed({"exchange": -1}), "malformed"),
        (lambda: _changed({"exchange": 1.0}), "malformed"),
        (lambda: _changed({"more": 1}), "malformed"),
        (lambda: _changed({"audit": "row 3 is 1.5"}), "malformed"),
        (lambda: _changed({"seconds": float("nan")}), "not-finite"),
        (lambda: _changed({"seconds": -1.0}), "not-finite"),
        (lambda: _changed(drop=("run",)), "malformed"),
        (lambda: _changed({"layout": "{"}), "malformed"),
        (lambda: _changed({"layout": '{"a": [1000000000, 1000000000]}'}), "malformed"),
        (lambda: _changed({"layout": '{"a": [-1]}'}), "malformed"),
        (lambda: _changed({"layout": '{"a": [[1]]}'}), "malformed"),
        (lambda: _changed({"agreement": "x" * 300_000}), "oversized"),
        (lambda: _changed(data=Array("float64", (999,), "raw", b"\0" * 7992)), "oversized"),
        (lambda: _changed(data=Array(np.arange(3.0))), "malformed"),
    ],
)
def test_other_records_are_refused(records, code):
    with pytest.raises(Refused) as refused:
        wire.from_records(records(), most_bytes=1000)
    assert refused.value.code == code


def _ask(gate, path, peer, here="0.0.0.0"):
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "client": (peer, 1234), "server": (here, 9092)}
    asyncio.run(gate(scope, None, send))
    return sent[0]["status"]


def test_only_the_fleet_api_is_open_to_other_machines_and_only_when_keys_are_known(tmp_path):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})

    gate = FleetOnly(app, ready=tmp_path / "ready")
    assert _ask(gate, "/v1/fleet/activate-node", "10.0.0.7") == 503
    assert _ask(gate, "/v1/control/register-node", "127.0.0.1") == 200
    (tmp_path / "ready").touch()
    assert _ask(gate, "/v1/fleet/activate-node", "10.0.0.7") == 200
    for path in ("/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/v1/fleetx"):
        assert _ask(gate, path, "10.0.0.7") == 404
        assert _ask(gate, path, "127.0.0.1") == 200
        assert _ask(gate, path, "10.0.0.1", here="10.0.0.1") == 200, "itself, by its one interface"
        assert _ask(gate, path, "10.0.0.7", here="10.0.0.1") == 404


class _Control:
    """What a SuperLink knows of keys: it remembers those that were withdrawn."""

    def __init__(self):
        self.status = {}

    def ListNodes(self, request):
        known = enumerate(self.status.items())
        nodes = [SimpleNamespace(node_id=i, public_key=k, status=s) for i, (k, s) in known]
        return SimpleNamespace(nodes_info=nodes)

    def RegisterNode(self, request):
        assert request.public_key not in self.status
        self.status[request.public_key] = "registered"

    def UnregisterNode(self, request):
        self.status[list(self.status)[request.node_id]] = "unregistered"

    def close(self):
        pass


def test_a_key_that_is_not_in_the_list_any_more_is_withdrawn_for_good():
    control = _Control()
    address = SimpleNamespace(client=lambda kind: control)
    register(address, {b"1": "north", b"2": "south"})
    control.status[b"2"] = "online"
    register(address, {b"1": "north", b"3": "east"})
    assert control.status == {b"1": "registered", b"2": "unregistered", b"3": "registered"}
    before = dict(control.status)
    with pytest.raises(InputError, match="site 'south' was withdrawn from this run"):
        register(address, {b"2": "south", b"4": "west"})
    assert control.status == before


def test_a_task_that_is_over_ends_no_heartbeat():
    answer = httpx.Response(401, request=httpx.Request("POST", "http://127.0.0.1"))

    def over(request):
        raise httpx.HTTPStatusError("Unauthorized", request=answer.request, response=answer)

    sender = heartbeat_of(SimpleNamespace(SendTaskHeartbeat=over))
    assert sender.heartbeat_fn() is False


@pytest.fixture
def _in_a_task(monkeypatch):
    """Flower makes messages only in the process of one of its tasks."""
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


def _hello():
    return Envelope(run="", exchange=0, kind=HELLO, round=0, sender="server")


@pytest.mark.usefixtures("_in_a_task")
def test_flowers_client_app_answers_for_the_site_of_its_node_config(tmp_path, capsys, monkeypatch):
    config = {"home": str(tmp_path), "name": "north", "data": str(tmp_path / "rows.csv")}
    context = Context(1, 7, config, RecordDict(), {})
    asked = Message(wire.to_records(_hello()), 7, TRAIN)
    reply = client_app(asked, context)
    assert wire.from_records(reply.content, most_bytes=100).sender == "north"
    (tmp_path / "file").write_text("a home can be no file")
    elsewhere = Context(1, 7, {**config, "home": str(tmp_path / "file")}, RecordDict(), {})
    refused = wire.from_records(client_app(asked, elsewhere).content, most_bytes=100)
    assert refused.code == "internal"  # and not the text, which has this machine's paths
    unread = client_app(Message(RecordDict(), 7, TRAIN), context)
    assert wire.from_records(unread.content, most_bytes=100).code == "malformed"
    assert not context.state, "state is on the site's disk alone"

    def fails(**options):
        raise ValueError("row 3: CANARY-77c2")

    monkeypatch.setattr("pfedhgp.federation.flower.participant.make_site", fails)
    refused = wire.from_records(client_app(asked, context).content, most_bytes=100)
    assert refused.code == "internal"
    said = capsys.readouterr().err
    assert "pfedhgp: error: ValueError at test_flower_wire.py:" in said
    assert "CANARY" not in said


class _Nodes:
    """A Grid of nodes without keys, each of which says a name."""

    def __init__(self, names):
        self.names, self.asked = names, {}

    def get_nodes(self):
        came = [SimpleNamespace(node_id=i, registered_at=f"2026-01-0{i}") for i in self.names]
        return [SimpleNamespace(**vars(node), last_activated_at="x") for node in came]

    def push_messages(self, messages):
        keys = [f"{len(self.asked) + k}" for k in range(len(messages))]
        self.asked |= dict(zip(keys, messages, strict=True))
        return keys

    def pull_messages(self, keys):
        for key in keys:
            node = self.asked[key].metadata.dst_node_id
            content = wire.to_records(replace(_hello(), sender=self.names[node]))
            about = SimpleNamespace(reply_to_message_id=key)
            yield SimpleNamespace(metadata=about, content=content, has_error=lambda: False)


@pytest.mark.usefixtures("_in_a_task")
def test_without_keys_the_first_node_of_a_name_has_it(caplog):
    """A second one is refused, and so is a name that is not of this run."""
    grid = _Nodes({1: "north", 2: "north", 3: "south", 4: "stranger"})
    link = GridLink(grid, ("north", "south"))
    assert {name: node for name, (node, _) in link._present().items()} == {"north": 1, "south": 3}
    assert caplog.text.count("a second site of one name was refused") == 1
    assert link.push("north", ENVELOPE, 5.0)
    assert not link.push("west", ENVELOPE, 5.0)
    sent = list(grid.asked.values())[-1]
    assert sent.metadata.dst_node_id == 1


class _Node:
    """What a SuperNode remembers: messages, and tasks that are open."""

    def __init__(self):
        self.messages, self.open = set(), set()

    def create_task(self, name):
        self.open.add(name)
        return name

    def delete_messages(self, *, message_ids):
        self.messages -= set(message_ids)

    def finish_task(self, task, *, sub_status, details):
        self.open.discard(task)


@pytest.mark.parametrize("run_is_over", [True, False])
def test_a_message_that_came_in_part_leaves_no_task_behind(run_is_over):
    node, store = _Node(), {}
    store_of = SimpleNamespace(delete=lambda name: store.pop(name, None))
    letter = SimpleNamespace(metadata=SimpleNamespace(message_id="m"))

    def pull(*, state, object_store, receive, get_run):
        if (received := receive()) is None:
            return None
        message, _ = received
        state.create_task(f"task of {message.metadata.message_id}")
        state.messages.add(message.metadata.message_id)
        store[message.metadata.message_id] = b""
        return None if run_is_over else get_run()

    pulled = forgetting(pull)
    found = pulled(
        state=node, object_store=store_of, receive=lambda: (letter, None), get_run=lambda: 7
    )
    left = set() if run_is_over else {"m"}
    assert found == (None if run_is_over else 7)
    assert node.messages == set(store) == left
    assert node.open == {f"task of {name}" for name in left}
    assert "create_task" not in vars(node)
    assert pulled(state=node, object_store=store_of, receive=lambda: None, get_run=None) is None


def test_an_answer_to_a_forgotten_message_does_not_keep_the_next_one_back():
    """The site answered "old" before its run was known to be over; "new" is answered while "old" is sent."""
    waiting, sent, taken = [["old"], ["new"], ["another"]], [], []

    def push(*, state, send):
        for name in waiting.pop(0):
            send(SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=name)), None, 0.0)

    letter = SimpleNamespace(metadata=SimpleNamespace(message_id="new"))
    pulled = forgetting(lambda *, state, object_store, receive: receive() and 7, taken)
    pulled(state=SimpleNamespace(), object_store=None, receive=lambda: (letter, None))
    pushed = answering(push, taken)
    pushed(state=None, send=lambda message, *rest: sent.append(message.metadata))
    assert [each.reply_to_message_id for each in sent] == ["old", "new"]
    assert waiting == [["another"]], "it does not wait for more"
