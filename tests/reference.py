"""Naive twins of the library, in NumPy alone: dense, slow and literal.

Nothing here imports pfedhgp or jax. Every function builds the full matrices of its equation, with
loops and np.kron, and hands them to slogdet and solve.

Orderings. Cells of a client are rows of Y flattened row-major: cell (n, q) has index n*Q + q.
Clients are stacked in the order given. Weights of a layer are latents first: weight (r, m) has
index r*M + m. A client's own weights are its deviation's, then its local layer's.

B_dev is always B̃ = √φ B_δ: the deviation's kernels are the global ones, unscaled, and √φ is folded
into the loading. A layer that a model lacks has a loading with no columns and no kernels.
Noise belongs to a row: two rows at one input have independent noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Kernel = Callable[[Array, Array], Array]
Gaussian = tuple[Array, Array]

LAYERS = ("global", "deviation", "local")


# ------------------------------------------------------------------------------------------ kernels


def _pairwise(X1: Array, X2: Array, value: Callable[[Array, Array], float]) -> Array:
    X1, X2 = np.asarray(X1, dtype=float), np.asarray(X2, dtype=float)
    out = np.empty((len(X1), len(X2)))
    for i, x in enumerate(X1):
        for j, z in enumerate(X2):
            out[i, j] = value(x, z)
    return out


def _distance(x: Array, z: Array, lengthscale: npt.ArrayLike) -> float:
    """r = √ Σ_j (x_j − z_j)²/ℓ_j²."""
    return float(np.sqrt(np.sum(((x - z) / np.asarray(lengthscale, dtype=float)) ** 2)))


def rbf(X1: Array, X2: Array, *, lengthscale: npt.ArrayLike, variance: float = 1.0) -> Array:
    """τ² exp(−r²/2), eq. global_rbf_kernel."""
    return _pairwise(
        X1, X2, lambda x, z: variance * float(np.exp(-0.5 * _distance(x, z, lengthscale) ** 2))
    )


def matern12(X1: Array, X2: Array, *, lengthscale: npt.ArrayLike, variance: float = 1.0) -> Array:
    """τ² exp(−r)."""
    return _pairwise(X1, X2, lambda x, z: variance * float(np.exp(-_distance(x, z, lengthscale))))


def matern32(X1: Array, X2: Array, *, lengthscale: npt.ArrayLike, variance: float = 1.0) -> Array:
    """τ² (1 + √3 r) exp(−√3 r)."""

    def value(x: Array, z: Array) -> float:
        s = np.sqrt(3.0) * _distance(x, z, lengthscale)
        return float(variance * (1.0 + s) * np.exp(-s))

    return _pairwise(X1, X2, value)


def matern52(X1: Array, X2: Array, *, lengthscale: npt.ArrayLike, variance: float = 1.0) -> Array:
    """τ² (1 + √5 r + 5r²/3) exp(−√5 r)."""

    def value(x: Array, z: Array) -> float:
        s = np.sqrt(5.0) * _distance(x, z, lengthscale)
        return float(variance * (1.0 + s + s**2 / 3.0) * np.exp(-s))

    return _pairwise(X1, X2, value)


def periodic(
    X1: Array,
    X2: Array,
    *,
    lengthscale: npt.ArrayLike,
    period: npt.ArrayLike,
    variance: float = 1.0,
) -> Array:
    """τ² exp(−2 Σ_j sin²(π(x_j − z_j)/p_j)/ℓ_j²), as in eq. periodic_rbf_kernel."""

    def value(x: Array, z: Array) -> float:
        s = np.sin(np.pi * (x - z) / np.asarray(period, dtype=float))
        return float(variance * np.exp(-2.0 * np.sum((s / np.asarray(lengthscale)) ** 2)))

    return _pairwise(X1, X2, value)


def rational_quadratic(
    X1: Array, X2: Array, *, lengthscale: npt.ArrayLike, alpha: float, variance: float = 1.0
) -> Array:
    """τ² (1 + r²/2α)^−α."""

    def value(x: Array, z: Array) -> float:
        return float(variance * (1.0 + _distance(x, z, lengthscale) ** 2 / (2.0 * alpha)) ** -alpha)

    return _pairwise(X1, X2, value)


# --------------------------------------------------------------------------- Gaussians, derivatives


def log_gaussian(y: Array, mean: Array | float, cov: Array) -> float:
    """log N(y; μ, Σ) = −½ [N log 2π + log|Σ| + (y − μ)ᵀ Σ⁻¹ (y − μ)]."""
    if len(y) == 0:
        return 0.0
    sign, logdet = np.linalg.slogdet(cov)
    assert sign > 0, "the covariance is not positive definite"
    e = y - mean
    return float(-0.5 * (len(y) * np.log(2.0 * np.pi) + logdet + e @ np.linalg.solve(cov, e)))


def gaussian_kl(m0: Array, S0: Array, m1: Array, S1: Array) -> float:
    """KL(N(m₀, S₀) ‖ N(m₁, S₁)) = ½ [tr(S₁⁻¹S₀) + |m₁ − m₀|²_{S₁⁻¹} − M + log|S₁|/|S₀|]."""
    e = m1 - m0
    logdet = np.linalg.slogdet(S1)[1] - np.linalg.slogdet(S0)[1]
    quadratic = np.trace(np.linalg.solve(S1, S0)) + e @ np.linalg.solve(S1, e)
    return float(0.5 * (quadratic - len(m0) + logdet))


def finite_difference(f: Callable[[Array], float], x: npt.ArrayLike, eps: float = 1e-6) -> Array:
    """∂f/∂x_k ≈ (f(x + ε e_k) − f(x − ε e_k))/2ε, in the shape of x."""
    x = np.asarray(x, dtype=float)
    out = np.empty(x.shape)
    for k in np.ndindex(x.shape):
        step = np.zeros(x.shape)
        step[k] = eps
        out[k] = (f(x + step) - f(x - step)) / (2.0 * eps)
    return out


# ---------------------------------------------------------------------------------- sparse features


def inducing_covariance(k: Kernel, Z: Array, jitter: float) -> Array:
    """k(Z, Z) + jitter · mean(diag k(Z, Z)) · I."""
    K = k(Z, Z)
    return K + jitter * np.trace(K) / max(len(Z), 1) * np.eye(len(Z))


def features(k: Kernel, Z: Array, X: Array, jitter: float) -> Array:
    """a(x) = L⁻¹ k(Z, x), L Lᵀ = k(Z, Z) + jitter; (n, M)."""
    L = np.linalg.cholesky(inducing_covariance(k, Z, jitter))
    return np.linalg.solve(L, k(Z, X)).T


def residual(k: Kernel, Z: Array, X: Array, jitter: float) -> Array:
    """k(x, x) − |a(x)|²; (n,)."""
    return np.diag(residual_covariance(k, Z, X, X, jitter)).copy()


def residual_covariance(k: Kernel, Z: Array, X1: Array, X2: Array, jitter: float) -> Array:
    """k(x, x') − a(x)ᵀ a(x'); (n1, n2)."""
    return k(X1, X2) - features(k, Z, X1, jitter) @ features(k, Z, X2, jitter).T


def stack_features(A_list: Sequence[Array], B: Array, *, rows: int | None = None) -> Array:
    """H[(n,q),(r,m)] = B[q,r] A_r[n,m]; `rows` is needed only where there are no latents."""
    n = len(A_list[0]) if A_list else rows
    assert n is not None, "`rows` is needed: there are no latents"
    Q = B.shape[0]
    blocks = [np.kron(A, B[:, r : r + 1]) for r, A in enumerate(A_list[: B.shape[1]])]
    return np.hstack([np.zeros((n * Q, 0)), *blocks])


# --------------------------------------------------------------------------- the model's containers


@dataclass(frozen=True)
class Model:
    """Kernels, loadings and noise of every client, eq. multi_sensor_ilmm_main."""

    k_g: Sequence[Kernel]
    k_l: Sequence[Sequence[Kernel]]
    B_g: Array
    B_dev: Sequence[Array]
    B_l: Sequence[Array]
    noise: Sequence[Array]

    def layer(self, name: str, client: int) -> tuple[Sequence[Kernel], Array]:
        """The kernels and the loading of one layer of one client."""
        return {
            "global": (self.k_g, self.B_g),
            "deviation": (self.k_g, self.B_dev[client]),
            "local": (self.k_l[client], self.B_l[client]),
        }[name]


@dataclass(frozen=True)
class Inducing:
    """Inducing inputs: Z_g (M, d) for the global and deviation layers, Z_l[i] (M_i, d)."""

    Z_g: Array
    Z_l: Sequence[Array]
    jitter: float

    def layer(self, name: str, client: int) -> Array:
        """The inducing inputs of one layer of one client."""
        return self.Z_l[client] if name == "local" else self.Z_g


class SparseClient(NamedTuple):
    """What the sparse formulas need of one client; the order is client_statistics_dense's."""

    A_g: Sequence[Array]
    res_g: Sequence[Array]
    A_l: Sequence[Array]
    res_l: Sequence[Array]
    B_g: Array
    B_dev: Array
    B_l: Array
    noise_cov: Array
    Y: Array

    @property
    def observed(self) -> npt.NDArray[np.bool_]:
        """Which of the n*Q cells are there."""
        return ~np.isnan(self.Y.ravel())

    @property
    def y(self) -> Array:
        """The observed cells."""
        return self.Y.ravel()[self.observed]

    @property
    def H_g(self) -> Array:
        """[B_g ⊗ a_g], observed cells only."""
        return stack_features(self.A_g, self.B_g, rows=len(self.Y))[self.observed]

    @property
    def H_d(self) -> Array:
        """[B̃ ⊗ a_g], observed cells only."""
        return stack_features(self.A_g, self.B_dev, rows=len(self.Y))[self.observed]

    @property
    def H_l(self) -> Array:
        """[B_l ⊗ a_l], observed cells only."""
        return stack_features(self.A_l, self.B_l, rows=len(self.Y))[self.observed]

    @property
    def H_c(self) -> Array:
        """[B̃ ⊗ a_g | B_l ⊗ a_l], observed cells only."""
        return np.hstack([self.H_d, self.H_l])

    @property
    def Sigma(self) -> Array:
        """I_n ⊗ Σ_ε, observed cells only."""
        full = np.kron(np.eye(len(self.Y)), self.noise_cov)
        return full[np.ix_(self.observed, self.observed)]

    @property
    def residual_term(self) -> float:
        """−½ Σ_n tr(P_n R_n): P_n = (observed block of Σ_ε)⁻¹, R_n = Σ_latents b bᵀ res."""
        total = 0.0
        for n, row in enumerate(self.Y):
            R = np.zeros_like(self.noise_cov)
            for B, res in (
                (self.B_g, self.res_g),
                (self.B_dev, self.res_g),
                (self.B_l, self.res_l),
            ):
                for r in range(B.shape[1]):
                    R += np.outer(B[:, r], B[:, r]) * res[r][n]
            seen = np.flatnonzero(~np.isnan(row))
            if len(seen):
                block = np.ix_(seen, seen)
                total += float(np.trace(np.linalg.solve(self.noise_cov[block], R[block])))
        return -0.5 * total


