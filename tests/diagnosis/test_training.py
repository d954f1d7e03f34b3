"""Training on runs: what is warned of, what is refused, what is filled in, and what is flagged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.diagnosis.alikeness import lag_one
from pfedhgp.diagnosis.candidates import Candidate
from pfedhgp.diagnosis.coordinates import Coordinates
from pfedhgp.diagnosis.cycle_metric import CycleMetric, without_the_wildest
from pfedhgp.diagnosis.federated.tails import FINE, typical_of_bins
from pfedhgp.diagnosis.filling import Filled, filled
from pfedhgp.diagnosis.held_out_runs import Cycles, folds_of_runs, held_out
from pfedhgp.diagnosis.reasons import why_of_runs
from pfedhgp.diagnosis.run_classifier import RunClassifier, novelty_of
from pfedhgp.diagnosis.run_layers import Layers
from pfedhgp.diagnosis.run_sums import RunSums, sums_of_runs
from pfedhgp.diagnosis.strangers import margin, references_of, widest
from pfedhgp.diagnosis.thresholds import largest_of_runs, limits_of_ratios
from pfedhgp.diagnosis.training import How, behind, train
from pfedhgp.diagnosis.typical import typical_of
from pfedhgp.errors import InputError, PFedHGPWarning
from support.run_cycles import FEW, GRID, NAMES, labels_of, runs, trained


def test_new_runs_are_told_apart_and_probabilities_have_a_floor():
    model = trained(*runs())
    new, _ = runs(1)
    found = [labels_of(model, Y) for Y in new.values()]
    for k, each in enumerate(found):
        assert np.mean(each.best == k) >= 0.95
        assert each.probability.min() >= 0.249 / 61  # 60 cycles
    stranger, _ = runs(2, dents=(-4.0,))
    assert labels_of(model, stranger["class 0"]).none.mean() > 0.9


def test_files_bring_back_the_same_classifier():
    model = trained(*runs())
    assert model.second is not None
    again = RunClassifier.read(model.to_arrays(), model.to_json())
    assert again.references == model.references
    Y = np.moveaxis(runs(1)[0]["class 1"], 1, 2)
    one, two = (m.evidence(GRID, Y, novelty=True) for m in (model, again))
    np.testing.assert_array_equal(one.log_density, two.log_density)
    np.testing.assert_array_equal(one.surprise, two.surprise)
    parts = [
        replace(model, reference=shape, second=None).evidence(GRID, Y, novelty=True).surprise
        for shape in model.references
    ]
    np.testing.assert_array_equal(one.surprise, np.concatenate(parts, axis=2))
    tree = model.to_json()
    del tree["second"]  # as older versions wrote it
    assert RunClassifier.read(model.to_arrays(), tree).references == (model.reference,)


def test_strangers_are_looked_for_by_the_two_covariances_that_show_them_best():
    cycles, block = runs(dents=(0.0, 1.0, -1.5))
    labels, owners = (
        np.repeat(np.arange(3), 30),
        [f"{name} {run}" for name in block for run in block[name]],
    )
    found = np.concatenate([Y.reshape(30, -1) for Y in cycles.values()])
    folds = folds_of_runs(labels, owners, folds=4)
    data = Cycles(found, np.ones((90, 3)), labels, tuple(owners), folds, 3, 3, own=False)
    shapes = [Candidate("cell", delta) for delta in (0.01, 0.1, 0.3, 1.0)]
    held = held_out(data, shapes)
    margins = {shape: margin(data, held[shape], 0.01) for shape in shapes}
    best = sorted(shapes, key=lambda shape: -margins[shape])
    assert references_of(data, held, shapes, 0.02) == tuple(best[:2])
    assert references_of(data, held, shapes[:1], 0.02) == (shapes[0],)
    assert widest([1.0, 3.0, 3.0, 2.0]) == [1, 2]
    # how far held-out runs are, from the same judgement
    for c in (0, 40):
        rest = folds != folds[c]
        layers = Layers.of(data.sums(rest), 3)
        mine = [b for b in range(90) if owners[b] == owners[c]]
        gap = found[mine].mean(axis=0) - layers.means[labels[c]]
        d2 = gap @ np.linalg.solve(layers.covariance("cell", 0.1), gap)
        assert held[shapes[1]].of_run[c] == pytest.approx(d2, rel=1e-7)
    exact = typical_of(data, held[shapes[1]])
    own = held[shapes[1]].square[np.arange(90), labels]
    far = np.stack([own, held[shapes[1]].of_run], axis=1) / 30.0
    near = typical_of_bins(FINE.count(far, data.weights), 30.0)
    assert near.cycle == pytest.approx(exact.cycle, rel=0.05)
    assert near.run == pytest.approx(exact.run, rel=0.05)


def test_more_directions_than_thresholds_were_set_on_count_as_so_many():
    """If classes were added, d²/N towards the others is compared, and N stays that of training."""
    rng = np.random.default_rng(0)
    metric = CycleMetric.of(np.eye(6), [slice(0, 3), slice(3, 6)])
    found, means = rng.normal(size=(5, 6)), 4.0 * rng.normal(size=(4, 6))
    ones = np.ones(4)
    plain, less, wide = (
        novelty_of([metric], found, means, wider, novelty=True, most=n)[1]
        for wider, n in ((ones, 3), (ones, 1), (2.0 * ones, 3))
    )
    assert plain.directions.max() == 3.0
    assert less.directions.max() == 1.0
    np.testing.assert_allclose(less.towards, plain.towards / 3.0)
    for part in ("towards", "within", "given_the_rest"):
        np.testing.assert_allclose(2.0 * getattr(wide, part), getattr(plain, part))


def test_parts_of_cycles_are_marginals():
    """A cycle without a channel is judged as by the model of the other channels with the same covariance."""
    model = trained(*runs())
    Y = np.moveaxis(runs(1)[0]["class 1"][:3], 1, 2).copy()
    Y[1, :, 0] = np.nan
    Y[2, 4:6, 1] = np.nan
    shape = model.judged[0].candidate.shape
    for c in (1, 2):
        seen = np.isfinite(Y[c]).T
        space = model.space(GRID, seen)
        sigma = model.covariances(shape, space, [0])[0]
        whole = (1.0 + 1.0 / 6.0) * model.layers.covariance(shape.target, shape.shrinkage)
        kept = np.flatnonzero(seen.reshape(-1))
        np.testing.assert_allclose(sigma, whole[np.ix_(kept, kept)], atol=1e-12)
    assert np.all(np.isfinite(model.evidence(GRID, Y).log_density))


def test_long_cycles_are_projected_and_their_rest_is_noise():
    rng, grid = np.random.default_rng(0), np.linspace(0.0, 1.0, 200)[:, None]
    space = Coordinates(grid, np.zeros((1, 200)), np.ones(1), 20)
    S = space.functions
    np.testing.assert_allclose(S.T @ S, np.eye(20), atol=1e-9)
    smooth = np.sin(5.0 * grid[:, 0])[None, None]
    found = space.of(smooth)
    np.testing.assert_allclose(found[0] @ S.T, smooth[0, 0], atol=0.01)
    noise = rng.normal(size=(50, 1, 200))
    rest = space.outside(noise, space.of(noise))
    assert rest.mean() == pytest.approx(180.0, rel=0.05)
    view = space.view(grid[::2], np.ones((1, 100), bool))
    np.testing.assert_allclose(view.of(smooth[:, :, ::2]), view.project(found), atol=0.03)


def test_the_wild_channel_is_named_and_reasons_add_up():
    model = trained(*runs())
    cycle = runs(1)[0]["class 1"][0].copy()
    cycle[2] += 30.0 * np.sin(40.0 * GRID[:, 0])
    found = labels_of(model, cycle[None])
    assert found.best[0] == 1
    names = ("class 1", "class 0")
    reason = why_of_runs(model, names, X=GRID, channels=NAMES, cycle=cycle.T)
    assert list(reason.wild) == ["r"]
    assert reason.wild["r"] > 10.0
    assert reason.total == pytest.approx(np.nansum(reason.along))
    assert reason.total > 0.0
    plain = why_of_runs(model, names, X=GRID, channels=NAMES, cycle=cycle.T, aside=False)
    assert plain.wild == {}
    assert plain.total != reason.total
    calm = why_of_runs(model, names, X=GRID, channels=NAMES, cycle=runs(1)[0]["class 1"][0].T)
    assert calm.stretches(5)[0]["nats"] > 0.0


def test_hardly_any_known_run_has_a_channel_that_is_called_wild():
    model = trained(*runs(count=12))
    new, block = runs(1, count=12)
    found = {
        (name, run)
        for name in new
        for Y, run in zip(new[name], block[name], strict=True)
        if why_of_runs(model, (name, "class 0"), X=GRID, channels=NAMES, cycle=Y.T).wild
    }
    assert len(found) <= 1  # of 24, with 1% asked
    calibration = replace(model.calibration, thresholds=None, false_alarms=None)
    never = replace(model, calibration=calibration)
    far = new["class 1"][0] + np.array([0.0, 0.0, 30.0])[:, None] * np.sin(40.0 * GRID[:, 0])
    names = ("class 1", "class 0")
    assert why_of_runs(model, names, X=GRID, channels=NAMES, cycle=far.T).wild
    assert not why_of_runs(never, names, X=GRID, channels=NAMES, cycle=far.T).wild


def test_reasons_are_the_log_odds_of_the_candidate_that_weighs_most():
    one = How(candidates=(Candidate("cell", 0.1, heavy=True),), folds=4)
    model = trained(*runs(), how=one)
    cycle = runs(1)[0]["class 0"][3]
    found = model.evidence(GRID, np.moveaxis(cycle[None], 1, 2)).log_density[0]
    reason = why_of_runs(model, ("class 0", "class 1"), X=GRID, channels=NAMES, cycle=cycle.T)
    assert reason.total == pytest.approx(found[0] - found[1], rel=1e-6)


def with_one_run_in_the_wrong_class():
    """Ten runs a class; the last of class 0 is called class 1."""
    cycles, block = runs(count=10)
    cycles["class 1"] = np.concatenate([cycles["class 1"], cycles["class 0"][45:]])
    block["class 1"] = [*block["class 1"], *[10] * 5]
    cycles["class 0"], block["class 0"] = cycles["class 0"][:45], block["class 0"][:45]
    return cycles, block


def test_after_a_run_of_the_wrong_class_a_share_of_every_probability_is_dealt_out():
    one = How(candidates=(Candidate("within", 0.1),), folds=5)
    model = trained(*with_one_run_in_the_wrong_class(), how=one)
    (only,) = model.judged
    assert only.even > 0.0
    Y = runs(1)[0]["class 1"]
    found = model.evidence(GRID, np.moveaxis(Y, 1, 2)).log_density
    (metric,) = model.complete(only.candidate)
    wider = 1.0 + 1.0 / np.array([9.0, 11.0])
    square, given = metric.distances(model.coordinates.of(Y), model.layers.means)
    saved = without_the_wildest(square / wider, given / wider[:, None], metric.lengths)
    log = (-0.5 * saved - 0.5 * 30.0 * np.log(wider)) / only.temperature
    plain = np.exp(log) / np.exp(log).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.exp(found), (1.0 - only.even) * plain + only.even / 2, atol=1e-9)
    assert np.exp(found).min() >= only.even / 2


# ------------------------------------------------------------------------------------- bad input


def test_a_class_with_one_run_borrows_how_runs_differ():
    cycles, block = runs()
    block["class 1"] = ["only"] * 30
    with pytest.warns(PFedHGPWarning, match="'class 1' has one run: .* from the other classes"):
        model = train(GRID, cycles, block, channels=NAMES, how=FEW).classifier
    assert np.mean(labels_of(model, runs(1)[0]["class 0"]).best == 0) > 0.8
    assert np.all(np.isfinite(labels_of(model, runs(1)[0]["class 1"]).log_density))


def test_one_run_in_every_class_makes_cycles_the_runs():
    cycles, block = runs()
    block = {name: ["x"] * 30 for name in block}
    with pytest.warns(
        PFedHGPWarning, match="every class has one run: .* each cycle counts as a run"
    ):
        found = train(GRID, cycles, block, channels=NAMES, how=FEW)
    assert found.facts["runs"] == 60


def test_a_class_with_one_cycle_is_said_and_all_of_them_are_refused():
    cycles, _ = runs()
    cycles["class 1"] = cycles["class 1"][:1]
    with pytest.warns(PFedHGPWarning, match="'class 1' has one cycle"):
        train(GRID, cycles, None, channels=NAMES, how=FEW)
    cycles["class 0"] = cycles["class 0"][:1]
    with pytest.raises(InputError, match="every class has one cycle"):
        train(GRID, cycles, None, channels=NAMES, how=FEW)


def test_two_cycles_a_class_cannot_be_judged_and_that_is_said():
    cycles = {name: Y[::15] for name, Y in runs()[0].items()}
    one = How(candidates=FEW.candidates, folds=2)
    with pytest.warns(PFedHGPWarning, match="too few runs to judge"):
        found = train(
            GRID,
            {k: Y[: 2 - i] for i, (k, Y) in enumerate(cycles.items())},
            None,
            channels=NAMES,
            how=one,
        )
    assert found.classifier.calibration.thresholds is None
    assert not found.facts["judged"]


def test_a_constant_channel_is_left_out_and_said():
    cycles, block = runs()
    for Y in cycles.values():
        Y[:, 1] = 7.0
    with pytest.warns(PFedHGPWarning, match="channel 'q' is constant in the training cycles"):
        model = train(GRID, cycles, block, channels=NAMES, how=FEW).classifier
    assert model.used == (0, 2)
    new = runs(1)[0]["class 1"]
    assert np.mean(labels_of(model, new).best == 1) >= 0.9


@pytest.mark.filterwarnings("ignore:channel")
def test_a_class_on_another_grid_is_filled_and_that_is_said():
    cycles, block = runs()
    for Y, gap in zip(cycles.values(), (np.s_[1::3], np.s_[0:0]), strict=True):
        Y[:, :, gap] = np.nan
    words = "'class 0' has no values at 3 of 10 samples where other classes have some"
    with pytest.warns(PFedHGPWarning, match=words):
        model = train(GRID, cycles, block, channels=NAMES, how=FEW).classifier
    found = [labels_of(model, Y).best for Y in runs(1)[0].values()]
    assert min(np.mean(best == k) for k, best in enumerate(found)) > 0.9


def test_cycles_that_never_move_are_refused():
    cycles, block = runs()
    still = {name: 0.0 * Y + 7.0 for name, Y in cycles.items()}
    with pytest.raises(InputError, match="every channel is constant"):
        train(GRID, still, block, channels=NAMES, how=FEW)


def with_gaps(cycles):
    """Some cycles lack a stretch of a channel; the first of each class lacks a whole channel."""
    rng = np.random.default_rng(0)
    out = {name: Y.copy() for name, Y in cycles.items()}
    for Y in out.values():
        for c in rng.choice(len(Y), 4, replace=False):
            Y[c, 1, 3:6] = np.nan
        Y[0, 2] = np.nan
    return out


def test_missing_samples_are_filled_by_their_run_and_count_by_what_is_uncertain():
    cycles, block = runs()
    data = with_gaps(cycles)
    truth, given = (np.concatenate(list(each.values())) for each in (cycles, data))
    labels = np.repeat([0, 1], 30)
    number = np.repeat(np.arange(12), 5)
    space = Coordinates(GRID, np.zeros((3, 10)), np.ones(3), 10)

    def sums_of(guess: Filled) -> RunSums:
        names = [str(run) for run in number]
        parts = (guess.found, guess.outside, labels, names)
        return sums_of_runs(*parts, classes=2, own=False, filled=guess.spread)

    found = filled(space, given, labels, number, sums_of)
    gone = ~np.isfinite(given.reshape(60, -1))
    np.testing.assert_allclose(found.found[~gone], truth.reshape(60, -1)[~gone], atol=1e-9)
    error = (found.found - truth.reshape(60, -1))[gone]
    assert np.sqrt(np.mean(error**2)) < 0.15  # noise of 0.1, and runs 0.5 apart
    V, members = found.spread[0]
    there = np.isfinite(given[members[0]]).reshape(-1)
    assert np.max(np.abs(V[there])) < 1e-9
    assert np.all(np.diagonal(V)[~there] > 0.0)
    total = sums_of(found)
    plain = sums_of(Filled(found.found, found.outside))
    added = sum(0.8 * len(m) * np.trace(v) for v, m in found.spread)  # runs of five: 1 − 1/5
    assert np.trace(total.within[0] - plain.within[0]) == pytest.approx(added)
    model = trained(data, block)
    assert np.mean(labels_of(model, runs(1)[0]["class 1"]).best == 1) >= 0.9


def test_dependent_cycles_without_runs_are_warned_of():
    cycles, _ = runs()
    with pytest.warns(PFedHGPWarning, match="neighbouring cycles of a class are alike .*`block`"):
        train(GRID, cycles, None, channels=NAMES, how=FEW)
    free, _ = runs(length=1, count=30)
    trained(free, None)
    rho, pairs = lag_one(np.random.default_rng(0).normal(size=(400, 5)), np.repeat([0, 1], 200))
    assert abs(rho) < 0.1
    assert pairs == 398


def test_it_is_said_when_lda_does_better():
    facts = {"runs": 20, "held_out": {"accuracy": 0.9}, "lda": {"accuracy": 0.95}}
    assert "shrunken LDA is right about 95.0%" in (behind(facts) or "")
    assert behind({**facts, "lda": {"accuracy": 0.92}}) is None
    assert behind({"runs": 2, "held_out": {}, "lda": None}) is None


def test_limits_go_by_the_most_surprising_cycle_of_a_run():
    own = np.array([[1.0, np.nan], [3.0, np.nan], [2.0, 5.0]])
    found = largest_of_runs(own, ["a", "a", "b"])
    np.testing.assert_array_equal(found, [[3.0, np.nan], [2.0, 5.0]])
    rng = np.random.default_rng(0)
    ratio = rng.chisquare(10, size=(4000, 2)) / 10
    limits = limits_of_ratios(ratio[:2000], 0.01)
    assert np.mean(np.any(ratio[2000:] > limits, axis=1)) == pytest.approx(0.01, abs=0.007)
    few = [limits_of_ratios(rng.chisquare(10, size=(8, 2)) / 10, 0.01) for _ in range(50)]
    assert np.mean([np.any(ratio > each, axis=1).mean() for each in few]) < 0.02
