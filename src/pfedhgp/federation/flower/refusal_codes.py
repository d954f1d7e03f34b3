"""Which code a site sends for an error, and what its own log says of it: no error's text leaves the site."""

from __future__ import annotations

import errno
import os
import traceback
from pathlib import Path

from pfedhgp.errors import (
    InputError,
    MessageError,
    ModelFileError,
    NumericsError,
    TellsTooMuchError,
)
from pfedhgp.federation.envelope import Refused

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


def code_of(error: Exception) -> str:
    """The code that is sent to the server."""
    if isinstance(error, Refused):
        return error.code
    if isinstance(error, TellsTooMuchError):
        return "closed"
    if isinstance(error, MessageError):
        return "malformed"
    if isinstance(error, NumericsError | FloatingPointError):
        return "numerics"
    if isinstance(error, ModelFileError):
        return "internal"
    return "data" if isinstance(error, InputError) else "internal"


def reason(error: Exception) -> str:
    """For this site's own log: why it refused, or where an error was raised."""
    if isinstance(error, Refused):
        return f" ({error.why})" if error.why else ""
    if isinstance(error, OSError) and error.errno in DISK:
        return f" ({os.strerror(error.errno)})"
    if isinstance(error, TellsTooMuchError):  # it has no value of a row
        return f" ({error})"
    return f" ({place_of(error)})"


def place_of(error: Exception) -> str:
    """The type of an error and its line of code. Not its text, which may quote a row."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    place = "" if last is None else f" at {Path(last.filename).name}:{last.lineno}"
    return f"{type(error).__name__}{place}"
