"""Fitted kernels in the data's units: lengthscales and periods as inputs have them, with intervals if known.

A client's Gaussian over the logarithms of its kernel parameters (`Tangents`) gives 95% intervals of these.
The shared kernel has none: the server has no such Gaussian.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import equinox as eqx
import numpy as np

from pfedhgp.base.trees import ravel
from pfedhgp.gp.kernels import (
    Kernel,
    Periodic,
    Product,
    Scaled,
    Stacks,
    Stationary,
    Sum,
    columns_of,
    map_leaves,
    unstack,
)
from pfedhgp.model.estimates import REACH, Estimate, Values
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.kernel_words import NAMES
from pfedhgp.model.posterior import ClientPosterior
from pfedhgp.model.words import InputAxis, axes_of, percent, shown

Ends = tuple[Kernel, Kernel]
"""The kernel with each parameter at the lower end of its interval, and at the upper one."""


def in_data_units(kernel: Kernel, extent: np.ndarray) -> Kernel:
    """A kernel of the unit box with lengthscales and periods in the units of the inputs."""

    def change(leaf: Stationary) -> Stationary:
        used = extent if leaf.dims is None else extent[list(leaf.dims)]
        if isinstance(leaf, Periodic):
            return eqx.tree_at(lambda k: k.period, leaf, np.asarray(leaf.period) * used)
        return eqx.tree_at(lambda k: k.lengthscale, leaf, np.asarray(leaf.lengthscale) * used)

    found: Kernel = map_leaves(change, kernel)
    return found


@dataclass(frozen=True, eq=False, repr=False)
class FittedKernel:
    """One latent's kernel: `lengthscale`, `period` and `alpha` in the data's units, or `parts` and `weights`.

    With several inputs a parameter is a mapping from the inputs' names. `kernel` is the same as a kernel that
    `FederatedGP(kernel=...)` takes.
    """

    name: str
    """ "RBF", "periodic", "sum", "product", …"""
    parameters: Mapping[str, Estimate | Values]
    kernel: Kernel
    parts: tuple[FittedKernel, ...] = ()
    weights: tuple[float, ...] = ()
    """of a sum: shares of the variance, which add up to one"""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "parameters":
            raise AttributeError(name)
        if name in self.parameters:
            return self.parameters[name]
        hint = ": look into its `parts`" if self.parts else ""
        raise AttributeError(f"a {self.name} kernel has no `{name}`{hint}")

    def __repr__(self) -> str:
        if self.name == "sum":
            pairs = zip(self.weights, self.parts, strict=True)
            return " + ".join(f"{percent(w)} {part!r}" for w, part in pairs)
        if self.name == "product":
            return " × ".join(map(repr, self.parts))
        if self.parts:
            return f"{self.parameters['variance']!r} × {self.parts[0]!r}"
        said = []
        for name, value in self.parameters.items():
            word = "relative lengthscale" if (self.name, name) == RELATIVE else name
            word = "α" if word == "alpha" else word
            if isinstance(value, Values):
                said.append(
                    f"{word} " + ", ".join(f"{v} along {shown(k)}" for k, v in value.items())
                )
            else:
                said.append(f"{word} {value!r}")
        return f"{self.name} ({', '.join(said)})"


RELATIVE = ("periodic", "lengthscale")
"""A periodic kernel's lengthscale has no unit: it is relative to the wave."""


def described(kernel: Kernel, ends: Ends | None, axes: Sequence[InputAxis]) -> FittedKernel:
    """The tree of a kernel that is in the data's units already."""
    if isinstance(kernel, Sum | Product):
        inside = tuple(
            described(
                part,
                None if ends is None else (ends[0].kernels[i], ends[1].kernels[i]),  # type: ignore[attr-defined]
                axes,
            )
            for i, part in enumerate(kernel.kernels)
        )
        if isinstance(kernel, Product):
            return FittedKernel("product", {}, kernel, inside)
        weights = tuple(np.asarray(kernel.weights).ravel().tolist())
        return FittedKernel("sum", {}, kernel, inside, weights)
    if isinstance(kernel, Scaled):
        both = None if ends is None else (ends[0].kernel, ends[1].kernel)  # type: ignore[attr-defined]
        inner = described(kernel.kernel, both, axes)
        return FittedKernel("scaled", {"variance": _number(kernel, ends)}, kernel, (inner,))
    assert isinstance(kernel, Stationary)
    name = NAMES.get(type(kernel).__name__, type(kernel).__name__)
    found = {
        each: _of_leaf(kernel, ends, each, axes)
        for each in sorted(_parameters(kernel), key=lambda n: n != "period")
    }
    return FittedKernel(name, found, kernel)


