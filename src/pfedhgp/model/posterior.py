"""What prediction needs, and nothing else: no rows.

Given v_g, a client's weights w = [v_δ | v_l] are N(offset − G v_g, covariance): with the structured solver
offset = W⁻¹H_cᵀΣ⁻¹y, G = W⁻¹H_cᵀΣ⁻¹H_g and covariance = W⁻¹; with mean-field G is 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float

from pfedhgp.base.arrays_of import Array
from pfedhgp.gp.linalg import Moments
from pfedhgp.model.blocks import ClientBlock, GlobalBlock


class GlobalPosterior(eqx.Module):
    """q(v_g) = N(mean, covariance) at the block's θ_g; weights ordered (latent, inducing input)."""

    block: GlobalBlock
    mean: Float[Array, " RM"]
    covariance: Float[Array, "RM RM"]
    knot_J: Float[Array, "M R R"] | None = None
    knot_h: Float[Array, "M R"] | None = None
    """Evidence at each inducing input, where it determines q(v_g): far fewer numbers."""


class Moved(NamedTuple):
    """What predictions are made of, at some parameters; or how far it moves with them."""

    kernels: Array
    """of the local layer: their parameters, raveled"""
    deviation: Array
    loadings: Array
    weights: Array
    global_loadings: Array
    """no columns where these are everybody's"""

    def tangents(self) -> Tangents:
        own = self.global_loadings if self.global_loadings.shape[-1] else None
        return Tangents(*self[:4], global_loadings=own)


class Tangents(eqx.Module):
    """How a client's layers move with its uncertain parameters ψ̄ + F e, e ~ N(0, I): one row for each e_p.

    With a `middle`, ψ̄ + sFe_p has ψ̄'s values + middle + row, and ψ̄ − sFe_p has middle − row: predictions
    take half the difference between these two. Both are predictions at possible parameters, even if f
    bends strongly between them. Files of earlier versions have derivatives at ψ̄ and no middle.
    """

    kernels: Float[Array, "P k"]
    """of the local kernels' parameters, raveled"""
    deviation: Float[Array, "P Q Rd"]
    """of B̃"""
    loadings: Float[Array, "P Q Rl"]
    weights: Float[Array, "P RM+K"]
    """of the means of [v_g | w]"""
    reach: Float[Array, " P"] | None = None
    """s: 1, less where the client's bound did not allow a whole standard deviation, 0 where none"""
    middle: Tangents | None = None
    global_loadings: Float[Array, "P Q R"] | None = None
    """of B_g,i, where a client has its own"""
    noise: Float[Array, "P k"] | None = None
    """of the noise's coordinates, raveled: predictions do not need them, updates do"""

    @property
    def moved(self) -> Moved:
        """Those that predictions are made of."""
        own = self.loadings[..., :0] if self.global_loadings is None else self.global_loadings
        return Moved(self.kernels, self.deviation, self.loadings, self.weights, own)


class LocalStates(eqx.Module):
    """What a state-space local layer keeps: its smoothed states at the client's times, all different.

    Their covariances, and how they lean on the other layers, follow from times, counts and parameters.
    """

    times: Float[Array, " n"]
    counts: Float[Array, "n Q"]
    """observations of each cell; 0 where it was missing"""
    means: Float[Array, "Q n s"]


class Latents(NamedTuple):
    """h(x) = mean + T z + T_own z_own + e at each row: z of v_g, z_own of w, e ~ N(0, spread) on its own."""

    mean: Float[Array, "n L"]
    T: Float[Array, "n L Kg"]
    T_own: Float[Array, "n Lc Kc"]
    """no rows for global latents"""
    spread: Float[Array, "n L"]


class Conditional(NamedTuple):
    """q(w | v_g) = N(offset − G v_g, covariance) of a client's own weights."""

    offset: Float[Array, " K"]
    G: Float[Array, "K RM"]
    covariance: Float[Array, "K K"]

    def marginal(self, q: Moments) -> Moments:
        """m_c = offset − G m and S_c = covariance + G S Gᵀ, for q(v_g) = N(m, S)."""
        spread = self.G @ q.covariance @ self.G.T
        return Moments(self.offset - self.G @ q.mean, self.covariance + spread)


