"""Templates of the report, with the words of `pfedhgp.model.words` as their filters."""

from __future__ import annotations

import re
from importlib import resources

import jinja2

from pfedhgp.model.words import (
    DASH,
    InputAxis,
    axes_of,
    byte_size,
    duration,
    number,
    percent,
    shown,
)

__all__ = [
    "DASH",
    "InputAxis",
    "axes_of",
    "byte_size",
    "duration",
    "number",
    "percent",
    "plain",
    "shown",
    "template",
]


def plain(text: str) -> str:
    """A sentence without exponents.

    >>> plain("still gaining 1.8e+02 nats a round")
    'still gaining 180 nats a round'
    """
    return re.sub(r"\d(?:\.\d+)?e[+-]\d+", lambda m: number(float(m[0]), 2), text)


def template(name: str) -> jinja2.Template:
    """A template of this package, with the words below as its filters."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {
        "number": number,
        "percent": percent,
        "bytes": byte_size,
        "duration": duration,
        "shown": shown,
    }
    text = (resources.files("pfedhgp.report") / name).read_text("utf-8")
    return environment.from_string(text)
