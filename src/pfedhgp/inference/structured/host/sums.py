"""Λ and η of a batch of clients from features F, and the way back: adjoints of F, B and Π.

With G_g = F diag(m_g) Fᵀ, T_g = F diag(m_g) Y and W_g = BᵀΠ_gB, the weights w = [v_g | v_δ | v_l] have
    Λ = Σ_g G_g ⊙ W_g,   η = Σ_g T_g Π_g B,   residual = Σ_g Σ_a (W_g)_aa Σ_n m_g(n) res_a(n)
where each entry of Λ takes the rows of F, and the columns of B, that belong to its two weights.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from pfedhgp.inference.structured.host.cells import Cells

Array = np.ndarray


class Layout(NamedTuple):
    """How many latents and inducing inputs the layers have, and which rows of F are whose.

    Deviations have the features of the global layer, so F has these once; where the two differ (θ_g moves
    with the global function held), the deviations' are `separate` rows, after the global ones.
    """

    latents: int
    size: int
    deviations: int
    local: int
    local_size: int
    separate: bool = False

    @property
    def shared_weights(self) -> int:
        return self.latents * self.size

    @property
    def deviation_weights(self) -> int:
        return self.deviations * self.size

    @property
    def local_weights(self) -> int:
        return self.local * self.local_size

    @property
    def weights(self) -> int:
        return self.shared_weights + self.deviation_weights + self.local_weights

    @property
    def features(self) -> int:
        return self.weights if self.separate else self.shared_weights + self.local_weights

    @property
    def columns(self) -> int:
        """of B"""
        return self.latents + self.deviations + self.local


class _WeightIndices(NamedTuple):
    """For each weight its row of F and its column of B; the same for pairs, as flat indices."""

    row: Array
    column: Array
    rows: Array
    columns: Array
    linear: Array
    starts: Array


@cache
def _indices(layout: Layout) -> _WeightIndices:
    own = np.arange(layout.shared_weights)
    first = layout.shared_weights if layout.separate else 0
    deviation = first + np.arange(layout.deviation_weights)
    local = layout.features - layout.local_weights + np.arange(layout.local_weights)
    row = np.concatenate([own, deviation, local])
    counts = [layout.size] * (layout.latents + layout.deviations) + [
        layout.local_size
    ] * layout.local
    column = np.repeat(np.arange(layout.columns), counts)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(int)
    return _WeightIndices(
        row,
        column,
        row[:, None] * layout.features + row[None, :],
        column[:, None] * layout.columns + column[None, :],
        row * layout.columns + column,
        starts,
    )


class Gathered(NamedTuple):
    """G_g and T_g of all features."""

    G: Float[Array, "c g f f"]
    T: Float[Array, "c g f Q"]

    def of(self, which: Array | slice) -> Gathered:
        return Gathered(self.G[which], self.T[which])


def gather(F: Float[Array, "c f n"], cells: Cells) -> Gathered:
    """F diag(m_g) Fᵀ and F diag(m_g) Y"""
    weighted = F[:, None] * cells.weights[:, :, None, :]
    return Gathered(weighted @ np.swapaxes(F, 1, 2)[:, None], weighted @ cells.Y[:, None])


def regathered(
    known: Gathered,
    F: Float[Array, "c f n"],
    weighted: Float[Array, "c g k n"],
    Y: Float[Array, "c n Q"],
    new: slice,
) -> Gathered:
    """The same where the rows `new` of F, the first or the last ones, have changed; `known` has the others.

    `weighted` has the new rows times m_g.
    """
    c, f, _ = F.shape
    groups, count = weighted.shape[1:3]
    old = slice(0, f - count) if new.stop == f else slice(count, f)
    G, T = np.empty((c, groups, f, f)), np.empty((c, groups, f, Y.shape[2]))
    G[:, :, old, old], T[:, :, old] = known.G, known.T
    G[:, :, new] = weighted @ np.swapaxes(F, 1, 2)[:, None]
    G[:, :, old, new] = np.swapaxes(G[:, :, new, old], 2, 3)
    T[:, :, new] = weighted @ Y[:, None]
    return Gathered(G, T)


class Totals(NamedTuple):
    """Λ and η, with what their adjoints need again."""

    layout: Layout
    gathered: Gathered
    B: Float[Array, "c Q r"]
    Pi: Float[Array, "c g Q Q"]
    W: Float[Array, "c g r r"]
    pairs: Float[Array, "c g K K"]
    """G_g at each pair of weights"""
    loaded: Float[Array, "c g K K"]
    """W_g at each pair of weights"""
    precision: Float[Array, "c K K"]
    linear: Float[Array, "c K"]

    def by_feature(self, values: Float[Array, "c k f"]) -> Float[Array, "c k K"]:
        """Columns of features at each weight."""
        return np.take(values, _indices(self.layout).row, axis=2)

    def by_column(self, values: Float[Array, "c k r"]) -> Float[Array, "c k K"]:
        """Columns of loadings at each weight."""
        return np.take(values, _indices(self.layout).column, axis=2)

    def residual(self, residuals: Float[Array, "c g r"]) -> Float[Array, " c"]:
        """Σ_g Σ_a (W_g)_aa residuals_ga, with residuals_ga = Σ_n m_g(n) res_a(n)"""
        return np.einsum("cgaa,cga->c", self.W, residuals)


def totals(layout: Layout, gathered: Gathered, B: Array, Pi: Float[Array, "c g Q Q"]) -> Totals:
    """Λ and η for loadings B = [B_g | B_δ | B_l] and precisions Π_g."""
    where = _indices(layout)
    PB = Pi @ B[:, None]
    W = np.swapaxes(B, 1, 2)[:, None] @ PB
    c, groups = W.shape[:2]
    pairs = np.take(gathered.G.reshape(c, groups, -1), where.rows, axis=2)
    loaded = np.take(W.reshape(c, groups, -1), where.columns, axis=2)
    projected = np.take((gathered.T @ PB).reshape(c, groups, -1), where.linear, axis=2)
    if groups == 1:
        precision, linear = pairs[:, 0] * loaded[:, 0], projected[:, 0]
    else:
        precision, linear = np.einsum("cgkl,cgkl->ckl", pairs, loaded), projected.sum(1)
    return Totals(layout, gathered, B, Pi, W, pairs, loaded, precision, linear)


class Adjoints(NamedTuple):
    """What a gradient is in B and in Π_g."""

    B: Float[Array, "c Q r"]
    Pi: Float[Array, "c g Q Q"]


def loadings_pullback(
    found: Totals,
    mean: Float[Array, "c K"],
    second: Float[Array, "c K K"],
    residuals: Float[Array, "c g r"],
    squares: Float[Array, "c g Q Q"],
) -> Adjoints:
    """Adjoints of B and Π in mean·η − ½ ⟨second, Λ⟩ − ½ residual − ½ Σ_g ⟨Π_g, squares_g⟩.

    That is the gradient of a log integral over the weights where `mean` and `second` are their moments.
    """
    W_bar, drawn = _columns_bar(found, mean, second, residuals, found.layout.columns)
    BW, B_turned = found.B[:, None] @ W_bar, np.swapaxes(found.B, 1, 2)[:, None]
    of_B = found.Pi @ (2.0 * BW + drawn)
    return Adjoints(of_B.sum(1), (BW + drawn) @ B_turned - 0.5 * squares)


def first_loadings_pullback(
    found: Totals,
    mean: Float[Array, "c K"],
    second: Float[Array, "c k K"],
    residuals: Float[Array, "c g r"],
    columns: int,
) -> Float[Array, "c Q columns"]:
    """The adjoint of the first columns of B alone, from the second moments of their weights."""
    W_bar, drawn = _columns_bar(found, mean, second, residuals, columns)
    both = 2.0 * found.B[:, None] @ np.swapaxes(W_bar, 2, 3)
    return (found.Pi @ (both + drawn)).sum(1)


def _columns_bar(
    found: Totals, mean: Array, second: Array, residuals: Array, columns: int
) -> tuple[Float[Array, "c g columns r"], Float[Array, "c g Q columns"]]:
    """The adjoint of W_g, which is symmetric, and Σ_k m_k T_k over the weights of each column: some rows."""
    where = _indices(found.layout)
    starts, rows = where.starts[:columns], second.shape[1]
    pairs = second[:, None] * found.pairs[:, :, :rows]
    W_bar = _summed(_summed(pairs, starts, 2), where.starts, 3)
    W_bar *= -0.5
    index = np.arange(columns)
    W_bar[:, :, index, index] -= 0.5 * residuals[..., :columns]
    T = np.take(found.gathered.T, where.row[:rows], axis=2)
    return W_bar, np.swapaxes(_summed(mean[:, None, :rows, None] * T, starts, 2), 2, 3)


def _summed(values: Array, starts: Array, axis: int) -> Array:
    """Sums over the weights of each column of B."""
    if not len(starts):
        return values[(slice(None),) * axis + (slice(0, 0),)]
    return np.add.reduceat(values, starts, axis=axis)


def sums_pullback(
    found: Totals,
    cells: Cells,
    F: Float[Array, "c f n"],
    mean: Float[Array, "c K"],
    second: Float[Array, "c K K"],
    weights: slice,
) -> Float[Array, "c k n"]:
    """The adjoint of the features of some `weights` in mean·η − ½ ⟨second, Λ⟩.

    It is Σ_g (m yᵀΠ_g b − (second ⊙ W_g) F) diag(m_g). These weights must not share their features.
    """
    column = _indices(found.layout).column[weights]
    total: Array | float = 0.0
    for g in range(found.Pi.shape[1]):
        projected = np.swapaxes(cells.Y @ (found.Pi[:, g] @ found.B), 1, 2)
        own = mean[:, weights, None] * projected[:, column]
        own -= _by_feature(found.layout, second[:, weights] * found.loaded[:, g, weights]) @ F
        own *= cells.weights[:, g, None, :]
        total = total + own
    return np.asarray(total)


def _by_feature(layout: Layout, values: Float[Array, "c k K"]) -> Float[Array, "c k f"]:
    """Columns of weights, added up where two weights share a feature."""
    if layout.separate or not layout.deviations:
        return values
    k, d = layout.shared_weights, layout.deviation_weights
    folded = np.concatenate([values[..., :k], values[..., k + d :]], axis=-1)
    folded[..., :d] += values[..., k : k + d]
    return folded
