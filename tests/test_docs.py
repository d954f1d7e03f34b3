"""Every command and example in README.md and docs/ does what the text says; links lead somewhere."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import numpy as np
import polars as pl
import pytest
import typer

import pfedhgp
import pfedhgp.base.progress
from pfedhgp import FederatedGP
from pfedhgp.cli.main import app, main
from pfedhgp.privacy.accounting import of_rows
from pfedhgp.settings import config as configs
from support.documents import (
    DOCUMENTS,
    ROOT,
    Block,
    agree,
    anchors,
    blocks,
    inline_code,
    lines_of,
    links,
    name_of,
    prose,
)
from support.parts import require

GUIDE = ROOT / "docs" / "guide.md"
SLOW = {"README.md", "docs/api.md", "docs/guide.md", "docs/diagnosis.md"}  # they fit models
SHORT = ("--rounds", "2")  # added to fits that do not say how long: what they write is the same
HOME = "/home/ana/air"  # where the text's reader works
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.M))
STATIONS = ("Harbour", "Hillside", "Market", "Reservoir")
LONG = [
    *("station", "time", "output", "mean", "sd", "lower", "upper"),
    *("global", "deviation", "local", "known"),
]


# ------------------------------------------------------------------------------- running a document


class Reader:
    """Someone who follows a document from top to bottom, in one folder and one Python."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.names = folder, {"__name__": "__main__"}

    def follow(self, block: Block) -> None:
        said = io.StringIO()
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            checked = getattr(self, f"_{block.language}")(block, said)
        if block.printed is None:
            assert checked, f"{block.place}: nothing is checked about it; add to CHECKS"
            return
        printed = lines_of(said.getvalue().replace(str(self.folder.resolve()), HOME))
        lines = iter(printed)
        for expected in lines_of(block.printed):
            found = any(agree(line, expected) for line in lines)
            assert found, f"{block.place}: {expected!r} was not printed, in this order: {printed}"

    def _python(self, block: Block, said: io.StringIO) -> bool:
        exec(compile(block.text, block.place, "exec"), self.names)
        return False

    def _toml(self, block: Block, said: io.StringIO) -> bool:
        Path("short.toml").write_text(block.text, "utf-8")
        settings = configs.check(configs.read_config(Path("short.toml")))
        assert settings.files == ("stations.csv",)
        assert settings.kernel == "rbf + periodic(1 day)"
        assert settings.holdout == "blocks:0.2"
        return True

    def _sh(self, block: Block, said: io.StringIO) -> bool:
        checked = True
        for program, *words in block.commands:
            if program == "make":
                assert set(words) <= TARGETS, f"{block.place}: no such target"
                if words == ["demo"]:
                    check_demo()
                continue
            assert program == "pfedhgp", f"{block.place}: {program} is not run; say so and why"
            refused = block.printed is not None and block.printed.startswith("pfedhgp: error: ")
            if words[:2] == ["fit", "--resume"]:
                stop_a_run(words[-1])
            elif words[0] == "fit" and not {"--rounds", "--write-config"} & set(words):
                words += () if block.printed else SHORT  # what is printed is compared
            assert main(words) == (2 if refused else 0), f"{block.place}: {said.getvalue()}"
            text = " ".join(words)
            found = [check for start, check in CHECKS.items() if text.startswith(start)]
            for check in found:
                check(text)
            checked = checked and bool(found)
        return checked


def stop_a_run(out: str) -> None:
    """The guide's first fit, interrupted by Ctrl-C after its first round."""

    @contextlib.contextmanager
    def impatient(**_):
        def stop(record) -> None:
            if record["round"] > 0:
                raise KeyboardInterrupt

        yield stop

    (first,) = next(b for b in blocks(GUIDE) if b.language == "sh").commands
    words = [out if word == "RUN" else word for word in first[1:]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pfedhgp.base.progress, "progress", impatient)
        assert main(words) == 130
    assert Path(out, "checkpoint").is_dir()


# ------------------------------------------------------------------------- what commands must write


