"""Cycles from files and arrays; what is wrong with one is said in one line."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.io import savemat

from pfedhgp.data.cycle_files import CycleSet, as_cycles, on_outputs, read_cycles
from pfedhgp.errors import InputError

CYCLES = np.arange(24.0).reshape(3, 2, 4)


def test_npz_and_mat_hold_the_same_cycles(tmp_path):
    content = {
        "cycles": CYCLES,
        "grid": np.array([0.0, 1.0, 2.0, 4.0]),
        "channels": np.array(["left", "right"]),
        "label": np.array(["ok", "ok", "worn"]),
    }
    np.savez(tmp_path / "a.npz", **content)
    savemat(tmp_path / "a.mat", content)
    for name in ("a.npz", "a.mat"):
        found = read_cycles(tmp_path / name)
        np.testing.assert_array_equal(found.cycles, CYCLES)
        assert found.grid.tolist() == [0.0, 1.0, 2.0, 4.0]
        assert found.channels == ("left", "right")
        assert found.label == ("ok", "ok", "worn")


def test_the_press_file_is_turned_round(tmp_path):
    """tonnage.mat has X (samples, channels, cycles) and y."""
    savemat(
        tmp_path / "tonnage.mat", {"X": np.transpose(CYCLES, (2, 1, 0)), "y": [[0.0], [0.0], [3.0]]}
    )
    found = read_cycles(tmp_path / "tonnage.mat")
    np.testing.assert_array_equal(found.cycles, CYCLES)
    assert found.label == ("0", "0", "3")
    assert read_cycles(tmp_path / "tonnage.mat", label="y").label == found.label


def test_names_in_a_file_are_known_from_numbers_given_in_their_place(tmp_path):
    names = np.array(["channel 1", "bogus"])
    np.savez(tmp_path / "named.npz", cycles=CYCLES, channels=names)
    np.savez(tmp_path / "plain.npz", cycles=CYCLES)
    named, plain = (read_cycles(tmp_path / name) for name in ("named.npz", "plain.npz"))
    assert (named.channels, named.named) == (("channel 1", "bogus"), True)
    assert (plain.channels, plain.named) == (("channel 1", "channel 2"), False)
    assert not plain.take(np.array([0])).named


def test_channels_one_after_another_on_one_axis():
    flat = CycleSet(CYCLES, np.arange(4.0), ("a", "b")).concatenated()
    assert flat.cycles.shape == (3, 1, 8)
    np.testing.assert_array_equal(flat.cycles[1, 0], np.r_[CYCLES[1, 0], CYCLES[1, 1]])


def test_channels_are_found_by_name_and_those_not_there_are_missing():
    found = on_outputs(CYCLES, ["right", "left"], ["left", "middle", "right"])
    np.testing.assert_array_equal(found[:, 0], CYCLES[:, 1])
    np.testing.assert_array_equal(found[:, 2], CYCLES[:, 0])
    assert np.isnan(found[:, 1]).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: as_cycles(np.full((2, 1, 3), np.nan), 3), "NaN everywhere"),
        (lambda: as_cycles(np.zeros((2, 3)), 3), r"must be \(cycles, channels, samples\)"),
        (lambda: as_cycles(np.zeros((2, 1, 3)), 4), "have 3 samples, the grid has 4"),
        (lambda: as_cycles(np.zeros((0, 1, 3)), 3), "holds no cycle"),
        (lambda: as_cycles(np.full((1, 1, 3), np.inf), 3), "cycle 0 has an infinite value"),
        (lambda: as_cycles([["a"]], 1), "array of numbers"),
        (lambda: on_outputs(CYCLES, ["left", "nose"], ["left", "right"]), "no channel 'nose'"),
        (lambda: on_outputs(CYCLES, None, ["left"]), "the cycles have 2 channels, the model 1"),
        (lambda: read_cycles("nowhere.npz"), "nowhere.npz: no such file"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_bad_files_are_named(tmp_path):
    for name in ("broken.npz", "broken.mat", "cycles.txt"):
        (tmp_path / name).write_bytes(b"not what it says")
        with pytest.raises(InputError, match=name):
            read_cycles(tmp_path / name)
    np.savez(tmp_path / "other.npz", rows=CYCLES)
    with pytest.raises(InputError, match="no array 'cycles'; it has rows"):
        read_cycles(tmp_path / "other.npz")
    np.savez(tmp_path / "short.npz", cycles=CYCLES, label=np.array(["ok"]))
    with pytest.raises(InputError, match="`label` has 1 entries for 3 cycles"):
        read_cycles(tmp_path / "short.npz")
    np.savez(tmp_path / "gap.npz", cycles=CYCLES, block=np.array([1.0, np.nan, 2.0]))
    with pytest.raises(InputError, match=r"gap\.npz: entry 1 of `block` is missing"):
        read_cycles(tmp_path / "gap.npz")
    np.savez(tmp_path / "pickled.npz", cycles=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="plain arrays"):
        read_cycles(tmp_path / "pickled.npz")
