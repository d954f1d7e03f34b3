"""A fitted model: what prediction, model files and reports work from. It holds no rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from pfedhgp.base.trees import ravel
from pfedhgp.data.scaling import Scaling
from pfedhgp.gp.kernels import (
    Kernel,
    Periodic,
    RationalQuadratic,
    Scaled,
    Stacks,
    Sum,
    leaves_of,
    unstack,
)
from pfedhgp.gp.noise import DiagonalNoise, FullNoise
from pfedhgp.gp.state_space import StateModel
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Structure
from pfedhgp.model.cycle_layer import CycleLayer, check_layer
from pfedhgp.model.kept_sums import KeptSums
from pfedhgp.model.posterior import ClientPosterior, GlobalPosterior, Population

TOLERANCE = 1e-8
"""How far a covariance may be from symmetric and from PSD, relative to its largest variance."""


@dataclass(frozen=True, eq=False)
class FittedModel:
    """The posterior of every client, and what it takes to go to and from the data's units.

    `kernel` and `local_kernel` are the caller's templates, in the data's units; None where a layer
    is absent. The kernels in `shared` and `clients` are the fitted ones, in the unit box. `jitter`
    is that of k(Z_g, Z_g), and of a client's k(Z_i, Z_i) unless `client_jitter` has another for it:
    whitened weights mean nothing without the factor that they were whitened by.
    """

    structure: Structure
    inference: str
    kernel: Kernel | None
    local_kernel: Kernel | None
    shared: GlobalPosterior
    clients: Mapping[str, ClientPosterior]
    population: Population
    scaling: Scaling
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    jitter: float
    client_jitter: Mapping[str, float] = field(default_factory=dict)
    scalar_output: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Scores on held-out rows and other measurements of the fit; JSON, in the data's own units."""
    cycle_layer: CycleLayer | None = None
    """(Ψ, Σ_ε) that the clients share, and that a client never seen gets; None without a cycle layer."""
    diagnosis: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Sums over runs of all classes, if the model was trained for diagnosis (`pfedhgp.diagnosis`)."""
    sums: Mapping[str, KeptSums] = field(default_factory=dict)
    """What clients keep for `update` and `forget`; none in files of earlier versions."""
    client_layers: Mapping[str, CycleLayer] = field(default_factory=dict)
    """Those of clients with a cycle layer of their own, on the same basis."""

    @property
    def outputs(self) -> int:
        """Q"""
        return int(np.shape(self.shared.block.loadings)[0])

    @property
    def inputs(self) -> int:
        """d"""
        return int(np.shape(self.shared.block.inputs)[1])

    def jitter_of(self, client: str) -> float:
        """The relative jitter of the client's own k(Z_i, Z_i)."""
        return float(self.client_jitter.get(client, self.jitter))

    def layer_of(self, client: str) -> CycleLayer | None:
        """The cycle layer that holds for a client."""
        return self.client_layers.get(client, self.cycle_layer)


def typical_kernels(model: FittedModel) -> Kernel | None:
    """Local kernels at the population's mean parameters, if there is a local layer and they are known."""
    first = next(iter(model.clients.values()), None)
    if first is None or model.population.traits is None or not first.block.loadings.shape[1]:
        return None
    flat, unravel = ravel(first.block.kernels)
    found: Kernel = unravel(np.exp(np.asarray(model.population.traits)[0, : flat.size]))
    return found


# The checks below raise a plain ValueError of one line; who calls knows which file it was.


def check_frame(model: FittedModel) -> None:
    """Names, scaling and population fit the global block."""
    d, Q = model.inputs, model.outputs
    for name, given, count in (
        ("input", model.input_names, d),
        ("output", model.output_names, Q),
    ):
        if len(given) != count:
            raise ValueError(f"{len(given)} {name} names for {count} {name}s")
    for name, jitter in {"": model.jitter, **model.client_jitter}.items():
        if not np.isfinite(jitter) or jitter < 0:
            where = f" of client {name!r}" if name else ""
            raise ValueError(f"jitter{where} is {jitter!r}, not a number ≥ 0")
    scaling = model.scaling
    _expect_parts("scaling.", scaling, lower=(d,), upper=(d,))
    for name in ("centre", "spread"):
        _expect(f"scaling.{name}", getattr(scaling, name), (), (1,), (Q,))
    if np.any(np.asarray(scaling.spread) <= 0) or np.any(scaling.upper < scaling.lower):
        raise ValueError("scaling.spread is not positive, or scaling.upper is below lower")
    for name in ("deviation_power", "local_power", "noise", "division"):
        _expect_covariance(f"population.{name}", getattr(model.population, name), Q)
    _expect("population.clients", model.population.clients, ())
    if model.population.traits is not None:
        _check_traits(model)
    if model.cycle_layer is not None:
        check_layer(model.cycle_layer, Q, d)


