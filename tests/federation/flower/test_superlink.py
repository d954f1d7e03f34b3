"""What of a SuperLink sites can reach, and which keys it knows."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from pfedhgp.errors import InputError
from support.flower_processes import needs_flower

needs_flower()
from pfedhgp.federation.flower.superlink import AccessMiddleware, register  # noqa: E402

pytestmark = pytest.mark.flower


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

    gate = AccessMiddleware(app, ready=tmp_path / "ready")
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