def sparse_clients(
    Xs: Sequence[Array], Ys: Sequence[Array], model: Model, inducing: Inducing
) -> list[SparseClient]:
    """Features and residuals of every client from its kernels and inducing inputs."""
    out = []
    for i, (X, Y) in enumerate(zip(Xs, Ys, strict=True)):
        Z_g, Z_l, jitter = inducing.Z_g, inducing.Z_l[i], inducing.jitter
        out.append(
            SparseClient(
                A_g=[features(k, Z_g, X, jitter) for k in model.k_g],
                res_g=[residual(k, Z_g, X, jitter) for k in model.k_g],
                A_l=[features(k, Z_l, X, jitter) for k in model.k_l[i]],
                res_l=[residual(k, Z_l, X, jitter) for k in model.k_l[i]],
                B_g=model.B_g,
                B_dev=model.B_dev[i],
                B_l=model.B_l[i],
                noise_cov=model.noise[i],
                Y=Y,
            )
        )
    return out


# --------------------------------------------------------------------- structured bound


def client_statistics_dense(
    A_g: Sequence[Array],
    res_g: Sequence[Array],
    A_l: Sequence[Array],
    res_l: Sequence[Array],
    B_g: Array,
    B_dev: Array,
    B_l: Array,
    noise_cov: Array,
    Y: Array,
) -> dict[str, Array | float]:
    """J = H_gᵀC⁻¹H_g, h = H_gᵀC⁻¹y, c = log N(y; 0, C) − ½ Σ_n tr(P_n R_n), C = H_cH_cᵀ + Σ."""
    client = SparseClient(A_g, res_g, A_l, res_l, B_g, B_dev, B_l, noise_cov, Y)
    C = client.H_c @ client.H_c.T + client.Sigma
    return {
        "J": client.H_g.T @ np.linalg.solve(C, client.H_g),
        "h": client.H_g.T @ np.linalg.solve(C, client.y),
        "c": log_gaussian(client.y, 0.0, C) + client.residual_term,
    }


