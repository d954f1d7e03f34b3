"""The air-quality loader: its three layouts, and what it refuses, on files made here."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pfedhgp.errors import InputError
from pfedhgp.studies.airquality import stations as beijing

NAMES = ("Dongsi", "Shunyi")


def csv(
    name: str, *, header: str | None = None, values: tuple[str, ...] = ("7", "NA", "9")
) -> bytes:
    lines = [header or ",".join(f'"{column}"' for column in beijing.HEADER)]
    for i, value in enumerate(values):
        lines.append(
            f'{i + 1},2014,1,2,{2 * i},{value},9,3,17,300,89,-0.5,1024.5,-21.4,0,"NNW",5.7,"{name}"'
        )
    return ("\n".join(lines) + "\n").encode()


def file_name(name: str) -> str:
    return f"PRSA_Data_{name}_20130301-20170228.csv"


def folder(path: Path, **changed: bytes) -> Path:
    for name in NAMES:
        (path / file_name(name)).write_bytes(changed.get(name, csv(name)))
    return path


def zipped(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return target.getvalue()


def load(source: Path, **more: object) -> list[beijing.Station]:
    settings = {"years": [2014], "stations": NAMES, **more}
    return beijing.load_stations(source, **settings)  # type: ignore[arg-type]


def test_a_folder_a_zip_and_a_zip_in_a_zip_are_the_same(tmp_path: Path) -> None:
    inner = zipped({f"PRSA/{file_name(name)}": csv(name) for name in NAMES})
    (tmp_path / "one.zip").write_bytes(inner)
    (tmp_path / "two.zip").write_bytes(zipped({"PRSA2017.zip": inner, "notes.csv": b"x"}))
    (tmp_path / "folder").mkdir()
    for source in ("one.zip", "two.zip"):
        found = load(tmp_path / source)
        assert [station.name for station in found] == list(NAMES)
        np.testing.assert_array_equal(found[0].days, [1.0, 1.0 + 2 / 24, 1.0 + 4 / 24])
        np.testing.assert_array_equal(found[0].values[:, 0], [7.0, np.nan, 9.0])
    plain = load(folder(tmp_path / "folder"), hours=[4], columns=("TEMP", "PM2.5"))
    np.testing.assert_array_equal(plain[1].values, [[-0.5, 9.0]])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"Shunyi": csv("Shunyi", header="No,year,month,day,hour,PM25")}, "no column 'PM2.5'"),
        ({"Shunyi": csv("Shunyi", values=("NA", "NA"))}, "all of PM2.5 is missing in 2014"),
        ({"Shunyi": csv("Shunyi", values=())}, "a header and no rows"),
        (
            {"Shunyi": csv("Shunyi", header=",".join([*beijing.HEADER[:-1], "year"]))},
            "no column 'station'",
        ),
        (
            {"Shunyi": csv("Shunyi", header=",".join([*beijing.HEADER, "year"]))},
            "column 'year' comes twice",
        ),
        ({"Shunyi": csv("Shunyi", values=("7", "high"))}, "line 3: PM2.5 is not a number"),
    ],
)
def test_a_bad_file_is_refused_by_its_name(tmp_path: Path, change: dict, words: str) -> None:
    with pytest.raises(InputError, match="Shunyi") as refusal:
        load(folder(tmp_path, **change))
    assert words in str(refusal.value)


def test_a_missing_station_year_folder_and_zip_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file for station 'Tiantan'"):
        load(folder(tmp_path), stations=(*NAMES, "Tiantan"))
    with pytest.raises(InputError, match="no rows of 2016; the file has 2014 to 2014"):
        load(tmp_path, years=[2016])
    with pytest.raises(InputError, match="no such file or folder"):
        load(tmp_path / "nowhere")
    (tmp_path / "broken.zip").write_bytes(b"not a zip")
    with pytest.raises(InputError, match="not a zip file"):
        load(tmp_path / "broken.zip")
    with pytest.raises(InputError, match="no column 'PM1'"):
        load(tmp_path, columns=("PM1",))


def test_spaces_in_the_header_are_none_of_its_names(tmp_path: Path) -> None:
    changed = csv("Shunyi", header=", ".join(beijing.HEADER))
    found = load(folder(tmp_path, Shunyi=changed))
    np.testing.assert_array_equal(found[1].values[:, 0], [7.0, np.nan, 9.0])


def test_a_damaged_archive_is_one_line(tmp_path: Path) -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in NAMES:
            archive.writestr(file_name(name), csv(name, values=("7", "8") * 6))
    broken = bytearray(whole.getvalue())
    start = 30 + len(file_name(NAMES[0]))
    broken[start : start + 40] = bytes(40)
    (tmp_path / "one.zip").write_bytes(bytes(broken))
    with pytest.raises(InputError, match="not a zip file that can be read"):
        load(tmp_path / "one.zip")
