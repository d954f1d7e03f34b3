"""Chromium over its debugging pipe: pages that live, at any width, in light and dark; what they log.

No other program is needed: messages are JSON that ends with a zero byte, on file descriptors 3 and 4.
"""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.browser import CHROMIUM

PATIENCE = 120.0


class Browser:
    """One tab. `errors` are exceptions and what the console or the network complained about."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._rest, self._number = write, read, b"", 0
        self.errors: list[str] = []
        self.loads = 0
        self.session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            answer = self._next(end)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
        raise AssertionError(f"no answer to {method}")

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(end - time.monotonic(), 0.0))
            assert ready, "Chromium does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "Chromium has ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        about = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(str(about["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning", "assert"):
                self.errors.append(str(about["args"]))
            case "Log.entryAdded" if about["entry"]["level"] in ("error", "warning"):
                self.errors.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")
            case "Page.loadEventFired":
                self.loads += 1

    def look(self, *, width: int, dark: bool, height: int = 900) -> None:
        """The size of the screen and the colours that the user prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        before = self.loads
        self.call("Page.navigate", url=url)
        self.wait_for(lambda: self.loads > before, f"{url} to load")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def text(self) -> str:
        return str(self.run("document.body.innerText"))

    def wait_for(self, what: Any, why: str, patience: float = PATIENCE) -> None:
        end = time.monotonic() + patience
        while not what():
            assert time.monotonic() < end, f"waited in vain for {why}"
            self.call("Runtime.evaluate", expression="0")  # takes in what has happened
            time.sleep(0.05)

    def picture(self, path: Path) -> None:
        """The page from top to bottom as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    assert CHROMIUM is not None
    there, commands = os.pipe()
    answers, back = os.pipe()

    def connect() -> None:
        os.dup2(there, 30), os.dup2(back, 31)
        os.dup2(30, 3), os.dup2(31, 4)

    process = subprocess.Popen(
        [
            *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--remote-debugging-pipe", f"--user-data-dir={folder / 'live-profile'}"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=connect,
        pass_fds=(3, 4),
    )
    os.close(there), os.close(back)
    try:
        yield Browser(commands, answers)
    finally:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(commands), os.close(answers)