def unloaded_statistics_dense(client: SparseClient) -> dict[str, Array]:
    """U = EᵀC⁻¹E, e = EᵀC⁻¹y with E = I_Q ⊗ a_g per latent; U[r, q, m, s, p, l], e[r, q, m]."""
    R, Q, M = len(client.A_g), client.Y.shape[1], client.A_g[0].shape[1]
    columns = [
        stack_features([A], np.eye(Q)[:, q : q + 1])[client.observed]
        for A in client.A_g
        for q in range(Q)
    ]
    E = np.hstack(columns)
    C = client.H_c @ client.H_c.T + client.Sigma
    return {
        "U": (E.T @ np.linalg.solve(C, E)).reshape(R, Q, M, R, Q, M),
        "e": (E.T @ np.linalg.solve(C, client.y)).reshape(R, Q, M),
    }


def solve_global(statistics: Sequence[Mapping[str, Array | float]]) -> Gaussian:
    """q(v_g) = N(m, S): S⁻¹ = I + Σ J_i, m = S Σ h_i."""
    J = sum(np.asarray(s["J"]) for s in statistics)
    h = sum(np.asarray(s["h"]) for s in statistics)
    S = np.linalg.inv(np.eye(len(h)) + J)
    return S @ h, S


def structured_elbo(statistics: Sequence[Mapping[str, Array | float]]) -> float:
    """ELBO = Σ c_i + ½ hᵀ S h − ½ log|I + Σ J_i|."""
    J = sum(np.asarray(s["J"]) for s in statistics)
    h = sum(np.asarray(s["h"]) for s in statistics)
    A = np.eye(len(h)) + J
    quadratic = h @ np.linalg.solve(A, h)
    return float(sum(s["c"] for s in statistics) + 0.5 * quadratic - 0.5 * np.linalg.slogdet(A)[1])


def pooled_elbo(clients: Sequence[SparseClient]) -> float:
    """log N(y_all; 0, Q_all + Σ) − ½ Σ tr terms, Q_all over all clients' cells at once."""
    Q_all = np.block(
        [
            [a.H_g @ b.H_g.T + (a.H_c @ a.H_c.T + a.Sigma if i == j else 0.0)
             for j, b in enumerate(clients)]
            for i, a in enumerate(clients)
        ]
    )  # fmt: skip
    y_all = np.concatenate([client.y for client in clients])
    return log_gaussian(y_all, 0.0, Q_all) + sum(client.residual_term for client in clients)


# ------------------------------------------------------------------------------------- the exact GP


def layer_covariance(model: Model, layer: str, i: int, Xi: Array, j: int, Xj: Array) -> Array:
    """Σ_r k_r(X_i, X_j) ⊗ b_r b_rᵀ; zero between different clients but for the global layer."""
    Q = model.B_g.shape[0]
    out = np.zeros((len(Xi) * Q, len(Xj) * Q))
    if layer == "global" or i == j:
        kernels, B = model.layer(layer, i)
        for r in range(B.shape[1]):
            out += np.kron(kernels[r](Xi, Xj), np.outer(B[:, r], B[:, r]))
    return out


def exact_joint_covariance(Xs: Sequence[Array], model: Model, *, noise: bool = True) -> Array:
    """Cov{y_i(x), y_j(x')} over all clients' cells, eq. multi_sensor_cov_main."""
    rows = []
    for i, Xi in enumerate(Xs):
        row = []
        for j, Xj in enumerate(Xs):
            block = sum(layer_covariance(model, layer, i, Xi, j, Xj) for layer in LAYERS)
            if noise and i == j:
                block = block + np.kron(np.eye(len(Xi)), model.noise[i])
            row.append(block)
        rows.append(row)
    return np.block(rows)


