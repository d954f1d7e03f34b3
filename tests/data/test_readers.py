"""What is accepted: files of every kind give the same clients, and what was decided is said."""

from __future__ import annotations

import gzip
import warnings
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pfedhgp.data.columns import Columns, InputColumn
from pfedhgp.data.readers import (
    client_of,
    client_rows,
    find_columns,
    observations_of,
    read_observations,
    read_tables,
    wanted_names,
)
from pfedhgp.errors import InputError, ModelFileError, PFedHGPWarning

PLAIN = Columns("site", (InputColumn("x"),), ("y",))
TABLE = {"site": ["b", "a", "b"], "x": [0.5, 1.0, 2.0], "y": [1.0, -2.0, 3.0]}


def read_clients(paths, columns, **more):
    return client_rows(read_observations(paths, columns, **more), columns)


def _settled(path, inputs=("time",), **more):
    tables = read_tables([path], wanted=["site", *inputs, "y"])
    return tables, find_columns(tables, client="site", inputs=inputs, outputs=["y"], **more)


def _check_plain(clients) -> None:
    """The clients of TABLE, in the order in which they appear."""
    assert [c.name for c in clients] == ["b", "a"]
    np.testing.assert_array_equal(clients[0].X, [[0.5], [2.0]])
    np.testing.assert_array_equal(clients[0].Y, [[1.0], [3.0]])
    np.testing.assert_array_equal(clients[1].X, [[1.0]])
    assert clients[0].X.dtype == clients[0].Y.dtype == np.float64


def _write(folder, suffix: str, frame: pl.DataFrame):
    path = folder / f"d{suffix}"
    if suffix in (".csv", ".txt"):
        frame.write_csv(path)
    elif suffix == ".csv.gz":
        path.write_bytes(gzip.compress(frame.write_csv().encode()))
    elif suffix == ".tsv":
        frame.write_csv(path, separator="\t")
    elif suffix in (".parquet", ".pq"):
        frame.write_parquet(path)
    else:
        frame.write_ipc(path)
    return path


@pytest.mark.parametrize(
    "suffix", [".csv", ".txt", ".csv.gz", ".tsv", ".parquet", ".pq", ".feather", ".arrow", ".ipc"]
)
def test_every_kind_of_file_gives_the_same_clients(suffix, tmp_path):
    _check_plain(read_clients([_write(tmp_path, suffix, pl.DataFrame(TABLE))], PLAIN))


@pytest.mark.parametrize(
    "content",
    [
        "\ufeffsite,x,y\nb,0.5,1\na,1,-2\nb,2,3\n",
        "y,site,extra,x\n1,b,?,0.5\n-2,a,?,1\n3,b,?,2\n",
        "site,x,y\r\nb,0.5,1\r\na,1,-2\r\nb,2,3\r\n",
        "site,x,y\rb,0.5,1\ra,1,-2\rb,2,3",
        '"site","x","y"\n"b","0.5","1"\n"a",1,-2\nb,2,3\n',
        "\nsite,x,y\n\nb, 0.5 ,1\na,+1,-2e0\n\nb,2.,3\n\n",
        "site,x,y,,\nb,0.5,1,,\na,1,-2,,\nb,2,3,,\n",
    ],
)
def test_harmless_differences_do_not_matter(content, tmp_path):
    path = tmp_path / "d.csv"
    path.write_bytes(content.encode())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _check_plain(read_clients([path], PLAIN))


