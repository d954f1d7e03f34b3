"""Errors and warnings that pfedhgp raises, all under `PFedHGPError` and `PFedHGPWarning`."""

from __future__ import annotations

import sys
import warnings

__all__ = [
    "BudgetWarning",
    "ConvergenceWarning",
    "ExtrapolationWarning",
    "InputError",
    "MessageError",
    "ModelFileError",
    "NonFiniteError",
    "NonFiniteMessageError",
    "NotFittedError",
    "NumericsError",
    "NumericsWarning",
    "PFedHGPError",
    "PFedHGPWarning",
    "StaleWarning",
    "TellsTooMuchError",
]


class PFedHGPError(Exception):
    """Base of every error that pfedhgp raises on purpose."""


class InputError(PFedHGPError, ValueError):
    """The caller's data or arguments are wrong; the message names them and says what to do."""


class NotFittedError(InputError, AttributeError):
    """A fitted model is needed: call `fit` or `load` first.

    It is both a `ValueError` and an `AttributeError`, as scikit-learn's is, so that `hasattr` on a
    fitted attribute works.
    """


class ModelFileError(InputError):
    """A model file is corrupted, incomplete, or of a newer format than this version reads."""


class RowError(InputError):
    """A client's row is refused: `row` counts from 0 among its rows, and {row} in `text` is its place."""

    def __init__(self, text: str, *, client: str, row: int) -> None:
        super().__init__(text.format(row=f"row {row}"))
        self.text, self.client, self.row = text, client, row


class TellsTooMuchError(InputError):
    """A request asks for so much that rows could be solved for; the client does not answer it."""


class NumericsError(PFedHGPError):
    """A factorisation failed at the largest jitter, for the `matrix` of `client` that it names.

    Both are `None` where they do not apply; a matrix of the global block has no client.
    """

    def __init__(
        self, message: str, *, client: str | None = None, matrix: str | None = None
    ) -> None:
        super().__init__(message)
        self.client = client
        self.matrix = matrix

    def __str__(self) -> str:
        where = [
            f"{word} {name!r}"
            for word, name in (("client", self.client), ("matrix", self.matrix))
            if name is not None
        ]
        message = super().__str__()
        return f"{message} ({', '.join(where)})" if where else message


class NonFiniteError(NumericsError):
    """A NaN or an infinity appeared in a computation, where more jitter would not help."""


class MessageError(PFedHGPError):
    """A message breaks the protocol: wrong schema, round, global hash, name, shape or dtype."""


class NonFiniteMessageError(NonFiniteError, MessageError):
    """A client sent NaN or an infinity: `client` is its sender, `matrix` the array's name."""


class PFedHGPWarning(UserWarning):
    """Base of every warning that pfedhgp gives."""


class NumericsWarning(PFedHGPWarning):
    """A factorisation needed more jitter than was asked for."""


class BudgetWarning(PFedHGPWarning):
    """The inducing budget was changed (fewer rows than points), or is too small for the data."""


class ConvergenceWarning(PFedHGPWarning):
    """Training ended at its limit of rounds before it had settled: allow more rounds."""


class ExtrapolationWarning(PFedHGPWarning):
    """A prediction was asked for far outside the data, where only the prior speaks."""


class StaleWarning(PFedHGPWarning):
    """New rows are not what the model expected: fit again."""


def warn_caller(text: str, kind: type[PFedHGPWarning] = PFedHGPWarning) -> None:
    """`warnings.warn` that points at the first caller outside of pfedhgp, however deep we are."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _ours(frame.f_globals.get("__name__", "")):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(text, kind, stacklevel=depth + 1)


def _ours(module: str) -> bool:
    return module.partition(".")[0] == "pfedhgp"


def warn(text: str, kind: type[PFedHGPWarning] = PFedHGPWarning, *, stacklevel: int = 2) -> None:
    """`warnings.warn` with a warning of ours; by default it points at whoever called the caller."""
    warnings.warn(text, kind, stacklevel=stacklevel + 1)
