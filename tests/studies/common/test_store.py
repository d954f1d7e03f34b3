"""Results stream to disk, and a study that was interrupted is taken up again."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from pfedhgp.errors import InputError
from pfedhgp.studies.common.store import Store
from pfedhgp.studies.stability.study import Stability
from pfedhgp.studies.synthetic.study import Study
from pfedhgp.studies.tonnage.study import Tonnage

KEY = ("model", "run")


def record(model: str, run: int) -> dict:
    return {"model": model, "run": run, "value": 0.1 + run}


def test_what_was_added_is_read_back(tmp_path):
    store = Store(tmp_path / "new", {"seed": 0}, key=KEY)
    store.add(record("full", 0))
    store.add(record("full", 1))
    again = Store(tmp_path / "new", {"seed": 0}, key=KEY)
    assert again.records == {("full", r): record("full", r) for r in (0, 1)}


def test_a_line_cut_short_is_dropped_and_the_file_mended(tmp_path):
    store = Store(tmp_path, {"seed": 0}, key=KEY)
    store.add(record("full", 0))
    path = tmp_path / "runs.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"model": "fu')
    again = Store(tmp_path, {"seed": 0}, key=KEY)
    assert list(again.records) == [("full", 0)]
    again.add(record("full", 1))
    assert [json.loads(line)["run"] for line in path.read_text().splitlines()] == [0, 1]


def test_another_studys_folder_is_refused_and_left_alone(tmp_path):
    Store(tmp_path, {"seed": 0, "rounds": None}, key=KEY).add(record("full", 0))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match="holds a study with `seed` 0, not 1"):
        Store(tmp_path, {"seed": 1, "rounds": None}, key=KEY)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_damage_is_named(tmp_path):
    store = Store(tmp_path, {}, key=KEY)
    store.add(record("full", 0))
    path = tmp_path / "runs.jsonl"
    path.write_text("nonsense\n" + path.read_text())
    with pytest.raises(InputError, match="line 1: not JSON"):
        Store(tmp_path, {}, key=KEY)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write there"):
        Store(tmp_path / "file" / "below", {}, key=KEY)


def test_a_line_that_is_no_run_is_named(tmp_path):
    Store(tmp_path, {}, key=KEY).add(record("full", 0))
    path = tmp_path / "runs.jsonl"
    whole = path.read_text()
    with pytest.raises(InputError, match="line 1: not a run of this study: it has no 'metrics'"):
        Store(tmp_path, {}, key=KEY, needs=("metrics",))
    for line in ('{"model": "full"}', "[1, 2]", "3"):
        path.write_text(f"{whole}{line}\n")
        with pytest.raises(
            InputError, match=r"line 2: not a run of this study: it has no '(run|model)'"
        ):
            Store(tmp_path, {}, key=KEY)


CONFIGS = {
    "synthetic": asdict(Study()),
    "stability": {"study": "stability", **asdict(Stability())},
    "tonnage": asdict(Tonnage(data="simulated")),
}


@pytest.mark.parametrize("there", CONFIGS)
def test_the_study_of_a_folder_is_named(tmp_path, there):
    Store(tmp_path, CONFIGS[there], key=KEY)
    for ours in CONFIGS.keys() - {there}:
        says = f"holds results of `reproduce {there}`, not of `reproduce {ours}`"
        with pytest.raises(InputError, match=says):
            Store(tmp_path, CONFIGS[ours], key=KEY)
