"""The paper's simulator, section "Multi-output Synthetic Benchmark".

NumPy alone. One seed gives the same inputs, loadings, latents and noise in scenarios A, C
and D (B has another deviation kernel), so that scenarios can be compared run by run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from pfedhgp.errors import InputError

Array = npt.NDArray[np.float64]
Scenario = Literal["A", "B", "C", "D"]
SCENARIOS: tuple[Scenario, ...] = get_args(Scenario)

DOMAIN = (0.0, 10.0)
LENGTHSCALES_G, TAU_G = (1.8, 2.5), (1.0, 0.7)
LENGTHSCALES_L, TAU_L = (0.25, 0.45), (1.0, 0.8)
PHI = 1.20
NOISE_SD = 0.05
RHO = 0.5  # scenario D
GAMMA = (0.35, 0.60)  # scenario C
PERIODIC_SHARE, PERIOD, PERIODIC_LENGTHSCALE = 0.35, 3.0, 0.8  # scenario B


@dataclass(frozen=True)
class Simulation:
    """One run: data and truth. Tuples have one entry per client.

    Loadings have the scales folded in, so that they belong to latents of unit variance: B_g is
    B τ_g, B_dev is √φ B τ_g (the library's B̃), B_l is B τ_l, with standard-normal B. In scenario D
    they are those of f_δ and of f̃, before eq. correlated_component_generation mixes the two.
    Deviation latents have the global lengthscales.
    """

    scenario: Scenario
    seed: int
    X: tuple[Array, ...]  # (n, 1)
    Y: tuple[Array, ...]  # (n, Q), noisy
    X_test: Array  # (n_test, 1), the same for all clients
    Y_test: tuple[Array, ...]  # (n_test, Q), with noise of its own
    clean_test: tuple[Array, ...]  # (n_test, Q), without noise
    layers_test: tuple[dict[str, Array], ...]  # f_g, f_δ, f_i at X_test: global, deviation, local
    global_train: tuple[Array, ...]  # (n, Q), f_g at X
    B_g: Array  # (Q, 2)
    B_dev: tuple[Array, ...]
    B_l: tuple[Array, ...]
    gamma: tuple[float, ...]  # scenario C's interaction; zero in the others
    lengthscales_g: tuple[float, ...] = LENGTHSCALES_G
    lengthscales_l: tuple[float, ...] = LENGTHSCALES_L
    phi: float = PHI
    noise_sd: float = NOISE_SD


def rbf(x: Array, z: Array, lengthscale: float) -> Array:
    """exp(−(x − z)²/2ℓ²), eq. global_rbf_kernel of unit variance."""
    return np.exp(-0.5 * ((x[:, 0, None] - z[None, :, 0]) / lengthscale) ** 2)


def deviation_kernel(scenario: Scenario, x: Array, z: Array, lengthscale: float) -> Array:
    """The RBF; in scenario B .65 RBF + .35 periodic, eq. periodic_rbf_kernel of unit variance."""
    smooth = rbf(x, z, lengthscale)
    if scenario != "B":
        return smooth
    sine = np.sin(np.pi * np.abs(x[:, 0, None] - z[None, :, 0]) / PERIOD)
    waves = np.exp(-2.0 * sine**2 / PERIODIC_LENGTHSCALE**2)
    return (1.0 - PERIODIC_SHARE) * smooth + PERIODIC_SHARE * waves


def draw(rng: np.random.Generator, K: Array) -> Array:
    """N(0, K), by Cholesky with relative jitter 1e-10, or if that fails by eigenvalues cut off at zero."""
    white = rng.standard_normal(len(K))
    try:
        return np.linalg.cholesky(K + 1e-10 * np.mean(np.diag(K)) * np.eye(len(K))) @ white
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(K)
        return vectors @ (np.sqrt(np.maximum(values, 0.0)) * white)


def simulate(
    scenario: Scenario,
    seed: int,
    *,
    clients: int = 6,
    outputs: int = 4,
    n: int | Sequence[int] = 50,
    n_test: int = 150,
    phi: float = PHI,
) -> Simulation:
    """Eq. multioutput_generation, with the changes of scenarios B, C and D.

    `n` is each client's number of rows, or one for all; `phi` the scale of deviations.
    """
    if scenario not in SCENARIOS:
        raise InputError(f"`scenario` must be one of A, B, C, D, got {scenario!r}")
    rng = np.random.default_rng(seed)
    X_test = np.linspace(*DOMAIN, n_test)[:, None]
    sizes = [n] * clients if isinstance(n, int) else list(n)
    if len(sizes) != clients or min(sizes, default=0) < 1:
        raise InputError(f"`n` must be {clients} positive numbers of rows, got {n!r}")
    X = tuple(rng.uniform(*DOMAIN, (size, 1)) for size in sizes)
    ends = np.cumsum([0, *sizes])

    everywhere = np.concatenate([*X, X_test])
    h_g = np.stack([draw(rng, rbf(everywhere, everywhere, l)) for l in LENGTHSCALES_G], axis=1)
    B_g = rng.standard_normal((outputs, 2)) * TAU_G
    f_g_all = h_g @ B_g.T

    Y, Y_test, clean_test, layers_test, global_train = [], [], [], [], []
    B_dev, B_l, gammas = [], [], []
    for i in range(clients):
        B_dev.append(np.sqrt(phi) * rng.standard_normal((outputs, 2)) * TAU_G)
        B_l.append(rng.standard_normal((outputs, 2)) * TAU_L)
        gamma = rng.uniform(*GAMMA)
        gammas.append(gamma if scenario == "C" else 0.0)
        x = np.concatenate([X[i], X_test])
        h_dev = [draw(rng, deviation_kernel(scenario, x, x, l)) for l in LENGTHSCALES_G]
        h_l = [draw(rng, rbf(x, x, l)) for l in LENGTHSCALES_L]
        own = sizes[i]
        f_g = np.concatenate([f_g_all[ends[i] : ends[i + 1]], f_g_all[ends[-1] :]])
        f_dev = np.stack(h_dev, axis=1) @ B_dev[i].T
        f_l = np.stack(h_l, axis=1) @ B_l[i].T
        if scenario == "D":
            f_l = RHO * f_dev + np.sqrt(1.0 - RHO**2) * f_l
        clean = f_g + f_dev + f_l + gammas[i] * f_g * f_dev
        y = clean + NOISE_SD * rng.standard_normal(clean.shape)
        Y.append(y[:own])
        Y_test.append(y[own:])
        clean_test.append(clean[own:])
        global_train.append(f_g[:own])
        layers_test.append({"global": f_g[own:], "deviation": f_dev[own:], "local": f_l[own:]})
    return Simulation(
        scenario=scenario,
        seed=seed,
        X=X,
        Y=tuple(Y),
        X_test=X_test,
        Y_test=tuple(Y_test),
        clean_test=tuple(clean_test),
        layers_test=tuple(layers_test),
        global_train=tuple(global_train),
        B_g=B_g,
        B_dev=tuple(B_dev),
        B_l=tuple(B_l),
        gamma=tuple(gammas),
        phi=phi,
    )
