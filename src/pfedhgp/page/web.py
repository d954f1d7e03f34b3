"""The page's server: a token at the door, pages that load nothing from elsewhere, events as they happen.

    http://127.0.0.1:8080/?token=…

The first visit with the token sets a cookie and leads to the address without it, so that the token stays out
of bookmarks, histories and screenshots. Programs send it as `Authorization: Bearer …`. Without it everything
is 403. It runs in a thread beside the work, and nothing can be changed through it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfedhgp.errors import InputError
from pfedhgp.federation.watch.holder import Watch
from pfedhgp.page import render
from pfedhgp.page.metrics import CONTENT_TYPE, metrics
from pfedhgp.page.status import status

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TICK = 1.0
"""Seconds between two looks at whether a section has changed."""
STARTS_WITHIN, ENDS_WITHIN = 10.0, 10.0
"""Seconds. It ends sooner if no viewer is there, and when viewers have the last state."""
MOST_VIEWERS = 50


@dataclass(frozen=True)
class Door:
    """Who may see the page: whoever has the token, or the cookie that it was exchanged for."""

    token: str
    port: int
    secure: bool = False
    session: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def cookie(self) -> str:
        """Cookies do not know ports: two pages on one machine need two names."""
        return f"pfedhgp-{self.port}"

    def opens(self, request: Any) -> bool:
        bearer = request.headers.get("authorization", "")
        given = [(request.query_params.get("token", ""), self.token)]
        given += [(bearer.removeprefix("Bearer "), self.token)]
        given += [(request.cookies.get(self.cookie, ""), self.session)]
        return any([same(text, secret) for text, secret in given])


def same(given: str, secret: str) -> bool:
    """In a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode(), secret.encode())


def token_from(path: Path | None) -> str:
    """A new token, or the one in a file that only its owner can read; the file is made if it is missing."""
    if path is None:
        return secrets.token_urlsafe(24)
    from pfedhgp.federation.flower.processes import write_secret

    try:
        if not path.exists():
            write_secret(path, f"{secrets.token_urlsafe(24)}\n".encode())
        if path.stat().st_mode & 0o077:
            raise InputError(f"--page-token {path}: other users can read it: chmod 600 it")
        token = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not plain text"
        raise InputError(f"--page-token {path}: {why}") from None
    if len(token) < 16:
        raise InputError(f"--page-token {path}: a token needs at least 16 characters")
    return token


def application(watch: Watch[Any], door: Door, over: threading.Event) -> Any:
    """The ASGI application."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import (
        JSONResponse,
        PlainTextResponse,
        RedirectResponse,
        Response,
        StreamingResponse,
    )
    from starlette.routing import Route

    viewers: set[object] = set()

    async def front(request: Request) -> Response:
        if "token" in request.query_params:
            answer = RedirectResponse(".", status_code=303)
            answer.set_cookie(
                door.cookie, door.session, httponly=True, samesite="lax", secure=door.secure
            )
            return answer
        page = render.page(watch.state, watch.clock())
        return Response(page, media_type="text/html; charset=utf-8")

    async def events(request: Request) -> Response:
        if len(viewers) >= MOST_VIEWERS:
            return PlainTextResponse("too many viewers\n", status_code=503)
        stream = _changes(watch, over, viewers)
        return StreamingResponse(stream, media_type="text/event-stream")

    async def numbers(request: Request) -> Response:
        return Response(metrics(watch.state, watch.clock()), media_type=CONTENT_TYPE)

    async def plain(request: Request) -> Response:
        return JSONResponse(status(watch.state, watch.clock()))

    async def style(request: Request) -> Response:
        return Response(render.style(), media_type="text/css; charset=utf-8")

    async def script(request: Request) -> Response:
        return Response(render.script(), media_type="text/javascript; charset=utf-8")

    routes = {
        "/": front,
        "/events": events,
        "/metrics": numbers,
        "/status.json": plain,
        "/style.css": style,
        "/live.js": script,
    }
    inner = Starlette(routes=[Route(path, view) for path, view in routes.items()])

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await inner(scope, receive, send)
            return

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = [(k.lower().encode(), v.encode()) for k, v in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        if door.opens(Request(scope)):
            await inner(scope, receive, sent)
        else:
            words = "403: open the address that was printed at the start, with its token\n"
            await PlainTextResponse(words, status_code=403)(scope, receive, sent)

    return guarded


async def _changes(
    watch: Watch[Any], over: threading.Event, viewers: set[object]
) -> AsyncIterator[str]:
    """Server-sent events: first all sections, then those that have changed; nothing after the end."""
    me, shown = object(), dict[str, str]()
    viewers.add(me)
    try:
        while True:
            last = over.is_set()
            found = render.sections(watch.state, watch.clock())
            news = {name: text for name, text in found.items() if shown.get(name) != text}
            shown = found
            # A comment keeps the connection alive, and finds out whether the viewer has gone.
            yield f"data: {json.dumps(news)}\n\n" if news else ": still here\n\n"
            if last:
                yield "event: over\ndata: {}\n\n"  # the viewer need not try again
                return
            await asyncio.sleep(TICK)
    finally:
        viewers.discard(me)


class Page:
    """The page in a thread, from `start` to `stop`."""

    def __init__(
        self, watch: Watch[Any], *, host: str, port: int, token: str, tls: Path | None = None
    ) -> None:
        """`tls` is a folder with server.crt and server.key; without it the page speaks plain HTTP."""
        import uvicorn

        self.over = threading.Event()
        self.host, self.port, self.token, self.tls = host, port, token, tls
        door = Door(token, port, secure=tls is not None)
        files = (
            {"ssl_certfile": tls / "server.crt", "ssl_keyfile": tls / "server.key"} if tls else {}
        )
        config = uvicorn.Config(
            application(watch, door, self.over),
            host=host,
            port=port,
            ws="none",
            log_config=None,
            access_log=False,  # the first visit's line would have the token
            server_header=False,
            timeout_graceful_shutdown=int(ENDS_WITHIN),
            **{name: str(path) for name, path in files.items()},
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self._run, daemon=True, name="pfedhgp page")

    def _run(self) -> None:
        with suppress(SystemExit):  # uvicorn's way to say that it could not start
            self.server.run()

    @property
    def address(self) -> str:
        """Where the page is, with its token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "https" if self.tls else "http"
        return f"{scheme}://{host}:{self.port}/?token={self.token}"

    def start(self) -> None:
        """Returns when the page can be opened."""
        self.thread.start()
        end = time.monotonic() + STARTS_WITHIN
        while not self.server.started:
            if not self.thread.is_alive() or time.monotonic() > end:
                raise InputError(
                    f"--page {self.host}:{self.port}: the page cannot listen there: choose another port"
                )
            time.sleep(0.02)

    def stop(self) -> None:
        """Viewers get the last state, then the connections end."""
        self.over.set()
        end = time.monotonic() + ENDS_WITHIN
        while self.server.server_state.tasks and time.monotonic() < end:
            time.sleep(0.05)
        self.server.should_exit = True
        self.thread.join(ENDS_WITHIN + 2.0)