def _parameters(leaf: Stationary) -> list[str]:
    names = [each.name for each in fields(leaf) if each.name != "dims"]
    return [name for name in names if getattr(leaf, name) is not None]


def _of_leaf(
    leaf: Stationary, ends: Ends | None, name: str, axes: Sequence[InputAxis]
) -> Estimate | Values:
    """Lengthscales and periods by input, anything else as one number."""
    if name not in ("lengthscale", "period"):
        return _number(leaf, ends, name)
    places = columns_of(leaf, len(axes))
    has_units = not (isinstance(leaf, Periodic) and name == "lengthscale")
    each = [
        np.broadcast_to(np.asarray(getattr(kernel, name), np.float64), (len(places),))
        for kernel in (leaf, *(ends or ()))
    ]
    found = {
        axes[j].name: Estimate(
            *(float(values[i]) for values in each), is_duration=has_units and axes[j].is_date
        )
        for i, j in enumerate(places)
    }
    return found[axes[0].name] if len(axes) == 1 else Values(found)


def _number(kernel: Kernel, ends: Ends | None, name: str = "variance") -> Estimate:
    every = (kernel, *(ends or ()))
    return Estimate(*(float(np.asarray(getattr(each, name)).ravel()[0]) for each in every))


@dataclass(frozen=True, eq=False, repr=False)
class LayerKernels(Sequence[FittedKernel]):
    """The kernels of a layer's latents. With one latent it can be used as that one: `.lengthscale`."""

    latents: tuple[FittedKernel, ...]

    def __getitem__(self, index: Any) -> Any:
        return self.latents[index]

    def __len__(self) -> int:
        return len(self.latents)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "latents":
            raise AttributeError(name)
        if len(self.latents) != 1:
            raise AttributeError(
                f"there are {len(self.latents)} latents: say which, as in `kernel[0].{name}`"
            )
        return getattr(self.latents[0], name)

    def __repr__(self) -> str:
        if len(self.latents) == 1:
            return repr(self.latents[0])
        lines = (f"latent {r + 1}: {kernel!r}" for r, kernel in enumerate(self.latents))
        return "\n".join(lines) or "no latents"


def shared_kernels(model: FittedModel) -> tuple[LayerKernels, LayerKernels]:
    """Of the global layer and of the deviations: the same ones, unless these have a kernel of their own."""
    block = model.shared.block
    found = _unstacked(model, block.kernels, block.loadings.shape[1], None)
    if isinstance(block.kernels, Stacks):
        half = len(found) // 2
        return LayerKernels(found[:half]), LayerKernels(found[half:])
    return LayerKernels(found), LayerKernels(found if model.structure.deviation else ())


def local_kernels(model: FittedModel, client: str) -> LayerKernels:
    """Of a client's own local layer."""
    own = model.clients[client]
    ends = _ends(own)
    return LayerKernels(_unstacked(model, own.block.kernels, own.block.loadings.shape[1], ends))


def _unstacked(
    model: FittedModel, kernels: Kernel, count: int, ends: Ends | None
) -> tuple[FittedKernel, ...]:
    axes, extent = axes_of(model), np.asarray(model.scaling.extent)

    def one(stacked: Kernel, r: int) -> Kernel:
        return in_data_units(unstack(stacked, r), extent)

    return tuple(
        described(
            one(kernels, r), None if ends is None else (one(ends[0], r), one(ends[1], r)), axes
        )
        for r in range(count)
    )


def _ends(own: ClientPosterior) -> Ends | None:
    """ℓ exp(∓1.96 sd), sd² = Σ_p (log ℓ's shift along direction p)².

    Averaging kept half the difference of ℓ at both ends of a direction, ℓ sinh(shift), or in files of earlier
    versions ℓ's derivative, ℓ·shift. A direction that averaging dropped has no known length.
    """
    tangents = own.tangents
    if tangents is None or not tangents.kernels.shape[-1]:
        return None
    if tangents.reach is not None and np.any(np.asarray(tangents.reach) == 0.0):
        return None
    flat, unravel = ravel(own.block.kernels)
    relative = np.asarray(tangents.kernels) / np.asarray(flat)
    shifts = relative if tangents.middle is None else np.arcsinh(relative)
    factor = np.exp(REACH * np.sqrt(np.sum(shifts**2, axis=0)))
    return unravel(flat / factor), unravel(flat * factor)
