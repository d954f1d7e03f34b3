"""The diagnosis study in small: the simulated press, splits by block, rows, and what is written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from pfedhgp.data.cycle_files import CycleSet
from pfedhgp.errors import InputError
from pfedhgp.inference.meanfield.training import MeanField
from pfedhgp.studies.common.store import Store
from pfedhgp.studies.tonnage import data as tonnage_data
from pfedhgp.studies.tonnage import press
from pfedhgp.studies.tonnage.baselines import BASELINES, lda, nearest, thinned
from pfedhgp.studies.tonnage.models import MODELS, OURS, run_model
from pfedhgp.studies.tonnage.report import write_tonnage
from pfedhgp.studies.tonnage.study import Tonnage, none_of_these, run_tonnage, summarise, usual_rows


def hydraulic_there() -> bool:
    try:
        return tonnage_data.hydraulic_file().exists()
    except InputError:
        return False


def test_the_simulated_press_has_the_described_shape():
    data = press.simulate(0, normal=30, faulty=12)
    assert data.cycles.shape == (78, 4, 1201)
    labels = np.asarray(data.label)
    normal = data.cycles[labels == "normal"].mean(axis=0)
    assert np.all(np.abs(normal.argmax(axis=1) - 750) < 25)
    np.testing.assert_allclose(normal.max(axis=1), press.PEAKS, rtol=0.03)
    assert data.cycles[labels == "fault 1"].mean(axis=0).max(axis=1)[0] < 130
    assert normal[:, 950:1100].min() < -5, "no undershoot"


def test_cycles_differ_smoothly_and_faint_faults_are_smaller_than_that():
    data = press.simulate(1, normal=60, faulty=60)
    labels = np.asarray(data.label)
    normal = data.cycles[labels == "normal"]
    gap = normal - normal.mean(axis=0)
    neighbours = np.mean(gap[:, :, 1:] * gap[:, :, :-1]) / np.mean(gap**2)
    assert neighbours > 0.9
    faint = data.cycles[labels == "fault 3"].mean(axis=0) - normal.mean(axis=0)
    assert np.abs(faint[0, 560]) < 2.5 * gap.std()


def test_subtlety_divides_what_faults_do():
    loud, faint = (press.simulate(3, subtlety=s, normal=4, faulty=4) for s in (1.0, 4.0))
    # The same seed draws the same cycles, so that the difference is the fault's alone.
    np.testing.assert_array_equal(loud.cycles[:4], faint.cycles[:4])
    change = np.abs(loud.cycles[4:8] - faint.cycles[4:8])[:, 0, 750]
    np.testing.assert_allclose(change, 70.0 * (1 - 1 / 4), rtol=0.05)


def blocky(blocks: int = 10, size: int = 3) -> CycleSet:
    count = 2 * blocks * size
    label = tuple("ab"[(c // size) % 2] for c in range(count))
    block = tuple(str(c // size) for c in range(count))
    return CycleSet(np.zeros((count, 1, 4)), np.arange(4.0), ("x",), label, block)


def test_blocks_are_never_split_and_each_class_trains_on_two_at_least():
    data, source = blocky(), tonnage_data.Source("x", "hydraulic", "")
    for seed in range(3):
        train = tonnage_data.training_mask(data, source, seed)
        owner = np.asarray(data.block)
        assert not set(owner[train]) & set(owner[~train])
        for name in "ab":
            mine = np.asarray(data.label) == name
            assert len(set(owner[train & mine])) == 2


def test_the_press_trains_on_forty_and_ten():
    source = tonnage_data.source_of("simulated")
    label = ("normal",) * 305 + sum(((f"fault {k}",) * 69 for k in range(4)), ())
    data = CycleSet(np.zeros((581, 1, 2)), np.arange(2.0), ("x",), label)
    train = tonnage_data.training_mask(data, source, 0)
    assert train[:305].sum() == 40
    assert train[305:374].sum() == 10


def test_a_file_of_the_press_trains_on_the_first_and_another_on_its_share():
    source = tonnage_data.Source("x.npz", "file", "")
    press_label = ("1",) * 305 + sum(((f"{k}",) * 69 for k in range(2, 6)), ())
    flat = CycleSet(np.zeros((581, 4, 1201)), np.arange(1201.0), tuple("abcd"), press_label)
    train = tonnage_data.training_mask(flat, source, 3)
    assert np.flatnonzero(train).tolist()[:41] == [*range(40), 305]
    assert train.sum() == 40 + 4 * 10
    assert tonnage_data.splits_once(flat, source, tonnage_data.SHARE)
    assert not tonnage_data.splits_once(flat, source, 0.25)
    other = CycleSet(np.zeros((500, 1, 2)), np.arange(2.0), ("x",), ("a",) * 400 + ("b",) * 100)
    masks = [tonnage_data.training_mask(other, source, seed) for seed in range(2)]
    for mask in masks:
        assert (mask[:400].sum(), mask[400:].sum()) == (55, 14)
    assert (masks[0] != masks[1]).any(), "every seed has the same split"
    assert not tonnage_data.splits_once(other, source, tonnage_data.SHARE)
    assert len(tonnage_data.first_normal(other, source).cycles) == 500
    more = CycleSet(np.zeros((307, 1, 2)), np.arange(2.0), ("x",), ("a",) * 307)
    assert len(tonnage_data.first_normal(more, source).cycles) == 307


@pytest.mark.skipif(not hydraulic_there(), reason="the hydraulic data are not on this machine")
def test_the_hydraulic_cycles_come_in_147_blocks():
    data = tonnage_data.load(tonnage_data.source_of("hydraulic:valve"), 0)
    assert data.cycles.shape == (2205, 4, 60)
    assert len(set(data.block)) == 147
    assert set(data.label) == {"100", "90", "80", "73"}
    train = tonnage_data.training_mask(data, tonnage_data.source_of("hydraulic:valve"), 0)
    assert 18 <= len(set(np.asarray(data.block)[train])) <= 22


@pytest.mark.parametrize("name", list(BASELINES))
def test_baselines_tell_clear_classes_apart(name):
    rng = np.random.default_rng(0)
    wave = np.sin(np.linspace(0, 6, 40))
    label = np.repeat(["a", "b"], 20)
    cycles = (
        rng.normal(size=(40, 2, 40)) * 0.3 + wave * np.where(label == "a", 1, -1)[:, None, None]
    )
    found = BASELINES[name](cycles[::2], label[::2], cycles[1::2])
    assert (np.array(["a", "b"])[found.argmax(axis=1)] == label[1::2]).all()


def test_baselines_see_the_means_of_stretches_of_long_cycles():
    cycles = np.random.default_rng(2).normal(size=(2, 3, 1201))
    seen = thinned(cycles)
    assert seen.shape == (2, 3, 121)
    np.testing.assert_allclose(seen[:, :, 7], cycles[:, :, 70:80].mean(axis=2))
    np.testing.assert_allclose(seen[:, :, 120], cycles[:, :, 1200])
    np.testing.assert_array_equal(thinned(cycles[:, :, :60]), cycles[:, :, :60])


def test_nearest_and_lda_are_scikit_learns_on_flat_rows():
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    rng = np.random.default_rng(1)
    cycles, label = rng.normal(size=(30, 1, 6)), np.repeat(["a", "b", "c"], 10)
    flat = cycles.reshape(30, -1)
    expected = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(flat, label)
    np.testing.assert_allclose(lda(cycles, label, cycles), expected.predict_proba(flat))
    assert nearest(cycles, label, cycles).argmax(axis=1).tolist() == [0] * 10 + [1] * 10 + [2] * 10


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("hydraulic:pump", "there are hydraulic:valve, hydraulic:valve-all and hydraulic:cooler"),
        ("missing.mat", "missing.mat: no such file"),
        ("runs:3", "'runs:3' must look like runs:3x6"),
    ],
)
def test_unknown_data_are_named(data, words, tmp_path):
    with pytest.raises(InputError, match=words):
        run_tonnage(Tonnage(data=data), runs=1, folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_small_study_writes_what_the_contract_says_and_resumes(tmp_path):
    """Baselines alone: seconds. Our own rows are in the slow test."""
    study = Tonnage(data="simulated", small=True)
    store = run_tonnage(study, runs=2, folder=tmp_path, models=["1-nn", "pca+ridge"])
    results = write_tonnage(store, study, runs=2)
    on_disk = json.loads((tmp_path / "results.json").read_text())
    assert on_disk == json.loads(json.dumps(results))
    found = {(r["model"], r["metric"]): r for r in on_disk["records"]}
    assert found["1-nn", "accuracy"]["runs"] == 2
    assert {"accuracy", "log_loss", "ece", "f1", "seconds"} == {m for _, m in found}
    assert 0.3 < found["1-nn", "accuracy"]["mean"] < 1.0
    counts = np.asarray(on_disk["tables"]["confusion: 1-nn"]["counts"])
    assert counts.sum() == 2 * store.records["main", "1-nn", "", 0]["test"]
    assert on_disk["tables"]["published"][1]["method"] == "perTucker"
    assert (tmp_path / "waveforms.svg").exists()
    page = (tmp_path / "report.html").read_text()
    assert "simulated press (not the real tonnage data)" in page
    seen = []
    run_tonnage(study, runs=2, folder=tmp_path, models=["1-nn"], progress=lambda *a: seen.append(a))
    assert not seen, "a finished run was done again"


def test_labels_alone_have_no_log_loss_and_one_split_is_said(tmp_path, monkeypatch):
    """A file of the press's shape; 1-NN on its first cycles."""
    rng = np.random.default_rng(0)
    label = ("1",) * 305 + sum(((f"{k}",) * 69 for k in range(2, 6)), ())
    shape = CycleSet(rng.normal(size=(581, 4, 1201)), np.arange(1201.0), tuple("abcd"), label)
    (tmp_path / "press.npz").touch()
    monkeypatch.setattr(tonnage_data, "load", lambda *_, **__: shape)
    study = Tonnage(data=str(tmp_path / "press.npz"))
    store = run_tonnage(study, runs=2, folder=tmp_path / "out", models=["1-nn", "pca+ridge"])
    write_tonnage(store, study, runs=2)
    text = (tmp_path / "out" / "tables.md").read_text("utf-8")
    nearest_row, ridge_row = (
        next(line for line in text.splitlines() if line.startswith(f"| {name} "))
        for name in ("1-nn", "pca+ridge")
    )
    assert nearest_row.count("| – ") == 2
    assert " ± 0.0000" in nearest_row
    assert "–" not in ridge_row
    assert "1-nn gives no probabilities" in text
    assert "has one split, as in the paper" in text


