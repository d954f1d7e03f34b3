"""The cycle layer that tells classes apart, chosen on held-out blocks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import invwishart

from pfedhgp.diagnosis.layer_choice import (
    ALL_LAYERS,
    SHARED_LAYERS,
    Candidate,
    candidates_for,
    choose,
    folds_of,
)
from pfedhgp.errors import InputError, PFedHGPWarning
from pfedhgp.model.cycle_layer import CycleBasis

GRID = np.linspace(0.0, 1.0, 24)[:, None]
BASIS = CycleBasis.on(np.linspace(0.0, 1.0, 12)[:, None])


def classes(rng, root: np.ndarray, gap: float, count: int = 40) -> dict[str, np.ndarray]:
    """Two classes (C, n, 2) a faint bump apart; cycles vary by `root` and a little noise."""
    bump = gap * np.exp(-0.5 * ((GRID[:, 0] - 0.5) / 0.06) ** 2)
    found = {}
    for k, name in enumerate(("normal", "worn")):
        smooth = np.einsum("nk,ckq->cnq", root, rng.normal(size=(count, root.shape[1], 2)))
        found[name] = k * bump[None, :, None] + smooth + 0.1 * rng.normal(size=(count, 24, 2))
    return found


def chosen(root: np.ndarray, gap: float, seed: int) -> tuple[str, dict]:
    rng = np.random.default_rng(seed)
    cycles = classes(rng, root, gap)
    folds = {name: np.arange(40) % 2 for name in cycles}
    best, judged = choose(GRID, cycles, folds, BASIS)
    return best.form, judged


def stationary_root(scale: float = 0.35) -> np.ndarray:
    K = np.exp(-0.5 * (GRID - GRID.T) ** 2 / scale**2)
    return np.linalg.cholesky(K + 1e-9 * np.eye(24))


def test_white_cycles_get_the_white_layer():
    assert chosen(np.zeros((24, 1)), 0.05, 0)[0] == "white"


def test_smooth_cycles_get_a_smooth_layer_which_classifies_where_white_does_not():
    form, judged = chosen(stationary_root(), 0.25, 1)
    assert form == "stationary"
    assert judged["stationary, shared"].accuracy > judged["white, shared"].accuracy + 0.1


def test_cycles_that_vary_in_one_shape_get_the_free_layer():
    """A single narrow shape at one place: no stationary kernel says so."""
    shape = 2.0 * np.exp(-0.5 * ((GRID - 0.42) / 0.07) ** 2)
    form, judged = chosen(shape, 0.12, 2)
    assert form == "free"
    assert judged["free, shared"].log_loss < judged["stationary, shared"].log_loss


def test_where_no_candidate_errs_the_density_of_held_out_cycles_decides():
    """Classes far apart: any smooth layer classifies without fault, and cycles vary in one shape alone."""
    shape = 2.0 * np.exp(-0.5 * ((GRID - 0.42) / 0.07) ** 2)
    form, judged = chosen(shape, 4.0, 3)
    assert judged["stationary, shared"].log_loss < 1e-3
    assert judged["free, shared"].log_loss < 1e-3
    assert form == "free"


def test_candidates_that_a_block_misleads_by_any_number_of_nats_are_level():
    """The second fold has its classes exchanged: how sure a candidate is of the wrong class says nothing."""
    shape = 2.0 * np.exp(-0.5 * ((GRID - 0.42) / 0.07) ** 2)
    cycles = classes(np.random.default_rng(5), shape, 400.0)
    fold = np.arange(40) % 2
    normal, worn = cycles["normal"].copy(), cycles["worn"].copy()
    normal[fold == 1], worn[fold == 1] = cycles["worn"][fold == 1], cycles["normal"][fold == 1]
    wrong = {"normal": normal, "worn": worn}
    _, judged = choose(GRID, wrong, dict.fromkeys(wrong, fold), BASIS)
    assert {each.accuracy for each in judged.values()} == {0.0}
    np.testing.assert_allclose([each.log_loss for each in judged.values()], np.log(2), atol=1e-6)


def test_with_strangers_in_mind_the_layer_that_sees_them_is_chosen():
    """Three classes far apart. Cycles vary in one narrow shape, so a stationary layer is blind beside it."""
    rng = np.random.default_rng(4)
    shape = np.exp(-0.5 * ((GRID - 0.15) / 0.05) ** 2)
    cycles = classes(rng, shape, 3.0)
    far = 3.0 * np.exp(-0.5 * ((GRID[:, 0] - 0.8) / 0.06) ** 2)
    cycles["torn"] = cycles["normal"][::-1] + far[None, :, None]
    folds = {name: np.arange(40) % 2 for name in cycles}
    best, judged = choose(GRID, cycles, folds, BASIS, false_alarms=0.02)
    margins = {name: score.margin for name, score in judged.items() if score.margin is not None}
    assert str(best) == max(margins, key=lambda name: margins[name]) == "free, shared"
    assert margins["free, shared"] > 2.0 * margins["stationary, shared"]


def a_shape(at: float) -> np.ndarray:
    return np.exp(-0.5 * ((GRID - at) / 0.07) ** 2)


FOUR = np.hstack([a_shape(at) for at in (0.2, 0.45, 0.6, 0.8)])


@pytest.mark.parametrize(
    ("roots", "expected"),
    [
        ((a_shape(0.3), a_shape(0.7)), "free, client"),
        ((stationary_root(), stationary_root(0.12)), "stationary, client"),
        ((FOUR, FOUR), "free, shared"),
    ],
)
def test_whose_the_layer_is_is_chosen_too(roots, expected):
    """Classes whose cycles vary each in its own way, or all in the same.

    With 200 cycles the log-losses are known well enough to tell a shared layer from a mix with it.
    """
    rng = np.random.default_rng(0)
    both = [classes(rng, root, 0.2, count=200) for root in roots]
    cycles = {"normal": both[0]["normal"], "worn": both[1]["worn"]}
    folds = {name: np.arange(200) % 2 for name in cycles}
    assert candidates_for(cycles, len(GRID)) == ALL_LAYERS
    best, judged = choose(GRID, cycles, folds, BASIS, candidates=ALL_LAYERS)
    assert str(best) == expected
    form = expected.split(",")[0]
    other = f"{form}, {'client' if 'shared' in expected else 'shared'}"
    assert judged[expected].log_loss < judged[other].log_loss


def test_classes_that_depart_a_little_from_a_common_layer_get_the_mix():
    """Ψ_i ~ IW around a Ψ of all, and a dozen cycles of a class to learn from.

    A class's own layer is too uncertain to tell classes apart by; the shared one tells them apart, but is
    not how their cycles vary.
    """
    rng = np.random.default_rng(0)
    shapes = np.hstack([a_shape(at) for at in np.linspace(0.05, 0.95, 8)])
    half = np.tril(rng.normal(size=(8, 8))) * np.geomspace(1.5, 0.15, 8)
    cycles = {}
    for k in range(3):
        own = invwishart.rvs(8 + 8 + 1, 8 * half @ half.T, random_state=rng)
        z = rng.normal(size=(24, 8, 1))
        smooth = np.einsum("nk,ckq->cnq", shapes @ np.linalg.cholesky(own), z)
        cycles[f"{k}"] = k * shapes[:, 3:4] + smooth + 0.1 * rng.normal(size=smooth.shape)
    folds = {name: np.arange(24) % 2 for name in cycles}
    best, judged = choose(GRID, cycles, folds, BASIS, candidates=ALL_LAYERS)
    assert str(best) == "free, mixed"
    assert judged["free, mixed"].log_loss < judged["free, client"].log_loss - 0.1
    assert judged["free, mixed"].log_loss < judged["stationary, mixed"].log_loss - 0.1


def test_few_or_long_cycles_have_one_layer_for_all():
    many, few = np.zeros((20, 24, 1)), np.zeros((20, 24, 1))
    few[0, 3, 0] = np.nan
    assert candidates_for({"a": many, "b": many}, 24) == ALL_LAYERS
    assert candidates_for({"a": many, "b": few}, 24) == SHARED_LAYERS
    assert candidates_for({"a": many, "b": many}, 1201) == SHARED_LAYERS


def test_a_class_of_one_block_is_cut_and_that_is_said():
    labels, blocks = ["a"] * 6 + ["b"] * 4, ["1"] * 3 + ["2"] * 3 + ["3"] * 4
    with pytest.warns(
        PFedHGPWarning, match="class 'b' has only one block: it is cut into stretches"
    ):
        fold = folds_of(labels, blocks, folds=2, seed=0)
    assert fold[6:].tolist() == [0, 0, 1, 1]
    assert len(set(fold[:3])) == len(set(fold[3:6])) == 1


def test_folds_never_cut_a_block():
    labels = ["a"] * 30 + ["b"] * 20
    blocks = [f"{c // 5}" for c in range(50)]
    fold = folds_of(labels, blocks, folds=3, seed=0)
    for block in set(blocks):
        assert len({int(f) for f, own in zip(fold, blocks, strict=True) if own == block}) == 1
    for name in "ab":
        assert {int(f) for f, own in zip(fold, labels, strict=True) if own == name} == {0, 1, 2}


def test_without_blocks_folds_are_contiguous():
    fold = folds_of(["a"] * 9, None, folds=3, seed=0)
    assert fold.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_refusals():
    with pytest.raises(InputError, match="class 'a' has 2 cycles: 3 folds need at least 3"):
        folds_of(["a", "a"], None, folds=3, seed=0)
    with pytest.raises(InputError, match="no cycle layer 'pink'"):
        Candidate("pink")
    few = {"normal": np.zeros((3, 24, 2))}
    with pytest.raises(InputError, match="class 'normal' has 3 complete cycles"):
        choose(GRID, few, {"normal": np.arange(3)}, BASIS)
