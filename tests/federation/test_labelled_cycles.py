"""A site's file as cycles of known classes, and what a diagnosis in a federation must be told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from pfedhgp.errors import InputError
from pfedhgp.federation.agreement import Agreement
from pfedhgp.federation.envelope import Refused
from pfedhgp.settings import config as configs

SETTINGS = {
    "data": {
        "inputs": ["x"],
        "outputs": ["force"],
        "cycle": "stroke",
        "label": "condition",
        "block": "shift",
        "classes": ["normal", "worn"],
    },
    "model": {"diagnose": True},
    "run": {"privacy": "none"},
}
CONFIG = configs.check(SETTINGS)


def rows() -> pl.DataFrame:
    """Stroke 1 of each class, stroke 2 of one, which lacks a sample."""
    return pl.DataFrame(
        {
            "x": [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 2.0],
            "force": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0],
            "stroke": [1, 1, 1, 1, 1, 1, 2, 2],
            "condition": ["worn"] * 3 + ["normal"] * 5,
            "shift": ["late"] * 3 + ["early"] * 3 + ["late"] * 2,
        }
    )


def read(folder, table: pl.DataFrame, config=CONFIG):
    table.write_csv(folder / "own.csv")
    agreed = Agreement.from_json(Agreement.of(config).to_json())
    return agreed.read([folder / "own.csv"], "A", delimiter=None, least_rows=1)


def test_rows_become_cycles_with_class_and_run(tmp_path):
    client, own = read(tmp_path, rows())
    np.testing.assert_array_equal(own.grid[:, 0], [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(own.cycles[:, 0], [[1, 2, 3], [4, 5, 6], [7, np.nan, 9]])
    assert own.labels.tolist() == [1, 0, 0]
    assert own.runs == ("late", "early", "late")
    np.testing.assert_allclose(client.Y[:, 0], [4.0, 3.5, 6.0])
    without = replace(CONFIG, block=None)
    assert read(tmp_path, rows(), without)[1].runs is None
    plain = replace(CONFIG, diagnose=False, label=None, block=None, classes=None)
    assert read(tmp_path, rows(), plain)[1] is None


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (rows().drop("condition"), "no column 'condition', which the server's settings name"),
        (rows().drop("force"), "no column 'force'"),
        (
            rows().with_columns(pl.col("condition").replace("worn", "bent")),
            "there is a class 'bent' that is not one of the agreed ones: normal, worn",
        ),
        (rows().with_columns(shift=pl.col("x").cast(pl.String)), "cycle '1' is in two blocks"),
        (
            rows().with_columns(shift=pl.when(pl.col("stroke") == 1).then(pl.col("shift"))),
            "cycle '2' has no block",
        ),
        (
            rows().with_columns(force=pl.when(pl.col("stroke") == 1).then(pl.col("force"))),
            "cycle '2' has no value",
        ),
        (pl.concat([rows(), rows()]), "has two rows at the same inputs"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_one_line(tmp_path, table, words):
    """The server sees a code; the line is for the site's own terminal."""
    with pytest.raises(Refused) as refused:
        read(tmp_path, table)
    assert refused.value.code == "data"
    assert words in refused.value.why


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cycle": None}, "`cycle` in \\[data\\] is missing"),
        ({"label": None}, "`label` in \\[data\\] is missing: the column that names the class"),
        ({"classes": None}, "`classes` in \\[data\\] is missing: the names of all classes"),
        ({"classes": ("worn",)}, "at least two classes"),
        ({"classes": ("worn", "worn")}, "each once"),
        ({"classes": ("worn", "none of these")}, "no class can be called 'none of these'"),
        ({"cycles": "free"}, "leave `cycles` and `cycle_sharing` out"),
        ({"label": "x"}, "column 'x' is used twice"),
    ],
)
def test_what_a_diagnosis_needs_is_said_before_a_site_is_asked(change, words):
    with pytest.raises(InputError, match=words):
        Agreement.of(replace(CONFIG, **change))


def test_classes_and_runs_are_part_of_the_terms():
    agreed = Agreement.of(CONFIG)
    other = Agreement.of(replace(CONFIG, classes=("normal", "worn", "bent")))
    assert agreed.to_json() != other.to_json()
    terms = agreed.plan.diagnosis
    assert (terms.classes, terms.channels, terms.blocks) == (("normal", "worn"), ("force",), True)
