"""Where training may start: which of the two scales of the data is shared, and both blocks at such a start.

The variogram finds two scales, but not whose they are. A slow common trend with fast local detail looks the
same to it as a fast common wave with slow local drifts. So the first exchange of training evaluates both
starts, and training continues from the one with the higher bound. Restarts take the other one, and then
scales from anywhere between the closest rows and the whole domain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from pfedhgp.gp.kernels import Kernel, Periodic, leaves_of
from pfedhgp.gp.noise import DiagonalNoise, FullNoise, Noise
from pfedhgp.inference.starts.census import Scales
from pfedhgp.model.blocks import ClientBlock, GlobalBlock
from pfedhgp.model.spec import Spec, starting_kernels

SHORTEST, LONGEST = 0.003, 0.5
"""Between these, in the unit box, restarts draw lengthscales."""
STRETCH = 2.0
"""A wave of period p has the variogram of a lengthscale of 0.16 p near zero; a fit ended at 0.35 p."""
CLEARLY = 0.05
"""Nats an observed cell by which another start must beat the first: neither is trained yet."""
CONTRAST = 0.3
"""How much clients' own loadings differ at the start, as a share of the shared scale's sd."""
LARGEST_MESSAGE = 2048
"""R Q M of a start that is tried beside the first: the statistics that clients send are its square."""


@dataclass(frozen=True)
class Start:
    """Lengthscales (unit box) and variances (of outputs with unit variance) of layers and noise."""

    shared: float
    local: float
    shared_variance: float
    local_variance: float
    noise_variance: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)

    def as_array(self) -> np.ndarray:
        return np.array(list(self.as_dict().values()))

    @staticmethod
    def from_array(values: np.ndarray) -> Start:
        return Start(*(float(v) for v in values))

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Start:
        """What a model file holds; those of older files name the scales and not the layers."""
        return with_long_shared(Scales(**values)) if "long" in values else Start(**values)


def with_long_shared(scales: Scales) -> Start:
    """The long scale is shared, the short one local."""
    return Start(
        shared=scales.long,
        local=scales.short,
        shared_variance=scales.long_variance,
        local_variance=scales.short_variance,
        noise_variance=scales.noise_variance,
    )


def with_short_shared(scales: Scales, *, factor: float = 1.0) -> Start:
    """The short scale, times `factor`, is shared, the long one local."""
    return Start(
        shared=min(factor * scales.short, scales.long),
        local=scales.long,
        shared_variance=scales.short_variance,
        local_variance=scales.long_variance,
        noise_variance=scales.noise_variance,
    )


def has_open_scale(spec: Spec) -> bool:
    """Whether the shared kernel leaves a lengthscale to the data."""
    return spec.latents > 0 and any(
        leaf.lengthscale is None and not isinstance(leaf, Periodic)
        for leaf in leaves_of(spec.kernel)
    )


def starts_to_compare(
    spec: Spec, scales: Scales, *, compare: bool, shared_is_short: bool = False
) -> list[Start]:
    """The starts that the first exchange compares; only one if there is no choice, or no way to choose.

    With loadings the bounds cannot choose. Before loadings are fitted, bounds differ by what the loadings
    happen to be: in three of ten runs of the study's scenario A the wrong start won. The covariogram between
    clients decides instead (`shared_scale`).
    """
    if not has_open_scale(spec) or (not compare and not shared_is_short):
        return [with_long_shared(scales)]
    if not compare or not spec.tied:
        return [with_short_shared(scales) if shared_is_short else with_long_shared(scales)]
    return [
        with_long_shared(scales),
        with_short_shared(scales),
        with_short_shared(scales, factor=STRETCH),
    ]


def best_of(bounds: list[float | None], cells: float) -> int:
    """The first start, or the best of the others if its bound is clearly higher."""
    known = np.array([-np.inf if bound is None else bound for bound in bounds])
    found = int(np.argmax(known))
    return found if known[found] > known[0] + CLEARLY * cells else 0


def asks_between_clients(spec: Spec, *, compare: bool = True) -> bool:
    """Whether clients are asked for what tells the shared scale: with one input, where starts are not
    compared.
    """
    return not (spec.tied and compare) and spec.inputs == 1 and has_open_scale(spec)


def restart(scales: Scales, tried: Start, *, compared: bool, attempt: int, seed: int) -> Start:
    """Start number `attempt` ≥ 1: what was compared and not chosen, then scales over decades.

    Those are log-uniform and fill the square of (shared, local) evenly; `seed` moves them.
    """
    if compared and attempt == 1:
        return (
            with_short_shared(scales) if tried.shared == scales.long else with_long_shared(scales)
        )
    from scipy.stats import qmc  # half a second to import, for a third start alone

    shift = np.random.default_rng([seed, 2]).random(2)
    place = (qmc.Halton(2, scramble=False).random(attempt + 1)[attempt] + shift) % 1.0
    shared, local = np.exp(np.log(SHORTEST) + place * np.log(LONGEST / SHORTEST))
    half = 0.5 * (scales.short_variance + scales.long_variance)
    return Start(float(shared), float(local), half, half, scales.noise_variance)


def principal_loadings(
    second_moment: np.ndarray, rank: int, rng: np.random.Generator | None
) -> np.ndarray:
    """Leading eigenvectors of E[yyᵀ], scaled so that B Bᵀ is near it; turned at random on a restart."""
    outputs = len(second_moment)
    if not rank:
        return np.zeros((outputs, 0))
    values, vectors = np.linalg.eigh(second_moment)
    values, vectors = values[::-1], vectors[:, ::-1]
    floor = 0.05 * max(float(np.trace(second_moment)) / outputs, 1e-3)
    columns = [
        vectors[:, r % outputs] * np.sqrt(max(values[r % outputs], floor)) for r in range(rank)
    ]
    B = np.stack(columns, axis=1)
    if rng is not None and rank > 1:
        B = B @ np.linalg.qr(rng.normal(size=(rank, rank)))[0]
    return B


def halved(spec: Spec) -> int:
    """Latents of the global layer alone, or of the deviation: half of them if they have different kernels."""
    return spec.latents // 2 if spec.own_deviation_kernel else spec.latents


def in_half(spec: Spec, B: np.ndarray, half: int) -> np.ndarray:
    """Loadings B as those of the global (0) or the deviation (1) half, with zeros in the other one.

    They stay zero in every search: a latent that nothing loads has no slope in its loadings.
    """
    if not spec.own_deviation_kernel:
        return B
    nothing = np.zeros_like(B)
    return np.concatenate([nothing, B] if half else [B, nothing], axis=1)


def second_moment(Y: np.ndarray) -> np.ndarray:
    """E[yyᵀ] over pairs of observed cells; the identity for pairs that were never observed together."""
    seen = np.isfinite(Y).astype(np.float64)
    filled = np.where(seen > 0, Y, 0.0)
    pairs = seen.T @ seen
    return np.where(pairs > 0, (filled.T @ filled) / np.maximum(pairs, 1.0), np.eye(Y.shape[1]))


def global_block(
    spec: Spec,
    start: Start,
    moment: np.ndarray,
    inputs: np.ndarray,
    extent: np.ndarray,
    seed: int | None,
) -> GlobalBlock:
    """Half of the shared scale's variance to the global layer, half to the deviations (φ = 1)."""
    rng = None if seed is None else np.random.default_rng([seed, 0])
    kernels = starting_kernels(spec.kernel, scale=start.shared, count=spec.latents, extent=extent)
    share = np.sqrt(0.5 * start.shared_variance)
    if spec.tied:
        loadings = np.full((spec.outputs, spec.latents), share)
        phi = 1.0
    else:
        loadings = in_half(spec, principal_loadings(moment, halved(spec), rng), 0) * share
        phi = 0.5 * start.shared_variance
    if not spec.client_loadings:
        return GlobalBlock(kernels, inputs, loadings, np.float64(phi))
    loadings[:, spec.outputs :] = 0.0  # clients differ in what these do, and agree on nothing
    spread = CONTRAST**2 * start.shared_variance * np.eye(loadings.size)
    return GlobalBlock(kernels, inputs, loadings, np.float64(phi), spread)


