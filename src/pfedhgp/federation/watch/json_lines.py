"""`--log-json`: one JSON object a line, with time, level, event and its fields."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

from pfedhgp.federation.watch.events import Event


def json_line(event: Event, now: float) -> str:
    """The line of an event; NaN and infinities become null, so that every parser takes it."""
    at = datetime.datetime.fromtimestamp(now, datetime.UTC)
    text = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    found = {"time": text, "level": event.level, "event": event.name, **event.fields()}
    return json.dumps(_plain(found), ensure_ascii=True, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
