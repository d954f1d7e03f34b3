"""Admissible replies of training: sums that some rows give under the model, whatever these rows are.

With C = H_c H_cᵀ + Σ, features |a(x)|² ≤ k(x, x) and N_q observations of output q, every honest reply has
    0 ≼ U = EᵀC⁻¹E,   tr U_rq ≤ N_q k_r λ_max(Σ⁻¹),   yᵀU⁺y ≤ Σ y²/λ_min(Σ),   shared_residual ≽ 0
and with one output, where the deviation is φ_i k_g and P = φ_i B_g² is part of the reply,
    P U ≼ I,   tr U(I − P U)⁻¹ ≤ N k/σ²
which is J ≼ I/φ_i and "implied rows ≤ declared rows": the deviation's share is taken out. Local layers of any
kind, cycles and missing cells only make C larger, so the limits hold with them. With client loadings U is J
itself, and B_g,i enters the trace. A site that was not in the census has no N: then its limits are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pfedhgp.data.scaling import Scaling
from pfedhgp.federation.robust.declared import Declared
from pfedhgp.federation.robust.limits import (
    SLACK,
    expect,
    expect_psd,
    quadratic,
    symmetric,
)
from pfedhgp.inference.messages import KNOT_SUMS, LEVEL_SUMS, STATISTICS, unpack
from pfedhgp.inference.structured.traits import LEAST
from pfedhgp.model.blocks import GlobalBlock
from pfedhgp.model.spec import Spec

Arrays = Mapping[str, np.ndarray]
LEAST_NOISE = 1e-9
"""Of scaled outputs. Noise has a floor of 1e-8 that no search passes."""
LOUDEST = 1e4
"""Variances of noise and layers are at most this many times 1 + the outputs' own mean square."""
ROUNDING = 1e-11
"""Of sums over rows, of which nearly all is taken away again by what is integrated out."""
NEARLY = 1.0 - 1e-6
"""Eigenvalues of P U count up to this: nearer to 1, rounding decides how many rows they imply."""
FARTHEST = 1e4
"""How far a site's traits may be from the population's, weighted: logarithms, so never as far."""


class Limits:
    """What is known of one site when its reply comes: its rows, the scaling and the shared block."""

    def __init__(
        self, spec: Spec, block: GlobalBlock, scaling: Scaling, declared: Declared | None
    ) -> None:
        self.spec, self.block, self.declared = spec, block, declared
        self.power = None if declared is None else declared.power(scaling)

    def variances(self, jitter: float) -> np.ndarray:
        """(R,) k_r(x, x), which is the same everywhere: kernels are stationary."""
        factor = np.asarray(self.block.basis(jitter).factor)
        found = np.square(factor).sum(axis=-1).max(axis=-1, initial=0.0)
        return np.asarray(found)

    def mean_square(self) -> float:
        """Of the site's scaled outputs, at most."""
        if self.declared is None or self.power is None:
            return np.inf
        return float(np.sum(self.power) / max(float(self.declared.cells.sum()), 1.0))

    def check_noise(self, noise: np.ndarray, least: float = LEAST_NOISE) -> float:
        """λ_min(Σ), after Σ was found positive definite and no larger than outputs can be."""
        expect_psd("noise", noise)
        low = float(np.linalg.eigvalsh(symmetric(noise))[0])
        expect(low >= least, "`noise` is smaller than its floor")
        self.check_size("noise", noise)
        return low

    def check_size(self, name: str, square: np.ndarray) -> None:
        """Variances that the outputs of the census can have."""
        most = LOUDEST * (1.0 + self.mean_square())
        expect(np.all(np.diagonal(square) <= most), f"`{name}` is larger than outputs can be")


def statistics(limits: Limits, a: Arrays, *, jitter: float) -> None:
    """A reply of `structured`: see the module."""
    found = unpack(STATISTICS, a)
    known = limits.declared
    low = limits.check_noise(found["noise"])
    U, y = found["U"], found["y"]
    variances = limits.variances(jitter)
    N = None if known is None else known.observations
    if N is not None and N.size:
        spare = ROUNDING * float(N.max()) * float(variances.max(initial=0.0)) / low
    else:
        spare = 1e-3 * float(np.abs(np.diagonal(U)).max(initial=0.0))
    inside = quadratic(U, y, spare)
    for name in ("deviation_power", "deviation_square", "local_square"):
        expect_psd(name, found[name], 1e-12)
        limits.check_size(name, found[name])
    expect_psd("shared_residual", found["shared_residual"], spare)
    if N is not None and limits.power is not None:
        most = SLACK * float(limits.power.sum()) / low + 1e-9
        expect(inside <= most, "`y` is not in the range of `U`, or larger than the rows allow")
        _check_traces(limits, found, N, variances / low, spare)
        high = -0.5 * float(N.sum()) * np.log(2.0 * np.pi * low)
        expect(
            float(found["evidence"]) <= high + 1e-6 * abs(high) + 1.0,
            "`evidence` is more than any rows have",
        )
    expect(float(found["residual"]) >= -spare - 1e-6, "`residual` is negative")
    traits(found["traits"])
    _check_loadings(found)


