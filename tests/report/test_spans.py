"""Scales that most clients share, and which those far from them do without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.plot.slices import slices_of
from pfedhgp.report import carpet, figures, multiples, spans
from pfedhgp.report.theme import NARROW, WIDE
from support.reported import Svg, case_of, points_of, rows_of


@pytest.fixture(scope="module")
def case():
    return case_of(sizes=(9,) * 5)


def views_of(case, rows=True):
    given = {r.name: r for r in rows_of(case)} if rows else {}
    return {
        name: slices_of(case.model, name, points=[120], rows=[given.get(name)])[0]
        for name in case.model.clients
    }


def times(view, factor: float):
    """The same client, its own parts and its prediction `factor` times as large."""
    p = view.prediction
    layers = {
        name: replace(part, mean=factor * part.mean, sd=factor * part.sd)
        if name != "global"
        else part
        for name, part in p.layers.items()
    }
    own = p.mean - p.layers["global"].mean
    mean = p.layers["global"].mean + factor * own
    return replace(view, prediction=replace(p, mean=mean, sd=factor * p.sd, layers=layers))


def test_one_client_far_from_the_others_does_not_set_their_scale():
    assert spans.common([1.0, 2.0, 3.0, 200.0]) == 3.0
    assert spans.common([2.0]) == 2.0
    assert spans.common([0.0, np.nan]) == 0.0


@pytest.mark.parametrize(
    ("factor", "title"),
    [
        (1.0, ""),
        (0.1, "larger"),
        (100.0, "smaller"),
        (1e-7, ", nearly zero"),
    ],
)
def test_a_panels_title_says_which_scale_it_has(case, factor, title):
    view = times(views_of(case)["client 0"], factor)
    view = replace(
        view, prediction=replace(view.prediction, sd=np.full_like(view.prediction.sd, 9))
    )
    span = spans.common(
        [
            max(spans.height_of(v.prediction.layers[n], 0) for n in ("deviation", "local"))
            for v in views_of(case).values()
        ]
    )
    svg = Svg(figures.client_panels(view, 0, output_name="y", width=WIDE, name="p", span=span), "p")
    said = svg.text()
    assert "Deviation layer" in said
    assert (title in said) if title else ("nearly zero" not in said and "smaller" not in said)
    drawn = svg.vertices("deviation-mean")
    if factor in (0.1, 100.0):  # seen as well as at the common scale
        assert np.ptp(drawn[:, 1]) > 3.0
        assert "times" in said


def test_the_bad_site_leaves_the_others_their_colours_and_is_named(case):
    views = views_of(case)
    usual = carpet.own_parts(views, 0)[1]
    bad = {**views, "client 3": times(views["client 3"], 100.0)}
    assert carpet.own_parts(bad, 0)[1] < 4 * usual
    assert carpet.beyond(bad, 0) == ["client 3"]
    assert carpet.beyond(views, 0) == []


def boxes_of(svg: Svg, gid: str) -> np.ndarray:
    """Heights of the boxes under a name."""
    (path,) = (e for e in svg.find(gid).iter() if e.tag.endswith("path"))
    parts = path.get("d", "").split("M")[1:]
    return np.array([np.ptp(points_of(f"M{part}")[:, 1]) for part in parts])


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_no_difference_is_a_grey_strip_and_no_rows_a_thin_one(case, width):
    views = views_of(case)
    nothing = {name: times(view, 0.0) for name, view in views.items()}
    svg = Svg(carpet.carpet(nothing, 0, output_name="y", width=width, name="c"), "c")
    tall = boxes_of(svg, "zero")
    seen = carpet.with_rows(nothing, carpet.COLUMNS)
    assert len(tall) == len(views) + np.sum(seen[:, 1:] != seen[:, :-1])
    assert set(np.round(tall / tall.max(), 1)) == ({1.0} if seen.all() else {1.0, 0.3})
    assert not any(svg.has(f"{word}-{k}") for word in ("above", "below") for k in range(10))


def test_rows_are_near_or_not(case):
    view = views_of(case)["client 0"]
    x = np.array([10.0, 10.1, 10.2, 13.9])
    found = carpet.with_rows({"a": replace(view, points=(x, np.zeros((4, 1))))}, 40)
    assert found.shape == (1, 40)
    assert found[0, :4].all()
    assert not found[0, 8:35].any()
    assert found[0, -2:].all()
    assert carpet.with_rows(views_of(case, rows=False), 40) is None  # nobody knows


# ------------------------------------------------------------------------------------ small figures


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_client_has_a_small_figure(case, width):
    views = views_of(case)
    views["client 3"] = times(views["client 3"], 100.0)
    svg = Svg(multiples.multiples(views, 0, output_name="y", width=width, name="m"), "m")
    for i, name in enumerate(views):
        assert svg.has(f"client-{i}-band")
        assert svg.has(f"client-{i}-range")
        assert name in svg.text()
    limits = multiples.limits_of(views, 0)
    assert [name for name, (*_, times_) in limits.items() if times_ != 1.0] == ["client 3"]
    low, high, many = limits["client 3"]
    assert high - low == pytest.approx(many * (limits["client 0"][1] - limits["client 0"][0]))
    assert "client 3 · 1 : " in svg.text()
    assert svg.text().count(" · 1 : ") == 1


def test_a_small_figure_holds_every_value_of_the_band(case):
    views = views_of(case)
    svg = Svg(multiples.multiples(views, 0, output_name="y", width=WIDE, name="m"), "m")
    view, (low, high, _) = views["client 1"], multiples.limits_of(views, 0)["client 1"]
    p = view.prediction
    assert low <= np.quantile(p.mean[:, 0] - 2 * p.sd[:, 0], 0.02)
    assert high >= np.quantile(p.mean[:, 0] + 2 * p.sd[:, 0], 0.98)
    drawn = svg.vertices("client-1-range")[:, 1]
    wanted = np.ptp(p.mean[:, 0]) / (high - low) * multiples.HIGH
    assert np.ptp(drawn) == pytest.approx(wanted, rel=0.1)
