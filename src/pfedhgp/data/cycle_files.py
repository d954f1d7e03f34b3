"""Whole cycles in: arrays (C, Q, n), .npz and .mat files; one grid for all of them.

    cycles (C, Q, n), grid (n), channels (Q names), label (C), and block (C) where cycles come in runs

A .mat file may also be that of the press study (tonnage.mat): X (n, Q, C) and y (C), which is also `label`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pfedhgp.data.run_names import run_names
from pfedhgp.errors import InputError

if TYPE_CHECKING:
    import polars as pl

FloatArray = npt.NDArray[np.float64]
SUFFIXES = (".npz", ".mat")


@dataclass(frozen=True, eq=False)
class CycleSet:
    """Cycles (C, Q, n) on one grid (n,)."""

    cycles: FloatArray
    grid: FloatArray
    channels: tuple[str, ...]
    label: tuple[str, ...] | None = None
    block: tuple[str, ...] | None = None
    named: bool = True
    """Whether `channels` were named by whoever made the cycles; if not, they are only numbered."""

    def take(self, which: npt.NDArray[Any]) -> CycleSet:
        """Some of the cycles, by number or by mask."""
        index = np.arange(len(self.cycles))[which]
        label, block = (
            None if names is None else tuple(names[c] for c in index)
            for names in (self.label, self.block)
        )
        return replace(self, cycles=self.cycles[index], label=label, block=block)

    def by_class(self) -> dict[str, tuple[FloatArray, FloatArray]]:
        """{label: (grid, its cycles)}, in the order in which labels first appear."""
        if self.label is None:
            raise InputError("these cycles have no `label`")
        names = np.asarray(self.label)
        return {n: (self.grid, self.cycles[names == n]) for n in dict.fromkeys(self.label)}

    def concatenated(self) -> CycleSet:
        """Channels one after another on one axis of Q·n places, as the paper has them."""
        C, Q, n = self.cycles.shape
        flat = self.cycles.reshape(C, 1, Q * n)
        return CycleSet(flat, np.arange(Q * n, dtype=float), ("value",), self.label, self.block)


def as_cycles(cycles: Any, samples: int | None = None) -> FloatArray:
    """An array (C, Q, n) of numbers, NaN where missing; n is `samples` if given."""
    try:
        array = np.asarray(cycles, np.float64)
    except (TypeError, ValueError):
        raise InputError(
            "`cycles` must be an array of numbers (cycles, channels, samples)"
        ) from None
    if array.ndim != 3:
        raise InputError(f"`cycles` must be (cycles, channels, samples), got shape {array.shape}")
    if samples is not None and array.shape[2] != samples:
        raise InputError(f"`cycles` have {array.shape[2]} samples, the grid has {samples}")
    if not len(array):
        raise InputError("`cycles` holds no cycle")
    if np.isinf(array).any():
        raise InputError(f"cycle {np.argwhere(np.isinf(array))[0][0]} has an infinite value")
    if np.isnan(array).all():
        raise InputError("`cycles` are NaN everywhere: there is nothing to classify")
    return array


def on_outputs(
    cycles: FloatArray, channels: Sequence[str] | None, outputs: Sequence[str]
) -> FloatArray:
    """The cycles with the model's outputs as channels; what they do not have is missing."""
    if channels is None:
        if cycles.shape[1] != len(outputs):
            raise InputError(
                f"the cycles have {cycles.shape[1]} channels, the model {len(outputs)} "
                f"({', '.join(outputs)}): say which with `channels`"
            )
        return cycles
    names = [str(name) for name in channels]
    if len(names) != cycles.shape[1] or len(set(names)) != len(names):
        raise InputError(f"`channels` must name each of the {cycles.shape[1]} channels once")
    unknown = [name for name in names if name not in outputs]
    if unknown:
        raise InputError(f"no channel {unknown[0]!r} in the model; it has {', '.join(outputs)}")
    out = np.full((len(cycles), len(outputs), cycles.shape[2]), np.nan)
    for q, name in enumerate(names):
        out[:, list(outputs).index(name)] = cycles[:, q]
    return out


