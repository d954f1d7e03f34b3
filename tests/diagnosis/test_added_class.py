"""A class added to a trained classifier: the others stay to the last bit; sums, gaps and refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pfedhgp.diagnosis.added_class import added, with_class
from pfedhgp.diagnosis.candidates import Candidate
from pfedhgp.diagnosis.run_classifier import RunClassifier
from pfedhgp.diagnosis.run_layers import Layers
from pfedhgp.diagnosis.training import How
from pfedhgp.errors import InputError
from support.run_cycles import GRID, NAMES, labels_of, runs, trained

DENTS = (0.0, 1.0, -1.0)
OWN = How(candidates=(Candidate("cell", 0.1, own=True), Candidate("smooth", 0.3)), folds=4)
SHARED = How(candidates=(Candidate("cell", 0.1), Candidate("smooth", 0.3)), folds=4)


@pytest.fixture(scope="module", params=[SHARED, OWN], ids=["shared", "own"])
def before_and_after(request):
    cycles, block = runs(dents=DENTS)
    last = cycles.pop("class 2"), block.pop("class 2")
    before = trained(cycles, block, request.param)
    return before, with_class(before, "class 2", *last), last


def test_the_other_classes_stay_to_the_last_bit(before_and_after):
    before, after, _ = before_and_after
    assert after.classes == (*before.classes, "class 2")
    for name in ("S", "W", "floor"):
        assert np.array_equal(getattr(before.layers, name), getattr(after.layers, name))
    for name, array in before.sums.as_arrays().items():
        assert np.array_equal(array, after.sums.as_arrays()[name][: len(array)])
    assert (after.judged, after.calibration) == (before.judged, before.calibration)
    new = np.concatenate(list(runs(1, dents=DENTS)[0].values()))
    Y = np.moveaxis(new, 1, 2)
    one = before.evidence(GRID, Y, novelty=True)
    two = after.evidence(GRID, Y, before.classes, novelty=True)
    assert np.array_equal(one.log_density, two.log_density)
    assert np.array_equal(one.surprise, two.surprise, equal_nan=True)


def test_the_new_class_has_the_mean_and_the_sums_of_its_runs(before_and_after):
    before, after, (cycles, block) = before_and_after
    found = before.coordinates.of(cycles)
    each = [found[np.asarray(block) == run].mean(axis=0) for run in sorted(set(block))]
    np.testing.assert_allclose(after.layers.means[-1], np.mean(each, axis=0), atol=1e-12)
    scatter = np.asarray(each).T @ np.asarray(each)
    np.testing.assert_allclose(after.sums.between[-1], scatter, rtol=1e-9, atol=1e-9)
    new, _ = runs(1, dents=DENTS)
    found_labels = [labels_of(after, Y).labels for Y in new.values()]
    right = [sum(v == name for v in own) for own, name in zip(found_labels, new, strict=True)]
    assert min(right) >= 29  # of 30
    with_all = trained(*runs(dents=DENTS))
    probability = [labels_of(m, new["class 2"]).probability[:, -1] for m in (after, with_all)]
    assert probability[0].mean() > probability[1].mean() - 0.02


def test_it_comes_back_from_arrays_and_json(before_and_after):
    _, after, _ = before_and_after
    again = RunClassifier.read(after.to_arrays(), json.loads(json.dumps(after.to_json())))
    assert again.added == ("class 2",)
    assert again.typical == after.typical
    Y = np.moveaxis(runs(1, dents=DENTS)[0]["class 2"], 1, 2)
    one, two = (m.evidence(GRID, Y, novelty=True) for m in (after, again))
    assert np.array_equal(one.log_density, two.log_density)
    older = {k: v for k, v in after.to_json().items() if k not in ("typical", "added")}
    assert RunClassifier.read(after.to_arrays(), older).added == ()


def test_two_classes_one_after_the_other_are_as_good_as_in_one_order(before_and_after):
    before, _, (cycles, block) = before_and_after
    other = 3.0 + cycles
    one = with_class(with_class(before, "a", cycles, block), "b", other, block)
    two = with_class(with_class(before, "b", other, block), "a", cycles, block)
    np.testing.assert_array_equal(one.layers.means[[-2, -1]], two.layers.means[[-1, -2]])
    assert one.layers.trained == two.layers.trained == 2


def test_missing_samples_are_filled_and_runs_left_out_are_counted(before_and_after):
    before, after, (cycles, block) = before_and_after
    gaps = cycles.copy()
    gaps[::3, 0, 2:5] = np.nan
    found = added(before, "class 2", gaps, block)
    gap = found.classifier.layers.means[-1] - after.layers.means[-1]
    assert np.abs(gap).max() < 0.5
    assert found.facts == {"name": "class 2", "runs": 6, "cycles": 30, "strange": 0}
    wide = cycles * np.repeat([1.0, 9.0, -9.0, 30.0, -30.0, 1.0], 5)[:, None, None]
    assert added(before, "wide", wide, block).facts["strange"] >= 4
    assert added(before, "one", cycles[:3], ["r"] * 3).facts["strange"] is None


def test_layers_without_added_classes_are_those_of_training():
    cycles, block = runs(dents=DENTS)
    whole = trained(cycles, block)
    first = {name: cycles[name] for name in ("class 0", "class 1")}
    few = trained(first, block)
    after = with_class(few, "class 2", cycles["class 2"], block["class 2"])
    assert not np.allclose(after.layers.S, whole.layers.S)
    everything = Layers.of(after.sums, len(NAMES))
    scale = np.outer(*(2 * [np.repeat(few.coordinates.spread / whole.coordinates.spread, 10)]))
    np.testing.assert_allclose(everything.S * scale, whole.layers.S, rtol=1e-9, atol=1e-9)


def test_what_cannot_be_added(before_and_after):
    before, _, (cycles, block) = before_and_after
    with pytest.raises(InputError, match="there is a class 'class 0' already"):
        with_class(before, "class 0", cycles, block)
    empty = cycles.copy()
    empty[4] = np.nan
    with pytest.raises(InputError, match="cycle 4 has no values"):
        with_class(before, "x", empty, block)
