"""Envelopes as Flower's records, and back. What comes in is measured before it is unpacked.

All arrays of a message travel as one run of float64, with names and shapes beside it: Flower moves every
array by calls of its own, which would be most of a round's time. Eight random bytes end it: Flower stores
equal content once for all messages, and may drop it with the first that was read while others need it.
"""

from __future__ import annotations

import json
import math
import secrets
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from pfedhgp.federation.flower.envelope import Envelope, Refused, from_plain
from pfedhgp.federation.messages import layout_of

ABOUT, LAYOUT, ARRAYS, NUMBERS = "about", "layout", "arrays", "numbers"
MOST_ARRAYS, LONGEST_NAME, LONGEST_TEXT, MOST_AXES = 128, 200, 262_144, 4
NONCE = 8


def to_records(envelope: Envelope) -> RecordDict:
    """Names and shapes as JSON, numbers as little-endian float64 in that order."""
    flat = [np.asarray(a, "<f8").reshape(-1) for a in envelope.arrays.values()]
    data = np.concatenate([*flat, np.zeros(0, "<f8")]).tobytes() + secrets.token_bytes(NONCE)
    packed = Array("float64", (len(data) // 8,), "raw", data)
    about = ConfigRecord({**envelope.plain(), LAYOUT: json.dumps(layout_of(envelope.arrays))})
    return RecordDict({ABOUT: about, ARRAYS: ArrayRecord({NUMBERS: packed})})


def from_records(content: RecordDict, *, most_bytes: int) -> Envelope:
    """The inverse; refuses what is too large or of another form. Nothing is unpickled."""
    if set(content) != {ABOUT, ARRAYS}:
        raise Refused("malformed")
    about, records = content[ABOUT], content[ARRAYS]
    if not isinstance(about, ConfigRecord) or not isinstance(records, ArrayRecord):
        raise Refused("malformed")
    if set(records) != {NUMBERS}:
        raise Refused("malformed")
    texts = sum(len(value) for value in about.values() if isinstance(value, str | bytes | list))
    data = records[NUMBERS].data
    if texts > LONGEST_TEXT or len(data) > most_bytes:
        raise Refused("oversized")
    plain = dict(about)
    return from_plain(plain, _unpacked(_layout(plain.pop(LAYOUT, None)), data))


def _layout(text: Any) -> dict[str, tuple[int, ...]]:
    try:
        found = json.loads(text)
        shapes = {name: tuple(shape) for name, shape in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise Refused("malformed") from None
    if len(shapes) > MOST_ARRAYS:
        raise Refused("oversized")
    for name, shape in shapes.items():
        whole = all(type(size) is int and 0 <= size < 2**31 for size in shape)
        if not whole or len(shape) > MOST_AXES or len(name) > LONGEST_NAME:
            raise Refused("malformed")
    return shapes


def _unpacked(shapes: dict[str, tuple[int, ...]], data: bytes) -> dict[str, np.ndarray]:
    if 8 * sum(math.prod(shape) for shape in shapes.values()) != len(data) - NONCE:
        raise Refused("malformed")
    numbers, start, arrays = np.frombuffer(data[:-NONCE], "<f8").astype(np.float64), 0, {}
    for name, shape in shapes.items():
        size = math.prod(shape)
        arrays[name] = numbers[start : start + size].reshape(shape)
        start += size
    return arrays
