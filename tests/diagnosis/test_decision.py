"""From evidence to labels: probabilities, thresholds, scores, and why."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.diagnosis import thresholds
from pfedhgp.diagnosis.class_gaussian import ClassGaussian
from pfedhgp.diagnosis.decision import NONE, Calibration, calibrate, diagnose, scores, why
from pfedhgp.diagnosis.evidence import Evidence, concatenated, evidence_under
from pfedhgp.errors import InputError

CLASSES = ("a", "b")


def gaussian_evidence(rng, count: int = 400, wild: float = 0.0) -> tuple[Evidence, list[str]]:
    """Cycles of two classes, two channels of 20 samples; channel 1 runs wild now and then in both."""
    gaussians = [
        ClassGaussian(np.full((20, 2), shift), np.zeros((40, 0)), np.eye(2)) for shift in (0.0, 1.0)
    ]
    truth = rng.integers(0, 2, count)
    cycles = rng.normal(size=(count, 20, 2)) + truth[:, None, None]
    cycles[rng.uniform(size=count) < wild, :, 1] *= 30.0
    found = evidence_under(CLASSES, gaussians, cycles, novelty=True)
    return found, [CLASSES[k] for k in truth]


def evidence_of(log_density, distance=None, cells=10) -> Evidence:
    log_density = np.asarray(log_density, float)
    distance = (
        np.full(log_density.shape, cells) if distance is None else np.asarray(distance, float)
    )
    return Evidence(CLASSES, log_density, distance, np.full((len(log_density), 1), cells))


def test_the_most_probable_class_wins_and_priors_and_temperature_count():
    found = evidence_of([[0.0, 1.0], [3.0, 0.0]])
    plain = diagnose(found)
    assert plain.labels == ("b", "a")
    np.testing.assert_allclose(plain.probability[0], [1 / (1 + np.e), np.e / (1 + np.e)])
    assert diagnose(found, priors={"a": 9.0, "b": 1.0}).labels == ("a", "a")
    cooler = diagnose(found, calibration=Calibration(temperature=2.0))
    np.testing.assert_allclose(cooler.probability[0, 1], 1 / (1 + np.exp(-0.5)))


def test_a_cycle_is_none_of_these_only_where_every_class_is_surprised():
    found = evidence_of([[0.0, 1.0]] * 3, [[10.0, 90.0], [90.0, 10.0], [90.0, 90.0]])
    limits = Calibration(thresholds=(4.0,))
    assert diagnose(found, calibration=limits).labels == ("b", "b", NONE)
    assert not diagnose(found).none.any()


def test_two_covariances_share_the_false_alarms_and_either_may_flag():
    rng = np.random.default_rng(3)
    one, truth = gaussian_evidence(rng)
    other, _ = gaussian_evidence(rng)
    both = replace(one, also=other)
    assert both.surprise.shape[2] == 2 * one.surprise.shape[2]
    limits = calibrate(both, truth, false_alarms=0.04).thresholds
    halves = [calibrate(each, truth, false_alarms=0.02).thresholds for each in (one, other)]
    assert limits == (*halves[0], *halves[1])
    order = rng.permutation(len(truth))
    again = concatenated([both.take(order[:100]), both.take(order[100:])])
    np.testing.assert_array_equal(again.surprise, both.surprise[order])
    calm = evidence_of([[0.0, -1.0]] * 2, [[10, 10], [10, 10]])
    strange = replace(calm, also=evidence_of([[0.0, -1.0]] * 2, [[10, 10], [90, 90]]))
    found = diagnose(strange, calibration=Calibration(thresholds=(4.0, 4.0)))
    assert found.none.tolist() == [False, True]
    near_one = replace(calm, also=evidence_of([[0.0, -1.0]] * 2, [[10, 90], [90, 10]]))
    assert not diagnose(near_one, calibration=Calibration(thresholds=(4.0, 4.0))).none.any()


def test_thresholds_keep_the_chosen_rate_on_new_cycles_and_flag_strangers():
    rng = np.random.default_rng(0)
    known = calibrate(*gaussian_evidence(rng, 2000), false_alarms=0.02)
    fresh, _ = gaussian_evidence(rng, 2000)
    assert 0.005 < diagnose(fresh, calibration=known).none.mean() < 0.035
    gaussians = [
        ClassGaussian(np.full((20, 2), shift), np.zeros((40, 0)), np.eye(2)) for shift in (0.0, 1.0)
    ]
    strangers = evidence_under(
        CLASSES, gaussians, rng.normal(size=(200, 20, 2)) - 3.0, novelty=True
    )
    assert diagnose(strangers, calibration=known).none.all()


def test_a_wild_channel_does_not_hide_what_the_others_say():
    """One threshold on the whole cycle would be the wild channel's, and miss the stranger."""
    rng = np.random.default_rng(1)
    held, truth = gaussian_evidence(rng, 2000, wild=0.05)
    known = calibrate(held, truth, false_alarms=0.02)
    cycles = rng.normal(size=(200, 20, 2))
    cycles[:, :, 0] -= 3.0
    gaussians = [
        ClassGaussian(np.full((20, 2), shift), np.zeros((40, 0)), np.eye(2)) for shift in (0.0, 1.0)
    ]
    strangers = evidence_under(CLASSES, gaussians, cycles, novelty=True)
    assert diagnose(strangers, calibration=known).none.all()
    whole = Evidence(CLASSES, held.log_density, held.distance, held.cells)
    blunt = calibrate(whole, truth, false_alarms=0.02)
    only = Evidence(CLASSES, strangers.log_density, strangers.distance, strangers.cells)
    assert not diagnose(only, calibration=blunt).none.any()


