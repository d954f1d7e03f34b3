"""The project's documents as data: fenced blocks with what they print, links, headings, and inline code."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = tuple(sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]))
RUNNABLE, OUTPUT = ("python", "sh", "toml"), "text"
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block: `printed` is the text block right behind it, `reason` why it is not run."""

    document: str
    line: int
    language: str
    text: str
    printed: str | None = None
    reason: str | None = None

    @property
    def place(self) -> str:
        return f"{self.document}, line {self.line}"

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command of a shell block; comments are left out."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def blocks(path: Path) -> list[Block]:
    """The runnable blocks of a document, in order; refuses what it does not understand."""
    found: list[Block] = []
    inside: Block | None = None
    before = ""  # the last line that was not empty, outside of blocks
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if inside is not None:
            if line == "```":
                _close(found, inside, before)
                inside, before = None, f"```{inside.language}"
            else:
                inside = replace(inside, text=f"{inside.text}{line}\n")
        elif line.lstrip().startswith("```"):
            language = line.removeprefix("```")
            if language not in (*RUNNABLE, OUTPUT):
                raise ValueError(f"{path.name}, line {number}: a block of {language!r}")
            inside = Block(path.name, number, language, "")
        elif line.strip():
            before = line
    if inside is not None:
        raise ValueError(f"{inside.place}: never closed")
    return found


def _close(found: list[Block], block: Block, before: str) -> None:
    if block.language != OUTPUT:
        reason = NOT_RUN.fullmatch(before)
        found.append(replace(block, reason=reason[1] if reason else None))
    elif not found or before != f"```{found[-1].language}" or found[-1].printed is not None:
        raise ValueError(f"{block.place}: a text block says what the block before it prints")
    else:
        found[-1] = replace(found[-1], printed=block.text)


def name_of(path: Path) -> str:
    """The document as the project names it: docs/guide.md."""
    return path.relative_to(ROOT).as_posix()


def prose(path: Path) -> str:
    """The document without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.M | re.S)


def inline_code(path: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(path))


def links(path: Path) -> list[str]:
    """Targets of links and pictures, but for those on the web."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(path))
    return [target for target in targets if not re.match(r"https?://", target)]


def anchors(path: Path) -> set[str]:
    """Headings as they are linked to: lower case, punctuation gone, dashes for spaces."""
    headings = re.findall(r"^#+ (.+)$", prose(path), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
OF_THE_MACHINE = re.compile(r"\b\d+ s\b")
"""How long something took: the one kind of number that a reader's machine may print otherwise."""
TOLERANCE = 0.03
"""For numbers with decimals, relative: rounding differs between processors, and training carries it on."""


def lines_of(text: str) -> list[str]:
    """Lines that say something, with what depends on the machine replaced."""
    plain = OF_THE_MACHINE.sub("# s", text)
    return [" ".join(line.split()) for line in plain.splitlines() if line.strip()]


def agree(printed: str, expected: str) -> bool:
    """Whether two lines have the same words, the same whole numbers, and decimals within `TOLERANCE`."""
    if NUMBER.sub("#", printed) != NUMBER.sub("#", expected):
        return False
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(expected), strict=True)
    return all(_near(a, b) for a, b in pairs)


def _near(a: str, b: str) -> bool:
    if not {".", "e"} & {*a, *b}:
        return a == b
    gap = Decimal(a) - Decimal(b)
    last = max(Decimal(1).scaleb(int(Decimal(v).as_tuple().exponent)) for v in (a, b))
    size = max(abs(Decimal(a)), abs(Decimal(b)))
    return abs(gap) <= Decimal(str(TOLERANCE)) * size + last  # a unit of the last digit printed
