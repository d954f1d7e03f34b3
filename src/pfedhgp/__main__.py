"""`python -m pfedhgp` is the command `pfedhgp`."""

from __future__ import annotations

import sys

from pfedhgp.cli.entry import run

if __name__ == "__main__":
    sys.exit(run())