def _observed(Ys: Sequence[Array]) -> tuple[npt.NDArray[np.bool_], Array]:
    y = np.concatenate([Y.ravel() for Y in Ys])
    return ~np.isnan(y), y[~np.isnan(y)]


def exact_log_marginal(Xs: Sequence[Array], Ys: Sequence[Array], model: Model) -> float:
    """log N(y_all; 0, K_all + Σ) over the observed cells."""
    seen, y = _observed(Ys)
    return log_gaussian(y, 0.0, exact_joint_covariance(Xs, model)[np.ix_(seen, seen)])


@dataclass(frozen=True)
class Layers:
    """Posterior of the layers of one client at X*, without noise, and of their "total".

    mean[a] is (n*, Q); cov[a, b] is Cov(layer a, layer b), (n*·Q, n*·Q).
    """

    mean: dict[str, Array]
    cov: dict[tuple[str, str], Array]


def _with_total(mean: dict[str, Array], cov: dict[tuple[str, str], Array], Q: int) -> Layers:
    mean = {**mean, "total": sum(mean[a] for a in LAYERS)}
    cov = dict(cov)
    for a in LAYERS:
        cov[a, "total"] = sum(cov[a, b] for b in LAYERS)
        cov["total", a] = cov[a, "total"].T
    cov["total", "total"] = sum(cov[a, "total"] for a in LAYERS)
    return Layers({a: m.reshape(-1, Q) for a, m in mean.items()}, cov)


def exact_posterior(
    client: int, X_star: Array, Xs: Sequence[Array], Ys: Sequence[Array], model: Model
) -> Layers:
    """E[f_a*] = C_a K⁻¹ y, Cov(f_a*, f_b*) = 1[a=b] K_a** − C_a K⁻¹ C_bᵀ given all clients' y."""
    seen, y = _observed(Ys)
    K = exact_joint_covariance(Xs, model)[np.ix_(seen, seen)]
    cross = {}
    for a in LAYERS:
        blocks = [layer_covariance(model, a, client, X_star, j, Xj) for j, Xj in enumerate(Xs)]
        cross[a] = np.hstack(blocks)[:, seen]
    mean = {a: cross[a] @ np.linalg.solve(K, y) for a in LAYERS}
    cov = {}
    for a in LAYERS:
        for b in LAYERS:
            prior = layer_covariance(model, a, client, X_star, client, X_star) if a == b else 0.0
            cov[a, b] = prior - cross[a] @ np.linalg.solve(K, cross[b].T)
    return _with_total(mean, cov, model.B_g.shape[0])


def ilmm_covariance(
    Xs: Sequence[Array],
    *,
    k_g: Kernel,
    phi: float,
    k_l: Sequence[Kernel],
    noise: Sequence[float] | None = None,
) -> Array:
    """H diag(k_g, φ k_g …, k_1 … k_T) Hᵀ with H = [1_T | I_T | I_T], eq. ilmm_mixing; scalar y."""
    T = len(Xs)
    H = np.hstack([np.ones((T, 1)), np.eye(T), np.eye(T)])
    owner = [(i, n) for i, X in enumerate(Xs) for n in range(len(X))]
    out = np.empty((len(owner), len(owner)))
    for row, (i, n) in enumerate(owner):
        for column, (j, m) in enumerate(owner):
            x, z = Xs[i][n : n + 1], Xs[j][m : m + 1]
            g = k_g(x, z).item()
            latent = np.diag([g, *[phi * g] * T, *[k(x, z).item() for k in k_l]])
            out[row, column] = H[i] @ latent @ H[j]
            if noise is not None and row == column:
                out[row, column] += noise[i]
    return out


# ---------------------------------------------------------- one Gaussian over all weights


def weights_posterior(clients: Sequence[SparseClient]) -> tuple[Array, Array, list[slice]]:
    """N(0, I) over (v_g, w_1 … w_T) given all y: mean, covariance, and each block's slice."""
    widths = [clients[0].H_g.shape[1], *(client.H_c.shape[1] for client in clients)]
    ends = np.cumsum([0, *widths])
    slices = [slice(a, b) for a, b in pairwise(ends)]
    sizes = [len(client.y) for client in clients]
    starts = np.cumsum([0, *sizes])
    H = np.zeros((starts[-1], ends[-1]))
    Sigma = np.zeros((starts[-1], starts[-1]))
    for i, client in enumerate(clients):
        cells = slice(starts[i], starts[i + 1])
        H[cells, slices[0]] = client.H_g
        H[cells, slices[i + 1]] = client.H_c
        Sigma[cells, cells] = client.Sigma
    y = np.concatenate([client.y for client in clients])
    gain = np.linalg.solve(H @ H.T + Sigma, H).T
    return gain @ y, np.eye(ends[-1]) - gain @ H, slices


def sparse_posterior(
    client: int,
    X_star: Array,
    Xs: Sequence[Array],
    Ys: Sequence[Array],
    model: Model,
    inducing: Inducing,
) -> Layers:
    """H*_a E[w], H*_a Cov(w) H*_bᵀ + 1[a=b] R*_a, w all weights at once."""
    m, S, slices = weights_posterior(sparse_clients(Xs, Ys, model, inducing))
    own = np.arange(slices[client + 1].start, slices[client + 1].stop)
    n_dev = len(inducing.Z_g) * model.B_dev[client].shape[1]
    weights = {
        "global": np.arange(slices[0].stop),
        "deviation": own[:n_dev],
        "local": own[n_dev:],
    }
    Q = model.B_g.shape[0]
    H, R = {}, {}
    for a in LAYERS:
        (kernels, B), Z = model.layer(a, client), inducing.layer(a, client)
        A_list = [features(k, Z, X_star, inducing.jitter) for k in kernels]
        H[a] = stack_features(A_list, B, rows=len(X_star))
        R[a] = np.zeros((len(X_star) * Q, len(X_star) * Q))
        for r in range(B.shape[1]):
            res = residual_covariance(kernels[r], Z, X_star, X_star, inducing.jitter)
            R[a] += np.kron(res, np.outer(B[:, r], B[:, r]))
    mean = {a: H[a] @ m[weights[a]] for a in LAYERS}
    cov = {
        (a, b): H[a] @ S[np.ix_(weights[a], weights[b])] @ H[b].T + (R[a] if a == b else 0.0)
        for a in LAYERS
        for b in LAYERS
    }
    return _with_total(mean, cov, Q)