class ClientPosterior(eqx.Module):
    """q(w | v_g) of one client; weights ordered deviation (latent, inducing input), then local.

    Where parameters were averaged, the block holds their mean, `tangents` what their uncertainty does, and
    the client has its own view of v_g: what all others know, and its own rows at its mean parameters.
    """

    block: ClientBlock
    offset: Float[Array, " K"]
    G: Float[Array, "K RM"]
    covariance: Float[Array, "K K"]
    shared_mean: Float[Array, " RM"] | None = None
    shared_covariance: Float[Array, "RM RM"] | None = None
    tangents: Tangents | None = None
    states: LocalStates | None = None
    departure: Float[Array, " 7"] | None = None
    """φ_i (2.5%, median, 97.5%), the deviation's sd likewise in scaled units, and the log odds that the
    client departs at all (see `Departure`)"""
    loadings_half: Float[Array, "P Q R"] | None = None
    """F with Cov(vec B_g,i) = Σ_p vec F_p vec F_pᵀ, where predictions average over the loadings alone"""

    def view(self, shared: GlobalPosterior) -> Moments:
        """Mean and covariance of v_g as this client sees it: its own, or the server's."""
        if self.shared_mean is None or self.shared_covariance is None:
            return Moments(shared.mean, shared.covariance)
        return Moments(self.shared_mean, self.shared_covariance)

    def marginal(self, shared: GlobalPosterior) -> Moments:
        """m_c = offset − G m and S_c = W⁻¹ + G S Gᵀ"""
        return Conditional(self.offset, self.G, self.covariance).marginal(self.view(shared))


def without_unseen(
    found: Sequence[ClientPosterior], mask: Float[np.ndarray, "clients n Q"]
) -> list[ClientPosterior]:
    """Loadings of exactly zero for the outputs that a client never observed: its rows do not say them."""
    seen = np.any(mask > 0, axis=1, keepdims=False)
    return [
        own if row.all() else without_outputs(own, row.astype(np.float64))
        for own, row in zip(found, list(seen), strict=True)
    ]


def without_outputs(own: ClientPosterior, seen: Float[Array, " Q"]) -> ClientPosterior:
    """The posterior with loadings of zero where `seen` is 0: prediction takes the population's there."""
    block = own.block

    def kept(B: Array) -> Array:
        return B * seen[:, None] if B.ndim == 2 else B * seen[None, :, None]

    block = replace(block, deviation=kept(block.deviation), loadings=kept(block.loadings))
    own = replace(own, block=block)
    if own.tangents is None:
        return own

    def both(t: Tangents) -> Tangents:
        middle = None if t.middle is None else both(t.middle)
        return replace(t, deviation=kept(t.deviation), loadings=kept(t.loadings), middle=middle)

    return replace(own, tangents=both(own.tangents))


def limits_in_words(
    clients: Mapping[str, ClientPosterior], *, unless_only_shortened: bool = False
) -> str | None:
    """In how many directions averaging went less far than one standard deviation; None: nowhere.

    Small clients have directions that are shortened after any number of rounds: nothing to warn of.
    """
    reach = {
        name: np.asarray(own.tangents.reach)
        for name, own in clients.items()
        if own.tangents is not None and own.tangents.reach is not None
    }
    limited = [name for name, s in reach.items() if np.any(s < 1.0)]
    s = np.concatenate([reach[name] for name in limited]) if limited else np.ones(0)
    left_out = int(np.sum(s == 0.0))
    if not limited or (unless_only_shortened and not left_out):
        return None
    shortened = int(np.sum(s < 1.0)) - left_out
    return (
        f"averaging over parameters was limited at {len(limited)} of {len(reach)} clients, the first is "
        f"{limited[0]!r} ({shortened} of their {len(s)} directions shortened, {left_out} left out): "
        "training has not converged, or the rows say little about these parameters"
    )


class Population(eqx.Module):
    """Means over clients of f_δ f_δᵀ, f_l f_lᵀ and Σ: what an unseen client is expected to look like."""

    deviation_power: Float[Array, "Q Q"]
    local_power: Float[Array, "Q Q"]
    noise: Float[Array, "Q Q"]
    clients: Float[Array, ""]
    division: Float[Array, "Q Q"]
    """P/T: covariance of the error in the split into global layer and deviations (see `undetermined`);
    zero without loadings"""
    traits: Float[Array, "2 t"] | None = None
    """mean and variance of a new client's traits (logarithms of its local kernels' parameters, of its local
    variance if there are no loadings, of its noise), in scaled units; None in older files and mean-field.
    Of the Markov solver: log (ℓ, b², σ²) of each output"""
    tails: Float[Array, ""] | None = None
    """κ, the kurtosis of the noise, where the solver counts it"""
