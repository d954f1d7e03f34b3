"""Replies from the SuperLink, one at a time, and none that is larger than a reply may be.

Flower's Grid fetches all replies that there are before it hands out the first. Here each is fetched when it
is asked for. Flower cuts arrays into objects of at most CHUNK bytes, and `body_limits` lets no larger object
through: so the number of a message's objects says how large it is, before any of them is fetched.

Some of the names below are not public in Flower: `flwr>=1.41,<1.43`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flwr.app import Message
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE, ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.superlink.grid.http_grid import HttpGrid

from pfedhgp.federation.envelope import Refused

CHUNK = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
OTHER_OBJECTS = 8
"""Objects of a message besides the pieces of its one array: itself, its records, the array."""
GONE = (
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
)
"""Flower's errors for a node that has gone."""


def most_objects(most_bytes: int) -> int:
    """How many objects a message of so many bytes has at most."""
    return OTHER_OBJECTS + -(-most_bytes // CHUNK)


def replies(
    grid: Grid, asked: Sequence[str], most_bytes: int
) -> Iterator[tuple[str, Message | Refused | None]]:
    """By the request's id: the reply, why it is refused, or None if it is lost and has to be asked for again.

    Other grids than that of a SuperLink, such as a simulation's, hand out all at once.
    """
    if not isinstance(grid, HttpGrid):
        for message in grid.pull_messages(list(asked)):
            lost = message.has_error() and message.error.code in GONE
            yield message.metadata.reply_to_message_id, None if lost else message
        return
    client, run = grid._runtime_client, grid.run.run_id
    pull = make_pull_object_fn_protobuf(client.PullObject, grid.node, run)
    found = client.PullMessages(PullAppMessagesRequest(message_ids=asked))
    for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
        about, parts = head.metadata, [each.object_id for each in iterate_object_tree(tree)]
        if len(parts) > most_objects(most_bytes):
            yield about.reply_to_message_id, Refused("oversized")
        elif head.HasField("error") and head.error.code in GONE:
            yield about.reply_to_message_id, None
        else:
            try:
                contents = pull_objects(object_ids=parts, pull_object_fn=pull)
            except ObjectPullError:  # the site's connection failed while it was sending
                yield about.reply_to_message_id, None
                continue
            message = inflate_object_from_contents(about.message_id, contents)
            assert isinstance(message, Message)
            message.metadata.__dict__["_message_id"] = about.message_id
            contents.clear()
            yield about.reply_to_message_id, message
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=grid.node, run_id=run, message_object_id=about.message_id
            )
        )