# ------------------------------------------------------------------------------- a single sparse GP


def under_other_kernels(
    k_old: Sequence[Kernel],
    k_new: Sequence[Kernel],
    Z: Array,
    jitter: float,
    q: Gaussian,
    B: Array,
    X: Array,
) -> tuple[Array, Array]:
    """Means and variances (n, Q) of Σ_b B_b f_b(x), q's evidence on values at Z held, under other kernels.

    q(v) of whitened weights, block by block: J = S⁻¹ − I, h = S⁻¹m. With T = L₀⁻¹L block by block, q'(v)
    has precision I + TᵀJT and mean (I + TᵀJT)⁻¹Tᵀh. A kernel with k(x, x) ≠ 1 is no longer a unit kernel.
    """
    mean, covariance = q
    P = np.linalg.inv(covariance)
    T = np.zeros(P.shape)
    for b, (old, new) in enumerate(zip(k_old, k_new, strict=True)):
        at = slice(b * len(Z), (b + 1) * len(Z))
        L0, L = (np.linalg.cholesky(inducing_covariance(k, Z, jitter)) for k in (old, new))
        T[at, at] = np.linalg.solve(L0, L)
    S = np.linalg.inv(np.eye(len(P)) + T.T @ (P - np.eye(len(P))) @ T)
    m = S @ T.T @ P @ mean
    H = stack_features([features(k, Z, X, jitter) for k in k_new], B, rows=len(X))
    loose = sum(np.outer(residual(k, Z, X, jitter), B[:, b] ** 2) for b, k in enumerate(k_new))
    total = (H @ m).reshape(len(X), -1), np.sum((H @ S) * H, axis=1).reshape(len(X), -1)
    return total[0], total[1] + loose


def titsias_bound(X: Array, y: Array, *, k: Kernel, Z: Array, noise: float, jitter: float) -> float:
    """log N(y; 0, Q_nn + σ²I) − tr(K_nn − Q_nn)/2σ², eq. sgp_vfe at its best q(u)."""
    Q = k(X, Z) @ np.linalg.solve(inducing_covariance(k, Z, jitter), k(Z, X))
    trace = np.trace(k(X, X) - Q)
    return log_gaussian(y, 0.0, Q + noise * np.eye(len(y))) - float(trace) / (2.0 * noise)


def sparse_gp_elbo(
    X: Array, y: Array, q_u: Gaussian, *, k: Kernel, Z: Array, noise: float, jitter: float
) -> float:
    """E_q(u)[log p(y|u)] − KL(q(u)‖p(u)) − tr(K_nn − Q_nn)/2σ², eq. sgp_vfe for any q(u)."""
    m, S = q_u
    K = inducing_covariance(k, Z, jitter)
    A = interpolation(k, Z, X, jitter)
    expected = log_gaussian(y, A @ m, noise * np.eye(len(y))) - np.trace(A @ S @ A.T) / (2 * noise)
    trace = np.trace(k(X, X) - A @ K @ A.T) / (2 * noise)
    return float(expected - gaussian_kl(m, S, np.zeros_like(m), K) - trace)


# ------------------------------------------------------------- the paper's mean field, scalar model


def interpolation(k: Kernel, Z: Array, X: Array, jitter: float) -> Array:
    """A = k(X, Z) k(Z, Z)⁻¹ of proposition low_rank; (n, M)."""
    return np.linalg.solve(inducing_covariance(k, Z, jitter), k(Z, X)).T


def low_rank_mean(A_g: Array, A_l: Array, u_g: Array, delta: Array, u_l: Array) -> Array:
    """A_g (u_g + δ) + A_l u_l, eqs. low_rank_expansion and mean_decomposition."""
    return A_g @ (u_g + delta) + A_l @ u_l


@dataclass(frozen=True)
class ScalarModel:
    """The paper's scalar model: k_δ = φ k_g, inducing values not whitened, one σ² per client."""

    k_g: Kernel
    phi: float
    k_l: Sequence[Kernel]
    Z_g: Array
    Z_l: Sequence[Array]
    noise: Sequence[float]
    jitter: float

    @property
    def K_gg(self) -> Array:
        """Cov(u_g)."""
        return inducing_covariance(self.k_g, self.Z_g, self.jitter)

    def K_ll(self, i: int) -> Array:
        """Cov(u_i)."""
        return inducing_covariance(self.k_l[i], self.Z_l[i], self.jitter)

    def A_g(self, X: Array) -> Array:
        """A_{g,i} = A_{δ,i}."""
        return interpolation(self.k_g, self.Z_g, X, self.jitter)

    def A_l(self, i: int, X: Array) -> Array:
        """A_i."""
        return interpolation(self.k_l[i], self.Z_l[i], X, self.jitter)


class Factors(NamedTuple):
    """q(u_g) Π q(δ_i) q(u_i), each a pair (mean, covariance)."""

    g: Gaussian
    d: Sequence[Gaussian]
    l: Sequence[Gaussian]