def test_the_papers_row_is_left_out_of_long_cycles_unless_asked_for(tmp_path):
    assert usual_rows(4 * 60) == usual_rows(4 * 1201, full=True) == MODELS
    assert set(MODELS) - set(usual_rows(4 * 1201)) == {"paper"}
    short = Tonnage(data="simulated", small=True)
    store = Store(tmp_path, {}, key=("part", "model", "value", "run"))
    record = {"part": "main", "model": "1-nn", "value": "", "run": 0, "classes": ["a", "b"]}
    metrics = dict.fromkeys(("accuracy", "log_loss", "ece", "f1", "seconds"), 0.5)
    more = {"f1": {"a": 0.9, "b": 0.8}, "confusion": [[1, 0], [0, 1]]}
    store.add({**record, **more, "metrics": metrics})
    write_tonnage(store, short, runs=1)
    assert "The row paper was not run" in (tmp_path / "tables.md").read_text("utf-8")


def test_confusions_of_runs_that_met_classes_in_another_order_add_up(tmp_path):
    study = Tonnage(data="simulated", small=True)
    store = Store(tmp_path, {}, key=("part", "model", "value", "run"))
    for run, classes in enumerate((["a", "b"], ["b", "a"])):
        counts = [[5, 1], [0, 3]] if run == 0 else [[3, 0], [1, 5]]
        record = {"part": "main", "model": "1-nn", "value": "", "run": run, "classes": classes}
        scores = {"metrics": {"accuracy": 8 / 9}, "f1": {"a": 0.9, "b": 0.8}}
        store.add({**record, **scores, "confusion": counts})
    found = summarise(store, study, runs=2)["tables"]["confusion: 1-nn"]
    assert found == {"classes": ["a", "b"], "counts": [[10, 2], [0, 6]]}


