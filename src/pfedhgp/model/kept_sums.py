"""What a client keeps so that rows can be added to its model, or taken out again, without the other rows.

For fixed parameters its rows are summed up by Λ = HᵀΣ⁻¹H, η = HᵀΣ⁻¹y and two scalars, in the basis
[H_g | H_c] of its weights. New rows add to them, and rows that are forgotten are subtracted. Where
parameters were averaged there are several sets of sums: at the best parameters (these are in q(v_g)), at
the mean ones, and at both ends of each direction.

Of each row there are also two numbers of 64 bits: hashes of its inputs, and of the whole row, keyed by the
client's name. They tell whether a row is there, and not what it is. But whoever has the file can try inputs:
guard it like the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from pfedhgp.data.rows import ClientRows
from pfedhgp.gp.tails import WIDTH

ARRAYS = ("precision", "linear", "constant", "residual")
HASHES = ("inputs", "rows")


@dataclass(frozen=True, eq=False)
class KeptSums:
    """Sums at each of `p` parameter values, and what tells rows apart."""

    precision: Float[np.ndarray, "p k"]
    """Λ, the lower triangle by rows"""
    linear: Float[np.ndarray, "p K"]
    constant: Float[np.ndarray, " p"]
    """−½(N log 2π + log|Σ| + yᵀΣ⁻¹y)"""
    residual: Float[np.ndarray, " p"]
    inputs: np.ndarray
    """Hash of each row's inputs, uint64"""
    rows: np.ndarray
    """Hash of each whole row, uint64"""
    best: Float[np.ndarray, " k"] | None = None
    """The best parameters, raveled, if the posterior's are averaged ones"""
    span: Float[np.ndarray, " 2"] | None = None
    """The largest first input, and the usual step between first inputs, in the data's units: for forecasts"""
    counted: bool = True
    """Whether the client's rows are in q(v_g); those of an adopted client are not"""
    tails: Float[np.ndarray, "Q k"] | None = None
    """How the client's residuals were distributed in the fit, by output (`pfedhgp.gp.tails`); None: it had
    too few rows, or an earlier version saved it"""

    def matrices(self) -> Float[np.ndarray, "p K K"]:
        """Λ, whole."""
        K = self.linear.shape[1]
        found = np.zeros((len(self.linear), K, K))
        low = np.tril_indices(K)
        found[:, low[0], low[1]] = self.precision
        found[:, low[1], low[0]] = self.precision
        return found

    def plus(
        self, precision: np.ndarray, linear: np.ndarray, constant: np.ndarray, residual: np.ndarray
    ) -> KeptSums:
        """With the sums of other rows added."""
        return replace(
            self,
            precision=self.precision + packed(precision),
            linear=self.linear + linear,
            constant=self.constant + constant,
            residual=self.residual + residual,
        )


def packed(matrices: Float[np.ndarray, "p K K"]) -> Float[np.ndarray, "p k"]:
    """The lower triangles, by rows."""
    low = np.tril_indices(matrices.shape[-1])
    return np.ascontiguousarray(matrices[:, low[0], low[1]])


def row_hashes(name: str, X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the inputs and of the whole rows that have an observed output, in the data's units."""
    key = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    there = np.isfinite(Y).any(axis=1)
    X = np.ascontiguousarray(X[there], np.float64) + 0.0  # −0 is 0
    both = np.ascontiguousarray(np.concatenate([X, Y[there] + 0.0], axis=1))
    both[np.isnan(both)] = np.nan  # one NaN of many
    return _hashed(X, key), _hashed(both, key)


def of_rows(sums: KeptSums, client: ClientRows) -> KeptSums:
    """The sums with the hashes of the rows that they are of; rows are in the data's units."""
    inputs, rows = row_hashes(client.name, client.X, client.Y)
    x = client.X[np.isfinite(client.Y).any(axis=1), 0]
    return replace(sums, inputs=inputs, rows=rows, span=np.array([x.max(), usual_step(x)]))


def usual_step(x: np.ndarray) -> float:
    """The median difference between neighbouring inputs that differ; 0 if there are none."""
    gaps = np.diff(np.unique(x))
    return float(np.median(gaps)) if len(gaps) else 0.0


def _hashed(rows: np.ndarray, key: bytes) -> np.ndarray:
    digests = b"".join(
        hashlib.blake2b(row.tobytes(), digest_size=8, key=key).digest() for row in rows
    )
    return np.frombuffer(digests, np.uint64)


def to_arrays(sums: KeptSums) -> dict[str, np.ndarray]:
    """By name, as files have them."""
    found = {name: np.ascontiguousarray(getattr(sums, name)) for name in (*ARRAYS, *HASHES)}
    found["counted"] = np.asarray([float(sums.counted)])
    optional = {"best": sums.best, "span": sums.span, "tails": sums.tails}
    return found | {k: np.ascontiguousarray(v) for k, v in optional.items() if v is not None}


def from_arrays(arrays: Mapping[str, np.ndarray]) -> KeptSums:
    """The inverse; refuses arrays that do not fit together, with a ValueError."""
    known = {*ARRAYS, *HASHES, "counted", "best", "span", "tails"}
    for name in sorted(set(arrays) - known):
        raise ValueError(f"unknown array {name!r}")
    points, K = np.shape(arrays["linear"])
    wanted = {
        "precision": (points, K * (K + 1) // 2),
        "linear": (points, K),
        "constant": (points,),
        "residual": (points,),
        "counted": (1,),
    }
    for name, shape in wanted.items():
        array = arrays[name]
        if array.shape != shape or array.dtype != np.float64 or not np.isfinite(array).all():
            raise ValueError(f"{name} is not of finite numbers of shape {shape}")
    for name in HASHES:
        if arrays[name].dtype != np.uint64 or arrays[name].shape != arrays["inputs"].shape:
            raise ValueError(f"{name} are not hashes of rows")
    tails = arrays.get("tails")
    if tails is not None and not _are_tails(tails):
        raise ValueError("tails are not those of residuals")
    return KeptSums(
        **{name: arrays[name] for name in (*ARRAYS, *HASHES)},
        best=arrays.get("best"),
        span=arrays.get("span"),
        tails=tails,
        counted=bool(arrays["counted"][0]),
    )


def _are_tails(array: np.ndarray) -> bool:
    """All numbers are positive, but for 1/ν, which may be 0."""
    if array.dtype != np.float64 or array.ndim != 2 or array.shape[1] != WIDTH:
        return False
    return bool(np.isfinite(array).all() and (array[:, 0] >= 0).all() and (array[:, 1:] > 0).all())
