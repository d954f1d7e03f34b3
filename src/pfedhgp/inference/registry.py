"""Inferences by name."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any

from pfedhgp.errors import InputError
from pfedhgp.inference.meanfield_training import MeanField
from pfedhgp.inference.parties import Inference
from pfedhgp.inference.structured_training import Structured

INFERENCES = {"structured": Structured, "mean-field": MeanField}


def inference_named(
    given: Any, *, rounds: int | None, learn_inducing: bool | None, averaging: bool = True
) -> Inference:
    """The settings object for a name, or the given one; `rounds` overrides its own, False `averaging` too.

    Settings are a frozen dataclass that is an `Inference`: ours, or the caller's own.
    """
    found: Any
    if isinstance(given, str):
        if given not in INFERENCES:
            raise InputError(f"`inference` must be one of {', '.join(INFERENCES)}, got {given!r}")
        found = INFERENCES[given]()
        if learn_inducing or (learn_inducing is None and isinstance(found, Structured)):
            found = replace(found, learn_inducing=learn_inducing)
    elif is_dataclass(given) and hasattr(given, "server") and hasattr(given, "clients"):
        found = given
    else:
        raise InputError(f"`inference` must be a name or settings of an inference, got {given!r}")
    if not averaging and isinstance(found, Structured):
        found = replace(found, averaging=None)
    if rounds is None:
        return found
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise InputError(f"`rounds` must be a positive whole number, got {rounds!r}")
    return replace(found, rounds=rounds)
