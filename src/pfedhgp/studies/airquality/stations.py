"""The Beijing multi-site air-quality data in UCI's layout: a folder, a zip, or a zip inside a zip.

One CSV a station, hourly, with UCI's header and NA for missing. (UCI 501, Song Xi Chen, CC BY 4.0.)
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from pfedhgp.errors import InputError

HEADER = (
    *("No", "year", "month", "day", "hour", "PM2.5", "PM10", "SO2", "NO2", "CO", "O3"),
    *("TEMP", "PRES", "DEWP", "RAIN", "wd", "WSPM", "station"),
)
CONCENTRATIONS = ("PM2.5", "PM10", "SO2", "NO2", "CO", "O3")
NUMBERS = tuple(name for name in HEADER if name not in ("No", "wd", "station"))
FILE = re.compile(r"PRSA_Data_([A-Za-z]+)_\d{8}-\d{8}\.csv")
STATIONS = {
    "Aotizhongxin": ("Urban", 39.982, 116.397),
    "Changping": ("West", 40.217, 116.230),
    "Dingling": ("West", 40.292, 116.220),
    "Dongsi": ("Urban", 39.929, 116.417),
    "Guanyuan": ("Urban", 39.929, 116.339),
    "Gucheng": ("Urban", 39.914, 116.184),
    "Huairou": ("East", 40.328, 116.628),
    "Nongzhanguan": ("Urban", 39.937, 116.461),
    "Shunyi": ("East", 40.127, 116.655),
    "Tiantan": ("Urban", 39.886, 116.407),
    "Wanliu": ("Urban", 39.987, 116.287),
    "Wanshouxigong": ("Urban", 39.878, 116.352),
}
"""The paper's three zones, and approximate latitude and longitude."""
ZONES = {name: zone for name, (zone, _, _) in STATIONS.items()}
COORDINATES = {name: (latitude, longitude) for name, (_, latitude, longitude) in STATIONS.items()}
"""For maps only; no model sees them."""
ATTRIBUTION = (
    "Data: Beijing Multi-Site Air-Quality, Song Xi Chen, UCI Machine Learning Repository 501, CC BY 4.0. "
    "Station coordinates are approximate and are used for maps alone."
)
LARGEST_FILE = 200 * 2**20


@dataclass(frozen=True, eq=False)
class Station:
    """One station's hours: `days` since 1 January of the first year, `values` (n, Q) with NaN if missing."""

    name: str
    days: np.ndarray
    hour: np.ndarray
    values: np.ndarray


def load_stations(
    source: str | Path,
    *,
    years: Sequence[int],
    columns: Sequence[str] = ("PM2.5",),
    hours: Sequence[int] | None = None,
    stations: Sequence[str] = tuple(ZONES),
) -> list[Station]:
    """The stations in the order of `stations`; each must have a file, with values.

    `hours` selects hours of the day. Rows without any value are kept, as NaN.
    """
    unknown = [name for name in columns if name not in NUMBERS]
    if unknown:
        raise InputError(
            f"no column {unknown[0]!r} in the air-quality data; it has {', '.join(NUMBERS)}"
        )
    texts: dict[str, tuple[str, bytes]] = {}
    for name, found in _files(Path(source)):
        if name in texts:
            raise InputError(
                f"{source}: two files for station {name!r}, {texts[name][0]} and {found[0]}: keep one"
            )
        texts[name] = found
    missing = [name for name in stations if name not in texts]
    if missing:
        raise InputError(
            f"{source}: no file for station {missing[0]!r} (PRSA_Data_{missing[0]}_….csv); "
            f"{len(missing)} of {len(stations)} stations are missing"
        )
    return [_station(name, *texts[name], tuple(years), tuple(columns), hours) for name in stations]


def years_of(source: str | Path) -> list[int]:
    """The years of the first station's file."""
    for _, (where, text) in _files(Path(source)):
        return sorted({int(year) for year in _read(where, text)["year"].unique()})
    raise InputError(f"{source}: no station's file (PRSA_Data_….csv)")


