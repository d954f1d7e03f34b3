"""Kernels and noise as JSON trees, with their parameters as named arrays beside them; plain JSON.

A tree names classes of the two tables below and nothing else, so a file can choose among them but
cannot bring anything to execute. Parameters are under dotted names: the second part of a sum at
`kernels` has its lengthscale at `kernels.1.lengthscale`. A parameter that is None is in `open`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from pfedhgp.errors import InputError
from pfedhgp.gp import kernels as kn
from pfedhgp.gp.noise import DiagonalNoise, FullNoise, Noise

Arrays = dict[str, Any]  # NumPy's, of float64

_COMBINED: tuple[type[kn.Kernel], ...] = (kn.Sum, kn.Product, kn.Stacks, kn.Scaled)
KERNELS: Mapping[str, type[kn.Kernel]] = {
    **{cls.__name__: cls for cls in kn.KERNELS.values()},
    **{cls.__name__: cls for cls in _COMBINED},
}
NOISES: Mapping[str, type[Noise]] = {cls.__name__: cls for cls in (DiagonalNoise, FullNoise)}


def to_array(value: Any) -> np.ndarray:
    """float64, and C-contiguous: safetensors 0.8 scrambles anything else."""
    return np.array(value, dtype=np.float64, order="C")


def kernel_to_json(kernel: kn.Kernel, name: str) -> tuple[dict[str, Any], Arrays]:
    """The tree of a kernel, and its parameters under `name`."""
    kind = type(kernel).__name__
    if KERNELS.get(kind) is not type(kernel):
        raise ValueError(f"a kernel of class {kind} cannot be saved")
    tree: dict[str, Any] = {"kernel": kind}
    arrays: Arrays = {}
    if isinstance(kernel, kn.Sum | kn.Product | kn.Stacks | kn.Scaled):
        tree["parts"] = []
        for i, part in enumerate(kn.parts_of(kernel)):
            inside, more = kernel_to_json(part, f"{name}.{i}")
            tree["parts"].append(inside)
            arrays |= more
    else:
        dims = getattr(kernel, "dims", None)
        tree["dims"] = None if dims is None else list(dims)
    values = {key: getattr(kernel, key) for key in _parameters(type(kernel))}
    tree["open"] = [key for key, value in values.items() if value is None]
    arrays |= {f"{name}.{key}": to_array(v) for key, v in values.items() if v is not None}
    return tree, arrays


def kernel_from_json(tree: Any, arrays: Arrays, name: str) -> kn.Kernel:
    """The kernel of a tree; takes its parameters out of `arrays`."""
    cls = _class_of(tree, "kernel", KERNELS)
    opened = tree["open"]
    values: dict[str, Any] = {
        key: None if key in opened else arrays.pop(f"{name}.{key}") for key in _parameters(cls)
    }
    if cls in _COMBINED:
        parts = tuple(
            kernel_from_json(part, arrays, f"{name}.{i}") for i, part in enumerate(tree["parts"])
        )
        if cls is kn.Scaled:
            (values["kernel"],) = parts
        else:
            values["kernels"] = parts
            if not parts:
                raise ValueError(f"{name} is a {cls.__name__} of nothing")
        if cls is kn.Sum and np.shape(values["ratios"])[-1:] != (len(parts) - 1,):
            raise ValueError(f"{name}.ratios does not fit a sum of {len(parts)}")
    else:
        values["dims"] = tree["dims"]
    return cls(**values)


def noise_to_json(noise: Noise, name: str) -> tuple[dict[str, Any], Arrays]:
    """The class and the floor, and the parameters under `name`."""
    kind = type(noise).__name__
    if not isinstance(noise, DiagonalNoise | FullNoise):
        raise ValueError(f"noise of class {kind} cannot be saved")
    keys = _parameters(type(noise))
    arrays = {f"{name}.{key}": to_array(getattr(noise, key)) for key in keys}
    return {"noise": kind, "floor": float(noise.floor)}, arrays


def noise_from_json(tree: Any, arrays: Arrays, name: str) -> Noise:
    """The noise of a tree; takes its parameters out of `arrays`."""
    cls = _class_of(tree, "noise", NOISES)
    floor = tree["floor"]
    if not isinstance(floor, float) or not 0.0 <= floor < np.inf:
        raise ValueError(f"{name}.floor is {floor!r}, not a number ≥ 0")
    return cls(**{key: arrays.pop(f"{name}.{key}") for key in _parameters(cls)}, floor=floor)


def plain_json(value: Any, where: str, *, strict: bool) -> Any:
    """`value` as JSON has it; what is not finite becomes None, or is refused if `strict`."""
    if isinstance(value, np.generic) or (hasattr(value, "tolist") and hasattr(value, "shape")):
        value = value.tolist()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not np.isfinite(value) and strict:
            raise InputError(f"`{where}` is {value}, which a model file cannot hold")
        return value if np.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [plain_json(v, f"{where}[{i}]", strict=strict) for i, v in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain_json(v, f"{where}.{key}", strict=strict) for key, v in value.items()}
    raise InputError(f"`{where}` is a {type(value).__name__}, which a model file cannot hold")


def _class_of(tree: Any, word: str, known: Mapping[str, Any]) -> Any:
    name = tree.get(word) if isinstance(tree, dict) else tree
    if not isinstance(tree, dict) or not isinstance(name, str) or name not in known:
        raise ValueError(f"unknown {word} {name!r} in spec.json; known: {', '.join(known)}")
    return known[name]


def _parameters(cls: type) -> list[str]:
    """The fields that hold arrays."""
    others = ("dims", "floor", "kernel", "kernels")
    return [f.name for f in dataclasses.fields(cls) if f.name not in others]


def numbers(table: Any) -> dict[str, Any]:
    """A table of lists as arrays."""
    return {key: np.asarray(value, np.float64) for key, value in table.items()}


def number(value: Any) -> float:
    """A number that is none of JSON's other things."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def string(value: Any, where: str) -> str:
    """A text."""
    if not isinstance(value, str):
        raise ValueError(f"{where}: {value!r} is not a name")
    return value
