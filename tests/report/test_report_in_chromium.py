"""The page in a browser: no error, every figure there, nothing wider than the screen, light and dark."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from conftest import require_part
from pfedhgp import report
from pfedhgp.cli.main import main
from reported import METRICS, case_of, estimator_of, rows_of

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
<iframe id="frame" style="border:0;width:{width}px;height:900px" srcdoc="{page}"></iframe>
<script>
const frame = document.getElementById('frame');
frame.addEventListener('load', () => {{
  const inside = frame.contentDocument, view = frame.contentWindow;
  inside.querySelectorAll('details').forEach(d => d.open = true);
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
    overlaps: titled, ink: style.color, paper: style.backgroundColor, line: line.stroke,
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


def look(page: str, folder: Path, width: int, scheme: str) -> tuple[dict, list[str]]:
    """What a browser makes of the page, and what it logged."""
    around = folder / "around.html"
    around.write_text(AROUND.format(width=width, page=html.escape(page)), "utf-8")
    colours = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
    done = chromium(around, "--window-size=1400,1000", colours, "--dump-dom")
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(html.unescape(found.group(1))), logged(done.stderr)


REAL = "a fit"  # of two outputs, one of them of 1e12, and a third that is constant


@pytest.fixture(
    scope="module",
    params=["one output", "several", pytest.param(REAL, marks=pytest.mark.slow)],
)
def page(request, tmp_path_factory) -> tuple[str, int]:
    """A page and how many figures it has."""
    if request.param == REAL:
        return fitted_page(tmp_path_factory.mktemp("real")), 1 + 2 + 3 * 3 + 1 + 2 + 1
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


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("scheme", SCHEMES)
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
    assert seen["overlaps"] == []  # no text of a figure lies on another
    assert seen["smallest"] > 8.5  # pixels, of the smallest text in a figure
    assert (seen["nav"] > 0) == (width == DESKTOP)


def test_light_and_dark_differ_in_page_and_figures(page, tmp_path):
    light, dark = (look(page[0], tmp_path, DESKTOP, scheme)[0] for scheme in ("light", "dark"))
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


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_screenshots_can_be_taken(page, width, tmp_path):
    """Kept in $PFEDHGP_SCREENSHOTS where that is set, to be looked at."""
    around = tmp_path / "around.html"
    around.write_text(AROUND.format(width=width, page=html.escape(page[0])), "utf-8")
    picture = tmp_path / f"report-{width}.png"
    chromium(around, f"--window-size={max(width, 500)},900", f"--screenshot={picture}")
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture.stat().st_size > 20_000
    if kept := os.environ.get("PFEDHGP_SCREENSHOTS"):
        shutil.copy(picture, kept)
