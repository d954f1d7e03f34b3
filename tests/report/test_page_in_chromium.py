"""The page in a browser: no error, every figure there, nothing wider than the screen, light and dark."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pfedhgp import report
from pfedhgp.cli.main import main
from pfedhgp.data.scaling import Scaling
from pfedhgp.report import zone_figures, zone_section
from pfedhgp.report.theme import standalone
from support.browser import (
    CHROMIUM,
    DESKTOP,
    PHONE,
    SCHEMES,
    check_readable,
    chromium,
    clicked,
    logged,
    look,
    picture_of,
    sizes_of,
)
from support.grouped import kept_of
from support.parts import require_part
from support.posteriors import make
from support.reported import METRICS, TIED, case_of, estimator_of, rows_of

require_part("Chromium", found=CHROMIUM is not None)

REAL = "a fit"  # of two outputs, one of them of 1e12, and a third that is constant


@pytest.fixture(
    scope="module",
    params=["one output", "several", "as the demo's", pytest.param(REAL, marks=pytest.mark.slow)],
)
def page(request, tmp_path_factory, demos) -> tuple[str, int]:
    """A page and how many figures it has."""
    if request.param == REAL:
        return fitted_page(tmp_path_factory.mktemp("real")), 3 + 2 + 3 * 3 + 1 + 2 + 1
    if request.param == "as the demo's":
        return demos, 1 + 1 + 2 + 6 + 1 + 3 + 1
    if request.param == "one output":
        case = case_of()
        rows = rows_of(case)
        return report.render(estimator_of(case), rows=rows, held_out=rows, metrics=METRICS), 9
    case = case_of(
        outputs=3, tied=False, latents=2, local_latents=1, noise="output", d=2, sizes=(9,)
    )
    names = {
        "input_names": ("a very long name of an input column", "h"),
        "output_names": ("y" * 60, "b", "c"),
    }
    return report.render(estimator_of(case, **names)), 3 + 6 + 1 + 2 + 1


@pytest.fixture(scope="module")
def demos() -> str:
    """Dates, rows held out, baselines, strips for six stations, zones with a map."""
    start = np.array([1728864000.0])  # 2024-10-14 UTC
    case = make(
        **{**TIED, "sizes": (40,) * 6, "seed": 5, "inducing": (12, 6)},
        scaling=Scaling(start, start + 56 * 86400.0, np.array([40.0]), np.array([9.0])),
    )
    names = ["Cathedral", "Market Square", "Elm Park", "Willow Lane", "Fox Hill", "High Moor"]
    found = dict(zip(names, case.model.clients.values(), strict=True))
    columns = {"inputs": [{"name": "time", "kind": "datetime"}]}
    model = estimator_of(
        case,
        clients=found,
        input_names=("time",),
        output_names=("no2",),
        settings={"columns": columns},
    )
    rows = [replace(r, name=name) for name, r in zip(names, rows_of(case), strict=True)]
    by_client = {name: METRICS["clients"]["client 0"] for name in names}
    outputs = {"no2": {**METRICS["outputs"]["y0"], "clients": by_client}}
    two = {**METRICS["baselines"], "per-station GP": METRICS["overall"]}
    metrics = {**METRICS, "outputs": outputs, "clients": by_client, "baselines": two}
    zones = kept_of(names, [0, 0, 1, 1, 1, 0])
    return report.render(model, rows=rows, held_out=rows, metrics=metrics, zones=zones)


def fitted_page(folder: Path) -> str:
    """The report that `pfedhgp fit` writes, of three sites with dates, held-out rows and odd outputs."""
    rng = np.random.default_rng(0)
    lines = ["site,time,y,big,flat"]
    for i, site in enumerate(("north", "east", "south")):
        for hour in range(14):
            y = 50 + 8 * np.sin(hour / 2) + 3 * i * np.cos(hour / 3) + rng.normal()
            big = 1e12 * (3 + np.sin(hour / 2) + 0.1 * rng.normal())
            lines.append(f"{site},2024-03-01T{hour:02d}:00Z,{y:.2f},{big:.6e},7")
    (folder / "d.csv").write_text("\n".join(lines) + "\n")
    outputs = [word for name in ("y", "big", "flat") for word in ("--output", name)]
    given = ["--client", "site", "--input", "time", *outputs, "--holdout", "random:0.2"]
    out = ["--rounds", "2", "--inducing", "6", "--quiet", "--out", str(folder / "RUN")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PFEDHGP_CACHE", "")
        assert main(["fit", str(folder / "d.csv"), *given, *out]) == 0
    return (folder / "RUN" / "report.html").read_text("utf-8")


@pytest.mark.parametrize(("width", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_a_browser_shows_every_figure(page, width, scheme, tmp_path):
    text, figures = page
    seen, log = look(text, tmp_path, width, scheme)
    check_readable(seen, log, width=width, figures=figures)


def test_light_and_dark_differ_in_page_and_figures(demos, tmp_path):
    light, dark = (look(demos, tmp_path, DESKTOP, scheme)[0] for scheme in ("light", "dark"))
    for key in ("ink", "paper", "line"):
        assert light[key] != dark[key]
        assert re.fullmatch(r"rgb\(\d+, \d+, \d+\)", light[key])
    brightness = {
        name: sum(map(int, re.findall(r"\d+", seen["paper"])))
        for name, seen in (("light", light), ("dark", dark))
    }
    assert brightness["dark"] < 150 < 600 < brightness["light"]


def test_an_error_would_be_noticed(tmp_path):
    page = tmp_path / "bad.html"
    page.write_text("<script>nothing.at.all()</script>")
    assert any(
        "nothing is not defined" in line for line in logged(chromium(page, "--dump-dom").stderr)
    )


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_screenshots_show_the_page_from_top_to_bottom(demos, width, scheme, tmp_path):
    tall = look(demos, tmp_path, width, scheme)[0]["tall"]
    assert tall > 3000
    assert len(picture_of(demos, tmp_path, width, scheme, tall, "report")) > 100_000


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_a_click_on_a_head_sorts_the_table(width, tmp_path):
    """Once upwards, again downwards; what is missing stays last. Names are sorted as people count."""
    case = case_of(sizes=(9,) * 12)
    errors = {f"client {i}": {"rmse": float((5 * i) % 11), "rows": 4} for i in range(11)}
    metrics = {"outputs": {"y0": {"pooled": {"rows": 9, "rmse": 1.0}, "clients": errors}}}
    page = report.render(estimator_of(case), metrics=metrics)
    orders, log = clicked(page, tmp_path, width, "table.sortable", ["RMSE", "RMSE", "client"])
    assert log == []
    upwards = sorted(errors, key=lambda name: errors[name]["rmse"])
    # `client 0` and none other has an error of 0: no two are alike.
    assert orders[0] == [f"client {i}" for i in range(12)]
    assert orders[1] == [*upwards, "client 11"]
    assert orders[2] == [*upwards[::-1], "client 11"]
    assert orders[3] == orders[0]


@pytest.mark.slow
def test_on_a_phone_a_client_is_one_line_of_the_table(tmp_path):
    """Seventy cards of it were 15,000 pixels."""
    case = case_of(
        outputs=2, tied=False, latents=1, local_latents=1, noise="output", sizes=(9,) * 35
    )
    names = {name: {"rmse": 1.0, "coverage": 0.9, "rows": 4} for name in case.model.clients}
    own = {"pooled": {"rows": 9, "rmse": 1.0}, "clients": names}
    page = report.render(estimator_of(case), metrics={"outputs": {"y0": own, "y1": own}})
    ((wide, high),) = sizes_of(page, tmp_path, PHONE, "table.sortable")
    assert wide <= PHONE
    assert high < 70 * 36
    assert all(w > 0 for w, _ in sizes_of(page, tmp_path, PHONE, "table.sortable tbody th"))
    assert sum(w > 0 for w, _ in sizes_of(page, tmp_path, PHONE, "thead .minor")) == 0
    assert sum(w > 0 for w, _ in sizes_of(page, tmp_path, DESKTOP, "thead .minor")) == 5


NAMES = ["Aotizhongxin", "Nongzhanguan", "Wanshouxigong", "Guanyuan", "Tiantan", "Changping"]


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_the_page_of_zones_alone_has_the_width_of_the_screen(width, tmp_path):
    """It has no list of sections beside it, and leaves no room for one: a group's names are on one line."""
    kept = kept_of(NAMES, [0, 0, 0, 1, 1, 1])
    page = zone_section.page(kept)
    ((wide, _),) = sizes_of(page, tmp_path, width, "main")
    assert wide > 0.85 * min(width, 1180)
    for names_wide, high in sizes_of(page, tmp_path, width, ".groups dd"):
        assert names_wide > 240
        assert high < (60 if width == DESKTOP else 90)


def test_a_drawing_as_a_file_has_its_own_size_and_colours(tmp_path):
    kept = kept_of(NAMES, [0, 0, 0, 1, 1, 1])
    for svg in (
        zone_figures.tree(kept.zones),
        zone_figures.heat_map(kept.zones),
        zone_figures.site_map(kept.zones.labels, kept.places),
    ):
        text = standalone(svg)
        assert "var(" not in text
        assert "#0072b2" in text  # the first group's colour on a light page
        (tmp_path / "drawing.svg").write_text(text, "utf-8")
        done = chromium(tmp_path / "drawing.svg", "--dump-dom")
        assert logged(done.stderr) == []
        assert "parsererror" not in done.stdout
