"""A SuperNode that is silent, stuck or ends again and again, without processes."""

from __future__ import annotations

import pytest

from support.flower_processes import needs_flower
from support.reference_federation import Clock

needs_flower()
import httpx  # noqa: E402

from pfedhgp.federation.flower import connection  # noqa: E402
from pfedhgp.federation.flower.watchdog import (  # noqa: E402
    MOST_STARTS,
    SILENCE,
    STALL,
    Starts,
    Ticker,
    Watchdog,
)

pytestmark = pytest.mark.flower


def test_stuck_is_no_progress_while_the_server_is_there():
    clock, there = Clock(), [True]
    dog = Watchdog(lambda: there[0], clock)
    for number in range(20):
        assert dog.see(str(number)) is None
        clock.sleep(STALL - 1.0)
        assert not dog.stuck()
    clock.sleep(1.0)
    assert dog.stuck()
    there[0] = False
    assert not dog.stuck(), "a SuperNode cannot help that the server is away"
    there[0] = True
    clock.sleep(STALL - 1.0)
    assert not dog.stuck(), "it gets the time to connect again"
    clock.sleep(1.0)
    assert dog.stuck()
    dog.busy()
    assert not dog.stuck(), "it waited for the site's own work"


def test_an_interruption_is_measured():
    clock = Clock()
    dog = Watchdog(lambda: True, clock)
    clock.sleep(2.0 * SILENCE)
    assert dog.silent() == 2.0 * SILENCE
    assert not dog.interrupted, "it was never connected"
    assert dog.see("1") is None
    clock.sleep(SILENCE)
    assert dog.silent() == SILENCE
    assert dog.interrupted
    clock.sleep(3.0)
    assert dog.see("2") == SILENCE + 3.0
    assert not dog.interrupted


def test_starts_in_vain_come_at_growing_intervals_and_end():
    starts, pauses = Starts(), []
    while starts.add(lived=2.0, answered=False):
        pauses.append(starts.pause)
    assert pauses == [1, 2, 4, 8, 16, 32, *[60] * (MOST_STARTS - 7)]
    assert starts.add(lived=2.0, answered=True), "it brought a message"
    assert starts.pause == 1.0


def test_a_ticker_is_due_at_its_pace():
    clock = Clock()
    ticker, told = Ticker(30.0, clock), []
    for _ in range(100):
        clock.sleep(1.0)
        told.append(ticker.due())
    assert [i + 1 for i, due in enumerate(told) if due] == [30, 60, 90]


def _invoker():
    from flwr.supercore.retry import make_simple_http_retry_invoker

    made = connection.never_giving_up(make_simple_http_retry_invoker)()
    made.wait_function = lambda seconds: None
    return made


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("[SSL: WRONG_VERSION_NUMBER] wrong version number"),
        httpx.ConnectTimeout("_ssl.c:990: The handshake operation timed out"),
        httpx.ReadError("[SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC]"),
        httpx.UnsupportedProtocol("not one of those that Flower tries again"),
    ],
)
def test_no_failure_of_the_transport_is_final(error):
    """Flower's own retries give up on all of them."""
    errors = [error, error]

    def call():
        if errors:
            raise errors.pop()
        return "through"

    assert _invoker().invoke(call) == "through"


class _Client:
    """A server that delivers a message once; `cut` answers are lost on their way back."""

    def __init__(self):
        self.calls, self.waiting, self.cut, self.online = [], ["m"], [], True

    def ActivateNode(self, request):
        self.calls.append("on")
        self.online = True

    def DeactivateNode(self, request):
        self.calls.append("off")

    def PullMessages(self, request):
        self.calls.append("pull")
        found = self.waiting.pop() if self.waiting else None
        if self.cut:
            raise self.cut.pop()
        return found

    PushMessages = PushObject = PullObject = ConfirmMessageReceived = GetFab = PullMessages


def test_a_node_that_may_have_lost_a_message_signs_on_again(monkeypatch):
    from types import SimpleNamespace

    monkeypatch.setattr(connection, "current", [])
    marks = []
    client = connection.lasting_client(_Client, lambda: marks.append(1))()
    asked = SimpleNamespace(node=SimpleNamespace(node_id=7))
    client.ActivateNode("me")
    client.cut = [httpx.ConnectError("no way")]
    with pytest.raises(httpx.ConnectError):
        client.PullMessages(asked)
    client.cut = [httpx.ReadError("SSL")]
    with pytest.raises(httpx.ReadError):
        client.PullMessages(asked)
    assert client.calls == ["on", "pull", "pull"], "what was never sent is not in doubt"
    assert client.PullMessages(asked) is None
    assert client.calls[3:] == ["off", "on", "pull"], "so that the server asks again"
    client.PullMessages(asked)
    assert client.calls[6:] == ["pull"]
    connection.doubt()
    client.PullMessages(asked)
    assert client.calls[7:] == ["off", "on", "pull"]
    assert len(marks) == 4


def test_marks_are_seen_from_another_process(tmp_path):
    clock = Clock()
    path = tmp_path / "progress"
    assert connection.read_mark(path) == ""
    mark = connection.ProgressMark(path, clock)
    seen = set()
    for _ in range(8):
        mark()
        seen.add(connection.read_mark(path))
        clock.sleep(0.25)
    assert len(seen) == 4, "a mark every half second is enough"