def _check_traits(model: FittedModel) -> None:
    """As many as a client of the model has, with positive variances."""
    traits = np.asarray(model.population.traits)
    for own in list(model.clients.values())[:1]:
        count = ravel(own.block.kernels)[0].size + own.block.noise.levels().size
        if model.structure.tied:
            count += np.size(own.block.loadings) + np.size(own.block.deviation)
        elif model.shared.knot_J is not None:  # the Markov solver's: b² of each output, too
            count += model.outputs
        _expect("population.traits", traits, (2, count))
    if np.any(traits[1] <= 0):
        raise ValueError("population.traits has a variance that is not positive")


def check_shared(structure: Structure, shared: GlobalPosterior) -> None:
    """Shapes agree, all is finite, kernel parameters are positive, the covariance is PSD."""
    block = shared.block
    (Q, R), (M, d) = _sizes(block)
    if structure.tied and (Q != 1 or R > 1):
        raise ValueError(f"a model without loadings has one output and one latent, not {(Q, R)}")
    _expect_parts("", block, loadings=(Q, R), inputs=(M, d), phi=())
    if np.asarray(block.phi) < 0:
        raise ValueError("phi is negative")
    if (block.loadings_covariance is not None) != structure.client_loadings:
        raise ValueError("loadings_covariance is missing, or not expected")
    if block.loadings_covariance is not None:
        _expect_covariance("loadings_covariance", block.loadings_covariance, Q * R)
    if block.noise_levels is not None:
        _expect("noise_levels", block.noise_levels, (2,))
    check_kernels(block.kernels, R, d)
    _expect("mean", shared.mean, (R * M,))
    _expect_covariance("covariance", shared.covariance, R * M)


def check_client(structure: Structure, shared: GlobalPosterior, client: ClientPosterior) -> None:
    """The same for a client's part, and that it fits the global block."""
    block = client.block
    ((Q, R), (M, d)), ((_, Rl), (Mi, _)) = _sizes(shared.block), _sizes(block)
    own = structure.deviation and not structure.tied
    _expect("deviation", block.deviation, (Q, R), *(() if own else ((Q, 0),)))
    _expect_parts("", block, loadings=(Q, Rl), inputs=(Mi, d), active=(Mi,))
    if (block.global_loadings is not None) != structure.client_loadings:
        raise ValueError("global_loadings are missing, or not expected")
    if block.global_loadings is not None:
        _expect("global_loadings", block.global_loadings, (Q, R))
    active = np.asarray(block.active)
    if not ((active == 0.0) | (active == 1.0)).all():
        raise ValueError("active has values other than 0 and 1")
    check_kernels(block.kernels, Rl, d)
    if isinstance(block.noise, DiagonalNoise):
        _expect("noise", block.noise.log_variance, (1,), (Q,))
    elif isinstance(block.noise, FullNoise):
        _expect("noise", block.noise.log_factor, (Q, Q))
    else:
        raise ValueError(f"noise is a {type(block.noise).__name__}")
    K = (R * M if structure.deviation else 0) + Rl * Mi
    _expect_parts("", client, offset=(K,), G=(K, R * M))
    _expect_covariance("covariance", client.covariance, K)
    _check_states(structure, client, Q)
    if client.departure is not None:
        _expect("departure", client.departure, (7,))
    if client.loadings_half is not None:
        _expect("loadings_half", client.loadings_half, (Q * R, Q, R))
    parts = (client.shared_mean, client.shared_covariance, client.tangents)
    if all(part is None for part in parts):
        return
    if any(part is None for part in parts):
        raise ValueError("a part of what averaging left is missing")
    _expect("shared_mean", client.shared_mean, (R * M,))
    _expect_covariance("shared_covariance", client.shared_covariance, R * M)
    tangents = client.tangents
    assert tangents is not None
    rank = np.shape(tangents.weights)[0] if np.ndim(tangents.weights) else -1
    count = sum(np.size(leaf) for leaf in jax.tree.leaves(block.kernels))
    wanted = {
        "weights": (rank, R * M + K),
        "deviation": (rank, Q, R if structure.deviation else 0),
        "loadings": (rank, Q, Rl),
        "kernels": (rank, count),
    }
    if structure.client_loadings:
        wanted["global_loadings"] = (rank, Q, R)
    if tangents.noise is not None:
        wanted["noise"] = (rank, ravel(block.noise)[0].size)
    _expect_parts("tangents.", tangents, **wanted)
    if (tangents.reach is None) != (tangents.middle is None):
        raise ValueError("a part of what averaging left is missing")
    if tangents.middle is not None:
        _expect("tangents.reach", tangents.reach, (rank,))
        _expect_parts("tangents.middle.", tangents.middle, **wanted)


