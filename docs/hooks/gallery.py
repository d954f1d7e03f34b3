"""The pages under gallery/: the scripts of examples/gallery, run, with what they print and draw.

A script that fails ends the build. Results are kept in build/gallery, by a hash of the script and of the
package, so that a page is run again only if one of them has changed. Without jupytext, nbclient and ipykernel
(the extra `docs`) pages show the scripts without their results, and say so.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "examples" / "gallery"
KEPT = ROOT / "build" / "gallery"
TOOLS = ("jupytext", "nbclient", "ipykernel")
DPI, INCH = 144, 82
"""Pixels an inch of a picture, and of the page: sharp on good screens, and letters of one size."""
LONGEST = 600
"""Seconds that a cell may take."""
PART = re.compile(r"^# %%(?P<head>.*)$", flags=re.M)
BARE = "*This page was built without the tools that run it, and has no results: see `make docs`.*\n"
SETUP = (
    "%config InlineBackend.figure_formats = ['png']\n"
    "%config InlineBackend.rc = {'figure.dpi': 144}\n"
    "import polars\n"
    "polars.Config(tbl_rows=40, fmt_str_lengths=90, tbl_hide_dataframe_shape=True,\n"
    "              tbl_hide_column_data_types=True)\n"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in sorted(SCRIPTS.glob("*.py")):
        text, pictures = page_of(path)
        files.append(File.generated(config, f"gallery/{path.stem}.md", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"gallery/{name}", content=content))
    return files


def page_of(path: Path) -> tuple[str, Mapping[str, bytes]]:
    """The page of a script as Markdown, and its pictures by name."""
    if any(find_spec(tool) is None for tool in TOOLS):
        return bare(path), {}
    key = _key(path)
    kept = KEPT / f"{path.stem}-{key}.json"
    if kept.is_file():
        cells = json.loads(kept.read_text("utf-8"))
    else:
        cells = executed(path)
        KEPT.mkdir(parents=True, exist_ok=True)
        for older in KEPT.glob(f"{path.stem}-*.json"):
            older.unlink()
        kept.write_text(json.dumps(cells), "utf-8")
    pictures: dict[str, bytes] = {}
    parts = [part for cell in cells for part in _shown(cell, path.stem, pictures)]
    return "\n\n".join([*parts, _source(path)]) + "\n", pictures


def bare(path: Path) -> str:
    """The script as text and code, without results."""
    text, parts = path.read_text("utf-8"), []
    starts = [*PART.finditer(text)]
    ends = [*(each.start() for each in starts[1:]), len(text)]
    for head, end in zip(starts, ends, strict=True):
        body = text[head.end() : end].strip("\n")
        if "[markdown]" in head["head"]:
            parts.append("\n".join(re.sub(r"^# ?", "", line) for line in body.splitlines()))
        elif body:
            parts.append(f"```python\n{body}\n```")
    title, *rest = parts
    first, _, after = title.partition("\n")
    return "\n\n".join([first, BARE, after.strip(), *rest, _source(path)]) + "\n"


def executed(path: Path) -> list[dict[str, Any]]:
    """The cells of a script with their outputs."""
    import jupytext
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError
    from traitlets.config import Config

    book = jupytext.read(path)
    book.cells.insert(0, nbformat.v4.new_code_cell(SETUP))
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    no_port = Config(ConnectionFileMixin={"transport": "ipc"})
    client = NotebookClient(
        book, config=no_port, timeout=LONGEST, resources={"metadata": {"path": str(ROOT)}}
    )
    try:
        client.execute(
            env={**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
        )
    except CellExecutionError as error:
        plain = re.sub(r"\x1b\[[\d;]*m", "", str(error))  # without a terminal's colours
        raise PluginError(f"{path.relative_to(ROOT)} failed:\n{plain}") from None
    return json.loads(json.dumps(book.cells[1:]))


def _key(path: Path) -> str:
    """A hash of all that a page is made from."""
    digest = hashlib.sha256()
    for each in (path, Path(__file__), *sorted((ROOT / "src").rglob("*.py"))):
        digest.update(each.read_bytes())
    digest.update(os.environ.get("PFEDHGP_SMALL", "").encode())
    return digest.hexdigest()[:16]


def _shown(cell: Mapping[str, Any], stem: str, pictures: dict[str, bytes]) -> Iterator[str]:
    """Text as it is, code in a fence, and what the code printed and drew."""
    source = "".join(cell["source"]).strip()
    if cell["cell_type"] == "markdown":
        yield source
        return
    if source:
        yield f"```python\n{source}\n```"
    drawn = any("image/png" in output.get("data", {}) for output in cell["outputs"])
    for output in cell["outputs"]:
        yield from _output(output, stem, pictures, drawn=drawn)


def _output(
    output: Mapping[str, Any], stem: str, pictures: dict[str, bytes], *, drawn: bool
) -> Iterator[str]:
    if output["output_type"] == "stream":
        if output["name"] == "stdout":
            yield _printed("".join(output["text"]))
        return
    data = output["data"]
    if "image/png" in data:
        name = f"{stem}-{len(pictures) + 1}.png"
        pictures[name] = base64.b64decode("".join(data["image/png"]))
        wide = round(INCH * int.from_bytes(pictures[name][16:20], "big") / DPI)
        yield f"![A figure, drawn by the code above]({name}){{ .drawn width={wide} }}"
    elif "text/html" in data:
        yield f'<div class="result">{_table("".join(data["text/html"]))}</div>'
    elif not drawn:  # or it is the axes that were drawn on
        yield _printed("".join(data["text/plain"]))


def _table(text: str) -> str:
    """A table of polars: its style and its line of types are left out."""
    text = re.sub(r"<style.*?</style>", "", text, flags=re.S)
    text = re.sub(r"<small>.*?</small>", "", text, flags=re.S)
    text = re.sub(r"<tr>(?:<td>(?:str|[fiu]\d+|bool)</td>)+</tr>", "", text)
    text = re.sub(r"<td>&quot;([^<]*?)(?:&quot;)?</td>", r"<td>\1</td>", text)
    text = re.sub(r' (?:border|class)="[^"]*"', "", text)
    return re.sub(r"\s*\n\s*", "", text)


def _printed(text: str) -> str:
    return f'<pre class="printed">{html.escape(text.rstrip())}</pre>'


def _source(path: Path) -> str:
    return f"The script: `{path.relative_to(ROOT).as_posix()}`"
