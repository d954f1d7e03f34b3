"""All hours: one clock, held-out days, and what the command refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pfedhgp.cli.main import main
from pfedhgp.studies.airquality import hours as air_hours
from pfedhgp.studies.airquality.stations import years_of
from support.stations import write_stations


def test_stations_share_a_clock_and_lose_whole_days(tmp_path: Path) -> None:
    write_stations(tmp_path, days=20)
    assert years_of(tmp_path) == [2014]
    hours = air_hours.hours_of(air_hours.AllHours(), tmp_path)
    assert len(hours.values) == 12
    assert hours.values["Dongsi"].shape == (40, 2)
    assert np.nanmax(hours.values["Dongsi"][:, 0]) < 8.0  # of the logarithm
    np.testing.assert_array_equal(hours.values["Dongsi"][:, 1], 1.0)
    kept, held = air_hours.split(hours, share=0.1, seed=0)
    for name, out in held.items():
        assert len(np.unique(np.floor(hours.days[out]))) == 2
        assert out.sum() == 4
        assert np.isnan(kept.values[name][out]).all()
        np.testing.assert_array_equal(kept.values[name][~out], hours.values[name][~out])


def test_scores_are_over_held_out_cells_that_were_seen() -> None:
    days = np.arange(4.0)
    truth = np.array([[1.0, 0.0], [np.nan, 2.0], [3.0, 4.0], [5.0, 6.0]])
    held = {"a": np.array([True, True, False, True])}
    found = {"a": (np.zeros((3, 2)), np.ones((3, 2)))}
    scores = air_hours.scores(air_hours.Hours(days, {"a": truth}), held, found)
    assert scores["PM2.5"]["rmse"] == pytest.approx(np.sqrt((1 + 25) / 2))
    assert scores["TEMP"]["rmse"] == pytest.approx(np.sqrt((0 + 4 + 36) / 3))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--hours", "25"], "from 0 to 23"),
        (["--hours", "two"], "from 0 to 23"),
        (["--hours", "2,2"], "from 0 to 23"),
        ([], "--year"),
        (["--hours", "all", "--year", "2016"], "no rows of 2016"),
        (["--hours", "all"], "too few"),
        (["--year", "2014", "--sparse", "-1"], "--sparse"),
    ],
)
def test_bad_options_are_one_line_and_code_2(
    tmp_path: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_stations(tmp_path, days=3)
    out = tmp_path / "out"
    year = [] if "--year" in options or "all" in options or not options else ["--year", "2014"]
    command = ["reproduce", "airquality", "--data", str(tmp_path), "--out", str(out), *year]
    assert main([*command, *options]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert words in lines[0]
    assert not out.exists()