def test_published_figures_come_as_they_are_printed(tmp_path):
    study = Tonnage(data="simulated", small=True)
    store = Store(tmp_path, {}, key=("part", "model", "value", "run"))
    for model, right in (("pfedhgp", 1.0), ("pfedhgp-white", 0.75)):
        metrics = dict.fromkeys(("log_loss", "ece", "f1", "seconds"), 0.1) | {"accuracy": right}
        record = {"part": "main", "model": model, "value": "", "run": 0, "classes": ["a", "b"]}
        more = {"f1": {"a": 0.9, "b": 0.8}, "confusion": [[1, 0], [0, 1]], "chosen": "free, shared"}
        store.add({**record, **more, "metrics": metrics})
    write_tonnage(store, study, runs=1)
    text = (tmp_path / "tables.md").read_text("utf-8")
    assert "0.9988 ± 0.0027" in text
    assert "CNN (published) | 0.9985 ± 0.0049" in text
    assert "The layers of runs and cycles are worth +0.2500 of accuracy here" in text
    assert "| pfedhgp | 0.9000 | 0.8000 |" in text


@pytest.mark.slow
def test_our_row_and_none_of_these_run_on_the_small_press(tmp_path, monkeypatch):
    """Two cycles a fault are too few to choose by; thresholds come from half of the cycles."""
    smaller = {
        "normal": 40,
        "faulty": 16,
        "samples": 31,
    }  # compiling for 121 samples takes a minute
    monkeypatch.setattr(tonnage_data, "SMALL_PRESS", smaller)
    study = Tonnage(data="simulated", small=True)
    store = run_tonnage(study, runs=2, folder=tmp_path, models=["pfedhgp"])
    record = store.records["main", "pfedhgp", "", 0]
    scores = [store.records["main", "pfedhgp", "", run]["metrics"] for run in range(2)]
    assert re.fullmatch(r"[a-z ]+ [\d.]+, shared \(\d+%\)", record["chosen"])
    assert np.mean([each["accuracy"] for each in scores]) > 0.6
    assert record["why"]["channels"] == [f"tonnage {q}" for q in (1, 2, 3, 4)]
    source = tonnage_data.source_of("simulated")
    found = none_of_these(tonnage_data.load(source, 0, small=True), source, 0, "fault 1")
    assert found["flagged"] > 0.9
    assert found["false_alarms"] < 0.3
    assert (found["known_cycles"], found["stranger_cycles"]) == (44, 16)