def test_padded_headers_are_accepted_with_a_warning(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(" site, x ,y \nb,0.5,1\na,1,-2\nb,2,3\n")
    with pytest.warns(PFedHGPWarning, match="spaces around column names"):
        _check_plain(read_clients([path], PLAIN))


def test_another_delimiter_can_be_named(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("site;x;y\nb;0.5;1\na;1;-2\nb;2;3\n")
    _check_plain(read_clients([path], PLAIN, delimiter=";"))


@pytest.mark.parametrize("dtype", ["Int8", "UInt16", "Int64", "UInt64", "Float32", "Float64"])
def test_any_number_type_is_read(dtype, tmp_path):
    kind = getattr(pl, dtype)
    frame = pl.DataFrame(
        {"site": ["a", "a"], "x": pl.Series([3, 100], dtype=kind), "y": [1.0, None]}
    )
    for suffix in (".parquet", ".feather", ".csv"):
        (client,) = read_clients([_write(tmp_path, suffix, frame)], PLAIN)
        np.testing.assert_array_equal(client.X, [[3.0], [100.0]])
        np.testing.assert_array_equal(client.Y, [[1.0], [np.nan]])


def test_names_stay_text_whatever_they_look_like(tmp_path):
    path = tmp_path / "d.csv"
    names = ["NA", "007", "1e5", "nan", "a/../b", "null"]
    lines = [f'"{name}",{i},1' for i, name in enumerate([*names, "two\nlines", "x" * 300])]
    path.write_text("site,x,y\n" + "\n".join(lines) + "\n")
    found = [client.name for client in read_clients([path], PLAIN)]
    assert found == [*names, "two\nlines", "x" * 300]
    pl.DataFrame({"site": [7, 7], "x": [0, 1], "y": [1, 2]}).write_parquet(tmp_path / "d.parquet")
    assert [c.name for c in read_clients([tmp_path / "d.parquet"], PLAIN)] == ["7"]


def test_rows_are_named_by_their_line_behind_quoted_line_feeds(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text('site,x,y\n"two\nlines",0,1\na,1,oops\n')
    with pytest.raises(InputError, match=r"row 2 \(line 4\), column 'y'"):
        read_clients([path], PLAIN)


def test_missing_outputs_are_nan(tmp_path):
    path = tmp_path / "d.csv"
    words = ["", "NA", "n/a", "NaN", "null", "None", "1e12"]
    path.write_text("site,x,y\n" + "".join(f"a,{i},{w}\n" for i, w in enumerate(words)))
    (client,) = read_clients([path], PLAIN)
    np.testing.assert_array_equal(client.Y[:, 0], [np.nan] * 6 + [1e12])


def test_true_and_false_are_outputs(tmp_path):
    """As text and as a type; an input must be a number."""
    (tmp_path / "d.csv").write_text("site,x,y\na,1,true\na,2,False\na,3,\n")
    (found,) = read_clients([tmp_path / "d.csv"], PLAIN)
    np.testing.assert_array_equal(found.Y[:, 0], [1.0, 0.0, np.nan])
    with pytest.raises(InputError, match="text instead of a number"):
        read_clients([tmp_path / "d.csv"], Columns("site", (InputColumn("y"),), ("x",)))


def test_a_folder_is_one_file_per_client(tmp_path):
    (tmp_path / "site one.csv").write_text("x,y\n0,1\n1,2\n")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"y,x\n5,4\n"))
    (tmp_path / "c.csv").write_text("x,y\n")
    (tmp_path / "notes.md").write_text("not data")
    with pytest.warns(PFedHGPWarning, match=r"c\.csv: no rows, skipped"):
        found = read_clients([tmp_path], Columns(None, (InputColumn("x"),), ("y",)))
    assert [(c.name, c.X.tolist(), c.Y.tolist()) for c in found] == [
        ("b", [[4.0]], [[5.0]]),
        ("site one", [[0.0], [1.0]], [[1.0], [2.0]]),
    ]


def test_long_tables_of_several_files_are_joined(tmp_path):
    for part in range(2):
        (tmp_path / f"{part}.csv").write_text(f"site,x,y\na,{part},1\nb,{part},2\n")
    found = read_clients([tmp_path / "0.csv", tmp_path / "1.csv"], PLAIN)
    assert [(c.name, c.X[:, 0].tolist()) for c in found] == [("a", [0.0, 1.0]), ("b", [0.0, 1.0])]


def test_a_files_client_is_its_name_without_the_suffix(tmp_path):
    names = ["a.csv", "a.b.csv.gz", "A B.PARQUET"]
    assert [client_of(tmp_path / name) for name in names] == ["a", "a.b", "A B"]


# ---------------------------------------------------------------------------------------- datetimes

EAST = timezone(timedelta(hours=5, minutes=30))
MOMENTS = {
    "2024-03-01": datetime(2024, 3, 1, tzinfo=UTC),
    "2024-3-1 7:05": datetime(2024, 3, 1, 7, 5, tzinfo=UTC),
    "2024-03-01 07:05:09": datetime(2024, 3, 1, 7, 5, 9, tzinfo=UTC),
    "1969-12-31T23:59:58.25": datetime(1969, 12, 31, 23, 59, 58, 250_000, tzinfo=UTC),
}
ZONED = {
    "2024-03-01T07:05:09Z": datetime(2024, 3, 1, 7, 5, 9, tzinfo=UTC),
    "2024-03-01 07:05 UTC": datetime(2024, 3, 1, 7, 5, tzinfo=UTC),
    "2024-03-01T07:05:09+05:30": datetime(2024, 3, 1, 7, 5, 9, tzinfo=EAST),
    "2024-03-01T07:05:09.5-0800": datetime(
        2024, 3, 1, 7, 5, 9, 500_000, tzinfo=timezone(timedelta(hours=-8))
    ),
    "2024-03-01T07:05+02": datetime(2024, 3, 1, 7, 5, tzinfo=timezone(timedelta(hours=2))),
}


@pytest.mark.parametrize("moments", [MOMENTS, ZONED], ids=["naive", "zoned"])
def test_datetimes_are_seconds_since_1970_in_utc(moments, tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("site,time,y\n" + "".join(f"a,{text},1\n" for text in moments))
    tables, columns = _settled(path)
    assert columns.inputs == (InputColumn("time", "datetime"),)
    if moments is MOMENTS:
        with pytest.warns(PFedHGPWarning, match="no time zone: taken as UTC"):
            (client,) = client_rows(observations_of(tables, columns), columns)
    else:
        (client,) = client_rows(observations_of(tables, columns), columns)
    expected = [moment.timestamp() for moment in moments.values()]
    np.testing.assert_array_equal(client.X[:, 0], expected)
    shown = columns.inputs[0].shown(client.X[:, 0])
    back = [m.astimezone(UTC).replace(tzinfo=None) for m in moments.values()]
    assert shown.tolist() == back


@pytest.mark.filterwarnings("ignore:column 'time' has no time zone")
def test_a_format_decides_between_day_and_month(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("site,time,y\na,03/04/2024,1\na,04/04/2024,2\n")
    for words, month, day in (("%d/%m/%Y", 4, 3), ("%m/%d/%Y", 3, 4)):
        tables, columns = _settled(path, datetime_format=words)
        assert columns.inputs[0].format == words
        (client,) = client_rows(observations_of(tables, columns), columns)
        assert client.X[0, 0] == datetime(2024, month, day, tzinfo=UTC).timestamp()
    tables, columns = _settled(path, datetime_format="%Y")
    with pytest.raises(InputError, match=r"row 1 .*no datetime of the format '%Y'"):
        observations_of(tables, columns)
    path.write_text("site,time,y\na,2024,1\n")
    with pytest.raises(InputError, match="no input is a datetime of the format '%d/%m/%Y'"):
        _settled(path, datetime_format="%d/%m/%Y")


@pytest.mark.filterwarnings("ignore:column 'time' has no time zone")
@pytest.mark.parametrize(
    ("words", "text"),
    [("%Y%m%d", "20240403"), ("%d %b %Y", "03 Apr 2024"), ("%b %d; %Y", "Apr 03; 2024")],
)
def test_a_format_makes_datetimes_of_what_looks_like_none(words, text, tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(f"site,time,y\na,{text},1\n")
    tables, columns = _settled(path, datetime_format=words)
    (client,) = client_rows(observations_of(tables, columns), columns)
    assert client.X[0, 0] == datetime(2024, 4, 3, tzinfo=UTC).timestamp()


@pytest.mark.filterwarnings("ignore:column 'time' has no time zone")
@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("13/04/24", "%d/%m/%y"),
        ("13/04/2024 10:00", "%d/%m/%Y %H:%M"),
        ("04.13.2024 10:00:05", "%m.%d.%Y %H:%M:%S"),
    ],
)
def test_the_format_that_is_advised_reads_the_file(text, advice, tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(f"site,time,y\na,{text},1\n")
    tables, columns = _settled(path)
    with pytest.raises(InputError, match="--datetime-format") as caught:
        observations_of(tables, columns)
    assert str(caught.value).endswith(repr(advice))
    tables, columns = _settled(path, datetime_format=advice)
    (client,) = client_rows(observations_of(tables, columns), columns)
    assert (
        columns.inputs[0].shown(client.X[:, 0]).tolist()[0].date() == datetime(2024, 4, 13).date()
    )


def test_a_year_of_two_digits_is_not_taken_for_the_first_century(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("site,time,y\na,13/04/24,1\n")
    tables, columns = _settled(path, datetime_format="%d/%m/%Y")
    with pytest.raises(InputError, match=r"row 1 .*a year before 100"):
        observations_of(tables, columns)


def test_time_zones_are_not_mixed_over_files(tmp_path):
    (tmp_path / "a.csv").write_text("time,y\n2024-03-01T10:00,1\n")
    (tmp_path / "b.csv").write_text("time,y\n2024-03-01T10:00+08:00,1\n")
    tables = read_tables([tmp_path], wanted=["time", "y"])
    columns = find_columns(tables, client=None, inputs=["time"], outputs=["y"])
    with pytest.raises(InputError, match=r"b\.csv has a time zone in column 'time' and .*a\.csv"):
        observations_of(tables, columns)


def test_a_file_is_named_once(tmp_path):
    (tmp_path / "a.csv").write_text("time,y\n1,1\n")
    with pytest.raises(InputError, match=r"a\.csv: named twice"):
        read_tables([tmp_path / "a.csv", tmp_path], wanted=["time", "y"])


@pytest.mark.filterwarnings("ignore:column 'time' has no time zone")
def test_typed_datetimes_are_read_in_any_zone(tmp_path):
    moment = datetime(2024, 7, 1, 12, tzinfo=UTC)
    naive = pl.Series([moment.replace(tzinfo=None)], dtype=pl.Datetime("ms"))
    zoned = pl.Series([moment]).dt.convert_time_zone("Asia/Shanghai")
    for series in (naive, zoned):
        path = tmp_path / "d.parquet"
        pl.DataFrame({"site": ["a"], "time": series, "y": [1.0]}).write_parquet(path)
        tables, columns = _settled(path)
        assert columns.inputs[0].kind == "datetime"
        (client,) = client_rows(observations_of(tables, columns), columns)
        assert client.X[0, 0] == moment.timestamp()
    pl.DataFrame({"site": ["a"], "time": [moment.date()], "y": [1.0]}).write_ipc(path)
    (tmp_path / "d.feather").write_bytes(path.read_bytes())
    tables, columns = _settled(tmp_path / "d.feather")
    (client,) = client_rows(observations_of(tables, columns), columns)
    assert client.X[0, 0] == datetime(2024, 7, 1, tzinfo=UTC).timestamp()


def test_years_are_numbers(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("site,time,y\na,2013,1\na,2014,2\n")
    _, columns = _settled(path)
    assert columns.inputs == (InputColumn("time", "number"),)


# ------------------------------------------------------------------------------------------ columns


def test_columns_survive_json():
    columns = Columns(
        None, (InputColumn("t", "datetime", "%d.%m.%Y"), InputColumn("x")), ("y", "z"), "stroke"
    )
    assert Columns.from_json(columns.to_json()) == columns
    assert wanted_names(columns) == ["t", "x", "y", "z", "stroke"]
    for broken in ({}, {**columns.to_json(), "client": 3}, {**columns.to_json(), "inputs": [{}]}):
        with pytest.raises(ModelFileError, match="columns cannot be read"):
            Columns.from_json(broken)


def test_cycles_become_what_a_table_with_cycles_becomes(tmp_path):
    from pfedhgp.data.tables import clients_from

    frame = pl.DataFrame(
        {
            "site": ["a"] * 4 + ["b"] * 2,
            "x": [0.0, 1.0, 0.0, 1.0, 0.0, 1.0],
            "y": [1.0, 2.0, 3.0, None, 5.0, 6.0],
            "stroke": [0, 0, 1, 1, 0, 0],
        }
    )
    columns = Columns("site", (InputColumn("x"),), ("y",), "stroke")
    found = read_clients([_write(tmp_path, ".parquet", frame)], columns)
    expected = clients_from(frame, client="site", inputs="x", outputs="y", cycle="stroke")
    for one, other in zip(found, expected.clients, strict=True):
        assert one.name == other.name
        for name in ("X", "Y", "counts", "scatter"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


# ------------------------------------------------------------------------------- whatever may come


@given(
    st.one_of(st.binary(max_size=60), st.text('ab1,;."\n\r\t -:eN/', max_size=60).map(str.encode))
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(b'site,x,y\n"a""b",1,2\n')
@example(b'"site"x,x,y\na,1,2\n')
@example(b"site,x,y\na,1\xc2\xa0000,2\n")
def test_any_bytes_are_read_or_refused(tmp_path_factory, content):
    """Never a traceback of a library: clients, or an InputError of one line that names the file."""
    path = tmp_path_factory.getbasetemp() / "any.csv"
    for given_bytes in (content, b"site,x,y\n" + content):
        path.write_bytes(given_bytes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PFedHGPWarning)
            clients, refusal = [], "any.csv"
            try:
                clients = read_clients([path], PLAIN)
            except InputError as error:
                refusal = str(error)
        assert "any.csv" in refusal
        assert "\n" not in refusal
        assert all(np.isfinite(client.X).all() for client in clients)
        assert not any(np.isinf(client.Y).any() for client in clients)
