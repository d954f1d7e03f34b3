"""Makes SVG figures smaller without a visible difference.

A line of 500 points across 300 pixels has more points than a screen can show. Points within `SEEN` pixels of
the line through the others are left out (Ramer, Douglas and Peucker). The others are written as steps from
point to point, and the style that all marks of a group share is written once.
"""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np

SEEN = 0.15
"""Pixels by which a line may move: too little to see even at three times the usual density."""
SHORT = 40
"""Paths with fewer points stay as they are: ticks, marks, boxes."""

_PATH = re.compile(r'\bd="((?:[ML] ?-?[\d.]+ -?[\d.]+\s*|[zZ]\s*)+)"')
_PART = re.compile(r"M[^M]*")
_NUMBER = re.compile(r"-?[\d.]+")
_USE = r'<use xlink:href="([^"]*)" x="([^"]*)" y="([^"]*)" style="([^"]*)"/>'
_MARKS = re.compile(rf"<g( [^<>]*)?>\n(?:{_USE}\n){{2,}}</g>")

# What matplotlib adds: unused numbered names, invisible boxes, rotations by zero, groups of one.
_EMPTY = re.compile(
    r' id="[^"]*(?:figure|axes|patch|line2d|text|legend|matplotlib\.axis|[xy]tick|[A-Z]\w*Collection)_\d+"'
    r'|<path d="[^"]*" style="fill: none"/>\n'
    r'| transform="rotate\(-?0 [^"]*\)"'
    r"|(?<=\d) \n(?=\")"
)
_GROUP = re.compile(
    r"<g>\n((?:<(?:use|path|rect) [^<>]*/>|<text [^<>]*>[^<>]*</text>)?\n?)</g>\n|<g/>\n"
)
_NEIGHBOURS = re.compile(r'(<g clip-path="[^"]*">\n)((?:<use [^<>]*/>\n)+)</g>\n(?:\1)')
_KEY = re.compile(r'\bid="((?!zone-)[^"]*-(?:[mp]|C\w+_)[0-9a-f]{10})"')


def compact(svg: str) -> str:
    """The same picture in less text."""
    svg = _EMPTY.sub("", svg)
    for pattern, less in ((_GROUP, r"\1"), (_NEIGHBOURS, r"\1\2")):
        count = 1
        while count:  # removing a group of one may leave another
            svg, count = pattern.subn(less, svg)
    return _MARKS.sub(_fewer_words, shorter_paths(svg))


def shorter_paths(svg: str) -> str:
    """The same lines with fewer points, as steps: first of all, since lines are most of the text."""
    return _PATH.sub(_fewer_numbers, svg)


def shorter_names(page: str) -> str:
    """Numbers a page's marks and clips, whose names are long digests that are repeated at every use.

    Names in the section on zones stay, because it may be inserted into an existing page.
    """
    names = {name: f"s{i}" for i, name in enumerate(dict.fromkeys(_KEY.findall(page)))}

    def shorter(match: re.Match[str]) -> str:
        before, name, after = match.groups()
        return f"{before}{names.get(name, name)}{after}"

    return re.sub(r'(\bid="|\bhref="#|\burl\(#)([^")]*)("|\))', shorter, page)


def fewer_points(points: np.ndarray, within: float = SEEN) -> np.ndarray:
    """The points (n, 2) to keep so that all others are within `within` of the line through them.

    >>> fewer_points(np.array([[0.0, 0.0], [1.0, 0.05], [2.0, 0.0], [3.0, 5.0]]))
    array([[0., 0.],
           [2., 0.],
           [3., 5.]])
    """
    kept = np.zeros(len(points), bool)
    kept[[0, -1]] = True
    first, last = np.array([0]), np.array([len(points) - 1])
    while len(first := first[(wide := last - first > 1)]):  # all lines of one level at once
        last = last[wide]
        middle, far = _farthest(points, first, last)
        split = far > within
        first, last, middle = first[split], last[split], middle[split]
        kept[middle] = True
        first, last = np.concatenate([first, middle]), np.concatenate([middle, last])
    return points[kept]


def _farthest(
    points: np.ndarray, first: np.ndarray, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of each line from one point to another, which of the points between is farthest, and how far."""
    sizes = last - first - 1
    starts = np.cumsum(sizes) - sizes
    line = np.repeat(np.arange(len(first)), sizes)
    inside = np.arange(len(line)) + (first + 1 - starts)[line]
    distances = _distances(points[inside], points[first][line], points[last][line])
    far = np.maximum.reduceat(distances, starts)
    (at,) = np.nonzero(~(distances < far[line]))
    return inside[at[np.unique(line[at], return_index=True)[1]]], far


def _distances(points: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The distance of each point from the line segment between two others."""
    along, gap = end - start, points - start
    square = (along**2).sum(1)
    place = (gap * along).sum(1) / np.where(square > 0.0, square, 1.0)
    return np.hypot(*(gap - np.clip(place, 0.0, 1.0)[:, None] * along).T)


def _fewer_numbers(match: re.Match[str]) -> str:
    text = match.group(1)
    if text.count("L") < SHORT:
        return match.group()
    return f'd="{"".join(_part(each) for each in _PART.findall(text))}"'


def _part(text: str) -> str:
    """One line, closed or not: a start, then steps in tenths of a pixel."""
    points = np.array(_NUMBER.findall(text), np.float64).reshape(-1, 2)
    closed = text.rstrip()[-1] in "zZ"
    tenths = np.rint(10.0 * fewer_points(points)).astype(np.int64)
    steps = np.diff(tenths, axis=0)
    steps = steps[np.any(steps != 0, axis=1)]
    start = f"M{_number(tenths[0, 0])} {_number(tenths[0, 1])}"
    numbers = [_number(step) for step in steps.ravel()]
    joined = "".join(numbers[:1])
    joined += "".join(_after(*pair) for pair in pairwise(numbers))
    return f"{start}{'l' if numbers else ''}{joined}{'z' if closed else ''}"


def _after(before: str, number: str) -> str:
    """A number after another one, with a space only if needed: "1.5" and ".3" become "1.5.3"."""
    alone = number.startswith("-") or (number.startswith(".") and "." in before)
    return number if alone else f" {number}"


def _number(tenths: int) -> str:
    """A count of tenths as SVG writes it: 1.5, .3, -.3, 12."""
    whole, part = divmod(abs(int(tenths)), 10)
    shown = f"{whole or ''}.{part}" if part else str(whole)
    return f"-{shown}" if tenths < 0 else shown


def _fewer_words(match: re.Match[str]) -> str:
    """Moves the style that all marks of a group share to the group."""
    inside = re.findall(_USE, match.group())
    styles = {style for *_, style in inside}
    if len(styles) != 1:
        return match.group()
    uses = "\n".join(f'<use href="{mark}" x="{x}" y="{y}"/>' for mark, x, y, _ in inside)
    return f'<g{match.group(1) or ""} style="{styles.pop()}">\n{uses}\n</g>'