def with_own_loadings(
    block: ClientBlock, name: str, request: Mapping[str, np.ndarray], seed: int
) -> ClientBlock:
    """The block with loadings of its own: a draw from N(B_g, Σ_B) that follows from name and seed.

    If all clients began alike, no shared function could tell them apart.
    """
    B_g, spread = (np.asarray(request[n]) for n in ("loadings", "loadings_covariance"))
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    draw = np.random.default_rng(list(digest)).standard_normal(B_g.size)
    own = B_g + (np.linalg.cholesky(spread) @ draw).reshape(B_g.shape)
    return replace(block, global_loadings=own)


def client_block(
    spec: Spec,
    start: Start,
    Y: np.ndarray,
    inputs: np.ndarray,
    kernels: Kernel,
    seed: int | None,
) -> ClientBlock:
    """Directions from the client's own second moment; scales and local `kernels` from the agreed start.

    An output that the client never observed has loadings of 0, the best ones by their prior: no row moves
    them, and a search may end before it has come there.
    """
    rng = None if seed is None else np.random.default_rng([seed, 1])
    moment = np.eye(spec.outputs) if spec.tied else second_moment(Y)
    width = halved(spec) if spec.deviation and not spec.tied else 0
    deviation = principal_loadings(moment, width, rng) * np.sqrt(0.5 * start.shared_variance)
    deviation = in_half(spec, deviation, 1)
    if spec.tied and spec.deviation:
        deviation = np.ones((spec.outputs, spec.latents))  # √(φ_i/φ)
    if spec.state_space:
        local = np.sqrt(start.local_variance) * np.eye(spec.outputs)
    elif spec.tied:
        local = np.full((1, spec.local_latents), np.sqrt(start.local_variance))
    else:
        local = principal_loadings(moment, spec.local_latents, rng) * np.sqrt(start.local_variance)
    if not spec.tied:
        seen = np.isfinite(Y).any(axis=0)[:, None]
        deviation, local = deviation * seen, local * seen
    return ClientBlock(
        kernels,
        inputs,
        np.ones(len(inputs)),
        deviation,
        local,
        starting_noise(spec, start.noise_variance),
    )


def starting_noise(spec: Spec, variance: float) -> Noise:
    """Σ = variance · I in the form that the spec asks for."""
    if spec.noise == "full":
        return FullNoise(np.eye(spec.outputs) * (0.5 * np.log(variance)))
    size = 1 if spec.noise == "scalar" else spec.outputs
    return DiagonalNoise(np.full((size,), np.log(variance)))
