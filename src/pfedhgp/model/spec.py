"""What a model is, before any data: layers, latents, kernels, noise. Ablations are specs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import numpy as np

from pfedhgp.base.choices import LAYERS
from pfedhgp.errors import InputError
from pfedhgp.gp.kernels import (
    KERNELS,
    Kernel,
    Periodic,
    Product,
    Scaled,
    Stacks,
    Stationary,
    Sum,
    leaves_of,
    map_leaves,
    split_scale,
    stack,
)
from pfedhgp.gp.state_space import has_states
from pfedhgp.model.blocks import Structure


@dataclass(frozen=True)
class Spec:
    """y_i = B_g h_g + B̃_i h_δ,i + B_l,i h_l,i + ε for Q outputs of d inputs, as far as data do not matter.

    A layer that is left out has no latents. `tied` is the model without loadings (scalar outputs).
    """

    inputs: int
    outputs: int
    kernel: Kernel
    """`Stacks` of the global and the deviation layer's, if deviations have a kernel of their own"""
    local_kernel: Kernel
    latents: int
    """of the global layer; with a deviation kernel, of both layers, one after the other"""
    local_latents: int
    deviation: bool
    tied: bool
    noise: str
    state_space: bool = False
    client_loadings: bool = False

    @property
    def structure(self) -> Structure:
        return Structure(self.deviation, self.tied, self.state_space, self.client_loadings)

    @property
    def own_deviation_kernel(self) -> bool:
        """Whether the first half of the latents are global and the others deviations: loadings are zero in
        the other layer's half."""
        return isinstance(self.kernel, Stacks)

    @property
    def layers(self) -> tuple[str, ...]:
        present = (self.latents > 0, self.deviation, self.local_latents > 0)
        return tuple(layer for layer, there in zip(LAYERS, present, strict=True) if there)


def build_spec(
    *,
    inputs: int,
    outputs: int,
    kernel: Kernel,
    local_kernel: Kernel,
    layers: tuple[str, ...],
    latents: int | None,
    local_latents: int | None,
    noise: str,
    local: str = "inducing",
    client_loadings: bool = False,
) -> Spec:
    """Checks kernels against the inputs and fills in what was left open."""
    _check_template(kernel, inputs, "kernel")
    _check_template(local_kernel, inputs, "local_kernel")
    exact = local == "state-space"
    if exact:
        _check_states(inputs, outputs, local_kernel, layers, local_latents, noise)
        local_latents = outputs
    if client_loadings and "global" not in layers:
        raise InputError("client_loadings needs the global layer: these are loadings on it")
    one = outputs == 1 and (latents or 1) == 1 and (local_latents or 1) == 1
    rank = latents or (1 if outputs == 1 else 2)
    return Spec(
        inputs=inputs,
        outputs=outputs,
        kernel=kernel,
        local_kernel=local_kernel,
        latents=rank if "global" in layers else 0,
        local_latents=count_local(local_latents, outputs=outputs, layers=layers),
        deviation="deviation" in layers,
        tied=one and not client_loadings,
        noise=noise_form(noise, outputs),
        state_space=exact,
        client_loadings=client_loadings,
    )


def count_local(given: int | None, *, outputs: int, layers: tuple[str, ...]) -> int:
    """How many local functions a client has; None was left open."""
    return (given or (1 if outputs == 1 else 2)) if "local" in layers else 0


def noise_form(given: str, outputs: int) -> str:
    """ "auto" is a variance for each output."""
    return ("scalar" if outputs == 1 else "output") if given == "auto" else given


def _check_template(kernel: Kernel, inputs: int, name: str) -> None:
    """Its columns exist, and each parameter is one number or one for each of its columns."""
    for leaf in leaves_of(kernel):
        if leaf.dims is not None and max(leaf.dims) >= inputs:
            there = "is only input 0" if inputs == 1 else f"are {inputs}, from 0 on"
            raise InputError(f"`{name}` uses input {max(leaf.dims)}, but there {there}")
        columns = inputs if leaf.dims is None else len(leaf.dims)
        for word, shapes in (("lengthscale", 1), ("period", 1), ("alpha", 0)):
            value: Any = getattr(leaf, word, None)
            shape = np.shape(value)
            if shape not in ((), (columns,))[: 1 + shapes]:
                wanted = "one number" + (f", or {columns}" if shapes and columns > 1 else "")
                raise InputError(f"`{name}`: {word} must be {wanted}, it has shape {shape}")


def open_periods(spec: Spec) -> bool:
    """Whether a kernel leaves a period to the data."""
    leaves = leaves_of(spec.kernel) + leaves_of(spec.local_kernel)
    return any(isinstance(leaf, Periodic) and leaf.period is None for leaf in leaves)


def with_periods(spec: Spec, periods: np.ndarray) -> Spec:
    """The spec with `periods`, one for each input in the data's units, for kernels that were given none."""

    def fill(leaf: Stationary) -> Stationary:
        if not isinstance(leaf, Periodic) or leaf.period is not None:
            return leaf
        own = periods if leaf.dims is None else periods[list(leaf.dims)]
        return Periodic(leaf.lengthscale, dims=leaf.dims, period=own)

    return replace(
        spec,
        kernel=map_leaves(fill, spec.kernel),
        local_kernel=map_leaves(fill, spec.local_kernel),
    )


