"""What the best possible predictor scores: exact posteriors under the simulator's own truth."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from pfedhgp.errors import InputError
from pfedhgp.studies.synthetic.simulator import RHO, Array, Simulation, deviation_kernel, rbf

Gaussians = tuple[Array, Array]
"""Means (n, Q) and covariances (n, Q, Q) at n inputs."""


def covariance(s: Simulation, i: int, Xi: Array, j: int, Xj: Array) -> Array:
    """Cov{f_i(x), f_j(x')} of the clean signal given the loadings; (n_i·Q, n_j·Q), row-major."""
    if s.scenario == "C":
        raise InputError(
            "scenario C is not Gaussian: it has no covariance function to condition on"
        )
    mixed = s.scenario == "D"
    dev = (1.0 + RHO) ** 2 if mixed else 1.0  # f_δ + ρ f_δ + √(1 − ρ²) f̃
    local = 1.0 - RHO**2 if mixed else 1.0
    total = np.zeros((len(Xi) * s.B_g.shape[0], len(Xj) * s.B_g.shape[0]))
    for r, l in enumerate(s.lengthscales_g):
        total += np.kron(rbf(Xi, Xj, l), np.outer(s.B_g[:, r], s.B_g[:, r]))
        if i == j:
            b = s.B_dev[i][:, r]
            total += dev * np.kron(deviation_kernel(s.scenario, Xi, Xj, l), np.outer(b, b))
    if i == j:
        for r, l in enumerate(s.lengthscales_l):
            b = s.B_l[i][:, r]
            total += local * np.kron(rbf(Xi, Xj, l), np.outer(b, b))
    return total


def oracle(s: Simulation) -> list[Gaussians]:
    """The best that is possible: for each client its predictive mean and covariance, noise included.

    A, B and D are jointly Gaussian, so it is exact there. C is not; its row is `given_global`.
    """
    return given_global(s) if s.scenario == "C" else exact(s)


def exact(s: Simulation) -> list[Gaussians]:
    """The exact GP with the true kernels, loadings and noise, all clients' data jointly: A, B and D."""
    clients, Q, n_test = range(len(s.X)), s.B_g.shape[0], len(s.X_test)
    K = np.block([[covariance(s, i, s.X[i], j, s.X[j]) for j in clients] for i in clients])
    factor = cho_factor(K + s.noise_sd**2 * np.eye(len(K)), lower=True)
    weights = cho_solve(factor, np.concatenate([Y.ravel() for Y in s.Y]))
    out = []
    for i in clients:
        cross = np.hstack([covariance(s, i, s.X_test, j, s.X[j]) for j in clients])
        explained = np.einsum(
            "jqm,jpm->jqp",
            cross.reshape(n_test, Q, -1),
            cho_solve(factor, cross.T).T.reshape(n_test, Q, -1),
        )
        prior = covariance(s, i, s.X_test[:1], i, s.X_test[:1])  # stationary: the same everywhere
        cov = prior - explained + s.noise_sd**2 * np.eye(Q)
        out.append(((cross @ weights).reshape(n_test, Q), cov))
    return out


def given_global(s: Simulation) -> list[Gaussians]:
    """The exact posterior of an observer who is told f_g everywhere (and γ_i, kernels, loadings, noise).

    Given f_g all scenarios are Gaussian, client by client: y = f_g + (1 + γ f_g) ⊙ f_δ + f_i + ε. Knowing
    more cannot worsen the expected log score, so in scenario C, whose posterior has no closed form, this is a
    bound: no method's expected NLL is below it. It is optimistic by what f_g is uncertain.
    """
    mixed = s.scenario == "D"
    out = []
    for i, X in enumerate(s.X):
        both = np.concatenate([X, s.X_test])
        f_g = np.concatenate([s.global_train[i], s.layers_test[i]["global"]])
        gain = (1.0 + s.gamma[i] * f_g + (RHO if mixed else 0.0)).ravel()
        K = np.zeros((f_g.size, f_g.size))
        for r, l in enumerate(s.lengthscales_g):
            outer = np.outer(s.B_dev[i][:, r], s.B_dev[i][:, r])
            K += np.kron(deviation_kernel(s.scenario, both, both, l), outer)
        K *= gain[:, None] * gain[None, :]
        for r, l in enumerate(s.lengthscales_l):
            outer = np.outer(s.B_l[i][:, r], s.B_l[i][:, r])
            K += (1.0 - RHO**2 if mixed else 1.0) * np.kron(rbf(both, both, l), outer)
        K += s.noise_sd**2 * np.eye(len(K))
        cut, (n_test, Q) = s.Y[i].size, s.Y_test[i].shape
        factor = cho_factor(K[:cut, :cut], lower=True)
        mean = f_g.ravel()[cut:] + K[cut:, :cut] @ cho_solve(
            factor, s.Y[i].ravel() - f_g.ravel()[:cut]
        )
        left = K[cut:, cut:] - K[cut:, :cut] @ cho_solve(factor, K[:cut, cut:])
        blocks = left.reshape(n_test, Q, n_test, Q)[np.arange(n_test), :, np.arange(n_test), :]
        out.append((mean.reshape(n_test, Q), blocks))
    return out
