"""One HTML file that shows a fitted model: no network, for phones and desktops, light and dark.

Its one script sorts tables; without it nothing is missing.
"""

from pfedhgp.report.page import render, write

__all__ = ["render", "write"]
