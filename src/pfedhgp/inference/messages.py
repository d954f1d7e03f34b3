"""The arrays that inferences, the census and the cycle layer send: every one is declared here, once.

    Field("d_J", "P RM RM", "∂J/∂θ_g", triangle="symmetric")

A field has a name, a shape in symbols, a meaning, and what its numbers may be. A word of the shape is a
product of symbols: RM stands for R · M. Of a symmetric or lower triangular matrix one triangle is sent, row
by row; packing is here and nowhere else. `federation.schema` says which message has which fields;
docs/messages.md is the same as a page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np


class Sizes(Protocol):
    """What each symbol stands for; a dictionary will do."""

    def __getitem__(self, symbol: str, /) -> int: ...


@dataclass(frozen=True)
class Range:
    """What the numbers of an array may be, beside finite."""

    words: str
    holds: Callable[[np.ndarray], Any]


FINITE = Range("", lambda a: True)
NOT_NEGATIVE = Range("≥ 0", lambda a: np.all(a >= 0.0))
POSITIVE = Range("> 0", lambda a: np.all(a > 0.0))
COUNT = Range("whole, ≥ 0", lambda a: np.all((a >= 0.0) & (a == np.floor(a))))
FLAG = Range("0 or 1", lambda a: np.all((a == 0.0) | (a == 1.0)))
ONE = Range("1", lambda a: np.all(a == 1.0))
POWERS = Range("diagonal ≥ 0", lambda a: np.all(np.diagonal(a) >= 0.0))
PACKED_POWERS = Range("diagonal ≥ 0", lambda a: np.all(_packed_diagonal(a) >= 0.0))
SITES = Range("w and squares ≥ 0", lambda a: np.all(a[::2] >= 0.0))
SPREAD = Range("τ² > 0", lambda a: np.all(a[1] > 0.0))
VARIANCES = Range("diagonal > 0", lambda a: np.all(np.diagonal(a) > 0.0))


@dataclass(frozen=True)
class Field:
    """`name` may end with a star: one array for each parameter of a kernel, as many as it has."""

    name: str
    shape: str
    meaning: str
    range: Range = FINITE
    triangle: Literal["", "symmetric", "lower"] = ""

    def whole_shape(self, sizes: Sizes) -> tuple[int, ...]:
        """The shape as the arithmetic knows it."""
        return tuple(math.prod(_number(s, sizes) for s in word) for word in self.shape.split())

    def sent_shape(self, sizes: Sizes) -> tuple[int, ...]:
        """The shape in the message: a triangle is one axis."""
        whole = self.whole_shape(sizes)
        return (*whole[:-2], whole[-1] * (whole[-1] + 1) // 2) if self.triangle else whole

    def pack(self, array: Any) -> np.ndarray:
        """As it is sent; axes in front, such as one of clients, stay."""
        found = np.asarray(array, np.float64)
        return found[..., *self._places(found.shape[-1])] if self.triangle else found

    def unpack(self, array: Any) -> np.ndarray:
        """The inverse of `pack`."""
        sent = np.asarray(array, np.float64)
        if not self.triangle:
            return sent
        size = (math.isqrt(8 * sent.shape[-1] + 1) - 1) // 2
        rows, columns = self._places(size)
        full = np.zeros((*sent.shape[:-1], size, size))
        full[..., rows, columns] = sent
        if self.triangle == "symmetric":
            full[..., columns, rows] = sent
        return full

    def _places(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        return np.triu_indices(size) if self.triangle == "symmetric" else np.tril_indices(size)


def _packed_diagonal(sent: np.ndarray) -> np.ndarray:
    """The diagonals of symmetric matrices as they are sent."""
    rows, columns = np.triu_indices((math.isqrt(8 * sent.shape[-1] + 1) - 1) // 2)
    return np.asarray(sent[..., rows == columns])


def _number(symbol: str, sizes: Sizes) -> int:
    return int(symbol) if symbol.isdigit() else sizes[symbol]


def pack(fields: Iterable[Field], arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """All arrays as they are sent, in their order; each must be declared."""
    return {name: _declared(fields, name).pack(array) for name, array in arrays.items()}


def unpack(fields: Iterable[Field], arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The inverse of `pack`."""
    return {name: _declared(fields, name).unpack(array) for name, array in arrays.items()}


def _declared(fields: Iterable[Field], name: str) -> Field:
    for field in fields:
        if field.name == name or (field.name[-1] == "*" and name.startswith(field.name[:-1])):
            return field
    raise KeyError(f"{name!r} is not declared as part of a message")


# ------------------------------------------------------------------------------- before training

