"""`train_diagnosis`: names of channels, and what happens where there is too little to choose by."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.diagnosis_training import TOO_FEW, train_diagnosis
from pfedhgp.errors import InputError, PFedHGPWarning
from test_cycle_layer import GRID, SETTINGS, press


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


def test_no_candidate_is_refused():
    with pytest.raises(InputError, match="`candidates` is empty"):
        train_diagnosis(press((4, 4)), candidates=(), folds=2)
