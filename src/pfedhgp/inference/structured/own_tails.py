"""A client's own residuals in the order of its rows, of which it keeps how they are distributed.

By its own rows alone, y ~ N(0, B_g K_g B_gᵀ + B̃ K_g B̃ᵀ + B_l K_l B_lᵀ + Σ) = N(0, L Lᵀ) at its parameters,
and z = L⁻¹y is what each cell says beyond those before it. Others' rows would make the residuals smaller, but
how much they help differs from week to week: rows that came later were outside such tails twice as often as
they should. All of it stays at the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from pfedhgp.base.batching import on_numpy
from pfedhgp.data.rows import ClientRows
from pfedhgp.gp import linalg, tails
from pfedhgp.model.blocks import (
    ClientBlock,
    GlobalBlock,
    Structure,
    deviation_loadings,
    global_loadings,
)
from pfedhgp.model.kept_sums import KeptSums
from pfedhgp.model.posterior import ClientPosterior

MOST = 400
"""Rows that are looked at, the last ones; with many outputs fewer."""
MOST_CELLS = 800


def with_tails(
    sums: Sequence[KeptSums | None],
    structure: Structure,
    shared: GlobalBlock,
    found: Sequence[ClientPosterior],
    rows: Sequence[ClientRows],
) -> list[KeptSums | None]:
    """The sums with each client's tails, where it has rows enough; rows are scaled."""
    done: list[KeptSums | None] = []
    for kept, own, client in zip(sums, found, rows, strict=True):
        enough = np.isfinite(client.Y).sum(axis=0).min(initial=len(client.Y)) >= tails.FEWEST
        if kept is None or not enough or client.cycles is not None:
            done.append(kept)
            continue
        try:
            table = own_tails(structure, on_numpy(shared), on_numpy(own.block), client)
        except np.linalg.LinAlgError:  # nearly no noise: rows are judged as the model says
            table = None
        done.append(replace(kept, tails=table))
    return done


def own_tails(
    structure: Structure, shared: GlobalBlock, block: ClientBlock, client: ClientRows
) -> Float[np.ndarray, "Q k"] | None:
    """What `pfedhgp.gp.tails` keeps of each output's residuals; None if the last rows have too few."""
    Q = client.Y.shape[1]
    order = np.lexsort(client.X.T[::-1])[-min(MOST, MOST_CELLS // Q) :]
    X, Y = client.X[order], client.Y[order]
    seen = np.isfinite(Y)
    if seen.sum(axis=0).min() < tails.FEWEST:
        return None
    z = residuals(structure, shared, block, X, Y)
    which = np.broadcast_to(np.arange(Q), Y.shape)[seen]
    found = [tails.learned(z[which == q], Y[seen[:, q], q]) for q in range(Q)]
    return np.stack([each.to_array() for each in found])


def residuals(
    structure: Structure,
    shared: GlobalBlock,
    block: ClientBlock,
    X: Float[np.ndarray, "n d"],
    Y: Float[np.ndarray, "n Q"],
) -> np.ndarray:
    """z of the observed cells, row by row."""
    B_g, B_l = np.asarray(global_loadings(shared, block)), np.asarray(block.loadings)
    B_d = np.asarray(deviation_loadings(structure, shared, block))
    n, Q = Y.shape
    C = np.einsum("nm,qp->nqmp", np.eye(n), np.asarray(block.noise.covariance(Q)))
    K = np.asarray(shared.kernels(X, X, stacked=1))
    C += _mixed(B_g, K) + _mixed(B_d, K[: B_d.shape[1]])
    if B_l.shape[1]:
        C += _mixed(B_l, np.asarray(block.kernels(X, X, stacked=1)))
    seen = np.isfinite(Y).reshape(-1)
    L = np.linalg.cholesky(C.reshape(n * Q, n * Q)[np.ix_(seen, seen)])
    return np.asarray(linalg.solve_lower(L, Y.reshape(-1)[seen][:, None])[:, 0])


def _mixed(B: np.ndarray, K: np.ndarray) -> np.ndarray:
    """Σ_r b_r b_rᵀ ⊗ K_r, as (n, Q, n, Q)"""
    return np.asarray(np.einsum("qr,pr,rnm->nqmp", B, B, K, optimize=True))
