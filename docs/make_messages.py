"""Makes messages.md, beside this file, from the schema of the messages: `make messages`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from pfedhgp.federation.envelope import Envelope
from pfedhgp.federation.message_checks import FIXED, LARGEST_BASIS
from pfedhgp.federation.plan import LARGEST_INDUCING
from pfedhgp.federation.schema import (
    ALWAYS,
    EXCHANGES,
    OTHER,
    OTHER_STARTS,
    SYMBOLS,
    Content,
    Exchange,
    Part,
)
from pfedhgp.inference.messages import Field

INTRODUCTION = """\
# Messages

<!-- Made by `make messages` from schema.py and envelope.py in src/pfedhgp/federation. Do not edit. -->

Everything that pfedhgp sends between the server and a client is on this page. (Between machines,
TLS and Flower add their own.) The server asks, each client replies, and the server goes on with
the totals over clients. No message has a row, and none has a client's weights, inducing inputs or
loadings. That does not make the numbers harmless: [privacy](privacy.md) says what can be learned
from them.

Every array is float64. Of a symmetric matrix (*sym*) the upper triangle is sent, of a triangular
one (*tri*) the lower triangle, row by row. All numbers must be finite. A server and its sites on
other machines also check names, shapes and ranges, and refuse a message that breaks them.

The file `messages.jsonl` and a site's audit log have one line for each message: its kind, the names and
shapes of its arrays and their bytes, never a value.

## Around every message

Between machines every message also has these plain fields. The names and shapes of its arrays go
with them, as JSON.

"""
PLAIN = "| field | type | meaning |\n|---|---|---|\n"
TYPES = {
    "bytes": "bytes",
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "true or false",
}
LIMITS = {
    **{symbol: f": {number}" for symbol, number in FIXED.items()},
    "M": ": at most `inducing`; if that is auto, `largest_inducing`, "
    f"or {LARGEST_INDUCING} if that is not set",
    "E": f": at most `cycle_basis`, or {LARGEST_BASIS} if that is auto",
}
"""Sizes that are the same in every run, and the largest that are accepted."""
SYMBOLS_HEADING = "\n## Symbols\n\n| symbol | number of |\n|---|---|\n"
HEADING = "| array | shape | range | only if | meaning |\n|---|---|---|---|---|\n"


def page() -> str:
    """The whole page."""
    symbols = "".join(
        f"| {symbol} | {words}{LIMITS.get(symbol, '')} |\n" for symbol, words in SYMBOLS.items()
    )
    common = "\n# What several messages have\n"
    for part in _titled([c for e in EXCHANGES.values() for c in (e.request, e.reply)]):
        common += f"\n## {part.title[0].upper()}{part.title[1:]}\n\n{_table(part.content)}"
    sections = "".join(map(_section, EXCHANGES.values()))
    return INTRODUCTION + _plain_fields() + SYMBOLS_HEADING + symbols + sections + common


def _plain_fields() -> str:
    """The envelope's fields with their types and docstrings, without the arrays."""
    table = PLAIN
    body = ast.parse(inspect.getsource(Envelope)).body[0].body
    for field, after in pairwise(body):
        if isinstance(field, ast.AnnAssign) and field.target.id != "arrays":
            meaning = ast.literal_eval(after.value).removesuffix(".")
            table += f"| `{field.target.id}` | {TYPES[field.annotation.id]} | {meaning} |\n"
    return table


def _section(exchange: Exchange) -> str:
    only = f", if {exchange.only.words}" if exchange.only is not ALWAYS else ""
    text = f"\n## {exchange.name}\n\n{exchange.meaning} When: {exchange.when}{only}."
    if exchange.missed:
        requests = " and ".join(f"`{name}`" for name in exchange.missed)
        text += (
            f"\nA site that was away gets the requests that it missed ({requests}) with this one."
        )
    text += "\n"
    sides = (("Server to client", exchange.request), ("Client to server", exchange.reply))
    for title, content in sides:
        text += f"\n{title}:\n\n{_table(content)}" if content else f"\n{title}: no arrays.\n"
    return text


def _table(content: Content) -> str:
    return HEADING + "".join(f"| {' | '.join(row)} |\n" for row in _rows(content))


def _rows(
    content: Content, prefix: str = "", conditions: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    only = "; ".join(conditions)
    for item in content:
        if isinstance(item, Field):
            star = item.name.endswith("*")
            words = " × ".join("·".join(word) for word in item.shape.split())
            shape = "as the parameter" if star else words or "one number"
            shape += {"": "", "symmetric": ", *sym*", "lower": ", *tri*"}[item.triangle]
            yield f"`{prefix}{item.name}`", shape, item.range.words, only, item.meaning
        elif item.title:
            link = f"[{item.title}](#{item.title.replace(' ', '-')})"
            yield f"`{prefix}…`", "", "", only, f"all of {link}"
        else:
            others = f"starts are compared (k ≤ {OTHER_STARTS})"
            more = others if item.prefix == OTHER else item.when.words
            below = prefix + item.prefix.format("k")
            yield from _rows(item.content, below, (*conditions, more) if more else conditions)


def _titled(contents: Iterable[Content]) -> list[Part]:
    """The parts that have a title, each once."""
    found: dict[str, Part] = {}
    for content in contents:
        for part in content:
            if isinstance(part, Part):
                if part.title:
                    found[part.title] = part
                found |= {inner.title: inner for inner in _titled([part.content])}
    return list(found.values())


if __name__ == "__main__":
    Path(__file__).with_name("messages.md").write_text(page(), encoding="utf-8")
