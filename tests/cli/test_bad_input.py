"""Bad input is refused by one line that names file, row and column, with exit code 2 and nothing written."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys

import polars as pl
import pytest

HEADER = "site,time,y\n"
GOOD = HEADER + "a,0,1.5\na,1,2.5\nb,0,3.5\nb,1,4.5\n"
OPTIONS = ("--client", "site", "--input", "time", "--output", "y")

# What is in the file (text is written as UTF-8), and what the line must say.
REFUSED = {
    "empty file": (b"", ["d.csv", "empty"]),
    "blank file": (b"\n \n", ["d.csv", "empty"]),
    "header only": (HEADER, ["d.csv", "no rows"]),
    "semicolons": (GOOD.replace(",", ";"), ["d.csv", "';'", "--delimiter ';'"]),
    "tabs": (GOOD.replace(",", "\t"), ["d.csv", "tab", "--delimiter tab"]),
    "semicolons and decimal commas": (
        "site;time;y\na;0;1,5\na;1;2,5\n",
        ["d.csv", "--delimiter ';'"],
    ),
    "decimal comma, quoted": (
        HEADER + 'a,0,"1,5"\na,1,2.5\n',
        ["d.csv", "row 1 (line 2)", "'y'", "decimal comma"],
    ),
    "decimal comma, bare": (
        HEADER + "a,0,1,5\na,1,2,5\n",
        ["d.csv", "row 1 (line 2)", "4 fields", "decimal commas"],
    ),
    "thousands separators": (
        HEADER + 'a,0,1.5\na,1,"8,765.4"\n',
        ["d.csv", "row 2 (line 3)", "'y'", "thousands"],
    ),
    "thousands without a point": (
        HEADER + 'a,0,"12,345"\na,1,2\n',
        ["d.csv", "row 1 (line 2)", "'y'", "thousands"],
    ),
    "UTF-16 with a mark": (GOOD.encode("utf-16"), ["d.csv", "UTF-16", "iconv"]),
    "UTF-16 without a mark": (GOOD.encode("utf-16-le"), ["d.csv", "UTF-16", "iconv"]),
    "UTF-16 without a mark, big end first": (GOOD.encode("utf-16-be"), ["d.csv", "-f UTF-16BE"]),
    "UTF-32 with a mark": (GOOD.encode("utf-32"), ["d.csv", "UTF-32", "iconv -f UTF-32 "]),
    "UTF-32, little end first": (GOOD.encode("utf-32-le"), ["d.csv", "UTF-32,", "-f UTF-32LE"]),
    "UTF-32, big end first": (GOOD.encode("utf-32-be"), ["d.csv", "UTF-32,", "-f UTF-32BE"]),
    "GB18030": (
        GOOD.replace("b,0", "北京东四,0").encode("gb18030"),
        ["d.csv", "line 4", "GB18030", "iconv -f GB18030 "],
    ),
    "spaces": (GOOD.replace(",", " "), ["d.csv", "separated by spaces", "--delimiter space"]),
    "aligned by spaces": (
        "".join(f"{' '.join(f'{w:>6}' for w in line.split(','))} \n" for line in GOOD.split()),
        ["d.csv", "several spaces", "sed -E"],
    ),
    "remarks on top": (
        f"# by hand; of 2024\n#\n{GOOD}",
        ["d.csv", "lines 1 to 2 are remarks, the header is line 3", "tail -n +3 "],
    ),
    "a title on top": (
        f"Export\n\n{GOOD}",
        ["d.csv", "lines 1 to 2 are something else", "tail -n +3 "],
    ),
    "a header behind a #": (f"# {GOOD}", ["d.csv", "the header, line 1, begins with #", "sed -E"]),
    "remarks, and a header behind a #": (f"# by hand\n#{GOOD}", ["d.csv", "line 2", "sed -E"]),
    "remarks on top of other columns": (
        "# by hand\nsite,when,y\na,0,1\n",
        ["d.csv", "begins with remarks", "line 2", "no column 'time'", "tail -n +2 "],
    ),
    "Latin-1": (
        GOOD.replace("b,0", "Käse,0").encode("latin-1"),
        ["d.csv", "line 4", "Latin-1", "iconv"],
    ),
    "NUL byte": (GOOD.replace("2.5", "2\x005"), ["d.csv", "NUL", "line 3"]),
    "a field too few": (HEADER + "a,0,1\na,1\n", ["d.csv", "row 2 (line 3)", "2 fields", "3"]),
    "a field too many": (HEADER + "a,0,1\n\na,1,2,9\n", ["d.csv", "row 2 (line 4)", "4 fields"]),
    "a field too few, quoted": (
        HEADER + '"a",0,1\n"a\nb",1\n',
        ["d.csv", "row 2 (line 3)", "2 fields"],
    ),
    "unterminated quote": (HEADER + 'a,0,1\n"a,1,2\na,2,3\n', ["d.csv", "line 3", "never closed"]),
    "quote inside a field": (HEADER + 'a,0,1\n"a"b,1,2\n', ["d.csv", "line 3", "quote"]),
    "duplicate column": (
        "site,time,time,y\na,0,0,1\n",
        ["d.csv: column 'time' is there 2 times: rename or remove one"],
    ),
    "missing column": (
        "site,time,why\na,0,1\na,1,2\n",
        ["d.csv", "no column 'y'", "site, time, why"],
    ),
    "text in an output": (
        HEADER + "a,0,1\na,1,many\n",
        ["d.csv", "row 2 (line 3)", "'y'", "text instead of a number"],
    ),
    "text in an input": (
        HEADER + "a,0,1\na,soon,2\n",
        ["d.csv", "row 2 (line 3)", "'time'", "text instead of a number", "an input must be"],
    ),
    "NaN in an input": (HEADER + "a,0,1\na,NaN,2\n", ["row 2 (line 3)", "'time'", "missing"]),
    "empty input": (HEADER + "a,0,1\na,,2\n", ["row 2 (line 3)", "'time'", "missing"]),
    "inf in an input": (HEADER + "a,0,1\na,inf,2\n", ["row 2 (line 3)", "'time'", "infinite"]),
    "inf in an output": (HEADER + "a,0,1\na,1,-inf\n", ["row 2 (line 3)", "'y'", "infinite"]),
    "1e400": (HEADER + "a,0,1\na,1,1e400\n", ["row 2 (line 3)", "'y'", "largest number"]),
    "mixed zones": (
        HEADER + "a,2024-01-01T00:00:00Z,1\na,2024-01-01T01:00:00,2\n",
        ["row 2 (line 3)", "'time'", "time zone", "mixed"],
    ),
    "ambiguous dates": (
        HEADER + "a,03/04/2024,1\na,04/04/2024,2\n",
        ["row 1 (line 2)", "'time'", "--datetime-format", "%d/%m/%Y", "%m/%d/%Y"],
    ),
    "dates by month that give themselves away": (
        HEADER + "a,03/04/2024,1\na,04/24/2024,2\n",
        ["'time'", "--datetime-format '%m/%d/%Y'"],
    ),
    "no such time zone": (
        HEADER + "a,2024-03-01T00:00+01:00,1\na,2024-03-01T01:00+25:99,2\n",
        ["row 2 (line 3)", "'time'", "no such time zone", "from -12:00 to +14:00"],
    ),
    "no such date": (
        HEADER + "a,2024-02-28,1\na,2024-02-30,2\n",
        ["row 2 (line 3)", "'time'", "no such date"],
    ),
    "a date that is missing": (HEADER + "a,2024-02-28,1\na,NA,2\n", ["row 2 (line 3)", "missing"]),
    "one row in all": (HEADER + "a,0,1\n", ["one row in all"]),
    "no name for a client": (HEADER + "a,0,1\n,1,2\n", ["row 2 (line 3)", "'site'", "name"]),
    "no observed output": (HEADER + "a,0,\na,1,NA\n", ["no client has an observed output"]),
    "steps too small for doubles": (
        HEADER + f"a,{2**63 + 10},1\na,{2**63 + 20},2\n",
        ["no input varies", "time", "in steps of 2048", "subtract an offset"],
    ),
    "no input varies": (HEADER + "a,1,1\na,1,2\n", ["no input varies", "time"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_tables_are_refused(case, run, tmp_path):
    content, said = REFUSED[case]
    path = tmp_path / "d.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    done = run("fit", path, *OPTIONS, "--out", tmp_path / "RUN")
    line = done.complaint
    for words in said:
        assert words in line
    if case == "header only":
        assert done.err.count("\n") == 1
    assert not any(value in line for value in ("many", "soon", "8,765", "12,345", "1e400", "03/04"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.csv"]


COMMAND = re.compile("tail|iconv|-f UTF|sed -E")
FILTERS = [case for case, (_, said) in REFUSED.items() if COMMAND.search(" ".join(said))]


@pytest.mark.parametrize("name", ["d.csv", "it's mine.csv.gz"])
@pytest.mark.parametrize("case", FILTERS)
def test_the_command_that_a_refusal_names_mends_the_file(case, name, run, tmp_path):
    content, _ = REFUSED[case]
    data = content.encode() if isinstance(content, str) else content
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    line = run("fit", path, *OPTIONS, "--out", tmp_path / "RUN").complaint
    (command,) = re.findall("`(.*?)`", line)
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    (mended,) = tmp_path.glob("*-mended.csv")
    # A domain that cannot be is refused last, when the table is known to be in order.
    line = run("fit", mended, *OPTIONS, "--out", tmp_path / "RUN", "--domain", "1..0").complaint
    wanted = (
        "no column 'time'" if case == "remarks on top of other columns" else "LOW must be below"
    )
    assert wanted in line


def test_spaces_may_be_the_delimiter(run, tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(GOOD.replace(",", " "))
    given = ("--delimiter", "space", "--domain", "1..0", "--out", tmp_path / "RUN")
    assert "LOW must be below HIGH" in run("fit", path, *OPTIONS, *given).complaint


@pytest.mark.parametrize("note", ["Ask Anna, she knows.\nOr Ben.\n", "one\ntwo\n", ""])
def test_a_note_in_a_folder_of_tables_is_named_and_how_to_do_without_it(note, run, tmp_path):
    folder = tmp_path / "sites"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.csv").write_text("time,y\n0,1\n1,2\n")
    (folder / "README.txt").write_text(note)
    options = ("--input", "time", "--output", "y", "--out", tmp_path / "RUN", "--domain", "1..0")
    line = run("fit", folder, *options).complaint
    assert "README.txt: not a table like the .csv files beside it" in line
    assert line.endswith(f"name the files: {folder}/*.csv")
    assert "LOW must be below HIGH" in run("fit", *folder.glob("*.csv"), *options).complaint
    (folder / "README.txt").write_text("time,y\n0,1\n1,2\n")
    assert "LOW must be below HIGH" in run("fit", folder, *options).complaint


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("d.csv.gz", gzip.compress(GOOD.encode(), mtime=0)[:-9], ["d.csv.gz", "gzip"]),
        ("d.parquet", b"PAR1 but not really", ["d.parquet", "Parquet"]),
        ("d.feather", b"ARROW1 but not really", ["d.feather", "Feather"]),
        ("d.xlsx", b"PK", ["d.xlsx", ".csv", ".parquet"]),
    ],
)
def test_files_that_are_not_what_they_seem_are_refused(name, content, said, run, tmp_path):
    (tmp_path / name).write_bytes(content)
    line = run("fit", tmp_path / name, *OPTIONS, "--out", tmp_path / "RUN").complaint
    assert all(words in line for words in said)
    assert not (tmp_path / "RUN").exists()


def test_columns_of_other_types_are_refused(run, tmp_path):
    path = tmp_path / "d.parquet"
    frame = {"site": ["a", "a"], "time": [0, 1], "y": [[1.0], [2.0]]}
    pl.DataFrame(frame).write_parquet(path)
    assert "'y' must be numbers" in run("fit", path, *OPTIONS, "--out", tmp_path / "RUN").complaint
    pl.DataFrame({**frame, "y": [1.0, float("inf")]}).write_parquet(path)
    line = run("fit", path, *OPTIONS, "--out", tmp_path / "RUN").complaint
    assert "row 2, column 'y'" in line
    pl.DataFrame({**frame, "y": [1.0, 2.0], "time": [None, 1.0]}).write_parquet(path)
    line = run("fit", path, *OPTIONS, "--out", tmp_path / "RUN").complaint
    assert "row 1, column 'time'" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rounds", "0"], ["--rounds must be a positive whole number, got 0"]),
        (["--kernel", "rfb"], ["--kernel", "'rfb' is not a kernel", "matern52"]),
        (["--kernel", "periodic(1 day)"], ["--kernel", "unit of time", "'time'"]),
        (["--holdout", "random"], ["--holdout", "random:F"]),
        (["--holdout", "last:1.5"], ["--holdout", "0 < F < 1"]),
        (["--noise", "loud"], ["--noise must be one of auto, scalar", "'loud'"]),
        (["--inducing", "many"], ["--inducing"]),
        (
            ["--layers", "global,locale"],
            ["--layers must be some of global, deviation, local, got 'global, locale'"],
        ),
        (["--layers", "deviation,local"], ["--layers", "global"]),
        (["--inference", "mean-field", "--restarts", "2"], ["--restarts", "mean-field"]),
        (["--inference", "magic"], ["--inference", "mean-field"]),
        (["--device", "tpu"], ["--device must be one of cpu, gpu", "'tpu'"]),
        (["--delimiter", "ab"], ["--delimiter", "one character"]),
        (["--domain", "1"], ["--domain 1", "'time'", "0..10"]),
        (["--domain", "0..nan"], ["--domain 0..nan", "0..10"]),
        (["--domain", "1..0"], ["--domain 1..0", "'time'", "LOW must be below HIGH"]),
        (["--domain", "0..0.5"], ["--domain 0..0.5", "client 'a'", "'time'", "widen it"]),
        (["--device", "gpu"], ["--device gpu", "leave --device out"]),
        (["--holdout", "last:0.99"], ["--holdout last:0.99", "'time' does not vary", "less"]),
        (["--input", "y"], ["'y' is used twice"]),
        (["--seed", "-1"], ["--seed"]),
        (["--config", "none.toml"], ["none.toml", "cannot be read"]),
        (["--resume"], ["no stopped run to resume"]),
    ],
)
def test_bad_options_are_refused(arguments, said, run, tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(GOOD)
    line = run("fit", path, *OPTIONS, "--out", tmp_path / "RUN", *arguments).complaint
    assert all(words in line for words in said), line
    assert "device=" not in line
    assert "`domain`" not in line
    assert not (tmp_path / "RUN").exists()


def test_places_where_no_folder_can_be_are_refused(run, tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(GOOD)
    line = run("fit", path, *OPTIONS, "--out", "/proc/nowhere").complaint
    assert "/proc/nowhere: nothing can be written there" in line
    assert (
        "d.csv is a file, not a folder"
        in run("fit", path, *OPTIONS, "--out", path / "RUN").complaint
    )
    assert "File name too long" in run("fit", path, *OPTIONS, "--out", "z" * 300).complaint
    line = run("fit", path, *OPTIONS, "--out", "RUN", "--write-config", tmp_path).complaint
    assert "is a folder" in line
    assert [p.name for p in tmp_path.iterdir()] == ["d.csv"]


@pytest.mark.parametrize("leave", ["DATA", "--input", "--output", "--out"])
def test_what_is_missing_is_named(leave, run, tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(GOOD)
    given = {"--client": "site", "--input": "time", "--output": "y", "--out": tmp_path / "RUN"}
    pairs = [each for option, value in given.items() if option != leave for each in (option, value)]
    files = [] if leave == "DATA" else [path]
    assert leave in run("fit", *files, *pairs).complaint


def test_what_exists_is_not_replaced(run, tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(GOOD)
    out = tmp_path / "RUN"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    for more in ([], ["--overwrite"]):
        line = run("fit", path, *OPTIONS, "--out", out, *more).complaint
        assert "RUN" in line
    assert [p.name for p in out.iterdir()] == ["thesis.tex"]
    (out / "thesis.tex").unlink()
    (out / "spec.json").write_text("{}")
    assert "already exists" in run("fit", path, *OPTIONS, "--out", out).complaint
    (out / "spec.json").unlink()
    (out / "checkpoint" / "000003").mkdir(parents=True)
    line = run("fit", path, *OPTIONS, "--out", out).complaint
    assert "--resume" in line
    assert "--overwrite" in line
    assert (out / "checkpoint" / "000003").is_dir()


def test_folders_and_files_that_are_not_there(run, tmp_path):
    options = ("--input", "time", "--output", "y", "--out", tmp_path / "RUN")
    assert "no such file" in run("fit", tmp_path / "none.csv", *options).complaint
    (tmp_path / "sites").mkdir()
    assert "no file in this folder" in run("fit", tmp_path / "sites", *options).complaint
    (tmp_path / "sites" / "a.csv").write_text("time,y\n0,1\n1,2\n")
    (tmp_path / "sites" / "a.csv.gz").write_bytes(gzip.compress(b"time,y\n0,1\n"))
    line = run("fit", tmp_path / "sites", *options).complaint
    assert "both client 'a'" in line


def test_refusals_do_not_wait_for_jax(tmp_path):
    (tmp_path / "d.csv").write_text(GOOD.replace("2.5", "many"))
    code = (
        "import sys\nfrom pfedhgp.cli.main import main\n"
        f"code = main(['fit', 'd.csv', *{OPTIONS!r}, '--out', 'RUN'])\n"
        "print('jax' in sys.modules, code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout == "False 2\n", done.stderr
