"""A page as Chromium shows it: what it logs, which figures there are, what is cut off or overlaps."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
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


# What `sizes_of` asks of a page in its frame.
MEASURED = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><body style="margin:0">
<iframe id="frame" style="border:0;width:{width}px;height:900px" srcdoc="{page}"></iframe>
<script>
const frame = document.getElementById('frame');
frame.addEventListener('load', () => {{
  const found = [...frame.contentDocument.querySelectorAll('{selector}')];
  const result = document.createElement('pre');
  result.id = 'result';
  const boxes = found.map(e => e.getBoundingClientRect());
  result.textContent = JSON.stringify(boxes.map(b => [b.width, b.height]));
  document.body.appendChild(result);
}});
</script></body>"""


# What `clicked` does to a table of the page in its frame.
CLICKED = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><body style="margin:0">
<iframe id="frame" style="border:0;width:{width}px;height:900px" srcdoc="{page}"></iframe>
<script>
const frame = document.getElementById('frame');
frame.addEventListener('load', () => {{
  const table = frame.contentDocument.querySelector('{selector}');
  const order = () => [...table.tBodies[0].rows].map(row => row.cells[0].textContent);
  const found = [order()];
  for (const head of {heads}) {{
    [...table.querySelectorAll('thead button')].find(b => b.textContent.trim() === head).click();
    found.push(order());
  }}
  const result = document.createElement('pre');
  result.id = 'result';
  result.textContent = JSON.stringify(found);
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
    return _result(framed(page, width), folder, colours_of(scheme))


def sizes_of(page: str, folder: Path, width: int, selector: str) -> list[tuple[float, float]]:
    """(width, height) in pixels of the elements that a CSS selector finds."""
    around = MEASURED.format(width=width, page=html.escape(page), selector=selector)
    return [(w, h) for w, h in _result(around, folder)[0]]


def clicked(
    page: str, folder: Path, width: int, selector: str, heads: list[str]
) -> tuple[list[list[str]], list[str]]:
    """The first cells of a table's rows, before and after each click on a head; and what was logged."""
    parts = {"page": html.escape(page), "selector": selector, "heads": json.dumps(heads)}
    found, log = _result(CLICKED.format(width=width, **parts), folder)
    return found, log


def _result(text: str, folder: Path, *options: str) -> tuple[Any, list[str]]:
    """What the script of a page wrote, and what the browser logged."""
    around = folder / "around.html"
    around.write_text(text, "utf-8")
    done = chromium(around, "--window-size=1400,1000", *options, "--dump-dom")
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(html.unescape(found.group(1))), logged(done.stderr)


def check_readable(seen: dict[str, Any], log: list[str], *, width: int, figures: int) -> None:
    """No error, every figure there, and nothing cut off, wider than the screen or too small."""
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


def picture_of(page: str, folder: Path, width: int, scheme: str, tall: int, name: str) -> bytes:
    """The page from top to bottom as PNG; kept in $PFEDHGP_SCREENSHOTS where that is set, to be looked at."""
    around = folder / "around.html"
    around.write_text(framed(page, width, height=tall, still=True), "utf-8")
    picture = folder / f"{name}-{width}-{scheme}.png"
    size = f"--window-size={max(width, 500)},{tall}"  # a window is at least 500 wide
    chromium(around, size, colours_of(scheme), f"--screenshot={picture}")
    content = picture.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(content[20:24], "big") == tall  # the picture's height
    if kept := os.environ.get("PFEDHGP_SCREENSHOTS"):
        shutil.copy(picture, kept)
    return content