def _station(
    name: str,
    where: str,
    text: bytes,
    years: tuple[int, ...],
    columns: tuple[str, ...],
    hours: Sequence[int] | None,
) -> Station:
    frame = _read(where, text)
    for column in CONCENTRATIONS:
        below = frame[column] < 0
        if column in columns and below.any():
            line = below.arg_true()[0] + 2
            raise InputError(f"{where}, line {line}: {column} is negative; NA is a missing value")
    there = sorted(frame["year"].unique().to_list())
    frame = frame.filter(pl.col("year").is_in([float(year) for year in years]))
    if not len(frame):
        raise InputError(
            f"{where}: no rows of {_listed(years)}; the file has {there[0]:g} to {there[-1]:g}"
        )
    if hours is not None:
        there = sorted(frame["hour"].unique().to_list())
        lost = [hour for hour in hours if float(hour) not in there]
        if lost:
            raise InputError(
                f"{where}: no rows of hour {lost[0]} in {_listed(years)}; the file has hours "
                f"{', '.join(f'{hour:g}' for hour in there)}"
            )
        frame = frame.filter(pl.col("hour").is_in([float(hour) for hour in hours]))
    values = frame.select(columns).to_numpy().astype(np.float64)
    empty = [column for q, column in enumerate(columns) if not np.isfinite(values[:, q]).any()]
    if empty:
        when = "" if hours is None else f" at hours {', '.join(map(str, hours))}"
        raise InputError(f"{where}: all of {empty[0]} is missing in {_listed(years)}{when}")
    parts = [frame[part].to_numpy().astype(np.int64) for part in ("year", "month", "day", "hour")]
    try:
        dates = np.array(
            [f"{y:04d}-{m:02d}-{d:02d}" for y, m, d in zip(*parts[:3], strict=True)],
            "datetime64[D]",
        )
    except ValueError as error:
        raise InputError(f"{where}: not a date: {error}") from None
    days = (dates - np.datetime64(f"{min(years):04d}-01-01")).astype(np.float64) + parts[3] / 24.0
    order = np.argsort(days, kind="stable")
    if np.any(np.diff(days[order]) <= 0):
        raise InputError(f"{where}: an hour comes twice in {_listed(years)}")
    return Station(name, days[order], parts[3][order], values[order])


def _read(where: str, text: bytes) -> pl.DataFrame:
    first = text.split(b"\n", 1)[0].decode("utf-8", "replace").strip().lstrip("\ufeff")
    columns = [name.strip().strip('"') for name in first.split(",")]
    lost = [name for name in HEADER if name not in columns]
    if lost:
        raise InputError(f"{where}: no column {lost[0]!r}; UCI's header is {', '.join(HEADER)}")
    twice = [name for i, name in enumerate(columns) if name in columns[:i]]
    if twice:
        raise InputError(f"{where}: column {twice[0]!r} comes twice")
    try:
        frame = pl.read_csv(
            io.BytesIO(text),
            null_values=["NA", ""],
            infer_schema=False,
            truncate_ragged_lines=False,
        )
    except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: not a CSV file ({str(error).splitlines()[0]})") from None
    if not len(frame):
        raise InputError(f"{where}: a header and no rows")
    frame.columns = columns
    numbers = frame.select(pl.col(NUMBERS).cast(pl.Float64, strict=False))
    for name in NUMBERS:
        broken = frame[name].is_not_null() & numbers[name].is_null()
        clock = name in ("year", "month", "day", "hour")
        bad = broken | frame[name].is_null() if clock else broken
        if bad.any():
            raise InputError(f"{where}, line {bad.arg_true()[0] + 2}: {name} is not a number")
    return numbers


def _files(source: Path) -> Iterator[tuple[str, tuple[str, bytes]]]:
    """(station, (where, bytes)) of every station's file in a folder, a zip, or zips inside either."""
    if not source.exists():
        raise InputError(f"{source}: no such file or folder")
    if source.is_dir():
        found = sorted(p for p in source.rglob("*") if p.is_file())
        for path in found:
            match = FILE.fullmatch(path.name)
            if match:
                yield match[1], (str(path), path.read_bytes())
            elif path.suffix == ".zip":
                yield from _zipped(str(path), path.read_bytes(), depth=0)
        return
    if source.suffix != ".zip":
        raise InputError(f"{source}: neither a folder nor a .zip file")
    yield from _zipped(str(source), source.read_bytes(), depth=0)


def _zipped(where: str, data: bytes, *, depth: int) -> Iterator[tuple[str, tuple[str, bytes]]]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in sorted(archive.infolist(), key=lambda e: e.filename):
                name = entry.filename.rsplit("/", 1)[-1]
                match = FILE.fullmatch(name)
                inner = name.endswith(".zip") and depth == 0
                if not match and not inner:
                    continue
                if entry.file_size > LARGEST_FILE:
                    raise InputError(f"{where}: {entry.filename} is larger than 200 MiB unpacked")
                content = archive.read(entry)
                if match:
                    yield match[1], (f"{where}:{entry.filename}", content)
                else:
                    yield from _zipped(f"{where}:{entry.filename}", content, depth=1)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, zlib.error, EOFError) as error:
        raise InputError(f"{where}: not a zip file that can be read ({error})") from None


def _listed(years: Sequence[int]) -> str:
    return " and ".join(str(year) for year in years)
