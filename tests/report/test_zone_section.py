"""Zones in the report: what is drawn is what was found, and a report that is there keeps all else."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from pfedhgp import report
from pfedhgp.cli import cluster as cluster_command
from pfedhgp.cli.main import main
from pfedhgp.errors import InputError
from pfedhgp.plot import groups as drawn_groups
from pfedhgp.report import zone_figures, zone_section
from pfedhgp.zones import result as files
from support.grouped import kept_of, zones_of
from support.reported import Svg, case_of, estimator_of, rows_of

NAMES, GROUPS = ["a", "b", "c", "d", "e", "f"], [0, 1, 0, 1, 0, 1]


@pytest.fixture(scope="module")
def kept():
    return kept_of(NAMES, GROUPS)


@pytest.fixture(scope="module")
def without():
    case = case_of()
    return report.render(estimator_of(case), rows=rows_of(case))


def words_of(page: str) -> str:
    page = re.sub(r"<svg.*?</svg>", " ", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_the_order_is_the_trees_and_few_rows_come_after_their_group(kept):
    order = drawn_groups.order(kept.zones)
    assert sorted(order) == NAMES
    assert {*order[:3]} in ({"a", "c", "e"}, {"b", "d", "f"})
    of_f = order[:3] if "f" in order[:3] else order[3:]
    assert of_f[-1] == "f"


def test_branches_have_their_groups_colour_and_the_root_has_none(kept):
    svg = zone_figures.tree(kept.zones, name="t")
    drawn = Svg(svg, "t")
    colours = []
    for i in range(4):  # five clients in the tree
        (path,) = (e for e in drawn.find(f"branch-{i}").iter() if e.tag.endswith("path"))
        colours.append(re.findall(r"var\(--([\w-]+)\)", path.get("style", ""))[-1])
    assert sorted(colours) == ["muted", "zone-0", "zone-0", "zone-1"]
    assert "f" not in drawn.text().split()


def test_the_heat_map_shades_what_is_near(kept):
    names = drawn_groups.order(kept.zones)
    levels = drawn_groups.levels(kept.zones, names)
    at = [NAMES.index(name) for name in names]
    distance = np.sqrt(kept.zones.distances[np.ix_(at, at)])
    off = ~np.eye(6, dtype=bool)
    near = off & (distance < 5.0)
    assert levels[near].min() > levels[off & ~near].max()
    assert levels[off].max() == drawn_groups.LEVELS - 1
    assert levels[off].min() == 0
    drawn = Svg(zone_figures.heat_map(kept.zones, name="h"), "h")
    for level in range(drawn_groups.LEVELS):
        count = int((levels == level).sum())
        assert drawn.has(f"level-{level}") == (count > 0)
        if count:
            (path,) = (e for e in drawn.find(f"level-{level}").iter() if e.tag.endswith("path"))
            assert path.get("d", "").count("M") == count


def test_two_equal_distances_do_not_divide_by_zero():
    same = np.ones((3, 3)) - np.eye(3)
    zones = zones_of(["a", "b", "c"], [0, 0, 1], distances=same, between=same, sparse=())
    assert set(drawn_groups.levels(zones, ["a", "b", "c"])[~np.eye(3, dtype=bool)]) == {0}


def test_places_are_drawn_where_they_are(kept):
    drawn = Svg(zone_figures.site_map(kept.zones.labels, kept.places, width=860, name="m"), "m")
    first, second = (drawn.places(f"group-{g}") for g in (0, 1))
    assert len(first) == len(second) == 3
    # a, c, e lie on (40, 116), (40.6, 116.4), (41.2, 116.2): further north is further up
    assert np.all(np.diff(first[:, 1]) < 0)
    assert first[1, 0] > first[2, 0] > first[0, 0]


def test_the_section_says_what_was_found_sent_and_is_true(kept):
    text = words_of(zone_section.section(kept))
    for words in (
        "2 groups of clients",
        "Group 1 a, c, e",
        "Group 2 b, d, f",
        "town (a, c, e); hills (b, d, f)",
        "(ARI) is 1.00",
        "because their rows are few",
        "24 numbers for 200 points of a public grid, 208 B in all",
        "R² of 0.53 on average and 0.55 at most",
        "by 0.97 (ARI), bootstraps by 0.91",
    ):
        assert words in text, words
    wrong = kept_of(NAMES, GROUPS)
    wrong.truth["a"] = "hills"
    assert "(ARI) is 1.00" not in words_of(zone_section.section(wrong))


def test_many_clients_are_listed_and_not_drawn():
    names = [f"site {i:03d}" for i in range(zone_section.MOST_DRAWN + 2)]
    many = files.KeptZones(zones_of(names, [i % 2 for i in range(len(names))]))
    section = zone_section.section(many)
    assert "<svg" not in section
    assert all(name in section for name in names)
    assert "are left out" in section


def test_names_are_never_markup():
    evil = '<img src=x onerror="alert(1)">'
    section = zone_section.section(kept_of([evil, "b", "c"], [0, 1, 0], sparse=(evil,)))
    assert "<img" not in section
    assert "&lt;img" in section


def test_it_goes_into_a_report_that_is_there_and_all_else_stays(without, kept):
    assert 'id="zones"' not in without
    page = zone_section.inserted(without, kept)
    assert page.count('<section id="zones">') == 1
    assert page.count('<a href="#zones">') == 1
    assert zone_section.inserted(page, kept) == page
    emptied = zone_section.MARKED.sub(r"\1\3", zone_section.LINKED.sub(r"\1\3", page))
    assert emptied == without
    assert re.search(r'id="[^"]*-rows"', page)
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert zone_section.inserted("<html>another's</html>", kept) is None


def test_a_report_with_zones_is_the_same_as_one_that_got_them_later(without, kept):
    case = case_of()
    page = report.render(estimator_of(case), rows=rows_of(case), zones=kept)
    assert page == zone_section.inserted(without, kept)


def test_zones_are_read_back_and_another_models_are_refused(kept, tmp_path):
    files.write(tmp_path, kept, "abc")
    again = files.read(tmp_path, "abc")
    np.testing.assert_array_equal(again.zones.between, kept.zones.between)
    assert again.zones.to_json() == kept.zones.to_json()
    assert (again.places, again.truth) == (kept.places, kept.truth)
    assert files.read(tmp_path / "nowhere", "abc") is None
    with pytest.raises(InputError, match="belong to another model: run `pfedhgp cluster` again"):
        files.read(tmp_path, "other")


@pytest.mark.parametrize(
    "change",
    [
        {"between": [[0.0]]},
        {"labels": {"a": 0}},
        {"groups": 1},
        {"clients": None},
        {"places": {"a": [1]}},
        {"places": {"a": [1.0, 2.0]}},
        {"truth": {"a": "town"}},
        {"distances": "x"},
    ],
)
def test_a_spoilt_file_is_named(kept, tmp_path, change):
    files.write(tmp_path, kept, "abc")
    path = tmp_path / files.FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=r"zones\.json: not zones"):
        files.read(tmp_path, "abc")


def test_the_commands_put_them_into_the_report(tmp_path, capsys):
    """After a fit that left a report with rows: cluster adds to it, and a new report has them too."""
    case, run = case_of(), tmp_path / "RUN"
    model = estimator_of(case)
    model.save(run)
    report.write(run / "report.html", model, rows=rows_of(case))
    assert main(["cluster", str(run), "--groups", "2", "--size", "20"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2:] == [str(run / "zones" / "zones.html"), str(run / "report.html")]
    page = (run / "report.html").read_text("utf-8")
    assert '<section id="zones">' in page
    assert re.search(r'id="[^"]*-rows"', page)  # nothing of the old report was lost
    assert '<section id="zones">' in (run / "zones" / "zones.html").read_text("utf-8")
    other = tmp_path / "other.html"
    assert main(["report", str(run), "--out", str(other), "-q"]) == 0
    assert (
        zone_section.MARKED.search(other.read_text("utf-8"))[2]
        == (zone_section.MARKED.search(page)[2])
    )
    # A refit of the same folder takes the old zones away with the old model.
    model.save(run, overwrite=True)
    assert not (run / "zones").exists()


def test_zones_of_another_model_are_left_out_and_a_line_says_so(kept, tmp_path, capsys):
    run = tmp_path / "RUN"
    estimator_of(case_of()).save(run)
    files.write(run / "zones", kept, "another")
    assert main(["report", str(run), "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)["warnings"]
    assert re.match("zones are left out: .* another model", line)
    assert '<section id="zones">' not in (run / "report.html").read_text("utf-8")


def test_a_report_that_is_not_ours_stays_as_it_is(kept, tmp_path, capsys):
    (tmp_path / "report.html").write_text("<html>mine</html>")
    assert cluster_command.add_to_report(tmp_path / "report.html", kept) is None
    assert "has no place for zones" in capsys.readouterr().err
    assert (tmp_path / "report.html").read_text() == "<html>mine</html>"
    assert cluster_command.add_to_report(tmp_path / "nowhere.html", kept) is None