def test_a_cycle_between_two_classes_is_of_neither_however_wild_the_rest_is():
    """Half way between the means, under noise so uneven that neither the whole nor a channel shows it."""
    rng = np.random.default_rng(5)
    step = np.zeros((20, 2))
    step[3] = 1.0
    gaussians = [ClassGaussian(k * step, np.zeros((40, 0)), 0.01 * np.eye(2)) for k in (0.0, 1.0)]

    def drawn(count: int, place: float) -> np.ndarray:
        cycles = place * step + 0.1 * rng.normal(size=(count, 20, 2))
        wild = rng.uniform(size=(count, 1, 1)) < 0.2
        return cycles + wild * rng.normal(size=cycles.shape) * (step == 0)

    held = np.concatenate([drawn(500, 0.0), drawn(500, 1.0)])
    truth = ["a"] * 500 + ["b"] * 500
    known = calibrate(
        evidence_under(CLASSES, gaussians, held, novelty=True), truth, false_alarms=0.02
    )
    between = evidence_under(CLASSES, gaussians, drawn(200, 0.5), novelty=True)
    assert diagnose(between, calibration=known).none.mean() > 0.95
    fresh = evidence_under(CLASSES, gaussians, drawn(1000, 1.0), novelty=True)
    assert diagnose(fresh, calibration=known).none.mean() < 0.03
    blunt = Evidence(CLASSES, between.log_density, between.distance, between.cells)
    limit = calibrate(evidence_under(CLASSES, gaussians, held), truth, false_alarms=0.02)
    assert diagnose(blunt, calibration=limit).none.mean() < 0.05


def test_overconfident_evidence_is_tempered():
    rng = np.random.default_rng(2)
    found, truth = gaussian_evidence(rng)
    assert calibrate(found, truth).temperature < 1.5
    loud = Evidence(CLASSES, 50.0 * found.log_density, found.distance, found.cells)
    labels = [
        truth[c] if c % 4 else CLASSES[1 - CLASSES.index(truth[c])] for c in range(len(truth))
    ]
    tempered = calibrate(loud, labels)
    assert tempered.temperature > 20.0
    assert tempered.log_loss < 0.75


