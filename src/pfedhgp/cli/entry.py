"""The installed command. Ctrl-C while the command line is still being imported ends it quietly."""

from __future__ import annotations

from pfedhgp.base.signals import INTERRUPTED, leave


def run() -> int:
    """The command line on the program's own arguments; returns the exit code, 130 after Ctrl-C."""
    try:
        from pfedhgp.cli.main import main

        return leave(main())
    except KeyboardInterrupt:  # before `main` could set its own handlers, or after it put them back
        return leave(INTERRUPTED)
