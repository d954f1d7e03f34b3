"""Flower's SuperNode, which ends with its parent and looks for messages more often.

As it comes it sleeps three seconds between two looks, which would be most of a round: here at most POLL.
"""

from __future__ import annotations

import time
from typing import Any

POLL = 0.5


class Brisk:
    """The module `time`, whose naps are short."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, POLL))


def main() -> None:
    """`flower-supernode`, as it is but for its naps."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    from pfedhgp.federation.flower.processes import follow_parent

    start_client_internal.time = Brisk()  # what it sleeps by; retries have their own
    follow_parent()
    flower_supernode()


if __name__ == "__main__":
    main()
