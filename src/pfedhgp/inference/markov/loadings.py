"""How sure a client's rows are of its loadings on shared functions at knots; no rows are needed for that.

The precision of c given all else, mᵀN⁻¹m + Σ_n S_n/σ_n² + Σ_B⁻¹ (see `step`), depends on the client's times,
weights and parameters, which its posterior keeps, and on q(u).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from pfedhgp.inference.markov import step
from pfedhgp.inference.markov.knots import KnotPosterior
from pfedhgp.inference.markov.server import evidence_of, solve
from pfedhgp.model.blocks import GlobalBlock
from pfedhgp.model.posterior import ClientPosterior, GlobalPosterior

Array = np.ndarray


def knot_posterior(shared: GlobalPosterior) -> KnotPosterior:
    """q(u) of a model that keeps the evidence at its knots."""
    return solve(shared.block, evidence_of(shared))


def loadings_covariance(
    block: GlobalBlock, q: KnotPosterior, client: ClientPosterior
) -> Float[Array, "QR QR"]:
    """Cov(B_g,i) given all else; outputs are independent of each other."""
    states, own = client.states, client.block
    assert states is not None
    Q, R = np.shape(block.loadings)
    places = np.asarray(block.inputs)[:, 0]
    times = np.tile(np.asarray(states.times), (Q, 1))
    weights = np.asarray(states.counts).T
    series = step.Series(
        times,
        np.searchsorted(0.5 * (places[1:] + places[:-1]), times),
        np.zeros_like(times),
        weights,
        weights,
        np.zeros(Q),
    )
    spread = np.asarray(block.loadings_covariance).reshape(Q, R, Q, R)
    prior = step.LoadingsPrior(
        np.asarray(block.loadings), np.linalg.inv(spread[np.arange(Q), :, np.arange(Q)])
    )
    lengths = np.asarray(own.kernels.lengthscale).reshape(-1)  # type: ignore[attr-defined]
    sizes = np.diagonal(np.asarray(own.loadings)) ** 2
    noise = np.diagonal(np.asarray(own.noise.covariance(Q)))
    logs = np.log(np.stack([lengths, np.maximum(sizes, 1e-300), noise], axis=1))
    found = np.linalg.inv(
        step.Problem.of(series, q, prior, step.ExpectedLogs(logs, np.ones_like(logs)))
        .solved(logs)
        .precision
    )
    out = np.zeros((Q, R, Q, R))
    out[np.arange(Q), :, np.arange(Q)] = found
    return out.reshape(Q * R, Q * R)
