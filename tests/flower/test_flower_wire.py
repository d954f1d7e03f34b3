"""Records in and out of Flower: round trips, and what is refused before it is unpacked. And the gate."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from flower_processes import needs_flower

needs_flower()
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict  # noqa: E402

from pfedhgp.federation.flower import wire  # noqa: E402
from pfedhgp.federation.flower.envelope import Envelope, Refused  # noqa: E402
from pfedhgp.federation.flower.superlink import FleetOnly  # noqa: E402

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


def _ask(gate, path, peer):
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "client": (peer, 1234)}
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
