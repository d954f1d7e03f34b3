"""Figures in fewer bytes: what is drawn stays where it was."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

from pfedhgp.report.compact import SEEN, compact, fewer_points, shorter_names
from support.reported import points_of


def distance(points: np.ndarray, line: np.ndarray) -> np.ndarray:
    """The naive twin: of each point from the nearest place on any piece of a line, by fine sampling."""
    along = np.linspace(0.0, 1.0, 2001)[:, None]
    places = np.concatenate([a + along * (b - a) for a, b in pairwise(line)])
    return np.array([np.hypot(*(places - point).T).min() for point in points])


def wave(count: int = 300) -> np.ndarray:
    """A wave of some cycles that grows, with noise, in pixels."""
    x = np.linspace(58.0, 368.0, count)
    y = 90.0 + 0.1 * (x - 58.0) * np.sin(x / 9.0)
    return np.stack([x, y + np.random.default_rng(0).normal(scale=0.2, size=count)], axis=1)


@pytest.mark.parametrize("within", [0.15, 1.0, 4.0])
def test_points_that_are_left_out_lie_on_the_line_through_the_others(within):
    points = wave(120)
    kept = fewer_points(points, within)
    assert len(kept) < len(points)
    assert distance(points, kept).max() <= within + 1e-3
    np.testing.assert_array_equal(kept[[0, -1]], points[[0, -1]])
    assert {tuple(p) for p in kept} <= {tuple(p) for p in points}


def test_a_straight_line_is_its_ends_and_a_closed_one_keeps_its_shape():
    straight = np.stack([np.arange(50.0), 3.0 * np.arange(50.0)], axis=1)
    assert len(fewer_points(straight)) == 2
    angle = np.linspace(0.0, 2.0 * np.pi, 200)
    circle = 40.0 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    kept = fewer_points(circle)
    assert 20 < len(kept) < 100
    assert np.abs(np.hypot(*kept.T) - 40.0).max() < 1e-9


@pytest.mark.parametrize("closed", [True, False])
def test_paths_are_steps_that_lead_to_the_same_places(closed):
    points = wave()
    text = "".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
    svg = f'<svg><path d="{text}{"z" if closed else ""}"/></svg>'
    (path,) = re.findall(r'd="([^"]*)"', compact(svg))
    assert path.endswith("z") == closed
    assert len(path) < 0.65 * len(text)
    drawn = points_of(path)
    assert distance(points, drawn).max() <= SEEN + 0.11  # coordinates are to a tenth


def test_short_and_curved_paths_stay_as_they_are():
    for path in ("M0 0L1 1L2 0z", "M0 1.2C0.3 1.2 0.6 1.1 0.9 0.9z", "M1 2" + "Q3 4 5 6" * 60):
        svg = f'<path d="{path}"/>'
        assert compact(svg) == svg


MARKS = """<g id="a-axes_1">
<g id="a-patch_2">
<path d="M0 0L1 0L1 1z" style="fill: none"/>
</g>
<g id="a-rows">
<defs>
<path id="a-m0123456789" d="M0 1C1 1 1 0 0 1z"/>
</defs>
<g clip-path="url(#a-p0123456789)">
<use xlink:href="#a-m0123456789" x="3" y="4" style="fill: red"/>
</g>
<g clip-path="url(#a-p0123456789)">
<use xlink:href="#a-m0123456789" x="5" y="6" style="fill: red"/>
</g>
</g>
<g id="a-text_1">
<text x="1" y="2" transform="rotate(-0 1 2)">40</text>
</g>
</g>
<defs><clipPath id="a-p0123456789"><rect x="0" y="0" width="9" height="9"/></clipPath></defs>
"""


def test_what_marks_have_in_common_is_written_once_and_names_still_lead_to_what_they_name():
    start = '<svg xmlns:xlink="http://www.w3.org/1999/xlink">\n'
    found = ElementTree.fromstring(shorter_names(f"{start}{compact(MARKS)}</svg>"))
    ids = {e.get("id"): e for e in found.iter() if e.get("id")}
    assert set(ids) == {"a-rows", "s0", "s1"}
    (group,) = [e for e in ids["a-rows"] if e.tag == "g"]
    assert group.get("style") == "fill: red"
    assert [(e.get("x"), e.get("y")) for e in group] == [("3", "4"), ("5", "6")]
    assert all(ids[e.get("href").removeprefix("#")].tag == "path" for e in group)
    assert ids[group.get("clip-path")[5:-1]].tag == "clipPath"
    assert [e.text for e in found.iter("text")] == ["40"]
    assert [e.get("d") for e in found.iter("path")] == ["M0 1C1 1 1 0 0 1z"]


def test_marks_of_two_styles_keep_their_own():
    mixed = MARKS.replace('x="5" y="6" style="fill: red"', 'x="5" y="6" style="fill: blue"')
    assert re.findall(r"fill: (\w+)", compact(mixed)) == ["red", "blue"]


def test_names_that_people_see_or_follow_are_left_alone():
    page = '<a href="#clients">m0123456789</a><section id="clients">a-m0123456789</section>'
    assert shorter_names(page) == page
    zones = '<path id="zone-tree-m0123456789"/><use href="#zone-tree-m0123456789"/>'
    assert shorter_names(zones) == zones
