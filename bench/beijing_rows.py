"""Beijing's stations with the standard library alone, for machines that have no polars.

The file is UCI's zip, one CSV a station. Values are as in `pfedhgp.studies.airquality.stations`.
"""

from __future__ import annotations

import csv
import io
import zipfile
from datetime import date

import numpy as np

BEGIN = date(2013, 1, 1)


def stations(data: str, column: str, hours: list[int]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{station: (days since 1 January 2013, values with NaN)}, of these hours of the day."""
    found = {}
    with zipfile.ZipFile(data) as archive:
        for name in sorted(each for each in archive.namelist() if each.endswith(".csv")):
            with archive.open(name) as file:
                rows = [
                    (
                        (date(int(r["year"]), int(r["month"]), int(r["day"])) - BEGIN).days
                        + int(r["hour"]) / 24.0,
                        float("nan") if r[column] == "NA" else float(r[column]),
                        r["station"],
                    )
                    for r in csv.DictReader(io.TextIOWrapper(file, "utf-8"))
                    if int(r["hour"]) in hours
                ]
            found[rows[0][2]] = tuple(np.array([row[k] for row in rows]) for k in (0, 1))
    return found  # type: ignore[return-value]
