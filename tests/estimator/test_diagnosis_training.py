"""`train_diagnosis`: names of channels, and what happens where there is too little to choose by."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.diagnosis.candidates import Candidate
from pfedhgp.errors import InputError, PFedHGPWarning
from pfedhgp.estimator.classes import classes_of, sites_of
from pfedhgp.estimator.diagnosis_training import train_diagnosis
from pfedhgp.report.diagnosis_section import section, trained_by_runs
from pfedhgp.report.words import InputAxis
from support.press import GRID, SETTINGS, press

QUICK = {name: SETTINGS[name] for name in ("inducing", "local_inducing", "rounds", "averaging")}


def test_channels_keep_their_names_and_missing_ones_count_as_gaps():
    """Three and four cycles a class, each a run of its own."""
    model = train_diagnosis(
        press((3, 4)), inputs="sample", outputs=["PS1", "PS2"], folds=2, **QUICK
    )
    kept = model.model_.settings["diagnosis"]
    assert kept["classes"] == ["press 0", "press 1"]
    assert kept["runs"] == kept["cycles"] == 7
    new = press((1, 1), seed=5)["press 1"][1]
    alone = model.classify(new[:, :1], grid=GRID, channels=["PS1"])
    gap = model.classify(np.where([[[True], [False]]], new, np.nan), grid=GRID)
    np.testing.assert_allclose(alone.log_density, gap.log_density)
    with pytest.raises(InputError, match="no channel 'PS3' in the model; it has PS1, PS2"):
        model.classify(new[:, :1], grid=GRID, channels=["PS3"])
    reason = model.why(new[0], grid=GRID, chosen="press 1", other="press 0")
    assert reason.channels == ("PS1", "PS2")
    assert {each["channel"] for each in reason.stretches()} == {"PS1", "PS2"}


def changed(which: str, cycles) -> dict:
    """Two classes, one of them with other cycles."""
    return {**press((4, 4)), which: (GRID, cycles)}


def holes(*which: int) -> np.ndarray:
    cycles = press((4, 4))["press 1"][1].copy()
    cycles[list(which)] = np.nan
    return cycles


CYCLES = np.zeros((4, 2, 12))
ONE, WHITE = (Candidate("cell", 0.1),), (Candidate("channel", 1.0),)


@pytest.mark.parametrize(
    ("data", "settings", "words"),
    [
        (press((4, 4)), {"candidates": ()}, "`candidates` is empty"),
        (press((4, 4)), {"candidates": ["free"]}, r"such as Candidate\('cell', 0.1\), got 'free'"),
        (press((4, 4)), {"candidates": "free"}, "must be a list of `Candidate`, got 'free'"),
        (press((4, 4)), {"folds": 1}, "`folds` must be at least 2, got 1"),
        (press((4, 4)), {"cycle_basis": 1.5}, "`cycle_basis` must be a whole number"),
        (press((4, 4)), {"false_alarms": 1.5}, "`false_alarms` must be between 0 and 1, got 1.5"),
        (press((4, 4)), {"block": ["press 0"]}, "`block` must be {class: the run of"),
        (list(press((4, 4)).values()), {}, r"must be {class: \(grid, cycles\)}, got list"),
        ({"a": GRID, "b": GRID}, {}, r"class 'a' must be a pair \(grid, cycles\)"),
        (changed("press 1", holes(0, 1, 2, 3)), {}, "'press 1' has no values: .* to cycle 3"),
        (
            changed("press 1", holes(2)),
            {},
            "class 'press 1': cycle 2 has no values: all its samples are missing",
        ),
        (changed("press 1", CYCLES[:, :1]), {}, "'press 1' has 1 channels, the first class 2"),
        (changed("press 1", [[["a"] * 12] * 2]), {}, "class 'press 1': cycles must be numbers"),
        (changed("press 1", CYCLES[:, :, :5]), {}, r"'press 1': cycles must be \(C, Q, 12\)"),
        (changed("press 1", CYCLES + np.inf), {}, "'press 1': cycle 0 has an infinite value"),
        ({n: (0 * GRID, CYCLES) for n in "ab"}, {}, r"the grid is 0 at every sample \(input 1\)"),
        ({n: (["a"] * 12, CYCLES) for n in "ab"}, {}, "class 'a': the grid must be numbers"),
        ({n: (GRID, CYCLES) for n in (1, "1", 2)}, {}, "two classes are called '1'"),
        (
            {n: (GRID, CYCLES) for n in ("a", "none of these")},
            {},
            "no class can be called 'none of these'",
        ),
        *(
            (
                press((4, 4)),
                {"block": {"press 0": [1, 1, 2, 2], "press 1": [1, 1, gap, 2]}},
                "class 'press 1': entry 2 of `block` is missing",
            )
            for gap in (None, float("nan"), np.datetime64("NaT"), " ")
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_fitted(data, settings, words):
    def make(**_: object) -> None:
        raise AssertionError("a model was made")

    with pytest.raises(InputError, match=words):
        train_diagnosis(data, make=make, **settings)


def runs_of_press(seed: int = 0, *, runs: int = 4, effect: float = 1.0):
    """({class: (grid, cycles)}, {class: runs}): runs that differ far more than their cycles."""
    rng = np.random.default_rng(seed)
    data, block = {}, {}
    for k, name in enumerate(("normal", "worn")):
        bump = k * np.exp(-0.5 * ((GRID[:, 0] - 0.5) / 0.1) ** 2)
        level = effect * np.repeat(rng.normal(size=(runs, 1, 1)), 5, axis=0)
        cycles = bump + level + 0.1 * rng.normal(size=(5 * runs, 2, 12))
        data[name] = (GRID[:, 0], cycles)
        block[name] = [f"{name} {b}" for b in np.repeat(np.arange(runs), 5)]
    return data, block


def as_table(data, block):
    """The same as a long table."""
    import polars as pl

    parts = [
        pl.DataFrame(
            {
                "state": name,
                "stroke": c,
                "shift": block[name][c],
                "x": grid,
                "p": cycle[0],
                "q": cycle[1],
            }
        )
        for name, (grid, cycles) in data.items()
        for c, cycle in enumerate(cycles)
    ]
    return pl.concat(parts)


def test_fit_with_blocks_is_ready_to_classify_from_arrays_and_from_a_table():
    data, block = runs_of_press()
    new, _ = runs_of_press(1)
    cycles = np.concatenate([Y for _, Y in new.values()])
    settings = {**QUICK, "domain": [(0.0, 1.0)]}
    arrays = FederatedGP(**settings).fit(data, outputs=["p", "q"], block=block)
    columns = {"client": "state", "inputs": "x", "outputs": ["p", "q"], "cycle": "stroke"}
    table = FederatedGP(**settings).fit(as_table(data, block), **columns, block="shift")
    one, two = (m.classify(cycles, grid=GRID) for m in (arrays, table))
    np.testing.assert_allclose(one.log_density, two.log_density, atol=1e-8)
    assert np.mean(one.best == np.repeat([0, 1], 20)) >= 0.95
    assert one.none.mean() < 0.3  # eight runs, and a rate of 1% a run
    assert arrays.model_.settings["diagnosis"]["runs"] == 8


@pytest.mark.parametrize(
    ("block", "more", "words"),
    [
        ("shift", {}, "`block` needs `cycle`"),
        (["a"], {"cycle": "stroke"}, "`block` must name a column of the table"),
        ("nose", {"cycle": "stroke"}, "no column 'nose'"),
    ],
)
def test_blocks_of_a_table_are_a_column(block, more, words):
    table = as_table(*runs_of_press())
    with pytest.raises(InputError, match=words):
        FederatedGP().fit(
            table, client="state", inputs="x", outputs=["p", "q"], block=block, **more
        )


def test_a_table_names_the_run_of_every_cycle():
    import polars as pl

    table = as_table(*runs_of_press())
    lost = pl.when((pl.col("state") == "worn") & (pl.col("stroke") == 3)).then(None)
    given = {"client": "state", "inputs": "x", "outputs": ["p", "q"], "cycle": "stroke"}
    with pytest.raises(InputError, match="class 'worn': cycle '3' has no block"):
        FederatedGP().fit(
            table.with_columns(shift=lost.otherwise(pl.col("shift"))), **given, block="shift"
        )


def test_channels_that_a_class_lacks_or_that_never_move_in_it_are_named():
    data, block = runs_of_press()
    for value, words in (
        (np.nan, "class 'worn' never has channel 'q', which others have"),
        (5.0, "channel 'q' is constant in class 'worn' and moves in others"),
    ):
        cycles = data["worn"][1].copy()
        cycles[:, 1] = value
        odd = {**data, "worn": (data["worn"][0], cycles)}
        with pytest.warns(PFedHGPWarning, match=words) as told:
            train_diagnosis(odd, block=block, outputs=["p", "q"], candidates=ONE, **QUICK)
        assert sum("channel 'q'" in str(each.message) for each in told) == 1


def test_it_is_said_in_training_and_in_the_report_that_lda_does_better():
    """Noise that both channels share hides what their difference shows; the one candidate cannot know."""
    rng = np.random.default_rng(0)
    data = {}
    for k, name in enumerate(("normal", "worn")):
        shared = 2.0 * rng.normal(size=(150, 1, 12))
        cycles = np.concatenate([shared, shared + 0.3 * k], axis=1)
        data[name] = (GRID[:, 0], cycles + 0.1 * rng.normal(size=cycles.shape))
    with pytest.warns(PFedHGPWarning, match="shrunken LDA is right about .* consider LDA"):
        model = train_diagnosis(data, candidates=WHITE, **QUICK)
    facts = model.model_.settings["diagnosis"]
    assert facts["lda"]["accuracy"] > facts["held_out"]["accuracy"] + 0.1
    page = section(None, axis=InputAxis("x"), trained=trained_by_runs(model.model_.settings))
    assert "shrunken LDA is right about" in page


def test_the_order_of_cycles_runs_and_classes_does_not_matter(tmp_path):
    data, block = runs_of_press()
    new = runs_of_press(1)[0]["worn"][1]
    rng = np.random.default_rng(0)
    mixed, owners = {}, {}
    for name in reversed(list(data)):
        order = rng.permutation(len(block[name]))
        mixed[name] = (data[name][0], data[name][1][order])
        owners[name] = [block[name][c] for c in order]
    one = train_diagnosis(data, block=block, **QUICK)
    two = train_diagnosis(mixed, block=owners, **QUICK)
    found = [m.classify(new, grid=GRID) for m in (one, two)]
    assert found[0].labels == found[1].labels
    np.testing.assert_allclose(
        found[0].log_density, found[1].log_density[:, ::-1], rtol=1e-9, atol=1e-11
    )
    one.save(tmp_path / "RUN")
    again = FederatedGP.load(tmp_path / "RUN").classify(new, grid=GRID)
    np.testing.assert_array_equal(again.log_density, found[0].log_density)


def test_a_run_lies_at_one_site():
    grid, cycles = np.linspace(0.0, 1.0, 3), np.zeros((4, 1, 3)) + np.arange(4.0)[:, None, None]
    data = {"a": (grid, cycles), "b": (grid, cycles + 1.0)}
    runs = {name: [1, 1, 2, 2] for name in data}
    classes = classes_of(data, runs)
    where = {"a": ["A", "A", "B", "B"], "b": ["B"] * 4}
    assert sites_of(where, classes) == ["A", "A", "B", "B", "B", "B", "B", "B"]
    with pytest.raises(InputError, match="class 'a': run '1' is at two sites, 'A' and 'B'"):
        train_diagnosis(data, block=runs, site={**where, "a": ["A", "B", "B", "B"]})
    with pytest.raises(
        InputError, match="`site` must give the site of each of the 4 cycles of 'b'"
    ):
        train_diagnosis(data, block=runs, site={**where, "b": ["B"]})