COUNTS = (
    Field("rows", "1", "number of rows", COUNT),
    Field("y_clients", "Q", "whether the client observed the output", FLAG),
    Field("y_pairs", "Q Q", "number of rows with both outputs observed", COUNT),
)
MOMENTS = (
    Field("x_sum", "d", "sum of each input"),
    Field("x_within", "d", "squared distances of each input from its mean, summed", NOT_NEGATIVE),
    Field("x_means", "d", "number of rows times the squared mean of each input", NOT_NEGATIVE),
    Field("y_mean", "Q Q", "mean of the first output over the rows with both"),
    Field("y_cross", "Q Q", "products of both outputs around these means, summed"),
    Field("observations", "Q", "number of values of each output, every cycle counted", COUNT),
)
CENTRES = (
    Field("x_centre", "d", "a place near the rows, about which inputs are summed"),
    Field("y_centre", "Q", "the same for outputs"),
)
UNITS = (
    Field("x_unit", "d", "power of two above all distances from the centre", POSITIVE),
    Field("y_unit", "Q", "the same for outputs", POSITIVE),
)
MAGNITUDES = (
    Field("x_magnitude", "d K", "1 in the class 2^k of the largest distance from the centre", FLAG),
    Field("x_mantissa", "d K", "mean distance from the centre, in units of that class"),
    Field("y_magnitude", "Q K", "the same for outputs", FLAG),
    Field("y_mantissa", "Q K", "the same for outputs"),
)
MASKED_MOMENTS = (
    Field("x_total", "d", "distances from the centre in units, summed"),
    Field("x_squares", "d", "their squares, summed", NOT_NEGATIVE),
    Field("y_total", "Q Q", "the same for the first output, over the rows with both"),
    Field("y_products", "Q Q", "products of both, summed", POWERS),
)
LAGS = (
    Field("lag_sum", "L Q", "½(y − y′)² over pairs of rows, summed by distance", NOT_NEGATIVE),
    Field("lag_pairs", "L Q", "number of these pairs", COUNT),
)
WAVES = (
    Field(
        "waves", "2 d W", "log evidence that a plain and a rich wave of each period add, by input"
    ),
)
FORMS = (Field("forms", "4 4", "log evidence of pairs of kernel forms (long and short scale)"),)
HISTOGRAM = (Field("histogram", "d H", "number of rows in each bin along each input", COUNT),)
BINS = (
    Field("bin_sum", "Q B", "standardised outputs summed by bin; 0 for a bin of one row"),
    Field("bin_rows", "Q B", "number of rows in each of these bins", COUNT),
    Field("own_products", "B", "products of the client's own bin sums, summed by lag"),
    Field("own_pairs", "B", "products of its row counts, summed by lag"),
)
SCALES = (Field("scales", "5", "starting lengthscales (shared, local) and variances", POSITIVE),)

# --------------------------------------------------------------------------------- the cycle layer

LAYER = (
    Field("cycle_inputs", "E d", "places of the basis functions"),
    Field("cycle_factor", "QE F", "F with Ψ = F Fᵀ, the covariance of a cycle's weights"),
    Field("cycle_noise", "Q Q", "Σ_ε, the noise beside the layer"),
    Field("cycle_form", "", "number of the layer's form", COUNT),
    Field("cycle_worth", "", "κ, how many cycles the target of a shrunk Ψ is worth"),
)
CYCLE_SUMS = (
    Field("freedom", "", "cycles less one", COUNT),
    Field("rows", "", "cycles less one, times the rows of the grid", COUNT),
    Field("gram", "E E", "Gram matrix of the basis on the grid, times cycles less one", POWERS),
    Field(
        "T", "QE QE", "scatter of the cycles on the basis around their mean", triangle="symmetric"
    ),
    Field("scatter", "Q Q", "scatter of the cycles around their mean, between outputs"),
    Field("log_counts", "", "cells of a cycle times the logarithm of the cycles", NOT_NEGATIVE),
)
CYCLES = (
    Field("cycles", "", "number of cycles", COUNT),
    Field("incomplete", "", "number of cycles that lack a cell", COUNT),
)

# ---------------------------------------------------------------------------------- both inferences

BLOCK = (
    Field("kernel", "k", "parameters of the shared kernels"),
    Field("inputs", "M d", "Z_g, the shared inducing inputs, in the unit box"),
    Field("loadings", "Q R", "B_g, the shared loadings"),
    Field("phi", "", "φ, the scale of the deviations", NOT_NEGATIVE),
)
LOADINGS_COVARIANCE = (
    Field(
        "loadings_covariance", "QR QR", "Σ_B, spread of clients' own loadings around B_g", POWERS
    ),
)
NOISE_LEVELS = (Field("noise_levels", "2", "γ, how the noise depends on the level"),)
JITTER = (Field("jitter", "", "added to the diagonal of k(Z_g, Z_g)", POSITIVE),)
POSTERIOR = (
    Field("mean", "RM", "mean of q(v_g)"),
    Field("covariance", "RM RM", "covariance of q(v_g)"),
)
SQUARES = (
    Field("deviation_square", "Q Q", "E[f_δ f_δᵀ], mean square of the deviation between outputs"),
    Field("local_square", "Q Q", "E[f_l f_lᵀ], mean square of the local function"),
    Field("noise", "Q Q", "Σ_i, covariance of the noise", VARIANCES),
)
CLIENTS = (Field("clients", "", "one client; a sum of replies counts them", ONE),)

