"""Where a Flower process on this machine is, and how it is spoken to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})
"""The call by which work is fetched, which takes the secret of the process that has it."""


@dataclass(frozen=True)
class Address:
    """A Flower process on this machine, and how it is spoken to."""

    text: str
    ca: Path | None = None

    def client(self, kind: Callable[..., Any], *interceptors: Any) -> Any:
        return kind.from_server_address(  # type: ignore[attr-defined]
            server_address=self.text,
            insecure=self.ca is None,
            root_certificates=None if self.ca is None else self.ca.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="pfedhgp"), *interceptors],
        )


def heartbeat_of(client: Any) -> HeartbeatSender:
    """What tells a Flower process that its task is being worked on; a task that is over is no error."""
    send = make_task_heartbeat_fn_http(client)

    def beat() -> bool:
        try:
            return send()
        except httpx.HTTPStatusError:  # it would end the sender's thread with a traceback
            return False

    return HeartbeatSender(beat)
