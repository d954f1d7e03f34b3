"""Flower's SuperNode: as a site runs it, and how the site's process fetches messages from it.

`python -m pfedhgp.federation.flower.supernode` is Flower's `flower-supernode` with four changes. It ends with
its parent. It asks for messages again at once if the server kept its question (`long_polls`), and every POLL
seconds if not: Flower sleeps for three, which would be most of a round. Its connection outlasts what networks
do (`connection`). And it forgets the messages of a dead run. If a server dies while a message is on its way,
Flower (1.41) leaves the task of that message open: the site would wait for hours to get the rest, and answer
nobody else. Flower also sends whatever answer comes after a message; if that belongs to the dead run, the
answer to the new message would never be sent.

With `--isolation process` a SuperNode gives its messages to whoever asks with the right secret. The site's
process asks itself, which saves the start of Python, JAX and compiled code for every message. Also, only the
code that the site installed runs on its rows: the app that comes from the server is never unpacked.

Some of the calls below are not public in Flower: `flwr>=1.41,<1.43`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Message
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from pfedhgp.federation.flower import connection
from pfedhgp.federation.flower.processes import (
    ACQUIRE_TASK,
    PROGRESS,
    Address,
    end_with_parent,
    heartbeat_of,
)

POLL = 0.5
BREATH = 0.02
"""Seconds between two questions that the server keeps until there is a message."""


# ----------------------------------------------------------------------------- the site's process


class MessageQueue:
    """Fetches messages from the SuperNode beside this process, and hands the replies back."""

    def __init__(self, address: Address, secret: bytes) -> None:
        self.address = address
        self.client = address.client(
            RuntimeHttpClient,
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=ACQUIRE_TASK),
        )
        self.failures = 0
        """How often in a row the SuperNode did not answer."""

    def answer_one(self, reply_to: Callable[[Message], Message]) -> bool:
        """Answers one message. False if there is none, or no SuperNode yet."""
        try:
            found = self.client.AcquireTask(
                AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
            )
        except httpx.HTTPError:
            self.failures += 1
            return False
        self.failures = 0
        if not found.HasField("task") or not found.token:
            return False
        client = self.address.client(RuntimeHttpClient, RuntimeTokenHttpInterceptor(found.token))
        heartbeat = heartbeat_of(client)
        try:
            heartbeat.start()
            message, context, _, _ = pull_task_input(client)  # the app is not unpacked
            push_message(client, reply_to(message), context)
            push_task_output(client, context, SubStatus.COMPLETED, "")
        except (httpx.HTTPError, RuntimeError, ObjectPullError):
            return False  # the SuperNode or the run has gone: the server asks again
        finally:
            if heartbeat.is_running:
                heartbeat.stop()
            client.close()
        return True

    def close(self) -> None:
        self.client.close()


# -------------------------------------------------------------------------- the SuperNode's process


class ShortSleeps:
    """The module `time`, with sleeps of at most POLL seconds, and hardly any after a long question."""

    def __init__(self) -> None:
        self.waited = 0.0
        """Seconds that the server took to say that there is no message."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, POLL if self.waited < POLL else BREATH))


def timed(pull: Callable[..., int | None], sleeps: ShortSleeps) -> Callable[..., int | None]:
    """Flower's `pull`; `sleeps` learns how long the server kept the question."""

    def pulled(*, receive: Callable[[], Any], **more: Any) -> int | None:
        def timed_receive() -> Any:
            began = time.monotonic()
            found = receive()
            sleeps.waited = time.monotonic() - began if found is None else 0.0
            return found

        return pull(receive=timed_receive, **more)

    return pulled


def without_partial_messages(
    pull: Callable[..., int | None],
    received_whole: list[str] | None = None,
    lost: Callable[[], None] = connection.doubt,
) -> Callable[..., int | None]:
    """Flower's `pull` fetches a message and makes a task of it. Here a partial message leaves no task.

    `received_whole` gets the messages that came whole, and have to be answered. `lost` is called if one did
    not come whole.
    """

    def pulled(*, state: Any, object_store: Any, receive: Callable[[], Any], **more: Any) -> Any:
        received, tasks = [], []

        def noted_receive() -> Any:
            found = receive()
            if found is not None:
                received.append(found[0].metadata.message_id)
            return found

        def noted_create(*args: Any, **kwargs: Any) -> Any:
            tasks.append(type(state).create_task(state, *args, **kwargs))
            return tasks[-1]

        state.create_task = noted_create
        try:
            run = pull(state=state, object_store=object_store, receive=noted_receive, **more)
        finally:
            del state.create_task
        if run is not None and received_whole is not None:
            received_whole[:] = received
        if run is None and received:
            lost()  # the server has to ask again
            state.delete_messages(message_ids=received)
            for message in received:
                object_store.delete(message)
            for task in tasks:
                if task is not None:
                    state.finish_task(task, sub_status="failed", details="the run is over")
        return run

    return pulled


def until_answered(
    push: Callable[..., None],
    received_whole: list[str],
    lost: Callable[[], None] = connection.doubt,
) -> Callable[..., None]:
    """Flower's `push` waits for an answer and sends it. Here it goes on until all of ours are sent.

    Flower drops an answer that it could not send. Then `lost` is called.
    """

    def pushed(*, send: Callable[..., Any], push_object: Callable[..., Any], **more: Any) -> None:
        answered = set()

        def noting(call: Callable[..., Any]) -> Callable[..., Any]:
            def noted(*arguments: Any) -> Any:
                try:
                    return call(*arguments)
                except Exception:
                    lost()
                    raise

            return noted

        def noted_send(message: Any, *rest: Any) -> Any:
            answered.add(message.metadata.reply_to_message_id)
            return noting(send)(message, *rest)

        both: dict[str, Any] = {"send": noted_send, "push_object": noting(push_object)}
        push(**both, **more)
        while not answered.issuperset(received_whole):
            push(**both, **more)

    return pushed


def main() -> None:
    """`flower-supernode` with the changes above."""
    from flwr.supernode import start_client_internal as flower
    from flwr.supernode.cli import flower_supernode

    sleeps, received = ShortSleeps(), list[str]()
    flower.time = sleeps  # used by its main loop alone; retries sleep elsewhere
    flower._pull_and_store_message = timed(
        without_partial_messages(flower._pull_and_store_message, received), sleeps
    )
    flower._push_messages = until_answered(flower._push_messages, received)
    connection.install(connection.ProgressMark(Path(os.environ[PROGRESS])))
    end_with_parent()
    connection.main_ends_process(flower_supernode)


if __name__ == "__main__":
    main()