@pytest.mark.slow
def test_the_papers_row_starts_at_the_papers_variances_and_tells_two_levels_apart(monkeypatch):
    """Cycles at +1 and at −1, which one round of its training is enough for."""
    starts = {}
    server, clients = MeanField.server, MeanField.clients

    def seen_server(self, spec, block):
        starts["global"] = np.asarray(block.loadings) ** 2
        return server(self, spec, block)

    def seen_clients(self, spec, like, blocks, rows):
        starts["local"] = np.asarray(blocks.loadings) ** 2
        return clients(self, spec, like, blocks, rows)

    monkeypatch.setattr(MeanField, "server", seen_server)
    monkeypatch.setattr(MeanField, "clients", seen_clients)
    level = np.repeat([-1.0, 1.0], 6)
    cycles = level[:, None, None] + 0.1 * np.random.default_rng(0).normal(size=(12, 4, 31))
    label = tuple("low" if v < 0 else "high" for v in level)
    data = CycleSet(cycles, np.arange(31.0), tuple("abcd"), label)
    train = np.tile([True, False, True], 4)
    record = run_model("paper", data, train, 0, paper_rounds=1)
    assert record["test"] == 4
    np.testing.assert_allclose(starts["global"], 1.0)
    np.testing.assert_allclose(starts["local"], 0.5)
    assert record["metrics"]["accuracy"] == 1.0
    assert record["metrics"]["log_loss"] < 0.2


@pytest.mark.slow
@pytest.mark.skipif(not hydraulic_there(), reason="the hydraulic data are not on this machine")
def test_the_valve_is_found(tmp_path):
    study = Tonnage(data="hydraulic:valve")
    store = run_tonnage(study, runs=1, folder=Path(tmp_path), models=["pfedhgp", "pfedhgp-white"])
    ours, white = (
        store.records["main", name, "", 0]["metrics"] for name in ("pfedhgp", "pfedhgp-white")
    )
    assert ours["accuracy"] >= 0.995
    assert ours["log_loss"] <= 0.02
    assert white["accuracy"] < 0.8


@pytest.mark.slow
@pytest.mark.skipif(not hydraulic_there(), reason="the hydraulic data are not on this machine")
def test_the_cooler_is_found(tmp_path):
    """All 17 channels, the first of the study's splits."""
    store = run_tonnage(Tonnage(data="hydraulic:cooler"), runs=1, folder=tmp_path, models=[OURS])
    found = store.records["main", OURS, "", 0]["metrics"]
    assert found["accuracy"] >= 0.975
    assert found["log_loss"] <= 0.13


@pytest.mark.slow
def test_every_cycle_of_the_simulated_press_is_found(tmp_path):
    """One of the study's own splits, 4 channels of 1,201 samples."""
    study = Tonnage(data="simulated", seed=200)
    store = run_tonnage(study, runs=1, folder=tmp_path, models=[OURS, "1-nn"])
    ours, nearest_one = (store.records["main", name, "", 0]["metrics"] for name in (OURS, "1-nn"))
    assert ours["accuracy"] == 1.0
    assert ours["log_loss"] <= 0.01
    assert nearest_one["accuracy"] < 0.9


@pytest.mark.slow
@pytest.mark.skipif(not hydraulic_there(), reason="the hydraulic data are not on this machine")
def test_a_valve_condition_never_seen_is_none_of_these():
    source = tonnage_data.source_of("hydraulic:valve")
    found = none_of_these(tonnage_data.load(source, 600), source, 600, "90")
    assert found["stranger_cycles"] == 360
    assert found["flagged"] >= 0.95
    assert found["false_alarms"] <= 0.02
