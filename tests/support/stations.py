"""Made-up stations in the layout of the Beijing files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pfedhgp.studies.airquality.stations import HEADER, ZONES


def write_stations(folder: Path, days: int = 60) -> None:
    """Twelve files of UCI's layout: a common wave, one more a zone, hours 2 and 14 alone."""
    rng = np.random.default_rng(0)
    t = np.arange(2 * days) / 2.0
    common = np.cumsum(rng.normal(size=2 * days))
    waves = {zone: np.sin((2 + i) * t) for i, zone in enumerate(("Urban", "West", "East"))}
    for name, zone in ZONES.items():
        values = 60.0 * np.exp(
            0.3 * common / common.std() + 0.5 * waves[zone] + 0.1 * rng.normal(size=len(t))
        )
        lines = [",".join(HEADER)]
        for i, value in enumerate(values):
            date = np.datetime64("2014-01-01") + i // 2
            _, month, day = str(date).split("-")
            cell = "NA" if rng.uniform() < 0.03 else f"{value:.0f}"
            lines.append(
                f"{i},2014,{int(month)},{int(day)},{2 + 12 * (i % 2)},{cell},1,1,1,1,1,1,1,1,1,N,1,{name}"
            )
        path = folder / f"PRSA_Data_{name}_20130301-20170228.csv"
        path.write_text("\n".join(lines) + "\n")
