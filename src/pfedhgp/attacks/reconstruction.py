"""Rows from statistics: what the server's operator finds who solves for them.

At a start everything that shapes a client's reply is public but for its rows: scales, kernels and φ are in
the request, the noise is in the reply. With E = I_Q ⊗ a_g(x), ordered (latent, output, inducing input),

    U(x) = EᵀC⁻¹E,   C = Σ_r b̃_r b̃_rᵀ ⊗ a_rᵀa_r + Σ_l b_l b_lᵀ ⊗ k_l(x, x') + Σ ⊗ I

is a function of the inputs x alone. So Levenberg-Marquardt on U(x) − U gives the inputs, beginning where the
histogram has them, and then y, which is linear in the outputs, gives the outputs.

It knows one input per row, structured inference without client loadings, and no missing cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import least_squares

from pfedhgp.errors import InputError
from pfedhgp.federation.plan import Plan
from pfedhgp.gp.features import Basis
from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference.arrays import State, block_from_arrays, statistics_from_arrays
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.inference.starts.census import HISTOGRAM_BINS, HISTOGRAM_REACH
from pfedhgp.model.spec import Spec, starting_kernels, with_periods

Arrays = Mapping[str, np.ndarray]
STEP = 1e-6
"""Of the differences that give kernels' derivatives."""
PRIOR, SURE = 1e-5, 1e-6
"""Weight of the starting inputs where the messages say nothing; relative size of what outputs follow from."""
CLOSE = 1e-3
"""A row is found if its input is off by no more than this, as a share of the domain."""


@dataclass(frozen=True)
class Answered:
    """One start as the server's operator has it: what was asked, and one client's reply."""

    shared: Kernel
    inputs: np.ndarray
    jitter: float
    loadings: np.ndarray
    local: Kernel
    deviation: np.ndarray
    """B̃, (outputs, latents)"""
    own: np.ndarray
    """B_l, (outputs, local latents)"""
    noise: np.ndarray
    U: np.ndarray
    y: np.ndarray

    @property
    def outputs(self) -> int:
        return len(self.noise)

    @property
    def latents(self) -> int:
        return self.loadings.shape[1]

    @cached_property
    def basis(self) -> Basis:
        return Basis.build(self.shared, self.inputs, np.float64(self.jitter))

    def features(self, x: np.ndarray) -> np.ndarray:
        """a_g(x), (latents, inducing inputs, rows)."""
        return np.asarray(self.basis.features(x[:, None]))

    def local_gram(self, x: np.ndarray, other: np.ndarray) -> np.ndarray:
        """k_l(x, x'), (local latents, rows, rows)."""
        return np.asarray(self.local(x[:, None], other[:, None], stacked=1))


def answers_at_start(
    plan: Plan, spec: Spec, request: Arrays, reply: Arrays, extent: np.ndarray
) -> list[Answered]:
    """All starts of one `start` exchange."""
    if plan.inference.name != "structured" or spec.client_loadings or spec.inputs != 1:
        raise InputError("the attack knows structured inference with one input, no own loadings")
    if "periods" in request:
        spec = with_periods(spec, np.asarray(request["periods"]))
    own = {n: a for n, a in request.items() if not n.startswith("other ")}
    mine = {n: a for n, a in reply.items() if not n.startswith("other ")}
    count = sum(n.startswith("other ") and n.endswith(".scales") for n in request)
    pairs = [(own, mine)]
    for k in range(1, count + 1):
        asked, told = (State(each).part(f"other {k}") for each in (request, reply))
        pairs.append(({**own, **asked}, told))
    return [_answered(spec, asked, told, extent) for asked, told in pairs]


