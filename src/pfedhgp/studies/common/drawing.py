"""The style of the studies' figures. Matplotlib is imported here alone, and draws without a display."""

from __future__ import annotations

import io
from typing import Any

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "pfedhgp",  # the same figure has the same bytes
    "svg.fonttype": "none",  # text stays text
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
}


def pyplot() -> Any:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(STYLE)
    return plt


def to_svg(plt: Any, figure: Any) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    return text.getvalue()