def residual_traces(model: ScalarModel, i: int, X: Array) -> dict[str, float]:
    """tr(K_g − Q_g), tr(K_δ − Q_δ), tr(K_i − Q_i): the terms of eq. covariance_decomposition."""

    def trace(K_xx: Array, K_xz: Array, K_zz: Array) -> float:
        return float(np.trace(K_xx - K_xz @ np.linalg.solve(K_zz, K_xz.T)))

    K_xx, K_xz, phi = model.k_g(X, X), model.k_g(X, model.Z_g), model.phi
    return {
        "global": trace(K_xx, K_xz, model.K_gg),
        "deviation": trace(phi * K_xx, phi * K_xz, phi * model.K_gg),
        "local": trace(model.k_l[i](X, X), model.k_l[i](X, model.Z_l[i]), model.K_ll(i)),
    }


def residual_trace(model: ScalarModel, i: int, X: Array) -> float:
    """tr(R_i), eq. covariance_decomposition."""
    return sum(residual_traces(model, i, X).values())


def expected_log_likelihood(model: ScalarModel, i: int, X: Array, y: Array, q: Factors) -> float:
    """E_q[log p(y_i | u_g, δ_i, u_i)], eq. closed_form_ll."""
    A_g, A_l, s2 = model.A_g(X), model.A_l(i, X), model.noise[i]
    (m_g, S_g), (m_d, S_d), (m_l, S_l) = q.g, q.d[i], q.l[i]
    error = y - low_rank_mean(A_g, A_l, m_g, m_d, m_l)
    spread = np.trace(A_g @ S_g @ A_g.T) + np.trace(A_g @ S_d @ A_g.T) + np.trace(A_l @ S_l @ A_l.T)
    return float(
        -0.5 * len(y) * np.log(2.0 * np.pi * s2)
        - (error @ error + spread + residual_trace(model, i, X)) / (2.0 * s2)
    )


def meanfield_elbo(
    model: ScalarModel, Xs: Sequence[Array], ys: Sequence[Array], q: Factors
) -> float:
    """Σ E_q[log p(y_i|·)] − KL_g − Σ KL_δ,i − Σ KL_u,i, eq. elbo_explicit_decomp."""
    K_gg = model.K_gg
    total = -gaussian_kl(*q.g, np.zeros(len(K_gg)), K_gg)
    for i, (X, y) in enumerate(zip(Xs, ys, strict=True)):
        K_ll = model.K_ll(i)
        total += expected_log_likelihood(model, i, X, y, q)
        total -= gaussian_kl(*q.d[i], np.zeros(len(K_gg)), model.phi * K_gg)
        total -= gaussian_kl(*q.l[i], np.zeros(len(K_ll)), K_ll)
    return total


def local_elbo(model: ScalarModel, i: int, X: Array, y: Array, q: Factors) -> float:
    """L_i as printed in eq. local_elbo_new: what depends on client i's own block at a fixed σ²."""
    A_g, A_l, s2 = model.A_g(X), model.A_l(i, X), model.noise[i]
    (m_g, _), (m_d, S_d), (m_l, S_l) = q.g, q.d[i], q.l[i]
    error = y - low_rank_mean(A_g, A_l, m_g, m_d, m_l)
    spread = np.trace(A_g @ S_d @ A_g.T) + np.trace(A_l @ S_l @ A_l.T)
    total = error @ error + spread + residual_traces(model, i, X)["local"]
    K_gg, K_ll = model.K_gg, model.K_ll(i)
    own = gaussian_kl(m_d, S_d, np.zeros(len(K_gg)), model.phi * K_gg)
    own += gaussian_kl(m_l, S_l, np.zeros(len(K_ll)), K_ll)
    return float(-total / (2.0 * s2) - own)


def client_global_block(model: ScalarModel, i: int, X: Array, y: Array, q: Factors) -> float:
    """L_i^global, eq. Li_global."""
    A_g, A_l = model.A_g(X), model.A_l(i, X)
    (m_g, S_g), (m_d, S_d), (m_l, _) = q.g, q.d[i], q.l[i]
    error = y - low_rank_mean(A_g, A_l, m_g, m_d, m_l)
    traces = residual_traces(model, i, X)
    spread = np.trace(A_g @ S_g @ A_g.T) + np.trace(A_g @ S_d @ A_g.T)
    total = error @ error + spread + traces["global"] + traces["deviation"]
    return float(-total / (2.0 * model.noise[i]))


def global_block_elbo(
    model: ScalarModel, Xs: Sequence[Array], ys: Sequence[Array], q: Factors
) -> float:
    """Σ L_i^global − KL_g − Σ KL_δ,i, eq. elbo_global_block without its constant."""
    K_gg = model.K_gg
    total = -gaussian_kl(*q.g, np.zeros(len(K_gg)), K_gg)
    for i, (X, y) in enumerate(zip(Xs, ys, strict=True)):
        total += client_global_block(model, i, X, y, q)
        total -= gaussian_kl(*q.d[i], np.zeros(len(K_gg)), model.phi * K_gg)
    return total


def phi_gradient(model: ScalarModel, i: int, X: Array, m: Array, S: Array) -> float:
    """−tr(K_g − Q_g)/2σ² − M/2φ + (tr S̃ + |m̃|²)/2φ², δ = L_g v, q(v) = N(m̃, S̃); client i's part."""
    trace = residual_traces(model, i, X)["global"]
    own = -len(m) / (2.0 * model.phi) + (np.trace(S) + m @ m) / (2.0 * model.phi**2)
    return float(-trace / (2.0 * model.noise[i]) + own)


# --------------------------------------------------------------- mean field with loadings, whitened


