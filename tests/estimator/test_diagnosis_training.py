"""`train_diagnosis`: names of channels, and what happens where there is too little to choose by."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.errors import InputError, PFedHGPWarning
from pfedhgp.estimator.diagnosis_training import TOO_FEW, train_diagnosis
from support.press import GRID, SETTINGS, press


@pytest.mark.slow
def test_two_cycles_take_the_free_layer_and_channels_keep_their_names():
    """Two and three cycles a class: nothing is chosen, and that is warned of and kept."""
    settings = {name: SETTINGS[name] for name in ("inducing", "local_inducing", "rounds")}
    with pytest.warns(PFedHGPWarning, match="'press 0' has fewer than 4 complete cycles"):
        model = train_diagnosis(
            press((2, 3)),
            inputs="sample",
            outputs=["PS1", "PS2"],
            cycle_basis=6,
            folds=2,
            thresholds=False,
            averaging=False,
            **settings,
        )
    kept = model.model_.settings["diagnosis"]
    assert (kept["form"], kept["sharing"], kept["choice"]) == ("free", "shared", TOO_FEW)
    assert kept["candidates"] == {}
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


@pytest.mark.parametrize(
    ("data", "settings", "words"),
    [
        (press((4, 4)), {"candidates": ()}, "`candidates` is empty"),
        (press((4, 4)), {"candidates": ["free"]}, r"such as Candidate\('free'\), got 'free'"),
        (press((4, 4)), {"candidates": "free"}, "must be a list of `Candidate`, got 'free'"),
        (press((4, 4)), {"cycles": "white"}, "give `candidates` instead of `cycles`"),
        (press((4, 4)), {"cycle_sharing": "client"}, "instead of `cycle_sharing`"),
        (press((4, 4)), {"false_alarms": 1.5}, "`false_alarms` must be between 0 and 1, got 1.5"),
        (press((4, 4)), {"blocks": ["press 0"]}, "`blocks` must be {class: blocks}, got list"),
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
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_fitted(data, settings, words):
    def make(**_: object) -> None:
        raise AssertionError("a model was made")

    with pytest.raises(InputError, match=words):
        train_diagnosis(data, folds=2, make=make, **settings)
