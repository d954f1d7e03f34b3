"""What sites and server of secure aggregation tell each other, as bytes: parts with their lengths in front.

Whatever comes from another machine is read here, and anything but the one spelling is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pfedhgp.errors import InputError
from pfedhgp.federation.masks.keys import KEY_BYTES, framed
from pfedhgp.federation.masks.roster import (
    MOST,
    Advert,
    Card,
    MaskedReply,
    MaskError,
    Revealed,
    Roster,
)


def unframed(data: bytes, count: int | None = None) -> list[bytes]:
    """The parts that `framed` put together; exactly `count` of them if that is given."""
    parts, start = [], 0
    while start < len(data):
        size = int.from_bytes(data[start : start + 8], "big")
        start += 8
        if start > len(data) or size > len(data) - start:
            raise MaskError("a message of the masks is cut off")
        parts.append(data[start : start + size])
        start += size
    if count is not None and len(parts) != count:
        raise MaskError(f"a message of the masks has {len(parts)} parts instead of {count}")
    return parts


def _text(part: bytes) -> str:
    try:
        return part.decode("utf-8")
    except UnicodeDecodeError:
        raise MaskError("a name in a message of the masks is not text") from None


def _number(part: bytes) -> int:
    if not part.isdigit() or len(part) > 12:
        raise MaskError("a number in a message of the masks is not one")
    return int(part)


def _key(part: bytes) -> bytes:
    if len(part) != KEY_BYTES:
        raise MaskError(f"a public key in a message of the masks has not {KEY_BYTES} bytes")
    return part


def named(boxes: Mapping[str, bytes]) -> bytes:
    """Bytes by name."""
    return framed(*(part for name in sorted(boxes) for part in (name, boxes[name])))


def read_named(data: bytes) -> dict[str, bytes]:
    parts = unframed(data)
    names = [_text(part) for part in parts[::2]]
    if len(parts) % 2 or len(names) > MOST or names != sorted(set(names)):
        raise MaskError("names in a message of the masks are not in order, or too many")
    return dict(zip(names, parts[1::2], strict=True))


# ------------------------------------------------------------------------------ before exchanges


def roster_bytes(roster: Roster) -> bytes:
    return named(roster.sites)


def read_roster(data: bytes) -> Roster:
    try:
        return Roster(read_named(data))
    except InputError as error:
        raise MaskError(str(error)) from None


def card_bytes(card: Card) -> bytes:
    return framed(card.name, card.public, card.signature)


def read_card(data: bytes) -> Card:
    name, public, signature = unframed(data, 3)
    return Card(_text(name), _key(public), signature)


def cards_bytes(cards: Iterable[Card]) -> bytes:
    return framed(*map(card_bytes, cards))


def read_cards(data: bytes) -> list[Card]:
    return [read_card(part) for part in unframed(data)]


def advert_bytes(advert: Advert) -> bytes:
    return framed(
        advert.name, advert.exchange, advert.public, advert.signature, named(advert.boxes)
    )


def read_advert(data: bytes) -> Advert:
    name, exchange, public, signature, boxes = unframed(data, 5)
    return Advert(_text(name), _number(exchange), _key(public), signature, read_named(boxes))


# ----------------------------------------------------------------------------------- one exchange


def question_bytes(cards: Iterable[Card], adverts: Iterable[Advert]) -> bytes:
    """Who is asked: cards that the receiver may not have, and everybody's key with its box for it."""
    return framed(cards_bytes(cards), framed(*map(advert_bytes, adverts)))


def read_question(data: bytes) -> tuple[list[Card], list[Advert]]:
    cards, adverts = unframed(data, 2)
    return read_cards(cards), [read_advert(part) for part in unframed(adverts)]


def read_reply(data: bytes) -> MaskedReply:
    """The inverse of `MaskedReply.to_bytes`."""
    name, exchange, values, commitment, boxes, *advert = unframed(data, 9)
    if len(values) % 8:
        raise MaskError("a masked reply is cut off")
    following, public, signature, sealed = advert
    own = _text(name)
    return MaskedReply(
        own,
        _number(exchange),
        np.frombuffer(values, "<u8").astype(np.uint64),
        commitment,
        read_named(boxes),
        Advert(own, _number(following), _key(public), signature, read_named(sealed)),
    )


def survivors_bytes(names: Sequence[str]) -> bytes:
    return framed(*names)


def read_survivors(data: bytes) -> tuple[str, ...]:
    return tuple(_text(part) for part in unframed(data))


def opening_bytes(
    names: Sequence[str], signatures: Mapping[str, bytes], boxes: Mapping[str, bytes]
) -> bytes:
    """What a site needs to reveal: survivors, their signatures, and their boxes for this site."""
    return framed(survivors_bytes(names), named(signatures), named(boxes))


def read_opening(data: bytes) -> tuple[tuple[str, ...], dict[str, bytes], dict[str, bytes]]:
    names, signatures, boxes = unframed(data, 3)
    return read_survivors(names), read_named(signatures), read_named(boxes)


def revealed_bytes(revealed: Revealed) -> bytes:
    return framed(revealed.name, named(revealed.own), named(revealed.keys))


def read_revealed(data: bytes) -> Revealed:
    name, own, keys = unframed(data, 3)
    return Revealed(_text(name), read_named(own), read_named(keys))