def _answered(spec: Spec, asked: Arrays, told: Arrays, extent: np.ndarray) -> Answered:
    start = Start.from_array(asked["scales"])
    kernels = starting_kernels(spec.kernel, scale=start.shared, count=spec.latents, extent=extent)
    block = block_from_arrays(asked, kernels)
    sums = statistics_from_arrays(told, 0)
    if spec.tied:
        deviation = np.sqrt(float(block.phi)) * np.asarray(block.loadings)
        own = np.full((1, spec.local_latents), np.sqrt(start.local_variance))
    else:  # both are the client's principal directions, in different units
        values, vectors = np.linalg.eigh(np.asarray(sums.deviation_power))
        principal = (vectors * np.sqrt(np.maximum(values, 0.0)))[:, ::-1]
        deviation = principal[:, : spec.latents]
        ratio = np.sqrt(start.local_variance / (0.5 * start.shared_variance))
        own = ratio * principal[:, : spec.local_latents]
    if not spec.deviation:
        deviation = deviation[:, :0]
    return Answered(
        shared=block.kernels,
        inputs=np.asarray(block.inputs),
        jitter=float(asked["jitter"]),
        loadings=np.asarray(block.loadings),
        local=starting_kernels(
            spec.local_kernel, scale=start.local, count=spec.local_latents, extent=extent
        ),
        deviation=deviation,
        own=own,
        noise=np.asarray(sums.noise),
        U=np.asarray(sums.U),
        y=np.asarray(sums.y),
    )


def places_of_histogram(
    counts: np.ndarray, asked: Arrays, lower: float, upper: float
) -> np.ndarray:
    """Where a client's `histogram` has its rows, in the unit box: the middle of their bins."""
    bins = np.repeat(np.arange(HISTOGRAM_BINS), np.asarray(counts[0], int))
    step = 2.0 * HISTOGRAM_REACH / HISTOGRAM_BINS
    spread = float(asked["spread"][0])
    x = float(asked["centre"][0]) + spread * ((bins + 0.5) * step - HISTOGRAM_REACH)
    return np.asarray((x - lower) / (upper - lower))


def covariance(answered: Answered, x: np.ndarray) -> np.ndarray:
    """C, rows ordered (row, output)."""
    A, n, Q = answered.features(x), len(x), answered.outputs
    C = between(answered.deviation, A.swapaxes(1, 2) @ A)
    C += between(answered.own, answered.local_gram(x, x))
    C += np.einsum("qp,ij->iqjp", answered.noise, np.eye(n))
    return np.asarray(C.reshape(n * Q, n * Q))


def between(B: np.ndarray, grams: np.ndarray) -> np.ndarray:
    """Σ_r b_r b_rᵀ ⊗ K_r, (rows, outputs, rows, outputs); as many latents as B has columns."""
    return np.asarray(np.einsum("qr,pr,rij->iqjp", B, B, grams[: B.shape[1]], optimize=True))


def design(answered: Answered, A: np.ndarray) -> np.ndarray:
    """E of features A: rows (row, output), columns (latent, output, inducing input)."""
    R, M, n = A.shape
    Q = answered.outputs
    E = np.einsum("rmi,qv->iqrvm", A, np.eye(Q))
    return np.asarray(E.reshape(n * Q, R * Q * M))


