"""Envelopes as Flower's records, and back. What comes in is measured before it is unpacked."""

from __future__ import annotations

import io

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from pfedhgp.federation.flower.envelope import Envelope, Refused, from_plain

ABOUT, ARRAYS = "about", "arrays"
MOST_ARRAYS, LONGEST_NAME, LONGEST_TEXT = 128, 200, 262_144


def to_records(envelope: Envelope) -> RecordDict:
    """Arrays as NumPy's own format, all else as plain values."""
    arrays = {name: Array(np.array(a, order="C")) for name, a in envelope.arrays.items()}
    return RecordDict({ABOUT: ConfigRecord(envelope.plain()), ARRAYS: ArrayRecord(arrays)})


def from_records(content: RecordDict, *, most_bytes: int) -> Envelope:
    """The inverse; refuses what is too large, of another form, or would have to be unpickled."""
    if set(content) != {ABOUT, ARRAYS}:
        raise Refused("malformed")
    about, records = content[ABOUT], content[ARRAYS]
    if not isinstance(about, ConfigRecord) or not isinstance(records, ArrayRecord):
        raise Refused("malformed")
    texts = sum(len(value) for value in about.values() if isinstance(value, str | bytes))
    if len(records) > MOST_ARRAYS or texts > LONGEST_TEXT:
        raise Refused("oversized")
    if sum(len(array.data) for array in records.values()) > most_bytes:
        raise Refused("oversized")
    return from_plain(dict(about), {name: _array(name, array) for name, array in records.items()})


def _array(name: str, packed: Array) -> np.ndarray:
    if len(name) > LONGEST_NAME or packed.dtype != "float64" or packed.stype != "numpy.ndarray":
        raise Refused("malformed")
    try:
        # The header says how many numbers follow; numpy allocates by it, so it is compared first.
        if 8 * int(np.prod(packed.shape, dtype=np.float64)) > len(packed.data):
            raise ValueError
        found = np.load(io.BytesIO(packed.data), allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError, OverflowError):
        raise Refused("malformed") from None
    if not isinstance(found, np.ndarray) or found.dtype != np.float64:
        raise Refused("malformed")
    if found.shape != tuple(packed.shape):
        raise Refused("malformed")
    return found
