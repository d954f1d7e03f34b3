"""The page's door: the token, the cookie it is exchanged for, and what every answer carries."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from pfedhgp.errors import InputError
from pfedhgp.federation.watch import events as e
from pfedhgp.federation.watch.holder import Watch
from pfedhgp.federation.watch.server_state import ServerState, after
from support.flower_processes import needs_flower

needs_flower()
import httpx  # noqa: E402

from pfedhgp.federation.flower.processes import free_port  # noqa: E402
from pfedhgp.page import web  # noqa: E402

pytestmark = pytest.mark.flower
TOKEN = "0123456789abcdefghij"
PATHS = ("/", "/events", "/metrics", "/status.json", "/style.css", "/live.js", "/nowhere")


def watched():
    watch = Watch(ServerState(started=0.0), after)
    watch.tell(e.Listening("127.0.0.1:9092", ("north <b>",), 8))
    return watch


@pytest.fixture(scope="module")
def address():
    """Of a page whose streams end after their first event."""
    page = web.Page(watched(), host="127.0.0.1", port=free_port(), token=TOKEN)
    page.start()
    page.over.set()
    yield page.address.partition("?")[0]
    page.stop()


@pytest.fixture
def visitor(address):
    with httpx.Client(base_url=address) as client:
        yield client


def test_without_the_token_everything_is_403(visitor):
    wrong = [{}, {"Authorization": "Bearer x"}, {"Cookie": "pfedhgp-1=x"}, {"Cookie": "x=ü"}]
    for path in PATHS:
        for headers in wrong:
            given = {name: text.encode() for name, text in headers.items()}
            answer = visitor.get(path, headers=given)
            assert answer.status_code == 403, (path, headers)
            assert "north" not in answer.text
        assert visitor.get(path, params={"token": f"{TOKEN}x"}).status_code == 403
    assert visitor.post("/", params={"token": TOKEN}).status_code == 405


def test_the_token_leaves_the_address_for_a_cookie(visitor):
    answer = visitor.get("/", params={"token": TOKEN})
    assert answer.status_code == 303
    assert TOKEN not in answer.headers["location"]
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=lax" in cookie.lower()
    assert TOKEN not in cookie
    assert visitor.get("/").status_code == 200  # the client kept the cookie
    assert "north &lt;b&gt;" in visitor.get("/").text
    for path in PATHS[1:-1]:
        assert visitor.get(path).status_code == 200
    assert visitor.get("/nowhere").status_code == 404


def test_programs_bring_the_token_themselves(visitor):
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert "pfedhgp_rounds_limit 8.0" in visitor.get("/metrics", headers=bearer).text
    assert visitor.get("/status.json", params={"token": TOKEN}).json()["rounds"] == 8


def test_every_answer_forbids_what_the_page_does_not_need(visitor):
    for path in (*PATHS, f"/?token={TOKEN}"):
        headers = visitor.get(path).headers
        for name, text in web.HEADERS.items():
            assert headers[name] == text
    assert "unsafe" not in web.HEADERS["Content-Security-Policy"]


def test_a_viewer_gets_changes_and_the_end(monkeypatch):
    """Over a socket: sections come when they change, and the last state comes before the end."""
    monkeypatch.setattr(web, "TICK", 0.05)
    watch = watched()
    page = web.Page(watch, host="127.0.0.1", port=free_port(), token=TOKEN)
    page.start()
    found = []
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.stream("GET", page.address.replace("/?", "/events?"), headers=bearer) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: "):
                continue
            found.append(json.loads(line.removeprefix("data: ")))
            if len(found) == 1:
                watch.tell(e.Line("something <i>new</i>"))
            elif len(found) == 2:
                watch.tell(e.Ended())
                threading.Thread(target=page.stop).start()
    assert set(found[0]) == {"title", "top", "main", "lines", "foot"}
    assert set(found[1]) >= {"lines"}
    assert "foot" not in found[1]
    assert "something &lt;i&gt;new&lt;/i&gt;" in found[1]["lines"]
    assert any(part.get("title", "").startswith("Done") for part in found[2:])
    page.thread.join(10.0)
    assert not page.thread.is_alive()


def test_a_page_that_cannot_listen_says_so():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=f"--page 127.0.0.1:{port}: the page cannot listen"):
            web.Page(watched(), host="127.0.0.1", port=port, token=TOKEN).start()


def test_a_token_file_is_made_once_and_is_private(tmp_path):
    path = tmp_path / "page.token"
    token = web.token_from(path)
    assert (len(token), path.stat().st_mode & 0o777) == (32, 0o600)
    assert web.token_from(path) == token
    assert web.token_from(None) != web.token_from(None)
    path.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        web.token_from(path)
    path.write_text("short")
    path.chmod(0o600)
    with pytest.raises(InputError, match="at least 16 characters"):
        web.token_from(path)
    with pytest.raises(InputError, match="below: File exists"):
        web.token_from(path / "below")


def test_pages_are_for_this_machine_unless_asked(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text('[data]\ninputs = ["x"]\noutputs = ["y"]\n')
    assert run("certs", "--site", "a", "--out", "certs").code == 0
    server = ["server", "--config", "run.toml", "--sites", "certs/sites.toml", "--out", "RUN"]
    for more, words in (
        (["--page", "0.0.0.0:8080"], "add --page-public"),
        (["--page", "8080"], "--page must be HOST:PORT"),
        (["--page-public"], "--page-public needs --page"),
        (["--page-token", "t"], "--page-token needs --page"),
        (["--page", "127.0.0.1:8080", "--log-json"], "needs --page-token"),
    ):
        result = run(*server, *more)
        assert result.code == 2
        assert words in result.err