def check_run(_: str) -> None:
    model = FederatedGP.load("RUN")
    assert model.clients_ == STATIONS
    assert {p.name for p in Path("RUN").iterdir()} == {
        *("spec.json", "global.safetensors", "clients", "metrics.json", "messages.jsonl"),
        "report.html",
    }
    assert model.model_.metrics["holdout"] == {"kind": "blocks", "fraction": 0.2, "seed": 0}
    assert model.model_.metrics["overall"]["pooled"]["rows"] == 32


def check_both(_: str) -> None:
    model = FederatedGP.load("BOTH").model_
    assert model.input_names == ("time", "temperature")
    assert model.output_names == ("pm25", "no2")
    assert model.shared.block.loadings.shape == (2, 2)


def check_daily(_: str) -> None:
    settings = FederatedGP.load("DAILY").model_.settings
    assert settings["kernel"] == "rbf(2 days) + periodic(1 day)"
    assert settings["local_kernel"] == "matern32"


def check_written_settings(_: str) -> None:
    settings = configs.check(configs.read_config(Path("fit.toml")))
    assert (settings.client, settings.inputs) == ("station", ("time",))
    assert settings.holdout == "blocks:0.2"
    assert not Path("RUN-from-config").exists()


def check_settings_used(_: str) -> None:
    holdout = json.loads(Path("SEED1/metrics.json").read_text())["holdout"]
    assert holdout == {"kind": "blocks", "fraction": 0.2, "seed": 1}


def check_resumed(_: str) -> None:
    assert FederatedGP.load("STOPPED").bound_ == FederatedGP.load("RUN").bound_
    assert not Path("STOPPED/checkpoint").exists()


def check_predictions(_: str) -> None:
    table = pl.read_csv("predictions.csv")
    assert table.columns == LONG
    assert table["station"].to_list() == ["Harbour", "Harbour", "Quarry"]
    assert table["known"].to_list() == [True, True, False]
    layers = table.select("global", "deviation", "local").sum_horizontal()
    np.testing.assert_allclose(layers.to_numpy(), table["mean"].to_numpy(), rtol=1e-9)
    reach = (table["upper"] - table["lower"]).to_numpy() / table["sd"].to_numpy()
    np.testing.assert_allclose(reach, 2 * 1.959964, rtol=1e-6)


def check_report(text: str) -> None:
    words = text.split()
    name = words[words.index("--out") + 1] if "--out" in words else "RUN/report.html"
    page = Path(name).read_text("utf-8")
    assert "pFedHGP report" in page
    assert ("This page shows rows" in page) == ("--data" in words)
    assert all(station in page for station in FederatedGP.load("RUN").clients_)
    assert bool(re.search(r'id="[^"]*-held-out"', page)) == ("--data" in words)
    assert not re.search(r'id="[^"]*-others"', page)


def check_demo() -> None:
    """The demo as people run it, in a process of its own; and that README has its figures."""
    command = [sys.executable, "-m", "pfedhgp.cli.main", "demo"]
    fresh = {**os.environ, "PFEDHGP_CACHE": str(Path("cold").resolve())}  # as the first time
    fresh.pop("JAX_COMPILATION_CACHE_DIR", None)
    done = subprocess.run(command, capture_output=True, text=True, env=fresh)
    assert done.returncode == 0, done.stderr
    assert {p.name for p in Path("pfedhgp-demo").iterdir()} == {
        "RUN",
        "report.html",
        "stations.csv",
    }
    assert Path("pfedhgp-demo/report.html").stat().st_size < 2e6  # it may have to go by mail
    said = " ".join(done.stdout.split())
    assert "These are the town's own zones" in said
    assert len(FederatedGP.load("pfedhgp-demo/RUN").clients_) == 12
    # Two minutes on two cores: what both can do in that time, however busy the machine is with other things.
    (spent,) = re.findall(r"\((\d+) s of processor time\)", said)
    assert int(spent) < 2 * 120
    numbers = re.search(
        r"is off by ([\d.]+) µg/m³ \(RMSE\), against ([\d.]+) for .*? and ([\d.]+) for .*? held (\d+)%",
        said,
    )
    written = re.search(
        r"is ([\d.]+) µg/m³ \(RMSE\), against ([\d.]+) for .*? and ([\d.]+) for .*? hold (\d+)%",
        " ".join((ROOT / "README.md").read_text("utf-8").split()),
    )
    printed, promised = ([float(n) for n in found.groups()] for found in (numbers, written))
    # Searches end a little apart on other processors.
    assert printed[:3] == pytest.approx(promised[:3], rel=0.05)
    assert printed[3] == pytest.approx(promised[3], abs=1.0)


