"""Flower's SuperNode: it ends with its parent, looks for messages more often, forgets those of a dead run.

As it comes it sleeps three seconds between two looks, which would be most of a round: here at most POLL. And
where a server dies while a message is on its way, it leaves the task of that message open (1.41): whoever
takes it waits for the rest for hours, and answers nobody else. And it sends whatever answer there is after a
message: where that is one to a message of the dead run, the answer to the new one would lie there for good.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

POLL = 0.5


class Brisk:
    """The module `time`, whose naps are short."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, POLL))


def forgetting(
    pull: Callable[..., int | None], taken: list[str] | None = None
) -> Callable[..., int | None]:
    """`pull`, which fetches a message and makes a task of it; what comes in part leaves no task behind.

    `taken` gets the messages that came whole, and are to be answered.
    """

    def pulled(*, state: Any, object_store: Any, receive: Callable[[], Any], **more: Any) -> Any:
        received, tasks = [], []

        def remembered() -> Any:
            found = receive()
            if found is not None:
                received.append(found[0].metadata.message_id)
            return found

        def created(*args: Any, **kwargs: Any) -> Any:
            tasks.append(type(state).create_task(state, *args, **kwargs))
            return tasks[-1]

        state.create_task = created
        try:
            run = pull(state=state, object_store=object_store, receive=remembered, **more)
        finally:
            del state.create_task
        if run is not None and taken is not None:
            taken[:] = received
        if run is None and received:
            state.delete_messages(message_ids=received)
            for message in received:
                object_store.delete(message)
            for task in tasks:
                if task is not None:
                    state.finish_task(task, sub_status="failed", details="the run is over")
        return run

    return pulled


def answering(push: Callable[..., None], taken: list[str]) -> Callable[..., None]:
    """`push`, which waits for an answer and sends it: until those to `taken` are sent, not others alone."""

    def pushed(*, send: Callable[..., Any], **more: Any) -> None:
        answered = set()

        def noted(message: Any, *rest: Any) -> Any:
            answered.add(message.metadata.reply_to_message_id)
            return send(message, *rest)

        push(send=noted, **more)
        while not answered.issuperset(taken):
            push(send=noted, **more)

    return pushed


def main() -> None:
    """`flower-supernode`, as it is but for its naps and its memory."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    from pfedhgp.federation.flower.processes import follow_parent

    start_client_internal.time = Brisk()  # what it sleeps by; retries have their own
    taken: list[str] = []
    start_client_internal._pull_and_store_message = forgetting(
        start_client_internal._pull_and_store_message, taken
    )
    start_client_internal._push_messages = answering(start_client_internal._push_messages, taken)
    follow_parent()
    flower_supernode()


if __name__ == "__main__":
    main()
