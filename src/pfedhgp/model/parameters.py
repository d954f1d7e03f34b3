"""Fitted parameters in the data's units: `kernel_`, `noise_`, `phi_` and `loadings_` of `FederatedGP`.

Each of them is what all clients share, and `[client]` is what the client has of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pfedhgp.base.trees import ravel
from pfedhgp.gp.kernels import Stacks
from pfedhgp.model import departures
from pfedhgp.model.blocks import deviation_loadings, global_loadings
from pfedhgp.model.estimates import (
    MOST_LINES,
    REACH,
    Estimate,
    Matrix,
    Values,
    columns,
    more,
    one_or_all,
)
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.fitted_kernels import LayerKernels, local_kernels, shared_kernels
from pfedhgp.model.layers import layer_sizes, noise_covariance
from pfedhgp.model.posterior import ClientPosterior, Tangents
from pfedhgp.model.words import shown


class ByClient(Mapping[str, Any]):
    """What each client has of its own, by name; computed when it is asked for."""

    model: FittedModel

    def of(self, client: str) -> Any:
        """One client's."""
        raise NotImplementedError

    def __getitem__(self, client: Any) -> Any:
        """Of a client, or of (client, output) where there are several outputs."""
        name, output = client if isinstance(client, tuple) else (client, None)
        if name not in self.model.clients:
            raise KeyError(f"no client {name!r} in the model; see `clients_`")
        found = self.of(name)
        if output is None:
            return found
        if not isinstance(found, Values | Matrix) and (output,) == self.model.output_names:
            return found
        return found[output]

    def __iter__(self) -> Iterator[str]:
        return iter(self.model.clients)

    def __len__(self) -> int:
        return len(self.model.clients)

    def _first(self) -> list[str]:
        """The clients that a repr shows."""
        return list(self.model.clients)[:MOST_LINES]

    def _table(self, head: str, lines: list[str]) -> str:
        return "\n".join([head, *lines, *more(len(self) - MOST_LINES, "client")])


def _spread(model: FittedModel) -> np.ndarray:
    return np.broadcast_to(np.asarray(model.scaling.spread, np.float64), (model.outputs,))


def _known(own: ClientPosterior) -> Tangents | None:
    """What averaging left; None if it dropped a direction, whose length is then not known."""
    tangents = own.tangents
    if tangents is None or (tangents.reach is not None and np.any(np.asarray(tangents.reach) == 0)):
        return None
    return tangents


# kernels ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Kernels(ByClient):
    """`kernel_`: the kernel that all clients share; `kernel_[client]` is the client's local one."""

    model: FittedModel
    shared: LayerKernels
    deviation: LayerKernels

    def of(self, client: str) -> LayerKernels:
        """The client's local kernels, one for each latent."""
        return local_kernels(self.model, client)

    @property
    def latents(self) -> tuple[Any, ...]:
        """The shared kernels, one for each latent."""
        return self.shared.latents

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("model", "shared", "deviation"):
            raise AttributeError(name)
        return getattr(self.shared, name)

    def __repr__(self) -> str:
        several = len(self.shared) > 1
        same = self.deviation.latents in (self.shared.latents, ())
        also = " and deviation" if self.deviation.latents and same else ""
        lines = [f"global{also}:{chr(10) if several else ' '}{self.shared!r}"]
        if not same:
            lines.append(f"deviation:{chr(10) if several else ' '}{self.deviation!r}")
        if any(own.block.loadings.shape[1] for own in self.model.clients.values()):
            lines.append(f"local: one for each of {len(self)} clients, see kernel_[client]")
        return "\n".join(lines)


# noise ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Noises(ByClient):
    """`noise_[client]`: the standard deviation of a client's noise, in the output's units.

    With several outputs it is a mapping from outputs, and `noise_[client, output]` is one of them. If noise
    depends on the level, this is the noise at the outputs' mean level.
    """

    model: FittedModel

    def of(self, client: str) -> Estimate | Values:
        """σ of each output."""
        sd = np.sqrt(np.diagonal(self.covariance(client)))
        ends = self._ends(client, sd)
        return one_or_all(
            {
                name: Estimate(float(sd[q]), *(float(end[q]) for end in ends))
                for q, name in enumerate(self.model.output_names)
            }
        )

    def covariance(self, client: str) -> np.ndarray:
        """Σ (Q, Q) between outputs, in their units."""
        spread = _spread(self.model)
        return noise_covariance(self.model, client) * np.outer(spread, spread)

    @property
    def sd(self) -> np.ndarray:
        """(clients, Q)"""
        found = [np.sqrt(np.diagonal(self.covariance(name))) for name in self]
        return np.stack(found) if found else np.zeros((0, self.model.outputs))

    @property
    def typical(self) -> Estimate | Values:
        """Root mean square over clients."""
        sizes = layer_sizes(self.model)[:, 3]
        names = self.model.output_names
        return one_or_all({name: Estimate(float(sizes[q])) for q, name in enumerate(names)})

    def _ends(self, client: str, sd: np.ndarray) -> tuple[np.ndarray, ...]:
        """log σ² ~ N(log E[σ²] − v/2, v), v = Σ_p (its shift along direction p)²; the fit keeps E[σ²]."""
        model, own = self.model, self.model.clients[client]
        tangents = _known(own)
        if tangents is None or tangents.noise is None or model.layer_of(client) is not None:
            return ()
        flat, unravel = ravel(own.block.noise)

        def logs(at: np.ndarray) -> np.ndarray:
            return np.log(np.diagonal(np.asarray(unravel(at).covariance(model.outputs))))

        rows = np.asarray(tangents.noise)
        shifts = np.array([0.5 * (logs(flat + row) - logs(flat - row)) for row in rows])
        variance = np.sum(shifts.reshape(len(rows), -1) ** 2, axis=0)
        middle, reach = sd * np.exp(-0.25 * variance), 0.5 * REACH * np.sqrt(variance)
        return middle * np.exp(-reach), middle * np.exp(reach)

    def __repr__(self) -> str:
        head = ["client", *(shown(name, 24) for name in self.model.output_names)]
        if len(head) == 2:
            head[1] = f"noise sd of {head[1]}"
        lines = [head]
        for name in self._first():
            found = self.of(name)
            each = found.values() if isinstance(found, Values) else (found,)
            lines.append([shown(name, 30), *map(repr, each)])
        top, *rest = columns(lines)
        return self._table(top, rest)


