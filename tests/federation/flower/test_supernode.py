"""A SuperNode forgets the messages of a dead run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from support.flower_processes import needs_flower

needs_flower()
from pfedhgp.federation.flower.supernode import (  # noqa: E402
    until_answered,
    without_partial_messages,
)

pytestmark = pytest.mark.flower


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

    pulled = without_partial_messages(pull)
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
    waiting, sent, received = [["old"], ["new"], ["another"]], [], []

    def push(*, state, send, push_object):
        for name in waiting.pop(0):
            send(SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=name)), None, 0.0)

    letter = SimpleNamespace(metadata=SimpleNamespace(message_id="new"))
    pulled = without_partial_messages(
        lambda *, state, object_store, receive: receive() and 7, received
    )
    pulled(state=SimpleNamespace(), object_store=None, receive=lambda: (letter, None))
    pushed = until_answered(push, received)
    pushed(
        state=None,
        send=lambda message, *rest: sent.append(message.metadata),
        push_object=lambda *rest: None,
    )
    assert [each.reply_to_message_id for each in sent] == ["old", "new"]
    assert waiting == [["another"]], "it does not wait for more"