@pytest.mark.parametrize("nats", [1e2, 1e4, 1e7])
def test_a_misleading_block_leaves_no_more_than_the_log_loss_of_not_knowing(nats):
    """Most held-out cycles are sure of the wrong class, by any number of nats."""
    gap = nats * np.linspace(-1.0, 0.5, 40)  # of class a, whose cycles they are
    found = evidence_of(np.stack([gap, np.zeros(40)], axis=1))
    known = calibrate(found, ["a"] * 40)
    assert known.log_loss <= np.log(2) + 1e-6
    shown = diagnose(found, calibration=known)
    assert shown.best.tolist() == [int(g < 0) for g in gap]
    assert scores(CLASSES, ["a"] * 40, shown.probability)["log_loss"] <= np.log(2) + 1e-6


def test_no_probability_is_surer_than_the_held_out_cycles():
    """98 cycles without a mistake: 1 in 100 is left for the classes, in equal parts."""
    found = evidence_of([[0.0, 5e3], [5e3, 0.0]])
    known = diagnose(found, calibration=Calibration(cycles=98))
    np.testing.assert_allclose(known.probability, [[0.005, 0.995], [0.995, 0.005]])
    assert known.labels == diagnose(found).labels == ("b", "a")
    assert scores(CLASSES, ["a", "a"], known.probability)["log_loss"] < 2.7


def test_a_calibration_survives_json_and_an_unseen_channel_has_no_threshold():
    one = Calibration(2.0, (1.0, np.inf), 0.01, 5, 0.9, 0.2)
    assert Calibration.from_json(one.to_json()) == one
    assert one.to_json()["thresholds"] == [1.0, None]


def test_scores_against_scikit_learn():
    from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, log_loss

    rng = np.random.default_rng(3)
    probability = rng.dirichlet([1.0, 1.0, 1.0], size=200)
    names = ("x", "y", "z")
    truth = [names[k] for k in rng.integers(0, 3, 200)]
    guess = [names[k] for k in probability.argmax(axis=1)]
    found = scores(names, truth, probability)
    assert found["accuracy"] == pytest.approx(accuracy_score(truth, guess))
    assert found["log_loss"] == pytest.approx(log_loss(truth, probability, labels=list(names)))
    assert found["confusion"] == confusion_matrix(truth, guess, labels=list(names)).tolist()
    expected = f1_score(truth, guess, average=None, labels=list(names))
    np.testing.assert_allclose(list(found["f1"].values()), expected)


def test_ece_is_the_gap_between_confidence_and_accuracy():
    probability = np.tile([0.8, 0.2], (10, 1))
    assert scores(CLASSES, ["a"] * 8 + ["b"] * 2, probability)["ece"] == pytest.approx(0.0)
    assert scores(CLASSES, ["a"] * 5 + ["b"] * 5, probability)["ece"] == pytest.approx(0.3)


