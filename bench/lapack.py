"""The LAPACK and BLAS calls that one client's bound and gradient cannot do without.

They are called straight from SciPy on preallocated column-major arrays with one thread. Only the calls
count: not kernel evaluations, not the weighting of features, not copies between calls. At a fixed global
block the shared features are known, so nothing is counted for them. With latents r and s of all layers,
features A_r, S = (I+Λ)⁻¹, mean m and G = S + mmᵀ:

    forward    L = chol(K_zz)           A = L⁻¹K_zx         for each local latent
               Λ_rs = A_r (w_rs ⊙ A_s)ᵀ  for s ≤ r, one product for all s
               chol(I+Λ)                m by two solves
    backward   S from the factor, G by a rank-one update
               T_rs = G_rs A_s           gives both the features' and the weights' gradient: all s for a
                                         local r; s ≤ r for the others, whose features are known
               L⁻ᵀ[Ā, A] = [K̄_zx, C]     K̄_zz = −½ K̄_zx Cᵀ (ĀAᵀ is symmetric, as the bound does not
                                         change when a latent's whitened weights are rotated)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import blas, lapack

from bench.problem import Sizes
from bench.timing import now


@dataclass(frozen=True)
class Call:
    """One call: `prepare` puts back what it overwrites and does not count."""

    name: str
    flops: float
    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None


def calls(sizes: Sizes, seed: int = 0) -> list[Call]:
    """All calls, in order."""
    rng = np.random.default_rng(seed)
    return [*_kernel_calls(sizes, rng), *_gram_calls(sizes, rng), *_joint_calls(sizes, rng)]


def timed_calls(
    sizes: Sizes,
) -> tuple[Callable[[], float], dict[str, list[float]], dict[str, float]]:
    """A competitor that sums the calls' seconds; each name's seconds as they come; and its Mflop."""
    found = calls(sizes)
    parts: dict[str, list[float]] = {call.name: [] for call in found}
    work = dict.fromkeys(parts, 0.0)
    for call in found:
        work[call.name] += call.flops / 1e6

    def run() -> float:
        spent = dict.fromkeys(parts, 0.0)
        for call in found:
            call.prepare()
            start = now()
            call.run()
            spent[call.name] += now() - start
        for name, seconds in spent.items():
            parts[name].append(seconds)
        return sum(spent.values())

    return run, parts, work


def _spd(rng: np.random.Generator, size: int) -> np.ndarray:
    half = rng.normal(size=(size, size))
    return np.asfortranarray(half @ half.T + size * np.eye(size))


def _array(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return np.asfortranarray(rng.normal(size=(rows, columns)))


def _product(name: str, A: np.ndarray, B: np.ndarray, *, turn: bool = False) -> Call:
    """A B, or A Bᵀ."""
    m, k = A.shape
    n = B.shape[0] if turn else B.shape[1]
    out = np.empty((m, n), order="F")
    return Call(
        name,
        2.0 * m * k * n,
        lambda: blas.dgemm(1.0, A, B, trans_b=turn, c=out, overwrite_c=1),
    )


def _kernel_calls(sizes: Sizes, rng: np.random.Generator) -> list[Call]:
    """Features are solved for as Aᵀ = K_xz L⁻ᵀ: from the right, the faster side in OpenBLAS."""
    m, n = sizes.local, sizes.rows
    found = []
    for _ in range(sizes.latents):
        K, cross, both = _spd(rng, m), _array(rng, n, m), _array(rng, 2 * n, m)
        L = np.asfortranarray(np.linalg.cholesky(K))
        work, A, solved = K.copy(order="F"), cross.copy(order="F"), both.copy(order="F")
        found += [
            Call(
                "dpotrf K_zz",
                m**3 / 3,
                lambda a=work: lapack.dpotrf(a, lower=1, clean=0, overwrite_a=1),
                lambda a=work, K=K: np.copyto(a, K),
            ),
            Call(
                "dtrsm A = L⁻¹K_zx",
                m * m * n,
                lambda L=L, b=A: blas.dtrsm(1.0, L, b, side=1, lower=1, trans_a=1, overwrite_b=1),
                lambda b=A, cross=cross: np.copyto(b, cross),
            ),
            Call(
                "dtrsm L⁻ᵀ[Ā, A]",
                2 * m * m * n,
                lambda L=L, b=solved: blas.dtrsm(1.0, L, b, side=1, lower=1, overwrite_b=1),
                lambda b=solved, both=both: np.copyto(b, both),
            ),
            _product("dgemm K̄_zx Cᵀ", _array(rng, m, n), _array(rng, m, n), turn=True),
        ]
    return found


def _gram_calls(sizes: Sizes, rng: np.random.Generator) -> list[Call]:
    n, R = sizes.rows, sizes.latents
    widths = [sizes.shared] * (2 * R) + [sizes.local] * R
    found, before = [], 0
    for r, m in enumerate(widths):
        A = _array(rng, m, n)
        found.append(_product("dgemm Λ_r = A_r (w ⊙ A)ᵀ", A, _array(rng, before + m, n), turn=True))
        if r < 2 * R:
            found.append(_product("dgemm T_r = G_r A_r", _array(rng, before + m, m), A))
        before += m
    own = sizes.local * R
    return found + [
        _product("dgemm T_r = G_r A_r", _array(rng, own, m), _array(rng, m, n)) for m in widths
    ]


def _joint_calls(sizes: Sizes, rng: np.random.Generator) -> list[Call]:
    k = sizes.weights
    P, linear = _spd(rng, k), rng.normal(size=k)
    L = np.asfortranarray(np.linalg.cholesky(P))
    work, inverse, vector = P.copy(order="F"), L.copy(order="F"), linear.copy()
    return [
        Call(
            "dpotrf I+Λ",
            k**3 / 3,
            lambda: lapack.dpotrf(work, lower=1, clean=0, overwrite_a=1),
            lambda: np.copyto(work, P),
        ),
        Call(
            "dpotrs m",
            2 * k * k,
            lambda: lapack.dpotrs(L, vector, lower=1, overwrite_b=1),
            lambda: np.copyto(vector, linear),
        ),
        Call(
            "dpotri S",
            2 * k**3 / 3,
            lambda: lapack.dpotri(inverse, lower=1, overwrite_c=1),
            lambda: np.copyto(inverse, L),
        ),
        Call("dsyr S + mmᵀ", k * k, lambda: blas.dsyr(1.0, linear, lower=1, a=work, overwrite_a=1)),
    ]
