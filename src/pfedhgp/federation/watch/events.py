"""What happens at a server or a site, one small record each. No rows, no keys, no numbers of a message.

A state is folded from them, and `--log-json` writes them as they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Event:
    """`level` is how much it matters: info, warning or error."""

    name: ClassVar[str] = ""

    @property
    def level(self) -> str:
        return "info"

    def fields(self) -> dict[str, Any]:
        """What a log line has, besides its time, level and name."""
        return asdict(self)


# ------------------------------------------------------------------------------------ at the server


@dataclass(frozen=True)
class Listening(Event):
    """The server waits for its sites."""

    name: ClassVar[str] = "listening"
    address: str
    sites: tuple[str, ...]
    rounds: int
    """The most rounds that training can take, all restarts together."""
    start_is_round: bool = False
    resumed: bool = False


@dataclass(frozen=True)
class Connected(Event):
    """The sites that are connected now, and no others."""

    name: ClassVar[str] = "connected"
    sites: tuple[str, ...]


@dataclass(frozen=True)
class Asked(Event):
    """An exchange began: these sites were asked."""

    name: ClassVar[str] = "asked"
    exchange: int
    kind: str
    round: int
    sites: tuple[str, ...]


@dataclass(frozen=True)
class Answered(Event):
    """A site's reply was accepted."""

    name: ClassVar[str] = "answered"
    site: str
    exchange: int
    kind: str
    bytes_up: int
    bytes_down: int
    seconds: float
    """How long the site worked, in whole seconds."""


@dataclass(frozen=True)
class RefusedReply(Event):
    """A site's reply was refused, or the site refused to answer."""

    name: ClassVar[str] = "refused"
    site: str
    exchange: int
    kind: str
    why: str

    @property
    def level(self) -> str:
        return "warning"


@dataclass(frozen=True)
class Counted(Event):
    """An exchange is over: whose reply was counted, and why another's was not."""

    name: ClassVar[str] = "exchange"
    exchange: int
    kind: str
    round: int
    counted: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why, by site."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Why the sums of a site that answered were left out."""
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0

    @property
    def level(self) -> str:
        return "warning" if self.missing or self.excluded else "info"


@dataclass(frozen=True)
class Trained(Event):
    """A round is over."""

    name: ClassVar[str] = "round"
    round: int
    attempt: int
    bound: float | None


@dataclass(frozen=True)
class Delivered(Event):
    """A site has the model."""

    name: ClassVar[str] = "delivered"
    site: str
    alarm: bool = False
    """Whether its own rows speak against the model."""

    @property
    def level(self) -> str:
        return "warning" if self.alarm else "info"


# -------------------------------------------------------------------------------------- at a site


@dataclass(frozen=True)
class Audited(Event):
    """A line of the audit log: what was sent, received or refused."""

    name: ClassVar[str] = "message"
    direction: str
    exchange: int
    kind: str
    bytes: int
    arrays: Mapping[str, Any]
    """Shapes by name."""
    code: str = ""
    time: str = ""

    @property
    def level(self) -> str:
        return "warning" if self.direction in ("refused", "break") else "info"

    def fields(self) -> dict[str, Any]:
        return {k: v for k, v in super().fields().items() if k != "time"}


@dataclass(frozen=True)
class Contact(Event):
    """The site has found its server, or lost it; `why` says what is wrong."""

    name: ClassVar[str] = "contact"
    here: bool
    why: str = ""


# ------------------------------------------------------------------------------------------- both


@dataclass(frozen=True)
class Line(Event):
    """A line that the user sees."""

    name: ClassVar[str] = "line"
    text: str
    severity: str = "info"

    @property
    def level(self) -> str:
        return self.severity

    def fields(self) -> dict[str, Any]:
        return {"text": self.text}


@dataclass(frozen=True)
class Ended(Event):
    """The command is over; `why` is empty if all went well."""

    name: ClassVar[str] = "ended"
    why: str = ""

    @property
    def level(self) -> str:
        return "error" if self.why else "info"