def whitened_meanfield_elbo(clients: Sequence[SparseClient], q: Factors) -> float:
    """Eq. elbo_explicit_decomp with loadings, missing cells and any Σ_ε; priors N(0, I).

    The factors are over all R·M weights of a layer: N(m, S) of v_g, v_δ,i (√φ in B̃), v_l,i.
    """

    def kl(factor: Gaussian) -> float:
        return gaussian_kl(*factor, np.zeros(len(factor[0])), np.eye(len(factor[0])))

    total = -kl(q.g)
    for i, client in enumerate(clients):
        blocks = [(client.H_g, q.g), (client.H_d, q.d[i]), (client.H_l, q.l[i])]
        mean = sum(H @ m for H, (m, _) in blocks)
        spread = sum(H @ S @ H.T for H, (_, S) in blocks)
        total += log_gaussian(client.y, mean, client.Sigma) + client.residual_term
        total -= 0.5 * float(np.trace(np.linalg.solve(client.Sigma, spread)))
        total -= kl(q.d[i]) + kl(q.l[i])
    return total


def best_meanfield(
    clients: Sequence[SparseClient],
    *,
    from_zero: bool = False,
    tolerance: float = 1e-11,
    max_sweeps: int = 200_000,
) -> tuple[float, Factors]:
    """max_q of whitened_meanfield_elbo by coordinate ascent on the three kinds of factors.

    A factor's best covariance, (I + HᵀΣ⁻¹H)⁻¹, does not depend on the others; the means are swept
    until none moves by more than `tolerance`. They end at the exact posterior's means, so they
    start there, and the sweeps confirm it; `from_zero` takes the long way, thousands of sweeps
    where the noise is small.
    """
    parts = [{"g": c.H_g, "d": c.H_d, "l": c.H_l} for c in clients]
    precision = [np.linalg.inv(c.Sigma) for c in clients]
    ys = [c.y for c in clients]

    def covariance(name: str, owners: Sequence[int]) -> Array:
        gram = sum(parts[i][name].T @ precision[i] @ parts[i][name] for i in owners)
        return np.linalg.inv(np.eye(len(gram)) + gram)

    everyone = range(len(clients))
    S_g = covariance("g", everyone)
    S = [{name: covariance(name, [i]) for name in "dl"} for i in everyone]
    start, _, slices = weights_posterior(clients)
    start = 0.0 * start if from_zero else start
    m_g = start[slices[0]]
    m = []
    for i in everyone:
        deviation, local = np.split(start[slices[i + 1]], [len(S[i]["d"])])
        m.append({"d": deviation, "l": local})

    def left_over(i: int, without: str) -> Array:
        fitted = {"g": m_g, **m[i]}
        return ys[i] - sum(parts[i][name] @ fitted[name] for name in fitted if name != without)

    for _ in range(max_sweeps):
        before = np.concatenate([m_g, *(v for own in m for v in own.values())])
        for i in everyone:
            for name in "dl":
                H = parts[i][name]
                m[i][name] = S[i][name] @ (H.T @ precision[i] @ left_over(i, name))
        m_g = S_g @ sum(parts[i]["g"].T @ precision[i] @ left_over(i, "g") for i in everyone)
        after = np.concatenate([m_g, *(v for own in m for v in own.values())])
        if np.max(np.abs(after - before), initial=0.0) < tolerance:
            break
    else:
        raise RuntimeError("coordinate ascent did not converge")
    q = Factors(
        (m_g, S_g),
        [(m[i]["d"], S[i]["d"]) for i in everyone],
        [(m[i]["l"], S[i]["l"]) for i in everyone],
    )
    return whitened_meanfield_elbo(clients, q), q


def best_meanfield_elbo(clients: Sequence[SparseClient]) -> float:
    """The best mean-field bound at these hyperparameters (see best_meanfield)."""
    return best_meanfield(clients)[0]


# --------------------------------------------------------------------------------- cycles


def cycles_log_evidence_dense(Y: Array, K: Array, Sigma_e: Array) -> float:
    """log N(vec Y; 0, (1 1ᵀ) ⊗ K + I_C ⊗ Σ_e) for Y (C, N): all cycles one by one."""
    C, N = Y.shape
    cov = np.kron(np.ones((C, C)), K) + np.kron(np.eye(C), Sigma_e)
    assert cov.shape == (C * N, C * N)
    return log_gaussian(Y.ravel(), 0.0, cov)


def cycles_log_evidence(Y: Array, K: Array, Sigma_e: Array) -> float:
    """log N(ȳ; 0, K + Σ_e/C) − N/2 log C − ½[(C−1)(N log 2π + log|Σ_e|) + tr(Σ_e⁻¹ Scatter)]."""
    C, N = Y.shape
    mean = Y.mean(axis=0)
    scatter = (Y - mean).T @ (Y - mean)
    within = (C - 1) * (N * np.log(2.0 * np.pi) + np.linalg.slogdet(Sigma_e)[1])
    within += np.trace(np.linalg.solve(Sigma_e, scatter))
    between = log_gaussian(mean, 0.0, K + Sigma_e / C)
    return float(between - 0.5 * N * np.log(C) - 0.5 * within)


def cycles_elbo_dense(
    Y: Array, Q: Array, Sigma_e: Array, res: Array, noise: npt.ArrayLike
) -> float:
    """cycles_log_evidence_dense at the low-rank Q, minus (C/2) Σ_cells res/σ²."""
    penalty = 0.5 * len(Y) * float(np.sum(res / np.asarray(noise, dtype=float)))
    return cycles_log_evidence_dense(Y, Q, Sigma_e) - penalty


