"""The page in a browser: no error, every figure there, nothing wider than the screen, light and dark."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grouped import kept_of
from parts import require_part
from pfedhgp import report
from pfedhgp.cli.main import main
from pfedhgp.data.scaling import Scaling
from posteriors import make
from reported import METRICS, TIED, case_of, estimator_of, rows_of

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
require_part("Chromium", found=CHROMIUM is not None)

DESKTOP, PHONE = 1280, 390
SCHEMES = {"dark": 0, "light": 1}  # Blink's numbers

# The report is put into a frame: a window of Chromium cannot be as narrow as a phone, a frame can.
# The script runs in the page around it, so that the report is the very file that users get.
AROUND = """<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,"><body style="margin:0">
<iframe id="frame" style="border:0;width:{width}px;height:{height}px" srcdoc="{page}"></iframe>
<script>
const frame = document.getElementById('frame');
frame.addEventListener('load', () => {{
  const inside = frame.contentDocument, view = frame.contentWindow;
  const tall = inside.documentElement.scrollHeight;  // as people first see it
  if ({still}) return;
  inside.querySelectorAll('details').forEach(d => d.open = true);
  const cut = [...inside.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth + 1);
  const figures = [...inside.querySelectorAll('figure')].map(figure => {{
    const seen = [...figure.querySelectorAll('svg')].map(s => s.getBoundingClientRect());
    return seen.filter(box => box.width > 100 && box.height > 60).map(box => [box.left, box.right]);
  }});
  const sizes = [...inside.querySelectorAll('svg text')].filter(t => t.getBoundingClientRect().width)
    .map(t => t.getBoundingClientRect()).map(b => Math.max(b.width, b.height));  // some is upright
  const titled = [...inside.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().width).map(s => {{
    const boxes = [...s.querySelectorAll('text')].map(t => [t.textContent.trim(), t.getBoundingClientRect()]);
    return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([b, q]) => a && b &&
      Math.min(p.right, q.right) - Math.max(p.left, q.left) > 2 &&
      Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 3).map(([b, q]) => a + ' | ' + b));
  }}).flat();
  const style = view.getComputedStyle(inside.body);
  const line = view.getComputedStyle(inside.querySelector('svg [id$="-mean"] path'));
  const result = document.createElement('pre');
  result.id = 'result';
  result.textContent = JSON.stringify({{
    figures: figures, smallest: Math.min(...sizes), nav: inside.querySelector('nav').offsetWidth,
    page: inside.documentElement.scrollWidth, screen: inside.documentElement.clientWidth,
    overlaps: titled, tall: tall, cut: cut.map(s => s.innerText.slice(0, 60)),
    ink: style.color, paper: style.backgroundColor, line: line.stroke,
  }});
  document.body.appendChild(result);
}});
</script></body>"""


def chromium(page: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--enable-logging=stderr",
        f"--user-data-dir={page.parent / 'profile'}",
        *arguments,
        page.as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def logged(stderr: str) -> list[str]:
    """What the page wrote to the console."""
    return [line for line in stderr.splitlines() if "CONSOLE" in line]


def framed(page: str, width: int, *, height: int = 900, still: bool = False) -> str:
    """The page in its frame; `still` leaves it as it is, for a picture."""
    return AROUND.format(
        width=width, height=height, still=json.dumps(still), page=html.escape(page)
    )


def colours_of(scheme: str) -> str:
    return f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"


def look(page: str, folder: Path, width: int, scheme: str) -> tuple[dict, list[str]]:
    """What a browser makes of the page, and what it logged."""
    around = folder / "around.html"
    around.write_text(framed(page, width), "utf-8")
    done = chromium(around, "--window-size=1400,1000", colours_of(scheme), "--dump-dom")
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(html.unescape(found.group(1))), logged(done.stderr)


REAL = "a fit"  # of two outputs, one of them of 1e12, and a third that is constant


@pytest.fixture(
    scope="module",
    params=["one output", "several", "as the demo's", pytest.param(REAL, marks=pytest.mark.slow)],
)
def page(request, tmp_path_factory, demos) -> tuple[str, int]:
    """A page and how many figures it has."""
    if request.param == REAL:
        return fitted_page(tmp_path_factory.mktemp("real")), 1 + 2 + 3 * 3 + 1 + 2 + 1
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
    return report.render(estimator_of(case, **names)), 1 + 6 + 1 + 2 + 1


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
    assert log == []
    assert seen["screen"] == width
    assert seen["page"] <= width
    assert len(seen["figures"]) == figures
    for boxes in seen["figures"]:
        assert len(boxes) == 1  # the wide or the narrow drawing, not both
        assert 0 <= boxes[0][0] < boxes[0][1] <= width
    assert seen["cut"] == []  # no table has to be pushed about to be read
    assert seen["overlaps"] == []  # no text of a figure lies on another
    assert seen["smallest"] > 8.5  # pixels, of the smallest text in a figure
    assert (seen["nav"] > 0) == (width == DESKTOP)


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
    """Kept in $PFEDHGP_SCREENSHOTS where that is set, to be looked at."""
    tall = look(demos, tmp_path, width, scheme)[0]["tall"]
    around = tmp_path / "around.html"
    around.write_text(framed(demos, width, height=tall, still=True), "utf-8")
    picture = tmp_path / f"report-{width}-{scheme}.png"
    size = f"--window-size={max(width, 500)},{tall}"  # a window is at least 500 wide
    chromium(around, size, colours_of(scheme), f"--screenshot={picture}")
    content = picture.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(content[20:24], "big") == tall > 3000  # the picture's height
    assert len(content) > 100_000
    if kept := os.environ.get("PFEDHGP_SCREENSHOTS"):
        shutil.copy(picture, kept)
