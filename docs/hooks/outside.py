"""Pages of the site that are files outside docs/, and links that hold in the repository and on the site.

A link is written as it works in the repository: `../examples/fill_gaps.py`, `docs/guide.md` in README.md. On
the site, README.md is the home page, and every other file that some page links to is shown as a page (text of
programs) or copied. So nothing leads out of the site, and nothing is written twice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "examples/gallery/README.md": "gallery/index.md",
    "examples/gallery": "gallery/index.md",
}
"""Places in the repository, and the pages that they are on the site."""
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
FENCE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", flags=re.M | re.S)
ON_THE_WEB = re.compile(r"^[a-z]+:")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for place, uri in PAGES.items():
        path = ROOT / place
        if path.is_file():
            files.append(File.generated(config, uri, content=path.read_text("utf-8")))
    documents = [*PAGES, *(f"docs/{each.src_uri}" for each in files.documentation_pages())]
    for place in sorted(_linked_from(documents)):
        uri = uri_of(place)
        if files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, content=_shown(place)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return for_the_site(markdown, origin=origin_of(page.file.src_uri), uri=page.file.src_uri)


def for_the_site(markdown: str, *, origin: str, uri: str) -> str:
    """The text of the file `origin` with its links changed for the page `uri`."""

    def moved(match: re.Match[str]) -> str:
        link, mark, anchor = match[0].partition("#")
        if not link or ON_THE_WEB.match(link):
            return match[0]
        target = uri_of(resolved(link, origin))
        return (
            os.path.relpath(target, PurePosixPath(uri).parent).replace(os.sep, "/") + mark + anchor
        )

    parts = FENCE.split(markdown)
    return "".join(part if i % 2 else LINK.sub(moved, part) for i, part in enumerate(parts))


def resolved(link: str, origin: str) -> str:
    """A link of the file `origin` as a path from the repository's root."""
    return os.path.normpath(PurePosixPath(origin).parent / link).replace(os.sep, "/")


def origin_of(uri: str) -> str:
    """The file of the repository that a page shows."""
    by_page = {page: place for place, page in PAGES.items() if place.endswith(".md")}
    if uri.startswith("gallery/") and uri not in by_page:
        return f"examples/{uri.removesuffix('.md')}.py"
    return by_page.get(uri, f"docs/{uri}")


def uri_of(place: str) -> str:
    """Where the site has a file or a folder of the repository."""
    if place in PAGES:
        return PAGES[place]
    if place.startswith("examples/gallery/"):
        return place.removeprefix("examples/").replace(".py", ".md")
    if (ROOT / place).is_dir():
        return f"files/{place}/index.md"
    if place.startswith("docs/"):
        return place.removeprefix("docs/")
    if place.endswith(".py"):
        return f"files/{place.removesuffix('.py')}.md"
    known = place.endswith((".json", ".txt", ".svg", ".png"))
    return f"files/{place}" if known else f"files/{place}.txt"  # a browser shows it


def _linked_from(documents: list[str]) -> Iterator[str]:
    """Files and folders that are no pages of docs/ and that some document links to."""
    waiting, seen = [d for d in documents if (ROOT / d).is_file()], set()
    while waiting:
        place = waiting.pop()
        text = FENCE.sub("", (ROOT / place).read_text("utf-8"))
        for link in LINK.findall(text):
            path = link.partition("#")[0]
            found = resolved(path, place)
            if not path or ON_THE_WEB.match(path) or found in seen or found in PAGES:
                continue
            seen.add(found)
            folder = (ROOT / found).is_dir()
            if folder:
                seen |= {f"{found}/{name}" for name in _names(found)}
    for found in seen:
        outside = not found.startswith(("docs/", "examples/gallery/"))
        if (outside or (ROOT / found).is_dir()) and (ROOT / found).exists():
            yield found


def _names(folder: str) -> list[str]:
    """Files in a folder of the repository."""
    return sorted(path.name for path in (ROOT / folder).iterdir() if path.is_file())


def _shown(place: str) -> str | bytes:
    """A folder as a list, a program as a page, anything else as it is."""
    path = ROOT / place
    if path.is_dir():
        lines = [f"- [`{name}`]({place}/{name})" for name in _names(place)]
        page = PurePosixPath(uri_of(place))
        listed = for_the_site("\n".join(lines), origin="x", uri=str(page))
        return f"# Files in {place}\n\n{listed}\n"
    if path.suffix == ".py":
        return f"# {path.name}\n\n```python\n{path.read_text('utf-8')}```\n"
    return path.read_bytes()