def cycle_covariance(A: Array, Psi: Array, noise: Array) -> Array:
    """Σ_e, cell by cell: a(x)ᵀ Ψ_qp a(x') + [x = x'] Σ_ε for A (n, M), Ψ over weights (q, m) at q*M + m."""
    (n, M), Q = A.shape, len(noise)
    out = np.zeros((n * Q, n * Q))
    for i in range(n):
        for j in range(n):
            for q in range(Q):
                for p in range(Q):
                    block = Psi[q * M : (q + 1) * M, p * M : (p + 1) * M]
                    out[i * Q + q, j * Q + p] = A[i] @ block @ A[j] + (i == j) * noise[q, p]
    return out


def cycles_log_evidence_observed(Y: Array, K: Array, Sigma_e: Array) -> float:
    """cycles_log_evidence_dense with missing cells (NaN in Y), which are left out of the covariance."""
    C = len(Y)
    cov = np.kron(np.ones((C, C)), K) + np.kron(np.eye(C), Sigma_e)
    seen = np.flatnonzero(~np.isnan(Y.ravel()))
    return log_gaussian(Y.ravel()[seen], 0.0, cov[np.ix_(seen, seen)])


def within_log_likelihood(Y: Array, Sigma_e: Array) -> float:
    """Σ_j log N(z_j; 0, Σ_e) − N/2 log C over C − 1 orthonormal contrasts z of the cycles Y (C, N).

    log p(Y) is that of √C ȳ, which has the mean function, and of the contrasts, which have not.
    """
    C, N = Y.shape
    contrasts = np.zeros((C - 1, C))
    for j in range(1, C):
        contrasts[j - 1, :j] = 1.0 / np.sqrt(j * (j + 1))
        contrasts[j - 1, j] = -j / np.sqrt(j * (j + 1))
    each = [log_gaussian(z, 0.0, Sigma_e) for z in contrasts @ Y]
    return float(sum(each) - 0.5 * N * np.log(C))


def mean_of_incomplete(Y: Array, Sigma: Array) -> Array:
    """Generalised least squares: μ maximising Π_c N(y_c; μ, Σ) over observed cells, for Y (C, N) with NaN."""
    precision, linear = np.zeros_like(Sigma), np.zeros(len(Sigma))
    for row in Y:
        o = np.flatnonzero(~np.isnan(row))
        P = np.linalg.inv(Sigma[np.ix_(o, o)])
        precision[np.ix_(o, o)] += P
        linear[o] += P @ row[o]
    return np.linalg.solve(precision, linear)


def expected_scatter(d: Array, Sigma: Array) -> tuple[Array, Array]:
    """Σ_c of E[d_c] E[d_c]ᵀ and of Cov(d_c) given observed cells, for d (C, N) with NaN, d_c ~ N(0, Σ)."""
    means, covariances = np.zeros_like(Sigma), np.zeros_like(Sigma)
    for row in d:
        o, u = np.flatnonzero(~np.isnan(row)), np.flatnonzero(np.isnan(row))
        gain = Sigma[np.ix_(u, o)] @ np.linalg.inv(Sigma[np.ix_(o, o)])
        filled = np.zeros(len(row))
        filled[o] = row[o]
        filled[u] = gain @ row[o]
        means += np.outer(filled, filled)
        covariances[np.ix_(u, u)] += Sigma[np.ix_(u, u)] - gain @ Sigma[np.ix_(o, u)]
    return means, covariances


# ---------------------------------------------------------------------------------- weighted rows


def merged_rows(
    X: Array, Y: Array, counts: Array | None, cell: Array, *, apart: bool
) -> list[tuple[Array, Array, Array]]:
    """(mean input, mean outputs, counts) of each cell and, if `apart`, each pattern of missing outputs."""
    counts = np.isfinite(Y).astype(float) if counts is None else counts
    groups: dict[tuple, list[int]] = {}
    for n in range(len(X)):
        pattern = tuple(np.isfinite(Y[n]).tolist()) if apart else ()
        groups.setdefault((int(cell[n]), pattern), []).append(n)
    found = []
    for key in sorted(groups):
        rows = groups[key]
        weight = np.array([max(counts[n]) for n in rows])
        x = sum(w * X[n] for w, n in zip(weight, rows, strict=True)) / max(weight.sum(), 1e-300)
        y, total = np.full(Y.shape[1], np.nan), np.zeros(Y.shape[1])
        for q in range(Y.shape[1]):
            seen = [n for n in rows if np.isfinite(Y[n, q])]
            total[q] = sum(counts[n, q] for n in seen)
            if seen:
                y[q] = sum(counts[n, q] * Y[n, q] for n in seen) / total[q]
        found.append((X[rows[0]] if weight.sum() == 0 else x, y, total))
    return found


def series_evidence(
    times: Sequence[Array],
    values: Sequence[Array],
    noise: Sequence[Array],
    loadings: Array,
    drifts: Sequence[tuple[float, float]],
    shared_mean: Callable[[Array], Array],
    shared_covariance: Callable[[Array, Array], Array],
) -> float:
    """log N of Q series y_q = Σ_r c_qr u_r(t) + b_q l_q(t) + ε, u a Gaussian and l_q Matérn 1/2 drifts.

    `shared_mean(t)` is (n, R) and `shared_covariance(t, s)` (n, R, m, R); a drift is (ℓ, b²), and `noise`
    the variance of each cell.
    """
    blocks, gaps = [], []
    for q, t in enumerate(times):
        gaps.append(values[q] - shared_mean(t) @ loadings[q])
        row = []
        for p, s in enumerate(times):
            K = np.einsum("r,nrms,s->nm", loadings[q], shared_covariance(t, s), loadings[p])
            if p == q:
                length, variance = drifts[q]
                K = K + variance * matern12(t[:, None], s[:, None], lengthscale=length)
                K = K + np.diag(noise[q])
            row.append(K)
        blocks.append(row)
    return log_gaussian(np.concatenate(gaps), 0.0, np.block(blocks))
