"""Flower's SuperNode, which ends with its parent."""

from __future__ import annotations


def main() -> None:
    """`flower-supernode`, as it is."""
    from flwr.supernode.cli import flower_supernode

    from pfedhgp.federation.flower.processes import follow_parent

    follow_parent()
    flower_supernode()


if __name__ == "__main__":
    main()
