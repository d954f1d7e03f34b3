"""Flower's tasks, done in this process: what its SuperExec would start a new process for, each time.

With `--isolation process` a SuperNode hands messages to whoever asks with the right secret. Asking ourselves
saves the start of an interpreter, of JAX and of compiled code for every message; and the code that runs on
a site's rows is the one that the site installed: the bundle that comes from the server is never unpacked.

The calls below are Flower's own but not all public: `flwr>=1.41,<1.43`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Message
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from pfedhgp.federation.flower.processes import FlowerError

ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})


@dataclass(frozen=True)
class Address:
    """A Flower process on this machine, and how it is spoken to."""

    text: str
    ca: Path | None = None

    def client(self, kind: Callable[..., Any], *interceptors: Any) -> Any:
        return kind.from_server_address(  # type: ignore[attr-defined]
            server_address=self.text,
            insecure=self.ca is None,
            root_certificates=None if self.ca is None else self.ca.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="pfedhgp"), *interceptors],
        )


def wait_until_up(address: Address, alive: Callable[[], bool], *, patience: float = 60.0) -> None:
    """Until the process answers; says so where it ends instead."""
    end = time.monotonic() + patience
    control = address.client(ControlHttpClient)
    try:
        while True:
            try:
                control.ListNodes(ListNodesRequest())
                return
            except httpx.TransportError:
                if not alive() or time.monotonic() > end:
                    raise FlowerError("Flower's SuperLink did not come up") from None
                time.sleep(0.2)
    finally:
        control.close()


def register(address: Address, keys: dict[bytes, str]) -> None:
    """Tells the SuperLink whose nodes may connect; those that it knows already stay."""
    control = address.client(ControlHttpClient)
    try:
        known = {bytes(n.public_key) for n in control.ListNodes(ListNodesRequest()).nodes_info}
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


def app_files() -> dict[str, bytes]:
    """The Flower app: three lines of code that import this package, and what Flower wants to know of it."""
    folder = Path(__file__).with_name("bundle")
    found = {
        path.relative_to(folder).as_posix().removesuffix(".txt"): path.read_bytes()
        for path in sorted(folder.rglob("*.txt"))
    }
    return found


def app_bundle() -> bytes:
    return bytes(build_fab_from_files(app_files())[0])


# -------------------------------------------------------------------------------------- the server


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
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
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


# ---------------------------------------------------------------------------------------- the site


class Desk:
    """Fetches messages from the SuperNode beside us, and hands the answers back."""

    def __init__(self, address: Address, secret: bytes) -> None:
        self.address = address
        self.client = address.client(
            RuntimeHttpClient,
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=ACQUIRE),
        )

    def serve_one(self, reply_to: Callable[[Message], Message]) -> bool:
        """One message, if there is one. False while there is none, or no SuperNode yet."""
        try:
            found = self.client.AcquireTask(
                AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
            )
        except httpx.TransportError:
            return False
        if not found.HasField("task") or not found.token:
            return False
        client = self.address.client(RuntimeHttpClient, RuntimeTokenHttpInterceptor(found.token))
        heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
        try:
            heartbeat.start()
            message, context, _, _ = pull_task_input(client)  # the bundle is not unpacked
            push_message(client, reply_to(message), context)
            push_task_output(client, context, SubStatus.COMPLETED, "")
        except (httpx.HTTPError, RuntimeError):
            return False  # the SuperNode went away meanwhile: the server asks again
        finally:
            if heartbeat.is_running:
                heartbeat.stop()
            client.close()
        return True

    def close(self) -> None:
        self.client.close()