# --------------------------------------------------------------------------------------- structured

TRAITS = (
    Field("traits", "5 t", "Σw, Σwu, Σw², Σw²u, Σw²u²: what clients say of their traits", SITES),
    Field("traits_at", "2 t", "μ and τ² of the population, where these sums were taken", SPREAD),
)
TOTALS = (
    Field("J", "RM RM", "ΣJ, what all clients know about v_g: precision"),
    Field("h", "RM", "Σh, what all clients know about v_g: linear term"),
    Field("kernels_free", "", "whether clients move their local kernels", FLAG),
    Field("evaluations", "", "most evaluations of a client's search", COUNT),
    *TRAITS,
    Field("derivatives", "", "whether clients send derivatives in θ_g", FLAG),
)
SUMS = (
    Field("evidence", "", "log evidence of the rows without the shared function"),
    Field("U", "RVM RVM", "EᵀC⁻¹E, from which J follows for any B_g", triangle="symmetric"),
    Field("y", "RVM", "EᵀC⁻¹y, from which h follows for any B_g"),
    Field("shared_residual", "R Q Q", "Σ res/σ² of the shared latents: what Z_g leaves out"),
    Field("residual", "", "Σ res/σ² of all layers: what inducing inputs leave out"),
    Field("deviation_power", "Q Q", "B̃B̃ᵀ, from which φ follows", POWERS),
    Field("traits", "5 t", "w, wu, w², w²u, w²u² of what its rows say of its traits", SITES),
)
DERIVATIVES = (
    Field("d_evidence", "P", "∂ evidence/∂θ_g"),
    Field("d_h", "P RM", "∂h/∂θ_g"),
    Field("d_J", "P RM RM", "∂J/∂θ_g", triangle="symmetric"),
    Field("curvature", "P P", "second derivatives in θ_g"),
)
CLIENT_LOADINGS = (
    Field("client_loadings", "Q R", "B_g,i, the client's own loadings on the shared functions"),
    Field(
        "client_loadings_square",
        "QR QR",
        "their products, with the variance that the rows leave",
        POWERS,
    ),
)
KNOTS = (
    Field(
        "knot_J",
        "M R R",
        "Σ c cᵀ/σ² over the rows at each knot",
        PACKED_POWERS,
        triangle="symmetric",
    ),
    Field("knot_h", "M R", "Σ c (y − drift)/σ² over the rows at each knot"),
)
KNOT_REQUEST = (
    *KNOTS,
    Field("logs", "5 3Q", "Σw, Σwu, Σw², Σw²u, Σw²u²: what clients say of log (ℓ, b², σ²)", SITES),
    Field("logs_at", "2 3Q", "μ and τ² of the population, where these sums were taken", SPREAD),
    Field("tails", "", "κ, the kurtosis of the noise", POSITIVE),
    Field("kernels_free", "", "whether clients move their local drifts", FLAG),
    Field("evaluations", "", "most evaluations of a client's search", COUNT),
)
INPUT_GRADIENT = (Field("d_inputs", "M d", "gradient of the client's part of the bound in Z_g"),)
STATISTICS = (*SUMS, *SQUARES, *CLIENTS, *CLIENT_LOADINGS, *DERIVATIVES, *INPUT_GRADIENT)

# ------------------------------------------------------------------------------------------- Markov

KNOT_SUMS = (
    Field("evidence", "", "what the rows say without the shared functions"),
    *KNOTS,
    Field("logs", "5 3Q", "w, wu, w², w²u, w²u² of what its rows say of log (ℓ, b², σ²)", SITES),
    Field("fourth", "", "fourth powers of residuals of unit mean square, summed", NOT_NEGATIVE),
    Field("cells", "", "number of these", COUNT),
    Field("local_square", "Q Q", "b², the variance of the local drift", POWERS),
    Field("noise", "Q Q", "Σ_i, covariance of the noise", VARIANCES),
    *CLIENT_LOADINGS,
    *CLIENTS,
)

LEVEL_SUMS = (
    Field("level_slope", "2", "slope of the log-likelihood in γ"),
    Field("level_curvature", "2 2", "its expected curvature", POWERS),
)

# --------------------------------------------------------------------------------------- mean-field

COORDINATES = (
    Field("kernels.*", "", "parameters of the shared kernels"),
    Field("inputs", "M d", "Z_g, the shared inducing inputs"),
    Field("loadings", "Q R", "B_g, the shared loadings"),
    Field("phi", "", "φ, the scale of the deviations"),
    Field("q.mean", "RM", "mean of q(v_g)"),
    Field("q.raw", "RM RM", "Cholesky factor of q(v_g)", triangle="lower"),
)
"""Θ_global in coordinates that may take any value; clients reply with the gradient in each."""
