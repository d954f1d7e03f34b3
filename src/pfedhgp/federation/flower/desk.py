"""Flower's messages to a site, answered in this process: else a new one would be started for each.

With `--isolation process` a SuperNode hands messages to whoever asks with the right secret. Asking ourselves
saves the start of an interpreter, of JAX and of compiled code for every message; and the code that runs on
a site's rows is the one that the site installed: the bundle that comes from the server is never unpacked.

The calls below are Flower's own but not all public: `flwr>=1.41,<1.43`.
"""

from __future__ import annotations

from collections.abc import Callable

import httpx
from flwr.app import Message
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from pfedhgp.federation.flower.address import ACQUIRE, Address, heartbeat_of


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
        heartbeat = heartbeat_of(client)
        try:
            heartbeat.start()
            message, context, _, _ = pull_task_input(client)  # the bundle is not unpacked
            push_message(client, reply_to(message), context)
            push_task_output(client, context, SubStatus.COMPLETED, "")
        except (httpx.HTTPError, RuntimeError, ObjectPullError):
            return False  # the SuperNode or the run went away meanwhile: the server asks again
        finally:
            if heartbeat.is_running:
                heartbeat.stop()
            client.close()
        return True

    def close(self) -> None:
        self.client.close()
