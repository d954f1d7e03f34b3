"""The data of the diagnosis study, and how they are split into training and test cycles.

simulated: the press of `studies.press`. runs:SDxB: the same on 121 samples, in runs that differ SD times as
much as cycles do, B runs of each class for training and 20 for testing. hydraulic:valve (4 channels),
hydraulic:valve-all (17), hydraulic:cooler (17): condition monitoring of hydraulic systems (UCI 447; Helwig,
Pignanelli and Schütze; CC BY 4.0). FILE: tonnage.mat, or any .npz or .mat with
cycles and labels.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedhgp.data.cycle_files import CycleSet, read_cycles
from pfedhgp.errors import InputError
from pfedhgp.studies.tonnage import press

SHARE = 0.1377
"""Share of the cycles that the paper trains on; share of the blocks if cycles come in blocks."""
FIRST_NORMAL, TRAINING_NORMAL, TRAINING_FAULTY = 305, 40, 10
HYDRAULIC = Path("hydraulic") / "hydraulic_valve_cooler.npz"
TEST_RUNS, CYCLES_OF_A_RUN = 20, 8
SMALL_PRESS = {"normal": 60, "faulty": 20, "samples": 121}


@dataclass(frozen=True)
class Source:
    """Where cycles come from, and how the study describes it."""

    name: str
    kind: str
    """simulated, runs, hydraulic or file"""
    says: str


def source_of(given: str) -> Source:
    """Checks `--data` before anything is computed."""
    if given == "simulated":
        return Source(given, "simulated", "a simulated press (not the real tonnage data)")
    if given.startswith("runs:"):
        sd, count = runs_of(given)
        says = f"simulated presses whose runs differ {sd:g} times as much as cycles, {count} runs a class"
        return Source(given, "runs", says)
    if given in ("hydraulic:valve", "hydraulic:valve-all", "hydraulic:cooler"):
        hydraulic_file()
        return Source(given, "hydraulic", "UCI 447, Helwig, Pignanelli and Schütze, CC BY 4.0")
    if given.startswith("hydraulic"):
        raise InputError(
            f"no data {given!r}: there are hydraulic:valve, hydraulic:valve-all and hydraulic:cooler"
        )
    if not Path(given).exists():
        raise InputError(f"{given}: no such file; or simulated, hydraulic:valve, hydraulic:cooler")
    return Source(given, "file", f"the file {Path(given).name}")


def runs_of(given: str) -> tuple[float, int]:
    """SD and B of "runs:SDxB"."""
    sd, _, count = given.removeprefix("runs:").partition("x")
    try:
        found = float(sd), int(count)
    except ValueError:
        found = (-1.0, 0)
    if not 0.0 <= found[0] < float("inf") or found[1] < 2:
        raise InputError(f"{given!r} must look like runs:3x6: run sd 3, 6 runs of each class")
    return found


def hydraulic_file() -> Path:
    """Looks in the folder PFEDHGP_DATA, then beside the checkout."""
    places = [Path(os.environ["PFEDHGP_DATA"])] if os.environ.get("PFEDHGP_DATA") else []
    places.append(Path(__file__).resolve().parents[4].parent / "shared" / "data")
    for place in places:
        if (place / HYDRAULIC).exists():
            return place / HYDRAULIC
    raise InputError(f"no {HYDRAULIC} found: set PFEDHGP_DATA to the folder that holds it")


def load(source: Source, seed: int, *, subtlety: float = 1.0, small: bool = False) -> CycleSet:
    """The cycles of one run; only simulated ones depend on the seed."""
    if source.kind == "simulated":
        sizes: dict[str, Any] = SMALL_PRESS if small else {}
        return press.simulate(seed, subtlety=subtlety, **sizes)
    if source.kind == "runs":
        sd, count = runs_of(source.name)
        cycles = (count + TEST_RUNS) * CYCLES_OF_A_RUN
        sizes = {"normal": cycles, "faulty": cycles, "samples": SMALL_PRESS["samples"]}
        return press.simulate(seed, subtlety=subtlety, runs=count + TEST_RUNS, run_sd=sd, **sizes)
    if source.kind == "file":
        found = read_cycles(source.name)
        if found.label is None:
            raise InputError(f"{source.name}: no array `label`: the study needs each cycle's class")
        return found
    return _hydraulic(source.name.removeprefix("hydraulic:"))


def _hydraulic(target: str) -> CycleSet:
    with np.load(hydraulic_file(), allow_pickle=False) as found:
        valve, cooler = found["valve"], found["cooler"]
        label_of = valve if target.startswith("valve") else cooler
        count = 4 if target == "valve" else found["cycles"].shape[1]  # PS1 to PS4, or all
        cycles = found["cycles"][:, :count].astype(np.float64)
        channels = tuple(str(name) for name in found["channels"][:count])
    condition = np.stack([valve, cooler], axis=1)
    starts = np.r_[True, np.any(condition[1:] != condition[:-1], axis=1)]
    label = tuple(str(int(v)) for v in label_of)
    blocks = tuple(str(b) for b in np.cumsum(starts))
    return CycleSet(cycles, np.arange(60.0), channels, label, blocks)


def training_mask(
    data: CycleSet, source: Source, seed: int, *, share: float = SHARE
) -> npt.NDArray[np.bool_]:
    """Which cycles are for training.

    If cycles come in blocks, a share of each class's blocks, at least two, is chosen as a whole. The press
    (`is_press`) at the paper's share is split as in the paper: 40 of 305 normal cycles and 10 of each fault.
    These are the first ones of a file, and random ones of the simulator, whose cycles have no order.
    Otherwise it is a random share of each class, at least two cycles.
    """
    assert data.label is not None
    labels = np.asarray(data.label)
    rng = np.random.default_rng([seed, 7])
    train = np.zeros(len(labels), bool)
    as_paper = share == SHARE and is_press(data, source)
    first = splits_once(data, source, share)
    for name in dict.fromkeys(data.label):
        mine = np.flatnonzero(labels == name)
        if data.block is not None:
            own = np.asarray(data.block)[mine]
            different = np.unique(own)
            if source.kind == "runs":
                share = 1.0 - TEST_RUNS / len(different)
            count = min(max(2, round(share * len(different))), len(different) - 1)
            train[mine[np.isin(own, rng.choice(different, count, replace=False))]] = True
            continue
        count = min(max(2, round(share * len(mine))), len(mine) - 1)
        if as_paper:
            count = TRAINING_NORMAL if len(mine) >= FIRST_NORMAL else TRAINING_FAULTY
        train[mine[:count] if first else rng.choice(mine, count, replace=False)] = True
    return train


def splits_once(data: CycleSet, source: Source, share: float) -> bool:
    """Whether all seeds give the same split, which is so for a file with the press's shape."""
    return share == SHARE and source.kind == "file" and is_press(data, source)