# φ ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Phis(ByClient):
    """`phi_[client]`: the variance of a client's deviation, as a share of the global layer's.

    `float(phi_)` and `phi_.shared` are the φ of the fit: that share for a client not seen yet. In models with
    loadings, the variance of deviations' loadings in units of the outputs' spread. Intervals are those of
    `departures()`, given that the client departs.
    """

    model: FittedModel
    shared: Estimate

    def of(self, client: str) -> Estimate | Values:
        """φ_i; with several outputs, of each."""
        model, own = self.model, self.model.clients[client]
        known = departures.departure_of(model, own)
        if known is not None:
            return Estimate(known.phi, known.lower, known.upper)
        shared = model.shared.block
        deviation = np.asarray(deviation_loadings(model.structure, shared, own.block))
        common = np.asarray(global_loadings(shared, own.block))
        ours, all_of_it = (np.sum(B**2, axis=1) for B in (deviation, common))
        share = np.divide(ours, all_of_it, out=np.full_like(ours, np.nan), where=all_of_it > 0)
        names = model.output_names
        return one_or_all({name: Estimate(float(share[q])) for q, name in enumerate(names)})

    def __float__(self) -> float:
        return float(self.shared)

    def __repr__(self) -> str:
        if not self.model.structure.deviation:
            return "no deviations: clients' departures are in their local layers"
        lines = columns([[shown(name, 30), repr(self.of(name))] for name in self._first()])
        return self._table(f"φ = {self.shared!r}", lines)


# loadings ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class ClientLoadings:
    """A client's loadings on the latents of each layer, in the outputs' units."""

    shared: Matrix
    """on the global latents: its own, or everybody's"""
    deviation: Matrix
    local: Matrix

    def __repr__(self) -> str:
        parts = (("global", self.shared), ("deviation", self.deviation), ("local", self.local))
        return "\n".join("\n".join([f"{name}:", *m.lines()]) for name, m in parts if m.shape[1])


@dataclass(frozen=True, eq=False, repr=False)
class AllLoadings(ByClient):
    """`loadings_`: how much of each global latent an output has; `loadings_[client]` has all of a client's.

    Latents have unit variance, so with one latent a loading is the layer's standard deviation. Loadings are
    known up to sign and order of the latents. `np.asarray(loadings_)` is the array.
    """

    model: FittedModel
    shared: Matrix

    def of(self, client: str) -> ClientLoadings:
        """Global, deviation and local loadings, with intervals where averaging gave some."""
        model, own = self.model, self.model.clients[client]
        shared, block, tangents = model.shared.block, own.block, _known(own)
        common, deviations = _columns(model)
        B = deviation_loadings(model.structure, shared, block)
        if own.loadings_half is not None:
            of_shared = own.loadings_half
        else:
            of_shared = None if tangents is None else tangents.global_loadings
        return ClientLoadings(
            _matrix(model, global_loadings(shared, block), of_shared, common),
            _matrix(model, B, None if tangents is None else tangents.deviation, deviations),
            _matrix(model, block.loadings, None if tangents is None else tangents.loadings),
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.shared, dtype)

    def __repr__(self) -> str:
        return repr(self.shared)


def _columns(model: FittedModel) -> tuple[slice, slice]:
    """The latents of the global layer and of the deviations."""
    count = model.shared.block.loadings.shape[1]
    if not isinstance(model.shared.block.kernels, Stacks):
        return slice(0, count), slice(0, count)
    return slice(0, count // 2), slice(count // 2, count)


def _matrix(model: FittedModel, B: Any, rows: Any, kept: slice = slice(None)) -> Matrix:
    """B ± 1.96 sd in the outputs' units, sd² = Σ_p (B's shift along direction p)².

    A model without loadings keeps the root mean square of a layer's standard deviation, B² = mean² + sd².
    """
    values, unit = np.asarray(B, np.float64)[:, kept], _spread(model)[:, None]
    if rows is None:
        return Matrix(values * unit, model.output_names)
    variance = np.sum(np.asarray(rows, np.float64)[..., kept] ** 2, axis=0)
    if not variance.any():
        return Matrix(values * unit, model.output_names)
    middle = values
    if model.structure.tied:
        middle = np.sign(values) * np.sqrt(np.maximum(values**2 - variance, 0.0))
    reach = REACH * np.sqrt(variance)
    return Matrix(
        values * unit, model.output_names, (middle - reach) * unit, (middle + reach) * unit
    )


# what the estimator shows -----------------------------------------------------------------------


def kernels(model: FittedModel) -> Kernels:
    """`kernel_`"""
    return Kernels(model, *shared_kernels(model))


def noises(model: FittedModel) -> Noises:
    """`noise_`"""
    return Noises(model)


def phis(model: FittedModel) -> Phis:
    """`phi_`"""
    phi = float(model.shared.block.phi) if model.structure.deviation else 0.0
    return Phis(model, Estimate(phi))


def loadings(model: FittedModel) -> AllLoadings:
    """`loadings_`"""
    common, _ = _columns(model)
    return AllLoadings(model, _matrix(model, model.shared.block.loadings, None, common))