def read_cycles(path: str | Path, *, label: str = "label") -> CycleSet:
    """Cycles of an .npz or .mat file; `label` names the array of classes. Nothing in it is executed."""
    file = Path(path)
    if not file.exists():
        raise InputError(f"{file}: no such file")
    if file.suffix.lower() == ".npz":
        return _cycle_set(file, _npz(file), label)
    if file.suffix.lower() == ".mat":
        return _cycle_set(file, _mat(file), label)
    raise InputError(f"{file}: cycles are read from {' and '.join(SUFFIXES)} files")


def table_of_cycles(path: str | Path) -> pl.DataFrame:
    """The cycles of a file as a long table: cycle, grid, the channels, and what the file has for each cycle.

    That is every array with one entry a cycle, such as `label` and `block`.
    """
    import polars as pl

    file = Path(path)
    found = read_cycles(file)
    C, _, n = found.cycles.shape
    arrays = _npz(file) if file.suffix.lower() == ".npz" else _mat(file)
    columns: dict[str, Any] = {"cycle": np.repeat(np.arange(C), n), "grid": np.tile(found.grid, C)}
    for q, name in enumerate(found.channels):
        columns[name] = found.cycles[:, q].reshape(-1)
    for name, values in arrays.items():
        texts = _texts(values) if np.size(values) == C and name not in columns else ()
        if len(texts) == C:
            columns[name] = np.repeat(np.asarray(texts), n)
    return pl.DataFrame(columns)


def _npz(file: Path) -> dict[str, Any]:
    try:
        with np.load(file, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile):
        raise InputError(f"{file}: cannot be read as .npz of plain arrays") from None


def _mat(file: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        found = loadmat(file)
    except NotImplementedError:
        raise InputError(f"{file}: a MATLAB 7.3 file: save it again with -v7") from None
    except Exception:  # a broken file breaks its reader in many ways
        raise InputError(f"{file}: cannot be read as a .mat file") from None
    arrays = {name: value for name, value in found.items() if not name.startswith("__")}
    if "X" in arrays and "y" in arrays and "cycles" not in arrays:
        if np.ndim(arrays["X"]) != 3:
            raise InputError(f"{file}: `X` must be (samples, channels, cycles)")
        turned = np.transpose(arrays["X"], (2, 1, 0))
        arrays = {"cycles": turned, "label": arrays["y"], "y": arrays["y"]}
    return arrays


def _cycle_set(file: Path, arrays: Mapping[str, Any], label: str) -> CycleSet:
    if "cycles" not in arrays:
        raise InputError(f"{file}: no array 'cycles'; it has {', '.join(sorted(arrays))}")
    try:
        cycles = as_cycles(arrays["cycles"])
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    C, Q, n = cycles.shape
    grid = np.asarray(arrays.get("grid", np.arange(n)), np.float64).reshape(-1)
    if len(grid) != n or not np.all(np.isfinite(grid)):
        raise InputError(f"{file}: `grid` must be {n} numbers, one for each sample")
    channels = _texts(arrays.get("channels", [f"channel {q + 1}" for q in range(Q)]))
    if len(channels) != Q:
        raise InputError(
            f"{file}: `channels` has {len(channels)} names, the cycles' channels are {Q}"
        )
    owned = {}
    for name in (label, "block"):
        values = None if name not in arrays else _texts(arrays[name])
        if values is not None and len(values) != C:
            raise InputError(f"{file}: `{name}` has {len(values)} entries for {C} cycles")
        if values is not None and name == "block":
            run_names(np.asarray(arrays[name]).reshape(-1).tolist(), str(file))
        owned[name] = values
    return CycleSet(cycles, grid, channels, owned[label], owned["block"], "channels" in arrays)


def _texts(values: Any) -> tuple[str, ...]:
    flat = np.asarray(values).reshape(-1)
    out = []
    for value in flat:
        item = value.item() if hasattr(value, "item") and np.size(value) == 1 else value
        whole = isinstance(item, float) and item.is_integer()
        out.append(str(int(item)) if whole else str(item).strip())
    return tuple(out)
