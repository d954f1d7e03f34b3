"""A command of pfedhgp that ends with its parent: what `pfedhgp federate` starts."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from pfedhgp.cli.main import main
    from pfedhgp.federation.flower.processes import follow_parent

    follow_parent()
    sys.exit(main(sys.argv[1:]))
