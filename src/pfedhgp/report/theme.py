"""How figures look, and how a matplotlib figure becomes SVG that takes its colours from the page.

Figures are drawn in stand-in colours, one for each role. In the SVG these become CSS variables, so that one
drawing serves light and dark pages. Text stays text, in the page's own fonts.
"""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from pfedhgp.plot.axes import FEW, MANY
from pfedhgp.plot.colours import ROLES
from pfedhgp.report.compact import compact, shorter_paths

COLOURS = {role: f"#0f{i:02x}{0xE0 + i:02x}" for i, role in enumerate(ROLES)}
"""A colour that stands for `var(--role)`; the values mean nothing."""

WIDE, NARROW = 860, 380
"""The two widths that figures are drawn for: desktops and phones."""


def most_dates(width: int) -> int:
    """How many dates fit along a figure."""
    return MANY if width > NARROW else FEW


SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: crisp, selectable, small
    "svg.hashsalt": "pfedhgp",  # the same figure gives the same bytes
    "text.parse_math": False,  # a column may be called "$cost$"
    "axes.formatter.use_mathtext": False,
    "font.size": 12.0,
    "axes.titlesize": 12.0,
    "axes.titleweight": "normal",
    "axes.titlelocation": "left",
    "axes.titlepad": 8.0,
    "axes.titley": 1.0,  # spares matplotlib the search for a free place, a quarter of its time
    "axes.labelsize": 11.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": COLOURS["muted"],
    "axes.linewidth": 0.7,
    "axes.labelcolor": COLOURS["muted"],
    "axes.titlecolor": COLOURS["ink"],
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": COLOURS["rule"],
    "grid.linewidth": 0.7,
    "text.color": COLOURS["ink"],
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.labelsize": 11.0,
    "ytick.labelsize": 11.0,
    "xtick.major.size": 3.0,
    "ytick.major.size": 0.0,
    "xtick.major.width": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 11.0,
    "lines.linewidth": 1.6,
    "lines.solid_joinstyle": "round",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
}

# Not opacities, and not the text between tags.
_PLACE = re.compile(r'\b(?:d|x|y|width|height)="[^"]*"')
_COMMAND = re.compile(r"\s*([MLQCZz])\s*")  # needs no space around it
_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_COLOUR = re.compile("|".join(COLOURS.values()))
_ROLE_OF = {colour: role for role, colour in COLOURS.items()}


@contextmanager
def drawing() -> Iterator[None]:
    """Our settings on top of matplotlib's own, whatever the host program changed; put back afterwards."""
    settings: Any = {**mpl.rcParamsDefault, "backend": mpl.rcParams["backend"], **SETTINGS}
    with mpl.rc_context(settings):
        yield


def new_figure(
    width: int,
    height: int,
    *,
    margins: tuple[int, int, int, int] = (58, 12, 34, 44),
    gap: int = 0,
    ratios: Sequence[float] = (1.0,),
    columns: int = 1,
    share_x: bool = False,
) -> tuple[Figure, list[Axes]]:
    """A figure of CSS pixels (72 to matplotlib's inch) and its axes; no window system is touched.

    `margins` are left, right, top and bottom, `gap` is what lies between axes. They are fixed, not fitted
    to the text as matplotlib can do: that draws every figure twice.
    """
    left, right, top, bottom = margins
    count = len(ratios)
    inner_width = width - left - right - gap * (columns - 1)
    inner_height = height - top - bottom - gap * (count - 1)
    figure = Figure(figsize=(width / 72.0, height / 72.0), dpi=72)
    grid = figure.subplots(
        nrows=count,
        ncols=columns,
        sharex=share_x,
        squeeze=False,
        gridspec_kw={
            "left": left / width,
            "right": 1.0 - right / width,
            "top": 1.0 - top / height,
            "bottom": bottom / height,
            "height_ratios": list(ratios),
            "wspace": gap * columns / max(inner_width, 1),
            "hspace": gap * count / max(inner_height, 1),
        },
    )
    return figure, list(grid.ravel())


def to_svg(figure: Figure, *, name: str, label: str) -> str:
    """The figure as an SVG element for a page: `name` keeps its ids apart, `label` stands in for it."""
    _name_offsets(figure)
    buffer = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph .* missing from font"
        )  # the browser has the letters
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    head, body = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None
    body = shorter_paths(body)
    body = _PLACE.sub(lambda m: _COMMAND.sub(r"\1", _NUMBER.sub(_short, m.group())), body)
    body = _COLOUR.sub(lambda m: f"var(--{_ROLE_OF[m.group()]})", body)
    body = re.sub(r"font-family:[^;\"]*;? ?", "", body)
    body = re.sub(r"(font: [^;\"]*?px) [^;\"]*", r"\1 var(--font)", body)
    # Ids are the page's, not the figure's: two figures must not share one.
    body = re.sub(r'\bid="([^"]*)"', rf'id="{name}-\1"', body)
    body = re.sub(r'href="#([^"]*)"', rf'href="#{name}-\1"', body)
    body = re.sub(r"url\(#([^)]*)\)", rf"url(#{name}-\1)", body)
    body = compact(re.sub(r"\n\s*", "\n", body))
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{box.group()} role="img" aria-label="{html.escape(label)}">'
    )
    return start + body


def style() -> str:
    """The CSS of every page."""
    return (resources.files("pfedhgp.report") / "style.css").read_text("utf-8")


def standalone(svg: str) -> str:
    """A figure as a file of its own: the light page's colours on white, at its own size."""
    colours = dict(re.findall(r"--([\w-]+): (#\w+);", style().split("}", 1)[0]))
    text = re.sub(r"var\(--([\w-]+)\)", lambda m: colours.get(m[1], "sans-serif"), svg)
    size = re.search(r'viewBox="0 0 (\S+) (\S+)"', text)
    assert size is not None
    own = (
        f'width="{size[1]}" height="{size[2]}" style="background: #ffffff; font-family: sans-serif"'
    )
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text.replace("<svg ", f"<svg {own} ", 1)}'


def both(draw: Callable[[int, str], str], key: str) -> Markup:
    """The figure for desktops and the one for phones; the page shows one of them."""
    wide, narrow = (Markup(draw(w, f"{key}-{w}")) for w in (WIDE, NARROW))
    return Markup('<div class="wide">{}</div><div class="narrow">{}</div>').format(wide, narrow)


def _name_offsets(figure: Figure) -> None:
    """An axis's factor or offset ("1e12", "+1e6") goes into its label, or into the title where it has none.

    matplotlib writes it above the axes, where our titles are.
    """
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            formatter = axis.get_major_formatter()
            if not isinstance(formatter, ScalarFormatter):
                continue
            formatter.format_ticks(axis.get_majorticklocs().tolist())
            if not (offset := formatter.get_offset()):
                continue
            axis.offsetText.set_visible(False)
            words = offset if offset.startswith(("+", "-", "−")) else f"× {offset}"
            if label := axis.get_label_text():
                axis.set_label_text(f"{label} ({words})")
            elif axis is axes.yaxis:  # panels above another share its x-axis, and its label
                axes.set_title(f"{axes.get_title(loc='left')} ({words})".strip())


def _short(match: re.Match[str]) -> str:
    """A coordinate to a tenth of a pixel."""
    return f"{float(match.group()):.1f}".removesuffix(".0")
