"""Inputs from Python are the numbers that the same text has in a file."""

from __future__ import annotations

import datetime
import warnings
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pytest

from pfedhgp.data import cells
from pfedhgp.data.arrays import inputs_from
from pfedhgp.data.columns import InputColumn
from pfedhgp.data.moments import position, taken_as_utc
from pfedhgp.data.table import Table
from pfedhgp.errors import InputError, PFedHGPWarning

TEXT = ["2024-03-30T23:30:00", "2024-03-31T03:15:00.25", "1969-12-31T12:00:00"]
PLACE = ZoneInfo("Europe/Berlin")


def in_a_file(text: list[str]) -> np.ndarray:
    """What the command line makes of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PFedHGPWarning)
        return cells.seconds(
            Table(Path("f.csv"), pl.DataFrame({"t": text})), InputColumn("t", "datetime")
        )


def naive() -> list[datetime.datetime]:
    return [datetime.datetime.fromisoformat(each) for each in TEXT]


@pytest.mark.parametrize(
    "given",
    [
        np.array(TEXT, "datetime64[us]"),
        np.array(TEXT, "datetime64[ns]")[:, None],
        pd.DatetimeIndex(TEXT),
        pd.Series(pd.DatetimeIndex(TEXT)),
        pd.DataFrame({"t": pd.DatetimeIndex(TEXT)}),
        pd.DataFrame({"t": pd.DatetimeIndex(TEXT).as_unit("ns")}),
        pd.DataFrame({"t": TEXT}),
        pd.DataFrame({"t": np.array(naive(), object)}),
        pd.DatetimeIndex(TEXT).tz_localize("UTC").tz_convert(PLACE),
        pd.DataFrame({"t": pd.DatetimeIndex(TEXT).tz_localize("UTC").tz_convert(PLACE)}),
        pl.DataFrame({"t": naive()}),
        pl.Series(naive()),
        pl.DataFrame({"t": [each.replace(tzinfo=datetime.UTC) for each in naive()]}),
        naive(),
        [each.replace(tzinfo=datetime.UTC).astimezone(PLACE) for each in naive()],
        TEXT,
    ],
    ids=str,
)
def test_the_same_moments_as_in_a_file(given):
    ((found, kind),) = inputs_from(given, "`X`")
    assert kind == "datetime"
    np.testing.assert_array_equal(found, in_a_file(TEXT))


def test_dates_have_no_time_and_no_warning():
    days = [datetime.date(2024, 3, 1), datetime.date(2024, 3, 2)]
    expected = in_a_file(["2024-03-01", "2024-03-02"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (days, pl.DataFrame({"t": days}), np.array(days, "datetime64[D]")):
            ((found, _),) = inputs_from(given, "`X`", tell=taken_as_utc)
            np.testing.assert_array_equal(found, expected)


def test_a_datetime_beside_a_number():
    table = pd.DataFrame({"t": pd.DatetimeIndex(TEXT), "height": [1, 2, 3]})
    (time, kind), (height, other) = inputs_from(table, "`X`", names=["t", "height"])
    assert (kind, other) == ("datetime", "number")
    np.testing.assert_array_equal(time, in_a_file(TEXT))
    np.testing.assert_array_equal(height, [1.0, 2.0, 3.0])
    mixed = np.array([[each, h] for each, h in zip(naive(), (1, 2, 3), strict=True)], object)
    assert [kind for _, kind in inputs_from(mixed, "`X`")] == ["datetime", "number"]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (pd.DataFrame({"t": pd.DatetimeIndex([*TEXT, None])}), "column 't': missing in row 3"),
        (np.array(["2024-01-01", "NaT"], "datetime64[s]"), "`X`: missing in row 1"),
        ([naive()[0], naive()[0].replace(tzinfo=datetime.UTC)], "with and without a time zone"),
        ([naive()[0], 3.0], "all of one kind"),
        (["noon", "midnight"], "`X` must be numbers or datetimes, got text"),
        (pd.DataFrame({"t": ["03/04/2024", "04/04/2024"]}), "with the format '%d/%m/%Y' or"),
        (["2024-01-01", "2024-13-01"], "`X`: row 2: no such date"),
        (np.array([1, 2], "timedelta64[h]"), "real numbers, got values of type timedelta64"),
    ],
    ids=str,
)
def test_what_is_refused(given, complaint):
    with pytest.raises(InputError, match="^.*" + complaint.replace("`", "`")):
        inputs_from(given, "`X`")


def test_a_missing_time_zone_is_told_once_asked():
    for given in (pd.DataFrame({"t": pd.DatetimeIndex(TEXT)}), pd.DataFrame({"t": TEXT}), naive()):
        with pytest.warns(PFedHGPWarning, match="has no time zone: taken as UTC"):
            inputs_from(given, "`X`", tell=taken_as_utc)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            inputs_from(given, "`X`")


def test_positions():
    moment = pd.Timestamp("2024-03-01 12:00", tz="Asia/Tokyo")
    assert position(moment) == in_a_file(["2024-03-01T03:00:00"])[0]
    assert position("2024-03-01T12:00+09:00") == position(moment)
    assert np.isnan(position(np.datetime64("NaT")))