FAULTY_LEAST, CHANNELS, SAMPLES, MORE = 60, 4, 1201, 5
"""The press: fewest cycles of a fault, channels, samples, and normal cycles allowed beyond 305."""


def is_press(data: CycleSet, source: Source) -> bool:
    """Whether the data look like the full press, so that the paper's counts (40 and 10) apply.

    That is one class of 305 to 310 cycles, others of 60 to 304, no blocks, 4 channels of 1,201 samples.
    """
    if source.kind not in ("simulated", "file") or data.block is not None:
        return False
    *faulty, normal = sorted(np.unique(np.asarray(data.label), return_counts=True)[1].tolist())
    counts = FIRST_NORMAL <= normal <= FIRST_NORMAL + MORE and bool(faulty)
    counts = counts and faulty[0] >= FAULTY_LEAST and faulty[-1] < FIRST_NORMAL
    shape = data.cycles.shape[1:] == (CHANNELS, SAMPLES)
    return counts and (shape or source.kind == "simulated")


def first_normal(data: CycleSet, source: Source) -> CycleSet:
    """Keeps the first 305 cycles of the press's normal class, as the paper does."""
    assert data.label is not None
    if not is_press(data, source):
        return data
    labels = np.asarray(data.label)
    kept = np.ones(len(labels), bool)
    for name in dict.fromkeys(data.label):
        mine = np.flatnonzero(labels == name)
        if len(mine) > FIRST_NORMAL:
            kept[mine[FIRST_NORMAL:]] = False
    return data.take(kept)
