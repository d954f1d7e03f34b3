"""A command of pfedhgp that ends when its parent ends: `pfedhgp federate` starts its processes with it."""

from __future__ import annotations

import sys

COMMAND = (sys.executable, "-m", "pfedhgp.cli.child")

if __name__ == "__main__":
    from pfedhgp.cli.main import main
    from pfedhgp.federation.flower.processes import end_with_parent

    end_with_parent()
    sys.exit(main(sys.argv[1:]))