def _check_traces(
    limits: Limits, found: Arrays, N: np.ndarray, per_row: np.ndarray, spare: float
) -> None:
    """tr U ≤ N k/σ², and with one output the same without the deviation's share."""
    U, R, Q = found["U"], limits.spec.latents, limits.spec.outputs
    if not U.size:
        return
    diagonal = np.diagonal(U)
    if "client_loadings" in found:
        B = found["client_loadings"]
        most = per_row * np.einsum("qr,q->r", B**2, N) if R * Q else per_row
        traces = diagonal.reshape(R, -1).sum(axis=1)
    else:
        most = per_row[:, None] * N[None, :]
        traces = diagonal.reshape(R, Q, -1).sum(axis=2)
    expect(np.all(traces <= SLACK * most + spare), "`U` is worth more rows than were declared")
    left = np.diagonal(found["shared_residual"], axis1=1, axis2=2)
    allowed = SLACK * per_row[:, None] * N[None, :] + spare
    expect(np.all(left <= allowed), "`shared_residual` is worth more rows than were declared")
    if not limits.spec.structure.tied or not limits.spec.deviation or R * Q != 1:
        return
    P = float(found["deviation_power"][0, 0])
    values = np.linalg.eigvalsh(symmetric(U))
    share = P * values
    expect(share[-1] <= 1.0 + 1e-6 + P * spare, "`U` is more certain than φ allows")
    inside = np.clip(share, 0.0, NEARLY)
    implied = float(np.sum(np.maximum(values, 0.0) / (1.0 - inside)))
    expect(
        implied <= SLACK * float(most[0, 0]) + len(values) * spare,
        "`U` is worth more rows than were declared",
    )


def _check_loadings(found: Arrays) -> None:
    """E[b bᵀ] − b bᵀ is a covariance."""
    if "client_loadings" not in found:
        return
    b = found["client_loadings"].reshape(-1)
    square = found["client_loadings_square"]
    expect_psd("client_loadings_square", square)
    expect_psd("client_loadings_square", square - np.outer(b, b), 1e-7 * float(b @ b))


def traits(sums: np.ndarray) -> None:
    """w, wu, w², w·wu, (wu)²: five numbers of two, with w = 1/(τ² + s²) ≤ 1/τ²."""
    w, wu = sums[0], sums[1]
    same = np.stack([w, wu, w**2, w * wu, wu**2])
    close = np.abs(sums - same) <= 1e-6 * (np.abs(same) + 1e-12)
    expect(np.all(close), "`traits` do not fit each other")
    expect(np.all(w <= SLACK / LEAST**2), "`traits` weigh more than the population allows")
    expect(np.all(np.abs(wu) <= FARTHEST), "`traits` are farther away than any client's can be")


def knots(limits: Limits, a: Arrays, *, levels: bool) -> None:
    """A reply of `markov`: at each knot J_j = Σ c cᵀ/σ² and h_j = Σ c (y − drift)/σ² over its rows."""
    found = unpack((*KNOT_SUMS, *LEVEL_SUMS), a)
    known = limits.declared
    low = limits.check_noise(found["noise"], 1e-13)
    expect_psd("local_square", found["local_square"])
    limits.check_size("local_square", found["local_square"])
    J, h = found["knot_J"], found["knot_h"]
    expect_psd("knot_J", J)
    size = np.maximum(np.abs(np.diagonal(J, axis1=1, axis2=2)).max(axis=1), 1e-300)
    lifted = symmetric(J) + (1e-8 * size)[:, None, None] * np.eye(J.shape[-1])
    inside = np.einsum("mr,mr->m", h, np.linalg.solve(lifted, h[..., None])[..., 0])
    B = found["client_loadings"]
    if known is not None and limits.power is not None:
        # The drift is a smoothed series of the same outputs, and noise by level changes weights.
        slack = (1e3 if levels else 1.0) * SLACK
        most = 10.0 * slack * (float(limits.power.sum()) + float(known.cells.sum())) / low
        expect(
            inside.sum() <= most, "`knot_h` is not in the range of `knot_J`, or larger than rows"
        )
        worth = slack * float((np.square(B).sum(axis=1) * known.observations).sum()) / low
        trace = float(np.trace(J, axis1=1, axis2=2).sum())
        expect(trace <= worth + 1e-9, "`knot_J` is worth more rows than were declared")
        expect(float(found["cells"]) <= known.observations.sum(), "`cells` are more than rows")
    else:
        expect(np.all(inside < np.inf), "`knot_h` is not in the range of `knot_J`")
    traits(found["logs"])
    _check_loadings(found)
    cells = float(found["cells"])
    expect(float(found["fourth"]) <= SLACK * cells**2 + 1e-9, "`fourth` is more than cells allow")
    if "level_curvature" in found:
        expect_psd("level_curvature", found["level_curvature"])


def mean_squares(limits: Limits, a: Arrays) -> None:
    """The last reply of `mean-field`."""
    limits.check_noise(a["noise"])
    for name in ("deviation_square", "local_square"):
        expect_psd(name, a[name], 1e-12)
        limits.check_size(name, a[name])