def test_why_finds_the_channel_and_the_stretch_and_sums_to_the_evidence():
    rng = np.random.default_rng(4)
    half = np.repeat(np.linspace(0.2, 1.0, 30), 2)[:, None]
    bent = np.zeros((30, 2))
    bent[12:18, 1] = 4.0
    gaussians = (
        ClassGaussian(bent, half, 0.1 * np.eye(2)),
        ClassGaussian(np.zeros((30, 2)), half, 0.1 * np.eye(2)),
    )
    cycle = bent + 0.3 * rng.normal(size=(30, 2))
    grid = np.arange(30.0)[:, None]
    found = why(gaussians, ("bent", "flat"), grid=grid, channels=("left", "right"), cycle=cycle)
    first = found.stretches(10)[0]
    assert first["channel"] == "right"
    assert 12 <= first["start"] <= 17
    expected = gaussians[0].score(cycle[None])[0][0] - gaussians[1].score(cycle[None])[0][0]
    assert found.total == pytest.approx(expected, rel=1e-9)
    assert sum(each["nats"] for each in found.stretches(10)) == pytest.approx(found.total)
    assert found.alone[1] > found.alone[0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda e: diagnose(e, priors={"c": 1.0}), "no class 'c' in the model; it has a, b"),
        (lambda e: diagnose(e, priors={"a": 1.0}), "`priors` must give every class"),
        (lambda e: diagnose(e, priors={"a": 1.0, "b": "much"}), "`priors` must give every class"),
        (lambda e: diagnose(e, priors={"a": 1.0, "b": None}), "`priors` must give every class"),
        (lambda e: diagnose(e, priors=[1.0, 2.0]), "`priors` must be {class: weight}, got list"),
        (lambda e: calibrate(e, ["a", "c"]), "no class 'c' in the model"),
        (lambda e: calibrate(e, ["a", "b"], false_alarms=0.0), "`false_alarms` must be between"),
        (lambda e: diagnose(e, calibration=Calibration(thresholds=(1.0, 2.0))), "calibrate again"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(InputError, match=words):
        call(evidence_of([[0.0, 1.0], [1.0, 0.0]]))


def test_a_smooth_stranger_is_seen_within_the_span_and_not_in_the_whole_cycle():
    """A bump of four standard deviations of one function, in a cycle of 600 noisy samples."""
    rng = np.random.default_rng(7)
    x = np.linspace(0.0, 1.0, 600)
    span = np.linalg.qr(np.stack([np.cos(np.pi * k * x) for k in range(8)], axis=1))[0]
    means = [np.zeros((600, 1)), 20.0 * span[:, :1]]
    gaussians = [ClassGaussian(mean, 2.0 * np.eye(8), np.eye(1), span) for mean in means]

    def drawn(count: int, k: int) -> np.ndarray:
        smooth = 2.0 * rng.normal(size=(count, 8)) @ span.T
        return means[k] + smooth[:, :, None] + rng.normal(size=(count, 600, 1))

    held = np.concatenate([drawn(150, 0), drawn(150, 1)])
    truth = ["a"] * 150 + ["b"] * 150
    known = calibrate(
        evidence_under(CLASSES, gaussians, held, novelty=True), truth, false_alarms=0.01
    )
    strangers = drawn(200, 0) + 20.0 * span[:, 4][:, None]
    flagged = diagnose(
        evidence_under(CLASSES, gaussians, strangers, novelty=True), calibration=known
    )
    assert flagged.none.mean() > 0.95
    fresh = np.concatenate([drawn(1000, 0), drawn(1000, 1)])
    alarms = diagnose(
        evidence_under(CLASSES, gaussians, fresh, novelty=True), calibration=known
    ).none.mean()
    assert alarms < 0.02
    blunt = calibrate(evidence_under(CLASSES, gaussians, held), truth, false_alarms=0.01)
    assert (
        diagnose(evidence_under(CLASSES, gaussians, strangers), calibration=blunt).none.mean() < 0.7
    )


def test_a_threshold_beyond_the_largest_value_follows_the_tail():
    """300 draws of a known distribution, and a share of one in a thousand: near the true quantile."""
    rng = np.random.default_rng(3)
    found = [thresholds.quantile(rng.exponential(size=300), 0.001) for _ in range(200)]
    assert np.mean(found) == pytest.approx(-np.log(0.001), rel=0.1)
    assert thresholds.quantile(np.arange(99.0), 0.05) == 94.0  # within the values: the value itself


def test_a_tail_that_is_short_by_chance_is_drawn_out_as_the_other_views_are():
    """Six views of one distribution and 140 cycles: the lowest limit alone alarms on too many new cycles."""
    rng = np.random.default_rng(4)
    alone, together = [], []
    for _ in range(60):
        own = rng.exponential(size=(140, 6))
        usual = thresholds.median_tail(own)
        alone.append(min(thresholds.quantile(view, 0.0005) for view in own.T))
        together.append(min(thresholds.quantile(view, 0.0005, usual) for view in own.T))
    assert np.mean(np.exp(-np.asarray(alone))) > 2.5 * np.mean(np.exp(-np.asarray(together)))
    wild = np.stack([rng.exponential(size=140)] * 4 + [50.0 * rng.exponential(size=140)], axis=1)
    usual = thresholds.median_tail(wild)  # one wild view is not the rule
    assert usual < 3.0
    found = thresholds.quantile(wild[:, 4], 0.0005, usual)
    assert found == thresholds.quantile(wild[:, 4], 0.0005)