def check_town(_: str) -> None:
    model = FederatedGP.load("RUN")
    assert len(model.clients_) == 12
    assert model.model_.metrics["outputs"]["no2"]["pooled"]["rows"] == 373


def check_filled(_: str) -> None:
    table, given = pl.read_csv("filled.csv"), pl.read_csv("pfedhgp-demo/stations.csv")
    assert table.columns == [*LONG[:3], "observed", *LONG[3:]]
    assert table["station"].to_list() == given["station"].to_list()
    assert table["observed"].to_list() == given["no2"].to_list()
    assert given["no2"].null_count() == 303
    assert table.select(pl.col("mean").is_finite().all()).item()


def check_refused(_: str) -> None:
    assert not Path("OTHER").exists()


def check_study(_: str) -> None:
    records = json.loads(Path("TRIAL/results.json").read_text())["records"]
    found = {r["metric"]: r for r in records if (r["scenario"], r["model"]) == ("A", "oracle")}
    assert found["nll"]["runs"] == 5
    assert -5.0 < found["nll"]["mean"] < -3.5, "over 30 runs it is -4.365"
    assert {r["model"] for r in records if "(printed)" not in r["model"]} == {"oracle"}


CHECKS = {
    "fit stations.csv --client station --input time --output pm25 --holdout blocks:0.2 --out RUN": check_run,
    "fit stations.csv --client station --input time --input temperature": check_both,
    "fit stations.csv --client station --input time --output pm25 --kernel": check_daily,
    "fit stations.csv --client station --input time --output pm25 --holdout blocks:0.2 --write-config": (
        check_written_settings
    ),
    "fit --config fit.toml": check_settings_used,
    "fit --resume": check_resumed,
    "predict RUN tomorrow.csv": check_predictions,
    "fit pfedhgp-demo/stations.csv": check_town,
    "predict RUN pfedhgp-demo/stations.csv": check_filled,
    "reproduce synthetic --scenarios A --models oracle": check_study,
    "report RUN": check_report,
    "fit stations.csv --client station --input time --output pm10": check_refused,
}


# --------------------------------------------------------------------------------------------- tests


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """A reader with the guide's tables at hand."""
    monkeypatch.setenv("PFEDHGP_CACHE", "")
    found = Reader(tmp_path)
    found.follow(blocks(GUIDE)[0])
    return found


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, marks=[pytest.mark.slow] * (name_of(p) in SLOW), id=name_of(p))
        for p in DOCUMENTS
    ],
)
def test_every_example_does_what_it_says(path, reader):
    for block in blocks(path):
        if block.reason is None:
            reader.follow(block)


def not_run(path: Path) -> list[list[str]]:
    """The words of every command that is left out."""
    skipped = [block for block in blocks(path) if block.reason and block.language == "sh"]
    return [words for block in skipped for words in block.commands]


FEDERATION = ("federate", "server", "client", "certs", "audit", "policy", "simulate")


def all_commands() -> dict[str, click.Command]:
    """By name; each is imported."""
    group = typer.main.get_command(app)
    return {name: group.get_command(None, name) for name in group.list_commands(None)}


def test_commands_of_a_federation_are_understood():
    """They take processes and machines; tests/federation/flower runs them. Here: their options exist."""
    given = [words for path in DOCUMENTS for words in not_run(path) if words[0] == "pfedhgp"]
    commands, seen = all_commands(), set()
    for _, name, *options in given:
        if name in FEDERATION:
            commands[name].make_context(name, list(options))
            seen.add(name)
    assert seen == set(FEDERATION)


def test_settings_of_a_server_are_settings(tmp_path):
    from pfedhgp.federation.agreement import Agreement

    given = [b for b in blocks(ROOT / "docs" / "deploy.md") if b.language == "toml"]
    assert len(given) >= 3
    for block in given:
        if "masks" in block.text and find_spec("cryptography") is None:
            continue  # it comes with Flower
        (tmp_path / "run.toml").write_text(block.text, "utf-8")
        agreed = Agreement.of(configs.check(configs.read_config(tmp_path / "run.toml")))
        assert Agreement.from_json(agreed.to_json()).plan.to_json() == agreed.plan.to_json()


