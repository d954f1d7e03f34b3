"""What every study writes into its folder: results.json, tables.md, figures as SVG, and report.html."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pfedhgp.studies.common import provenance
from pfedhgp.studies.common.store import write_whole

Row = list[str]
Table = tuple[Row, list[Row]]
"""The head and the rows."""
STYLE = (
    "body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1200px;padding:0 1em}"
    "table{border-collapse:collapse;font-size:11px}td,th{border:1px solid #ccc;padding:2px 6px;"
    "text-align:right;white-space:nowrap}td:nth-child(-n+2){text-align:left}svg{max-width:100%;height:auto}"
    ".wide{overflow-x:auto}pre{overflow-x:auto}"
)
FIGURES: dict[Any, Any] = {
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
"""Settings of matplotlib."""


def can_draw() -> bool:
    """Whether matplotlib is installed: a bare machine with a GPU writes only tables."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def pyplot() -> Any:
    """Matplotlib in the studies' style. It is imported here alone, and draws without a display."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(FIGURES)
    return plt


def to_svg(plt: Any, figure: Any) -> str:
    """The figure as SVG text; closes it."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    return text.getvalue()


def with_makers(config: Mapping[str, Any], used: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings, with the origin of the records; `device` is that of the records."""
    made = provenance.sets(used)
    return {**config, "device": provenance.devices(made), "made": made}


def write_results(
    folder: Path,
    results: Mapping[str, Any],
    title: str,
    notes: Sequence[str],
    parts: Mapping[str, Table],
    pictures: Mapping[str, str],
) -> None:
    """results.json, tables.md, one SVG a figure and report.html, each whole or not at all.

    A table without rows is left out.
    """
    parts = {name: table for name, table in parts.items() if table[1]}
    write_whole(folder / "results.json", json.dumps(results, indent=1, allow_nan=False) + "\n")
    notes = [*provenance.lines(results["config"].get("made", [])), *notes]
    text = [f"# {title}\n", *(f"{note}\n" for note in notes)]
    text += [f"## {name}\n\n{markdown(*table)}" for name, table in parts.items()]
    write_whole(folder / "tables.md", "\n".join(text))
    for name, svg in pictures.items():
        write_whole(folder / name, svg)
    body = [f"<h1>{html.escape(title)}</h1>"]
    body += [f"<p>{html.escape(note)}</p>" for note in notes]
    for name, table in parts.items():
        body.append(f'<h2>{html.escape(name)}</h2><div class="wide">{as_html(*table)}</div>')
    body += [f'<div class="wide">{svg[svg.index("<svg") :]}</div>' for svg in pictures.values()]
    settings = html.escape(json.dumps(results["config"], indent=1))
    body.append(f"<details><summary>Settings</summary><pre>{settings}</pre></details>")
    write_whole(
        folder / "report.html",
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(title)}'
        f"</title><style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n",
    )


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def as_html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same in HTML; ** becomes bold."""

    def line(cells: Sequence[str], tag: str, form: Callable[[str], str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{form(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "\n".join(line(row, "td", _bold) for row in rows)
    return f"<table>\n{line(head, 'th', html.escape)}\n{body}\n</table>\n"


def _bold(text: str) -> str:
    if text.startswith("**") and text.endswith("**"):
        return f"<b>{html.escape(text[2:-2])}</b>"
    return html.escape(text)