def _check_states(structure: Structure, client: ClientPosterior, Q: int) -> None:
    """There with a state-space local layer and only then: times in order, counts and means to fit."""
    states = client.states
    if (states is not None) != structure.state_space:
        raise ValueError("states of a local layer are missing, or not expected")
    if states is None:
        return
    n = np.size(states.times)
    size = StateModel.of(unstack(client.block.kernels, 0)).observe.shape[0]
    _expect_parts("states.", states, times=(n,), counts=(n, Q), means=(Q, n, size))
    if n == 0 or np.any(np.diff(states.times) <= 0) or np.any(np.asarray(states.counts) < 0):
        raise ValueError("states.times are not in order, or states.counts are negative")


def check_kernels(kernels: Kernel, latents: int, inputs: int) -> None:
    """Every parameter has one entry per latent, [one per column,] and is positive."""
    for leaf in jax.tree.leaves(kernels):
        if not ((np.asarray(leaf) > 0) & np.isfinite(leaf)).all():
            raise ValueError("a kernel parameter is not positive and finite")
    if isinstance(kernels, Stacks):
        for stack in kernels.kernels:
            check_kernels(stack, latents // len(kernels.kernels), inputs)
        return
    if isinstance(kernels, Scaled):
        _expect("kernel variance", kernels.variance, (latents,))
    for kernel in leaves_of(kernels):
        if kernel.dims is not None and max(kernel.dims) >= inputs:
            last = inputs - 1
            raise ValueError(f"a kernel uses input {max(kernel.dims)}, and the last one is {last}")
        columns = inputs if kernel.dims is None else len(kernel.dims)
        each = ((latents,), (latents, columns))
        _expect("lengthscale", kernel.lengthscale, *each)
        if isinstance(kernel, Periodic):
            _expect("period", kernel.period, *each)
        if isinstance(kernel, RationalQuadratic):
            _expect("alpha", kernel.alpha, (latents,))
    for total in _sums_of(kernels):
        _expect("ratios", total.ratios, (latents, len(total.kernels) - 1))


def _sums_of(kernel: Kernel) -> list[Sum]:
    parts = getattr(kernel, "kernels", ()) or (getattr(kernel, "kernel", None),)
    inside = [found for part in parts if part is not None for found in _sums_of(part)]
    return [kernel, *inside] if isinstance(kernel, Sum) else inside


def _sizes(block: GlobalBlock | ClientBlock) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of loadings and inputs."""
    if np.ndim(block.loadings) != 2 or np.ndim(block.inputs) != 2:
        raise ValueError("loadings and inputs are not both matrices")
    return np.shape(block.loadings), np.shape(block.inputs)


def _expect_parts(prefix: str, owner: object, **shapes: tuple[int, ...]) -> None:
    for name, shape in shapes.items():
        _expect(prefix + name, getattr(owner, name), shape)


def _expect(name: str, array: Any, *shapes: tuple[int, ...]) -> None:
    """One of these shapes, and finite."""
    array = np.asarray(array)
    if array.shape not in shapes:
        wanted = " or ".join(str(shape) for shape in shapes)
        raise ValueError(f"{name} has shape {array.shape}, expected {wanted}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} is not finite")


def _expect_covariance(name: str, array: Any, size: int) -> None:
    """Symmetric and positive semi-definite, up to `TOLERANCE`."""
    _expect(name, array, (size, size))
    if size == 0:
        return
    matrix = np.asarray(array, np.float64)
    scale = float(np.max(np.abs(np.diagonal(matrix))))
    if np.max(np.abs(matrix - matrix.T)) > TOLERANCE * scale:
        raise ValueError(f"{name} is not symmetric")
    if scale == 0:
        if np.any(matrix):
            raise ValueError(f"{name} is not positive semi-definite")
        return
    try:  # cheaper than eigenvalues, and the same question
        np.linalg.cholesky(matrix + TOLERANCE * scale * np.eye(size))
    except np.linalg.LinAlgError:
        raise ValueError(f"{name} is not positive semi-definite") from None