def test_what_is_not_run_is_known():
    skipped = [
        " ".join(words)
        for path in DOCUMENTS
        for words in not_run(path)
        if words[1] not in FEDERATION and path.name != "deploy.md"
    ]
    assert skipped == [
        "python3 -m pip install .",
        "pfedhgp reproduce tonnage --data simulated --seed 200 --out PRESS",
        "pfedhgp reproduce tonnage --data hydraulic:valve --none --out VALVE",
        "pfedhgp reproduce tonnage --data runs:3x6 --models pfedhgp,lda --out RUNS",
        "pfedhgp update RUN new.csv",
        "pfedhgp update RUN new.csv --retrain old.csv --rounds 5",
        "pfedhgp forget RUN --client Dongsi",
        "pfedhgp forget RUN march.csv --client Dongsi --from 2014-03-05",
        "pfedhgp forecast RUN --horizon 3d --out ahead.csv",
        "pfedhgp forecast RUN --horizon 3d --backtest 5 --data rows.csv --season 1d",
        "pfedhgp watch RUN today.csv",
        "pfedhgp watch RUN today.csv --once",
        "pfedhgp reproduce synthetic --runs 30 --out STUDY",
        "pfedhgp reproduce stability --out SPLIT",
        "pfedhgp reproduce airquality --data PRSA_Data_20130301-20150228.zip --year 2013 --out results-2013",
        "pfedhgp reproduce airquality --data PRSA_Data_20130301-20150228.zip --hours all --out results-hours",
    ]
    for command in skipped[1:]:  # at least, they are commands
        _, group, *words = command.split()
        if group != "reproduce":
            all_commands()[group].make_context(group, words)
            continue
        name, *options = words
        found = all_commands()[group].commands[name]
        assert str(found.make_context(name, list(options)).params["out"]) == options[-1]


def test_every_check_belongs_to_a_command():
    given = [
        " ".join(words[1:])
        for path in DOCUMENTS
        for block in blocks(path)
        if block.language == "sh"
        for words in block.commands
    ]
    for start in CHECKS:
        assert any(text.startswith(start) for text in given), start


def test_commands_are_in_fences():
    """What is indented is an equation; a command there would escape the tests."""
    for path in DOCUMENTS:
        assert not re.findall(r"^    +(?:pfedhgp|make|python3?|pip) .*$", prose(path), flags=re.M)


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "CHANGELOG.md"], ids=name_of)
def test_commands_and_options_in_the_text_exist(path):
    commands = all_commands()
    options = {"--help", "--version"}
    inner = [each for c in commands.values() for each in getattr(c, "commands", {}).values()]
    for command in (*commands.values(), *inner):
        for parameter in command.params:
            options |= {*parameter.opts, *parameter.secondary_opts}
    for code in inline_code(path):
        if named := re.match(r"pfedhgp ([a-z-]+)", code):
            assert named[1] in commands, code
        if named := re.match(r"make ([a-z-]+)", code):
            assert named[1] in TARGETS, code
        if named := re.match(r"python3? -m ((?:bench|pfedhgp)[\w.]*)", code):
            folder = ROOT / "src" if named[1].startswith("pfedhgp") else ROOT
            module = folder / named[1].replace(".", "/")
            assert module.is_dir() or module.with_suffix(".py").is_file(), code
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", code):
            assert option in options, code


@pytest.mark.parametrize(
    "path", [*DOCUMENTS, ROOT / "CHANGELOG.md", ROOT / "CITATION.cff"], ids=name_of
)
def test_links_lead_somewhere(path):
    for link in links(path):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


WRITTEN = [path for path in DOCUMENTS if "Do not edit." not in path.read_text("utf-8")]


