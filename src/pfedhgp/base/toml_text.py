"""Strings as TOML writes them."""

from __future__ import annotations

import json


def quoted(text: str) -> str:
    """A basic string of TOML; what does not print is escaped, so that no terminal obeys it.

    JSON's escapes are TOML's, but JSON leaves DEL and what follows it as it is.

    >>> print(quoted("Dongsi \\x7f"))
    "Dongsi \\u007f"
    """
    return "".join(_escaped(letter) for letter in json.dumps(text, ensure_ascii=False))


def _escaped(letter: str) -> str:
    if letter.isprintable():
        return letter
    number = ord(letter)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
