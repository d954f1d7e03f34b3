"""Docstrings as pages show them: examples (`>>>`) as code, and `{arguments}` filled in.

Markdown would read `>>>` as quotations. `{arguments}` is replaced when the package is imported, and pages are
made from the source.
"""

from __future__ import annotations

import inspect
import re
from pydoc import locate
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^|(?<=\n))(?P<space> *)>>> .*?(?=\n *\n|\Z)", flags=re.S)
FILLED = "{arguments}"


class Doctests(griffe.Extension):
    """Fences around paragraphs that start with `>>>`, and the arguments of the model."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is None:
            return
        if FILLED in obj.docstring.value:
            obj.docstring.value = inspect.getdoc(locate(obj.path)) or ""
        obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """A docstring with its examples in fences, as far to the right as they are."""

    def fence(found: re.Match[str]) -> str:
        space = found["space"]
        return f"{space}```pycon\n{found[0].rstrip()}\n{space}```"

    return EXAMPLE.sub(fence, text)