@pytest.mark.parametrize("path", WRITTEN, ids=name_of)
def test_lines_of_text_are_short(path):
    """Below 100 characters, but for tables, pictures, remarks and what a script or a study makes."""
    written = re.sub(r"^<!-- (\w+) -->$.*?^<!-- end \1 -->$", "", prose(path), flags=re.M | re.S)
    exempt = ("|", "<!--", "![")
    long = [line for line in written.splitlines() if len(line) >= 100]
    assert not [line for line in long if not line.lstrip().startswith(exempt)]


def test_the_picture_is_small_and_a_picture():
    content = (ROOT / "docs" / "images" / "report.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(content) < 300_000


def test_public_names_are_in_the_api_and_explain_themselves():
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    for name in set(pfedhgp.__all__) - {"__version__"}:
        assert f"`pfedhgp.{name}`" in text
        assert getattr(pfedhgp, name).__doc__
    for name in reference_modules():
        assert f"`pfedhgp.{name}" in text, name
        module = importlib.import_module(f"pfedhgp.{name}")
        assert module.__doc__
    for name in re.findall(r"`pfedhgp\.([\w.]+)`", text):
        assert resolved(name).__doc__, name


def resolved(name: str) -> object:
    """What `pfedhgp.name` is: a module, or something in one."""
    try:
        return importlib.import_module(f"pfedhgp.{name}")
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(resolved(module) if module else pfedhgp, attribute)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_names_in_the_code_exist(path):
    """Dotted names, and files of the source by their path."""
    for code in inline_code(path):
        if named := re.fullmatch(r"pfedhgp\.(?!federation\.flower)([\w.]+)", code):
            assert resolved(named[1]) is not None, code
        if re.fullmatch(r"[\w/]+\.py", code):
            assert (ROOT / code).is_file() or (ROOT / "src" / "pfedhgp" / code).is_file(), code


def test_the_drawing_names_modules_that_exist():
    """`package: module, module`, `package`, or several of these; a line that ends in `,` or `:` goes on."""
    drawing = (ROOT / "docs" / "images" / "architecture.svg").read_text("utf-8")
    lines = re.findall(r'<text class="where[^>]*>([^<]+)</text>', drawing)
    text = re.sub(r"([,:])\n", r"\1 ", "\n".join(lines))
    places = re.split(r"[\n;]", text)
    assert len(places) > 10
    for place in places:
        package, _, modules = (part.strip() for part in place.partition(":"))
        for module in modules.split(",") if modules else [""]:
            assert resolved(f"{package}.{module.strip()}".rstrip(".")).__doc__, place


def reference_modules() -> list[str]:
    """Those in the navigation of the site, but for the package itself and the commands."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    listed = re.findall(r"^ +- pfedhgp\.([\w.]+): reference/\1\.md$", text, flags=re.M)
    assert len(listed) == len(re.findall(r"reference/.*\.md$", text, flags=re.M)) - 2
    return listed


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The Makefile's own command, with this Python, into another folder. A warning is an error."""
    for part in ("mkdocs", "material", "mkdocstrings"):
        require(part)
    assert shutil.which("make"), "the documents say that make is there"
    listing = subprocess.run(
        ["make", "-n", "docs"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (line,) = [line for line in listing.stdout.splitlines() if "-m mkdocs build" in line]
    out = tmp_path_factory.mktemp("site")
    command = line.replace(".venv-docs/bin/python", sys.executable).replace("build/site", str(out))
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.slow
def test_the_site_has_every_page_and_the_reference(site):
    """Links between them are the builder's to check."""
    for path in DOCUMENTS:
        name = path.relative_to(ROOT / "docs") if path != ROOT / "README.md" else Path("index.md")
        page = "index.html" if name.name == "README.md" else f"{name.stem}.html"
        assert (site / name.parent / page).is_file(), path
    reference = (site / "reference" / "pfedhgp.html").read_text("utf-8")
    for name in set(pfedhgp.__all__) - {"__version__"}:
        assert f'id="pfedhgp.{name}"' in reference
    for name in reference_modules():
        page = (site / "reference" / f"{name}.html").read_text("utf-8")
        assert f'id="pfedhgp.{name}"' in page, name
    commands = (site / "reference" / "commands.html").read_text("utf-8")
    for name in all_commands():
        assert f"Usage: pfedhgp {name} " in commands
    home = (site / "index.html").read_text("utf-8")
    assert 'href="files/examples/fill_gaps.html"' in home  # a link that leaves docs/
    assert (site / "files" / "examples" / "fill_gaps.html").is_file()


@pytest.mark.slow
def test_the_site_takes_nothing_from_the_web(site):
    """Scripts, styles, fonts and pictures are its own; only links that a reader clicks lead out."""
    loads = re.compile(
        r'<(?:script|img|iframe|source)[^>]* src="([^"]*)"|<link[^>]* href="([^"]*)"'
    )
    seen = 0
    for path in site.rglob("*.html"):
        for pair in loads.findall(path.read_text("utf-8")):
            target = "".join(pair)
            assert not re.match(r"(https?:)?//", target), f"{path.name}: {target}"
            seen += 1
    assert seen > 100
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert not re.findall(r"url\([\"']?https?:|@import", styles)


def test_blocks_are_understood(tmp_path):
    path = tmp_path / "a.md"
    path.write_text(
        "```sh\nmake a  # b\npfedhgp fit \\\n  --out X\n```\n\n```text\nyes 3.5\n```\n\n"
        "<!-- not run: why -->\n```python\n1\n```\n"
    )
    first, second = blocks(path)
    assert first.commands == [["make", "a"], ["pfedhgp", "fit", "--out", "X"]]
    assert (first.printed, first.reason) == ("yes 3.5\n", None)
    assert (second.language, second.printed, second.reason) == ("python", None, "why")
    for wrong in ("```text\nalone\n```\n", "```ruby\n```\n", "```sh\nopen\n"):
        path.write_text(wrong)
        with pytest.raises(ValueError, match=r"a\.md, line 1"):
            blocks(path)


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("a 10 b 2.46", "a 10 b 2.47", True),
        ("a 10 b 2.46", "a 11 b 2.46", False),  # whole numbers are counts
        ("a 10 b 2.46", "a 10 b 2.56", False),
        ("a 10 b 2.46", "a 10 c 2.46", False),
        ("a 0.938", "a 0.906", False),  # one row of 32 more outside its interval
        ("bound -25.80", "bound 25.80", False),
        ("1.5e-3", "1.51e-3", True),
        ("1.5e-3", "1.5e-2", False),
        ("(40, 1)", "(41, 1)", False),
        ("x 1", "x 1 2", False),
    ],
)
def test_numbers_are_compared(printed, expected, same):
    assert agree(printed, expected) is same


def test_only_seconds_are_the_machines():
    assert lines_of("fitted in  29 s: 10 rounds\n\n b2 ") == ["fitted in # s: 10 rounds", "b2"]


def test_a_wrong_example_is_noticed(reader):
    said = Block("a.md", 1, "python", "print('round 3, bound -2.31, 7 s')\n")
    for right in ("round 3, bound -2.31, 9 s\n", "round 3, bound -2.33, 7 s\n"):
        reader.follow(Block(**{**vars(said), "printed": right}))
    for wrong in ("round 4, bound -2.31, 7 s\n", "round 3, bound -2.40, 7 s\n", "other 3\n"):
        with pytest.raises(AssertionError, match="was not printed"):
            reader.follow(Block(**{**vars(said), "printed": wrong}))
    with pytest.raises(AssertionError, match="nothing is checked"):
        reader.follow(said)
    with pytest.raises(AssertionError, match="no such target"):
        reader.follow(Block("a.md", 1, "sh", "make nonsense\n"))
    with pytest.raises(AssertionError, match="is not run"):
        reader.follow(Block("a.md", 1, "sh", "curl x\n"))


def test_the_table_of_several_rows_is_what_the_accounting_finds():
    """Rounded up: k rows of one person at ε = 1."""
    text = (ROOT / "docs" / "differential_privacy.md").read_text("utf-8")
    counts, found = (
        [float(cell) for cell in re.search(rf"\| {name} \|(.*)\|", text)[1].split("|")]
        for name in ("rows of one person", "ε of all of them")
    )
    assert len(counts) == 7
    for rows, shown in zip(counts, found, strict=True):
        exact = of_rows(1.0, 1e-6, int(rows))
        assert shown == pytest.approx(exact, abs=0.1)
        assert shown >= exact - 3e-4
