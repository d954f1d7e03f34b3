"""Inferences by name."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from pfedhgp.base import choices
from pfedhgp.errors import InputError
from pfedhgp.inference.markov.settings import Markov
from pfedhgp.inference.meanfield.training import MeanField
from pfedhgp.inference.protocols import Inference
from pfedhgp.inference.structured.settings import Structured

INFERENCES = dict(zip(choices.INFERENCES, (Structured, MeanField, Markov), strict=True))


def inference_named(
    given: Any, *, rounds: int | None, learn_inducing: bool | str | None, averaging: bool = True
) -> Inference:
    """The settings object for a name, or the given one; the other arguments override its fields.

    Settings are a frozen dataclass that is an `Inference`: ours, or the caller's own. None leaves a field as
    it is, and so does `averaging=True`. `averaging=False` switches averaging off if the inference has it.
    """
    found: Any = INFERENCES[given]() if isinstance(given, str) else given
    if learn_inducing is not None:
        found = _with(found, "learn_inducing", learn_inducing)
    if not averaging and "averaging" in _fields(found):
        found = replace(found, averaging=None)
    return found if rounds is None else _with(found, "rounds", rounds)


def _with(settings: Any, name: str, value: Any) -> Any:
    """The settings with another value; those that have no such field would ignore it."""
    if name not in _fields(settings):
        kind = type(settings).__name__
        raise InputError(f"`{name}` is not a setting of `inference`={kind}: leave it out")
    return replace(settings, **{name: value})


def _fields(settings: Any) -> set[str]:
    return {field.name for field in fields(settings)}
