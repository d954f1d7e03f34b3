"""A question for messages is kept until there is one, and answered once."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from support.flower_processes import needs_flower

needs_flower()
from flwr.proto.fleet_pb2 import PullMessagesRequest  # noqa: E402
from flwr.proto.node_pb2 import Node  # noqa: E402

from pfedhgp.federation.flower import long_polls, supernode  # noqa: E402

pytestmark = pytest.mark.flower


class SuperLink:
    """An ASGI app behind `LongPolls`: notes what it is asked, and answers 200."""

    def __init__(self, hold=30.0):
        self.asked, self.mail = [], long_polls.Mailboxes()
        self.gate = long_polls.LongPolls(self.app, self.mail, hold)

    async def app(self, scope, receive, send):
        self.asked.append((scope["path"], (await receive())["body"]))
        await send({"type": "http.response.start", "status": 200})

    async def ask(self, node, *, path=long_polls.PULL, leave=None, body=None):
        """The status of the answer."""
        question = PullMessagesRequest(node=Node(node_id=node)).SerializeToString()
        body = question if body is None else body
        unread, sent = [body[:3], body[3:]], []

        async def receive():
            if unread:
                part = unread.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(unread)}
            await (leave or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "path": path}
        scope["headers"] = [(b"content-length", str(len(body)).encode())]
        await self.gate(scope, receive, send)
        return sent[0]["status"]


async def kept(task):
    """Whether a question is still open after a while."""
    await asyncio.sleep(0.2)
    return not task.done()


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario(), 20.0))


def test_a_question_is_kept_until_there_is_a_message_for_that_node():
    async def scenario():
        link = SuperLink()
        for node in (7, 8):  # before the first message, there may be old ones
            assert [await link.ask(node) for _ in range(2)] == [200, 200]
        seven, eight = (asyncio.ensure_future(link.ask(node)) for node in (7, 8))
        assert await kept(seven)
        threading.Thread(target=link.mail.post, args=(7,)).start()  # Flower's handlers are threads
        assert await seven == 200
        assert await kept(eight)
        assert await link.ask(7) == 200  # there may be a second message
        again = asyncio.ensure_future(link.ask(7))
        assert await kept(again)
        link.mail.close()
        assert [await again, await eight] == [200, 200]
        assert await link.ask(7) == 200  # nobody waits any more
        question = PullMessagesRequest(node=Node(node_id=7)).SerializeToString()
        assert link.asked.count((long_polls.PULL, question)) == 6

    run(scenario)


def test_a_message_goes_to_a_sender_who_is_still_there():
    """Flower hands a message out once: a dead question must not fetch it."""

    async def scenario():
        link = SuperLink()
        assert [await link.ask(7) for _ in range(2)] == [200, 200]
        leave = asyncio.Event()
        gone = asyncio.ensure_future(link.ask(7, leave=leave))
        assert await kept(gone)
        leave.set()
        assert await gone == 503
        older = asyncio.ensure_future(link.ask(7))  # a connection that died without a word
        assert await kept(older)
        newer = asyncio.ensure_future(link.ask(7))
        assert await older == 503
        assert await kept(newer)
        before = len(link.asked)
        link.mail.post(7)
        assert await newer == 200
        assert len(link.asked) == before + 1
        assert not link.mail.waiting

    run(scenario)


def test_other_requests_pass_and_nothing_is_kept_for_ever():
    async def scenario():
        link = SuperLink(hold=0.1)
        for _ in range(4):
            assert await link.ask(7) == 200
        for more in ({"path": "/v1/fleet/push-messages"}, {"body": b"\xff" * 9}):
            assert await link.ask(7, **more) == 200
        assert await link.ask(7, body=b"\0" * (long_polls.LONGEST_QUESTION + 1)) == 200
        for node in range(long_polls.MOST_NODES + 5):  # strangers may ask under any name
            link.mail.due[node] = 0
            if node % 1000 == 0:
                await link.ask(node)
        assert len(link.mail.due) <= long_polls.MOST_NODES + 1

    run(scenario)


def test_after_a_kept_question_a_site_asks_again_at_once(monkeypatch):
    now, slept = [0.0], []
    monkeypatch.setattr(supernode.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(supernode.time, "sleep", slept.append)
    sleeps = supernode.ShortSleeps()

    def question(seconds, found):
        def receive():
            now[0] += seconds
            return found

        supernode.timed(lambda *, receive: receive(), sleeps)(receive=receive)
        sleeps.sleep(3.0)

    question(20.0, None)
    question(0.01, None)
    question(20.0, "a message")  # its answer is looked for on this machine
    assert slept == [supernode.BREATH, supernode.POLL, supernode.POLL]


def test_the_server_waits_for_replies_in_the_same_way():
    async def scenario():
        link = SuperLink()
        body = b"x" * 9000  # it names all messages that are out
        assert [await link.ask(0, path=long_polls.REPLIES, body=body) for _ in range(2)] == [
            200,
            200,
        ]
        question = asyncio.ensure_future(link.ask(0, path=long_polls.REPLIES, body=body))
        assert await kept(question)
        for _ in range(200):
            link.mail.post(long_polls.SERVER)
        assert await question == 200
        assert link.asked[-1] == (long_polls.REPLIES, body)
        assert link.mail.due[long_polls.SERVER] < long_polls.MOST_DUE

    run(scenario)


def test_new_messages_and_replies_are_told_to_whom_they_concern():
    class State:
        def store_message_and_object_tree(self, message, tree, session):
            return True, [tree, session]

    told = []
    mail = SimpleNamespace(post=told.append)
    long_polls.tell_of_messages(State, mail)
    for reply_to, node in (("", 7), ("message", 1)):
        metadata = SimpleNamespace(reply_to_message_id=reply_to, dst_node_id=node)
        message = SimpleNamespace(metadata=metadata)
        assert State().store_message_and_object_tree(message, "t", "s") == (True, ["t", "s"])
    assert told == [7, long_polls.SERVER]
