"""New classes in Python: proposed, named, added, saved and loaded; what is refused."""

from __future__ import annotations

import warnings
from copy import copy
from dataclasses import replace

import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.errors import InputError, PFedHGPWarning
from pfedhgp.estimator.cycle_methods import on_training_grid
from support.strokes import GRID, strokes, trained


@pytest.fixture(scope="module")
def model():
    return trained()


def test_proposed_named_added_saved_and_loaded(tmp_path):
    model = trained()
    new = np.concatenate([strokes(0.0, 8, 2), strokes(-3.0, 12, 7)])
    before = model.classify(new, grid=GRID)
    assert before.labels[8:] == ("none of these",) * 12
    proposals = model.propose(new, grid=GRID)
    largest = proposals[0]
    assert set(largest.cycles) == set(range(8, 20))
    mine = list(largest.cycles)
    assert model.add_class("cracked", new[mine], block=[f"run {c}" for c in mine]) is model
    model.save(tmp_path / "RUN")
    again = FederatedGP.load(tmp_path / "RUN")
    fresh = np.concatenate([strokes(0.6, 8, 4), strokes(-3.0, 12, 5)])
    for each in (model, again):
        found = each.classify(fresh, grid=GRID)
        assert found.labels == ("worn",) * 8 + ("cracked",) * 12
        old = each.classify(new, grid=GRID, classes=["normal", "worn"])
        assert np.array_equal(old.probability, before.probability)
        assert each.why(fresh[10], grid=GRID, chosen="cracked", other="normal").total > 0
        curve = each.predict("cracked", GRID).mean[:, 0]
        assert np.abs(curve - strokes(-3.0, 200, 6)[:, 0].mean(axis=0)).max() < 0.5
        (facts,) = each.model_.settings["diagnosis"]["added_classes"]
        assert facts == {"name": "cracked", "runs": 12, "cycles": 12, "strange": 0}


def test_parts_of_the_grid_will_do_and_other_places_are_refused():
    model = trained()
    model.add_class("cracked", strokes(-3.0, 8, 7)[:, :, 1:], grid=GRID[1:])
    assert model.classify(strokes(-3.0, 4, 5), grid=GRID).labels == ("cracked",) * 4
    with pytest.raises(InputError, match=r"on the training grid, but there is a sample at 0\.05"):
        model.add_class("more", strokes(-3.0, 8, 7), grid=GRID + 0.05)
    cycles = np.arange(4.0).reshape(1, 1, 4)
    found = on_training_grid(cycles[:, :, :2], np.array([[2.0], [0.0]]), np.arange(4.0)[:, None])
    np.testing.assert_array_equal(found, [[[1.0, np.nan, 0.0, np.nan]]])


def test_one_run_and_wide_runs_are_said():
    model = trained()
    with pytest.warns(PFedHGPWarning, match="'one' has one run: .*surely and wrongly"):
        model.add_class("one", strokes(-3.0, 4, 3), block=["r"] * 4)
    with pytest.warns(PFedHGPWarning, match="'two' has 2 runs: what those runs have in common"):
        model.add_class("two", strokes(9.0, 4, 3), block=["r", "r", "s", "s"])
    wide = strokes(4.0, 8, 3) * np.linspace(-5, 5, 8)[:, None, None]
    with pytest.warns(PFedHGPWarning, match="'wide' varies more than the classes of training"):
        model.add_class("wide", wide)


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("worn", {}, "there is a class 'worn' already"),
        ("", {}, "name"),
        ("none of these", {}, "no class can be called 'none of these'"),
        ("new", {"block": ["a", None, "b", "b"]}, "entry 1 of `block` is missing"),
        ("new", {"block": ["a"]}, "`block` must give the run of each of the 4 cycles"),
        ("new", {"block": "aaaa"}, "`block` must give the run of each of the 4 cycles"),
        ("new", {"channels": ["p", "z"]}, "no channel 'z' in the model"),
    ],
)
def test_what_is_refused(model, name, more, words):
    with pytest.raises(InputError, match=words):
        model.add_class(name, strokes(-3.0, 4, 3), **more)
    assert model.clients_ == ("normal", "worn")


def test_a_channel_without_values_and_a_model_without_classes_are_refused(model):
    with pytest.raises(InputError, match="no cycle has a value in channel 'q'"):
        model.add_class("new", strokes(-3.0, 4, 3)[:, :1], channels=["p"])
    with pytest.raises(InputError, match="`block` must give the run of each of the 4 cycles"):
        model.propose(strokes(-3.0, 4, 3), grid=GRID, block=["a"])
    tree = model.model_.settings
    bare = copy(model)
    found = {
        **tree["diagnosis"],
        "calibration": {**tree["diagnosis"]["calibration"], "thresholds": None},
    }
    bare.model_ = replace(model.model_, settings={**tree, "diagnosis": found})
    with pytest.raises(InputError, match="this model has no thresholds"):
        bare.propose(strokes(-3.0, 4, 3), grid=GRID)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = FederatedGP(rounds=1, inducing=5).fit({"a": (GRID, np.sin(GRID))})
    with pytest.raises(InputError, match="`propose` needs a model that was trained for diagnosis"):
        plain.propose(strokes(0.0, 2, 0)[:, :1], grid=GRID)
