"""A site's messages as JSON, for its own disk: bytes as hexadecimal text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from pfedhgp.federation.masks.roster import Advert, MaskedReply, Question, Revealed


def to_json(value: Any) -> Any:
    """Plain values; None stays None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, np.ndarray):
        return value.astype("<u8").tobytes().hex()
    if isinstance(value, Mapping):
        return {key: to_json(each) for key, each in value.items()}
    return list(value) if isinstance(value, tuple) else value


def boxes_from(tree: Mapping[str, str]) -> dict[str, bytes]:
    return {name: bytes.fromhex(text) for name, text in tree.items()}


def advert_from(tree: Mapping[str, Any]) -> Advert:
    return Advert(
        tree["name"],
        tree["exchange"],
        bytes.fromhex(tree["public"]),
        bytes.fromhex(tree["signature"]),
        boxes_from(tree["boxes"]),
    )


def question_from(tree: Mapping[str, Any]) -> Question:
    return Question(tree["exchange"], tree["about"], boxes_from(tree["publics"]))


def reply_from(tree: Mapping[str, Any], values: np.ndarray | None = None) -> MaskedReply:
    """`values` if they were kept elsewhere."""
    if values is None:
        values = np.frombuffer(bytes.fromhex(tree["values"]), "<u8").astype(np.uint64)
    return MaskedReply(
        tree["name"],
        tree["exchange"],
        values,
        bytes.fromhex(tree["commitment"]),
        boxes_from(tree["boxes"]),
        advert_from(tree["advert"]),
    )


def revealed_from(tree: Mapping[str, Any]) -> Revealed:
    return Revealed(tree["name"], boxes_from(tree["own"]), boxes_from(tree["keys"]))