def statistics_at(answered: Answered, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """U(x) and W = C⁻¹E."""
    E = design(answered, answered.features(x))
    W = cho_solve(cho_factor(covariance(answered, x), lower=True), E)
    return E.T @ W, W


def slopes_at(answered: Answered, x: np.ndarray, W: np.ndarray) -> np.ndarray:
    """∂U/∂x_i for each row: ∂U = ∂EᵀW + Wᵀ∂E − Wᵀ∂C W, where only row i of E and C moves."""
    n, Q = len(x), answered.outputs
    A = answered.features(x)
    up, down = answered.features(x + STEP), answered.features(x - STEP)
    dA = (up - down) / (2.0 * STEP)
    above, below = (answered.local_gram(x + s, x) for s in (STEP, -STEP))
    gram = (above - below) / (2.0 * STEP)
    gram[:, np.arange(n), np.arange(n)] = 0.0  # k(x, x) does not change
    dC = between(answered.own, gram) + between(answered.deviation, dA.swapaxes(1, 2) @ A)
    dE = design(answered, dA).reshape(n, Q, -1)
    change = dE - (dC.reshape(n, Q, n * Q) @ W)
    half = np.einsum("iqa,iqb->iab", change, W.reshape(n, Q, -1))
    return np.asarray(half + half.transpose(0, 2, 1))


def inputs_of(
    answers: Sequence[Answered],
    guess: np.ndarray,
    evaluations: int = 60,
    *,
    clients: Sequence[np.ndarray] | None = None,
) -> np.ndarray:
    """The inputs, in the unit box, that explain U of all `answers` best, beginning at `guess`.

    If U are totals over several clients, `clients` says which of the rows are each one's.
    """
    upper = [np.triu_indices(len(each.y)) for each in answers]
    sizes = [float(np.abs(each.U).max()) for each in answers]
    owned = [np.arange(len(guess))] if clients is None else list(clients)

    def misfit(x: np.ndarray) -> np.ndarray:
        parts = []
        for each, size, places in zip(answers, sizes, upper, strict=True):
            total = np.sum([statistics_at(each, x[own])[0] for own in owned], axis=0)
            parts.append(((total - each.U) / size)[places])
        return np.concatenate([*parts, PRIOR * (x - guess)])

    def slopes(x: np.ndarray) -> np.ndarray:
        parts = []
        for each, size, places in zip(answers, sizes, upper, strict=True):
            found = np.zeros((len(x), *each.U.shape))
            for own in owned:
                found[own] = slopes_at(each, x[own], statistics_at(each, x[own])[1])
            parts.append(found[:, *places].T / size)
        return np.concatenate([*parts, PRIOR * np.eye(len(x))])

    found = least_squares(
        misfit, guess, jac=slopes, method="lm", max_nfev=evaluations, xtol=1e-14, ftol=1e-14
    )
    return np.asarray(found.x)


def reconstructed(answers: Sequence[Answered], guess: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and outputs: the best that each answer alone, or all together, led to."""
    tried = [[each] for each in answers] + ([list(answers)] if len(answers) > 1 else [])
    found = [inputs_of(each, guess) for each in tried]

    def misfit(x: np.ndarray) -> float:
        gaps = [np.abs(statistics_at(a, x)[0] - a.U).max() / np.abs(a.U).max() for a in answers]
        return float(max(gaps))

    best = min(found, key=misfit)
    return best, outputs_of(answers, best)


def outputs_of(answers: Sequence[Answered], x: np.ndarray) -> np.ndarray:
    """The outputs (rows, outputs), scaled, given inputs: the likeliest that have the statistics y.

    y_s = W_sᵀ y,   ŷ = K W (WᵀKW)⁻¹ y_s,   K = C + E B Bᵀ Eᵀ
    """
    blocks, told = [], []
    first = answers[0]
    for each in answers:
        blocks.append(statistics_at(each, x)[1])
        told.append(each.y)
    W, target = np.concatenate(blocks, axis=1), np.concatenate(told)
    A = first.features(x)
    shared = between(first.loadings, A.swapaxes(1, 2) @ A)
    K = covariance(first, x) + shared.reshape(2 * (len(x) * first.outputs,))
    root = np.linalg.cholesky(K)
    found = root @ np.linalg.lstsq((root.T @ W).T, target, rcond=SURE)[0]
    return np.asarray(found.reshape(len(x), first.outputs))


@dataclass(frozen=True)
class Found:
    """How near an attacker came, the rows matched in their order along the input."""

    error: float
    """Median error of the inputs, as a share of the domain"""
    close: float
    """Share of the rows within `CLOSE`"""
    explained: float
    """R² of the outputs; NaN if they were not looked for"""


def score(true: tuple[np.ndarray, np.ndarray], x: np.ndarray, y: np.ndarray | None = None) -> Found:
    """Against the rows themselves: inputs (n,) in the unit box, outputs (n, Q) scaled."""
    order, by = np.argsort(true[0], kind="stable"), np.argsort(x, kind="stable")
    off = np.abs(true[0][order] - x[by])
    explained = np.nan
    if y is not None:
        Y = true[1][order]
        left = np.sum((Y - y[by]) ** 2)
        explained = 1.0 - left / np.sum((Y - Y.mean(axis=0)) ** 2)
    return Found(float(np.median(off)), float(np.mean(off <= CLOSE)), float(explained))
