"""The pages under reference/: Python names from their docstrings, commands from their `--help`.

The navigation of mkdocs.yml says which modules there are. Everything else may change without notice.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PACKAGE = "reference/pfedhgp.md"
COMMANDS = "reference/commands.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for uri in pages(config.nav):
        if uri.startswith("reference/"):
            files.append(File.generated(config, uri, content=_content(uri)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """In docs/api.md, names become links to what the reference says about them."""
    if page.file.src_uri != "api.md":
        return markdown
    return re.sub(r"`(pfedhgp\.[\w.]+)`", r"[`\1`][\1]", markdown)


def pages(nav: Any) -> Iterator[str]:
    """The pages that a navigation names, in order."""
    if isinstance(nav, str):
        yield nav
        return
    for each in nav.values() if isinstance(nav, dict) else nav or ():
        yield from pages(each)


def _content(uri: str) -> str:
    if uri == COMMANDS:
        return _commands()
    if uri == PACKAGE:
        import pfedhgp

        names = [name for name in pfedhgp.__all__ if not name.startswith("_")]
        parts = [f"::: pfedhgp.{name}\n    options: {{heading_level: 2}}\n" for name in names]
        return "\n".join(["# pfedhgp\n", *parts])
    return f"::: pfedhgp.{uri.removeprefix('reference/').removesuffix('.md')}\n"


def _commands() -> str:
    """What `pfedhgp COMMAND --help` prints, for every command and experiment."""
    import typer

    from pfedhgp.cli.main import app

    group = typer.main.get_command(app)
    parts = ["# Commands\n\nWhat `pfedhgp --help` and `pfedhgp COMMAND --help` print.\n"]
    parts.append(_help([]))
    for name in group.list_commands(None):
        inner = getattr(group.get_command(None, name), "commands", {})
        parts += [f"## pfedhgp {name}\n", _help([name])]
        for experiment in inner:
            parts += [f"### pfedhgp {name} {experiment}\n", _help([name, experiment])]
    return "\n".join(parts)


def _help(words: list[str]) -> str:
    from pfedhgp.cli.main import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        main([*words, "--help"])
    return f"```text\n{said.getvalue()}```\n"
