"""Flower's SuperLink: as the server runs it, and what the server's process asks of it.

`python -m pfedhgp.federation.flower.superlink` is Flower's `flower-superlink`, of which sites can reach the
Fleet API only. Since Flower 1.4x the Fleet, Control and Runtime APIs share one port, and without an account
plugin the Control API asks for no credentials: anybody who reached the port could register a key, or start a
run with code of his own at every stock SuperNode. Here all other APIs answer to this machine only.

The ServerApp runs in the server's process: Flower's SuperExec would start another process for it.

Some of the calls below are not public in Flower: `flwr>=1.41,<1.43`.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.constant import NodeStatus, TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from pfedhgp.base.checks import short
from pfedhgp.errors import InputError
from pfedhgp.federation.flower.app import app_files
from pfedhgp.federation.flower.processes import (
    ACQUIRE_TASK,
    LARGEST,
    OVERSIZED,
    READY,
    Address,
    FlowerError,
    end_with_parent,
    heartbeat_of,
)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

KEEP_ALIVE = 75
"""Seconds that a connection without requests stays open. A new one costs a handshake; uvicorn waits for 5."""
FLEET = "/v1/fleet/"
LOCAL = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


# ------------------------------------------------------------------------- the server's process


def wait_until_up(
    address: Address, alive: Callable[[], bool], *, patience: float = 60.0, log: Path | None = None
) -> None:
    """Waits until the SuperLink answers; raises if it ends or takes too long."""
    end = time.monotonic() + patience
    with closing(address.client(ControlHttpClient)) as control:
        while True:
            try:
                control.ListNodes(ListNodesRequest())
                return
            except httpx.TransportError:
                if not alive() or time.monotonic() > end:
                    where = "" if log is None else f": see {log}"
                    raise FlowerError(f"Flower's SuperLink did not start{where}") from None
                time.sleep(0.2)


def register(address: Address, keys: dict[bytes, str]) -> None:
    """Tells the SuperLink which keys may connect. Keys that are not in `keys` any more are withdrawn.

    Flower remembers a withdrawn key, and never accepts it again.
    """
    with closing(address.client(ControlHttpClient)) as control:
        nodes = control.ListNodes(ListNodesRequest()).nodes_info
        known = {bytes(node.public_key): node for node in nodes}
        for key, node in known.items():
            if key in keys and node.status == NodeStatus.UNREGISTERED:
                raise InputError(
                    f"site {short(keys[key])!r} was withdrawn from this run: give it a new key, or "
                    "start a new run (--overwrite)"
                )
        for key, node in known.items():
            if key not in keys and node.status != NodeStatus.UNREGISTERED:
                control.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
        for key in keys:
            if key not in known:
                control.RegisterNode(RegisterNodeRequest(public_key=key))


def start_run(address: Address, before: int | None) -> int:
    """Starts a Flower run. Ends the run `before`, of a server that was killed."""
    with closing(address.client(ControlHttpClient)) as control:
        if before is not None:
            with suppress(httpx.HTTPStatusError):  # it is over already, or unknown
                control.StopRun(StopRunRequest(run_id=before))
        bundle = bytes(build_fab_from_files(app_files())[0])
        fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
        return int(control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id)


@contextmanager
def server_grid(address: Address, secret: bytes, run_id: int) -> Iterator[HttpGrid]:
    """The Grid of a run whose ServerApp is this process. The run ends with the block."""
    token = None
    end = time.monotonic() + 60.0
    secured = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=ACQUIRE_TASK)
    task = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
    with closing(address.client(RuntimeHttpClient, secured)) as runtime:
        while token is None:
            found = runtime.AcquireTask(task)
            if found.HasField("task") and found.task.run_id == run_id:
                token = found.token
            elif time.monotonic() > end:
                raise FlowerError("Flower did not hand over the run")
            else:
                time.sleep(0.1)
    ca = None if address.ca is None else address.ca.read_bytes()
    grid = HttpGrid(address.text, address.ca is None, ca, token=token)
    client = grid._runtime_client
    heartbeat = heartbeat_of(client)
    status, details = SubStatus.FAILED, "the server stopped"
    try:
        heartbeat.start()
        given = client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
        TaskIdentity.node_id = given.context.node_id
        grid.set_run(run_from_proto(given.run))
        yield grid
        status, details = SubStatus.COMPLETED, ""
    finally:
        try:
            grid._retry_invoker.max_tries = 1
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        except httpx.HTTPError:
            pass  # the SuperLink is about to end
        if heartbeat.is_running:
            heartbeat.stop()
        grid.close()


# ----------------------------------------------------------------------- the SuperLink's process


def is_allowed(path: str, peer: str | None, here: str | None = None) -> bool:
    """Sites use the Fleet API; everything else is for the server's own processes.

    If the SuperLink listens on one interface, those come from that interface's address, `here`.
    """
    return path.startswith(FLEET) or peer in LOCAL or (peer is not None and peer == here)


class AccessMiddleware:
    """The outermost ASGI middleware. Sites are asked to come again until the file `ready` exists.

    Before that the server may not have registered their keys, and Flower's SuperNode gives up for good if
    its key is unknown.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], ready: Path) -> None:
        self.app, self.ready, self.open = app, ready, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        self.open = self.open or self.ready.exists()
        client, here = scope.get("client"), scope.get("server")
        addresses = (end[0] if end else None for end in (client, here))
        if not is_allowed(scope["path"], *addresses):
            await _refuse(scope, send, 404)
        elif scope["path"].startswith(FLEET) and not self.open:
            await _refuse(scope, send, 503)
        else:
            await self.app(scope, receive, send)


async def _refuse(scope: Scope, send: Send, status: int) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})
    else:
        await send({"type": "websocket.close", "code": 1008})


def main() -> None:
    """`flower-superlink` behind `AccessMiddleware`, `BodyLimits` and `LongPolls`."""
    import uvicorn
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    from pfedhgp.federation.flower import body_limits, long_polls

    mail = long_polls.Mailboxes()
    long_polls.tell_of_messages(SqlLinkState, mail)
    long_polls.release_at_exit(uvicorn.Server, mail)
    uvicorn.run = partial(uvicorn.run, timeout_keep_alive=KEEP_ALIVE)
    others, ready = extensions.get_middleware, Path(os.environ[READY])
    extensions.get_middleware = lambda: (
        Middleware(AccessMiddleware, ready=ready),
        Middleware(
            body_limits.BodyLimits,
            ready=ready,
            largest=ready.with_name(LARGEST),
            oversized=ready.with_name(OVERSIZED),
        ),
        Middleware(long_polls.LongPolls, mail=mail),
        *others(),
    )
    end_with_parent()
    flower_superlink()


if __name__ == "__main__":
    main()