def name_of(kernel: Kernel) -> str:
    """The form in words: "rbf + periodic"; lengthscales, weights and inputs are left out."""
    if isinstance(kernel, Scaled):
        return name_of(kernel.kernel)
    if isinstance(kernel, Sum):
        return " + ".join(name_of(part) for part in kernel.kernels)
    if isinstance(kernel, Stacks):
        return ", deviation ".join(name_of(part) for part in kernel.kernels)
    if isinstance(kernel, Product):
        parts = (name_of(part) for part in kernel.kernels)
        return " * ".join(f"({part})" if "+" in part else part for part in parts)
    known = (name for name, kind in KERNELS.items() if type(kernel) is kind)
    return next(known, type(kernel).__name__)


def like_shared(kernel: Kernel) -> Kernel:
    """A local kernel of the same form with lengthscales of its own: they start from the data."""

    def clear(leaf: Stationary) -> Stationary:
        if isinstance(leaf, Periodic) or leaf.lengthscale is None:
            return leaf
        return eqx.tree_at(lambda k: k.lengthscale, leaf, None)

    return map_leaves(clear, split_scale(kernel)[1])


def _check_states(
    inputs: int,
    outputs: int,
    kernel: Kernel,
    layers: tuple[str, ...],
    local_latents: int | None,
    noise: str,
) -> None:
    """What a state-space local layer can do, and cannot."""
    if inputs != 1:
        raise InputError(f"local='state-space' takes one input (time), not {inputs}")
    if not has_states(split_scale(kernel)[1]):
        raise InputError(
            "local='state-space' needs `local_kernel` to be a Matérn kernel or a sum of them, "
            "such as 'matern32'"
        )
    if "global" not in layers or "local" not in layers:
        raise InputError("local='state-space' needs the global and the local layer")
    if local_latents not in (None, outputs):
        raise InputError(
            f"local='state-space' has one local function an output, so `local_latents` is {outputs}"
        )
    if noise == "full":
        raise InputError("local='state-space' takes noise 'scalar' or 'output', not 'full'")


def with_deviation_kernel(spec: Spec, kernel: Kernel) -> Spec:
    """The spec whose deviations have `kernel`: twice the latents, the global layer's and then theirs."""
    _check_template(kernel, spec.inputs, "deviation_kernel")
    if not spec.latents or not spec.deviation:
        raise InputError("`deviation_kernel` needs the global and the deviation layer")
    if spec.state_space:
        raise InputError("`deviation_kernel` cannot be combined with local='state-space'")
    if spec.client_loadings:
        raise InputError("`deviation_kernel` cannot be combined with client_loadings")
    both = Stacks((split_scale(spec.kernel)[1], split_scale(kernel)[1]))
    return replace(spec, kernel=both, latents=2 * spec.latents, tied=False)


def starting_kernels(template: Kernel, *, scale: float, count: int, extent: np.ndarray) -> Kernel:
    """`count` stacked unit kernels in the unit box: open lengthscales start at `scale`, spread apart.

    Lengthscales and periods that the caller gave are in the data's units and are honoured; open periods
    were filled in before (`with_periods`).
    """
    spread = np.geomspace(0.8, 1.25, count) if count > 1 else np.ones(count)
    if isinstance(template, Stacks):
        each = count // len(template.kernels)
        stacks = (
            starting_kernels(part, scale=scale, count=each, extent=extent)
            for part in template.kernels
        )
        return Stacks(tuple(stacks))
    filled = [_fill(template, scale * factor, extent) for factor in spread]
    if filled:
        return stack(filled)
    no_latents = _fill(template, scale, extent)
    return jax.tree.map(lambda leaf: np.zeros((0, *np.shape(leaf))), no_latents)


def _fill(template: Kernel, scale: float, extent: np.ndarray) -> Kernel:
    _, unit = split_scale(template)
    if isinstance(unit, Sum):  # parts start at different scales, or they would stay the same
        parts = [_fill(part, scale * 0.5**i, extent) for i, part in enumerate(unit.kernels)]
        return Sum(tuple(parts), unit.ratios)

    def change(leaf: Stationary) -> Stationary:
        used = extent if leaf.dims is None else extent[list(leaf.dims)]
        if isinstance(leaf, Periodic):
            given = (np.broadcast_to(v, used.shape) for v in (leaf.lengthscale, leaf.period))
            lengthscale, period = given
            return Periodic(lengthscale, dims=leaf.dims, period=period / used)
        if leaf.lengthscale is None:
            value = np.full(used.shape, scale)
        else:
            value = np.broadcast_to(leaf.lengthscale, used.shape) / used
        return eqx.tree_at(lambda k: k.lengthscale, leaf, value, is_leaf=lambda v: v is None)

    return map_leaves(change, unit)
