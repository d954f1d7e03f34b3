"""docs/study.md from results: the parts between its marks are written anew, the prose around them is kept.

    python -m pfedhgp.studies.common.document docs/study.md synthetic=DIR stability=DIR

fills what stands between `<!-- synthetic -->` and `<!-- end synthetic -->` with the tables and figures of
DIR, and copies the figures to a folder beside the page that has its name.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pfedhgp.errors import InputError
from pfedhgp.studies.common.provenance import lines
from pfedhgp.studies.common.store import write_whole

FIGURES = {
    "robustness.svg": "RMSE, NLL, CRPS and CovErr of every row, with 95% confidence intervals",
    "prediction.svg": "Prediction of the four channels of the first client, full, scenario A, seed 0",
    "calibration.svg": "Coverage less its nominal level, ECE and 95% width, means over scenarios",
    "stability.svg": "Recovery of the global layer over clients, balance and heterogeneity",
}


def fill(page: str, name: str, body: str) -> str:
    """The page with `body` between the marks of `name`."""
    marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    if not marks.search(page):
        raise InputError(f"the page has no marks <!-- {name} --> and <!-- end {name} -->")
    return marks.sub(lambda found: found[1] + body + found[2], page, count=1)


def section(folder: Path, pictures: str) -> str:
    """A study's tables and figures, with when and on what they were made."""
    try:
        config = json.loads((folder / "results.json").read_text())["config"]
        text = (folder / "tables.md").read_text()
    except (OSError, json.JSONDecodeError, KeyError):
        raise InputError(f"{folder} holds no finished study (results.json, tables.md)") from None
    makers = lines(config.get("made", []))
    told = "".join(f"{line}\n\n" for line in makers)
    tables = text.partition("\n")[2].lstrip().removeprefix(told)
    shown = [
        f"![{FIGURES[name]}]({pictures}/{name})\n" for name in FIGURES if (folder / name).exists()
    ]
    tables = re.sub(r"^## ", "### ", tables.strip(), flags=re.MULTILINE)
    return "\n".join([*(f"{line}\n" for line in makers), *shown, tables, ""])


def write(page: Path, studies: Mapping[str, Path]) -> None:
    """Fills the page's sections and copies their figures beside it."""
    try:
        text = page.read_text()
    except OSError as error:
        raise InputError(f"{page}: cannot be read ({error.strerror})") from None
    figures = page.with_suffix("")
    for name, folder in studies.items():
        text = fill(text, name, section(folder, figures.name))
    figures.mkdir(exist_ok=True)
    for folder in studies.values():
        for name in FIGURES:
            if (folder / name).exists():
                shutil.copyfile(folder / name, figures / name)
    write_whole(page, text)


def main(arguments: Sequence[str]) -> int:
    """0, or 2 where the user's input is wrong."""
    if len(arguments) < 2 or any("=" not in each for each in arguments[1:]):
        print("usage: python -m pfedhgp.studies.common.document PAGE NAME=DIR ...", file=sys.stderr)
        return 2
    pairs = (each.split("=", 1) for each in arguments[1:])
    try:
        write(Path(arguments[0]), {name: Path(folder) for name, folder in pairs})
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
