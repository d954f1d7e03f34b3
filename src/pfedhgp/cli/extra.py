"""Commands that need the extra `flower` say so in one line."""

from __future__ import annotations

from importlib.util import find_spec

from pfedhgp.errors import InputError


def require_flower() -> None:
    """Raises an error if Flower is not installed."""
    if find_spec("flwr") is None:
        raise InputError(
            "this command needs Flower: python3 -m pip install '.[flower]' in a checkout of pfedhgp"
        )
