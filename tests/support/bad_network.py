"""A TCP proxy between a site and its server that cuts, loses, garbles or duplicates bytes when told to."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

PASS, CUT, LOSE, GARBLE, DUPLICATE = "pass", "cut", "lose", "garble", "duplicate"
CHUNK = 16_384


class BadNetwork:
    """Listens on a port of loopback and connects to another. `mode` says what becomes of the bytes."""

    def __init__(self, target: int) -> None:
        self.target, self.mode = target, PASS
        self.harmed = 0
        """How many chunks or connections were not passed on as they came."""
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, mode: str) -> None:
        self.mode = mode
        if mode == CUT:
            self._cut()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._cut()

    def _cut(self) -> None:
        with self._lock:
            for each in self._open:
                self.harmed += 1
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
            self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                site, _ = self._listener.accept()
            except OSError:
                return
            if self.mode == CUT:
                self.harmed += 1
                site.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.target), timeout=5.0)
            except OSError:
                site.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._open |= {site, server}
            for one, other in ((site, server), (server, site)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while chunk := one.recv(CHUNK):
                mode = self.mode
                self.harmed += mode != PASS
                if mode == GARBLE:
                    middle = len(chunk) // 2
                    chunk = chunk[:middle] + bytes([chunk[middle] ^ 0x55]) + chunk[middle + 1 :]
                elif mode == DUPLICATE:
                    chunk += chunk
                if mode != LOSE:
                    other.sendall(chunk)
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            with self._lock:
                self._open.discard(each)
            each.close()
