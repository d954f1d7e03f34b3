"""Records in and out of Flower: round trips, and what is refused before it is unpacked. And the link."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pfedhgp.federation.envelope import Envelope, Refused
from pfedhgp.federation.schema import HELLO
from support.flower_processes import needs_flower

needs_flower()
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict  # noqa: E402

from pfedhgp.federation.flower import transport  # noqa: E402
from pfedhgp.federation.flower.transport import GridLink  # noqa: E402

pytestmark = pytest.mark.flower
ARRAYS = {
    "scalar": np.asarray(0.1),
    "empty": np.zeros((0, 3)),
    "turned": np.arange(6.0).reshape(2, 3).T,
    "missed/start/J": np.array([np.inf, -0.0, np.nan]),
}
ENVELOPE = Envelope(
    run="ab" * 16, exchange=3, kind="round", round=1, sender='ü"\n', arrays=ARRAYS, left_out=True
)


def test_envelopes_survive_flower():
    back = transport.from_records(transport.to_records(ENVELOPE), most_bytes=1000)
    assert back.plain() == ENVELOPE.plain()
    assert list(back.arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(back.arrays[name], array)
        assert back.arrays[name].shape == array.shape
    assert back.message().kind == "round"
    assert [m.kind for m in back.missed()] == ["start"]


def _changed(about=None, data=None, drop=()):
    records = transport.to_records(ENVELOPE)
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
        transport.from_records(records(), most_bytes=1000)
    assert refused.value.code == code


def _hello():
    return Envelope(run="", exchange=0, kind=HELLO, round=0, sender="server")


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
            content = transport.to_records(replace(_hello(), sender=self.names[node]))
            about = SimpleNamespace(reply_to_message_id=key)
            yield SimpleNamespace(metadata=about, content=content, has_error=lambda: False)


@pytest.mark.usefixtures("in_a_flower_task")
def test_without_keys_the_first_node_of_a_name_has_it(caplog):
    """A second one is refused, and so is a name that is not of this run."""
    grid = _Nodes({1: "north", 2: "north", 3: "south", 4: "stranger"})
    link = GridLink(grid, ("north", "south"))
    assert {name: node for name, (node, _) in link.nodes().items()} == {"north": 1, "south": 3}
    assert caplog.text.count("refused a second site with a name that is already taken") == 1
    assert link.push("north", ENVELOPE, 5.0)
    assert not link.push("west", ENVELOPE, 5.0)
    sent = list(grid.asked.values())[-1]
    assert sent.metadata.dst_node_id == 1
