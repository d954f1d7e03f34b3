"""One HTML file that shows a fitted model: no network, no script, for phones and desktops, light and dark."""

from pfedhgp.report.page import render, write

__all__ = ["render", "write"]
