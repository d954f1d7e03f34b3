"""What the server's process asks of the SuperLink beside it: keys, a run, and the run's Grid.

The ServerApp runs in this process: Flower's SuperExec would start another one for it. The calls are Flower's
own but not all public: `flwr>=1.41,<1.43`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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

from pfedhgp.data.table import short
from pfedhgp.errors import InputError
from pfedhgp.federation.flower.address import ACQUIRE, Address, heartbeat_of
from pfedhgp.federation.flower.bundles import app_files
from pfedhgp.federation.flower.processes import FlowerError


def wait_until_up(
    address: Address, alive: Callable[[], bool], *, patience: float = 60.0, log: Path | None = None
) -> None:
    """Until the process answers; says so where it ends instead, and where it logs."""
    end = time.monotonic() + patience
    control = address.client(ControlHttpClient)
    try:
        while True:
            try:
                control.ListNodes(ListNodesRequest())
                return
            except httpx.TransportError:
                if not alive() or time.monotonic() > end:
                    where = "" if log is None else f": see {log}"
                    raise FlowerError(f"Flower's SuperLink did not come up{where}") from None
                time.sleep(0.2)
    finally:
        control.close()


def register(address: Address, keys: dict[bytes, str]) -> None:
    """Tells the SuperLink whose nodes may connect, and that others, which were withdrawn, may not.

    Flower remembers a key that was withdrawn, and does not take it back.
    """
    control = address.client(ControlHttpClient)
    try:
        nodes = control.ListNodes(ListNodesRequest()).nodes_info
        known = {bytes(node.public_key): node for node in nodes}
        for key, node in known.items():
            if key in keys and node.status == NodeStatus.UNREGISTERED:
                raise InputError(
                    f"site {short(keys[key])!r} was withdrawn from this run: it takes part again with "
                    "a new key, or under its old one in a new run (--overwrite)"
                )
        for key, node in known.items():
            if key not in keys and node.status != NodeStatus.UNREGISTERED:
                control.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
        for key in keys:
            if key not in known:
                control.RegisterNode(RegisterNodeRequest(public_key=key))
    finally:
        control.close()


def start_run(address: Address, before: int | None) -> int:
    """A new Flower run; the one `before`, of a server that was killed, is ended."""
    control = address.client(ControlHttpClient)
    try:
        if before is not None:
            with suppress(httpx.HTTPStatusError):  # it is over, or unknown: all the same to us
                control.StopRun(StopRunRequest(run_id=before))
        bundle = app_bundle()
        fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
        return int(control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id)
    finally:
        control.close()


def app_bundle() -> bytes:
    return bytes(build_fab_from_files(app_files())[0])


@contextmanager
def server_grid(address: Address, secret: bytes, run_id: int) -> Iterator[HttpGrid]:
    """The Grid of a run whose ServerApp this process is; ends the run with the block."""
    token = None
    end = time.monotonic() + 60.0
    runtime = address.client(
        RuntimeHttpClient,
        SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=ACQUIRE),
    )
    try:
        while token is None:
            found = runtime.AcquireTask(
                AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
            )
            if found.HasField("task") and found.task.run_id == run_id:
                token = found.token
            elif time.monotonic() > end:
                raise FlowerError("Flower did not hand over the run")
            else:
                time.sleep(0.1)
    finally:
        runtime.close()
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
            pass  # the SuperLink is about to end anyway
        if heartbeat.is_running:
            heartbeat.stop()
        grid.close()
