"""g̃ | v ~ N(Ĝv, ΣW_i(φS_iPS_i + λS_i² + σ²S_i)W_i + τ_b²I + E[Δv vᵀΔᵀ]): a posterior from totals.

Ĝ = ΣW_iŜ_i + W̄A diag(δ̂)Aᵀ: what clients have in their own Ŝ_i, and what the released total of W_i(S_i − Ŝ_i)
says is missing, as rows δ in cells with a prior ΣCov(δ_i); Δ is what stays unknown of it. g̃ tells the shared
function. How far clients depart from it is told by Σ|UᵀW_ir_i|: for normal residuals E|x| = √(2/π) sd(x), and
Cov(|x|, |y|) = sd(x)sd(y) c(ρ) with c(ρ) = (2/π)(√(1 − ρ²) + ρ arcsin ρ − 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from pfedhgp.privacy.denoising import Cells
from pfedhgp.privacy.kernel_family import KernelFamily
from pfedhgp.privacy.release import JITTER
from pfedhgp.privacy.totals import OwnGram, Scales
from pfedhgp.privacy.twin import EXACT_RANK, Found, Parameters, prior

LEAST = 1e-6
"""Smallest variance of a residual in a direction, as a share of the largest."""


def moments_of(
    own: OwnGram, family: KernelFamily, cells: Cells
) -> dict[str, Float[np.ndarray, "..."]]:
    """What a client adds, from S̃ alone: WŜ, W, WŜW, WŜ²W, WŜB_jŜW for each B_j, and Cov(δ) by cells."""
    W, S = own.weight, own.gram
    grid = np.zeros((len(own.seen), len(own.seen)))
    grid[np.ix_(own.seen, own.seen)] = own.counts
    return {
        "known": W @ S,
        "weight": W,
        "noise": lower(W @ S @ W),
        "local": lower(own.quadratic(np.eye(len(W)), cells)),
        "departure": lower(np.stack([own.quadratic(B, cells) for B in family.matrices()])),
        "cells": lower(grid),
    }


@dataclass(frozen=True, eq=False)
class OneOutput:
    """The totals of one output; those of `clients` clients."""

    family: KernelFamily
    gram: Float[np.ndarray, "M M"]
    """Ĝ"""
    features: Float[np.ndarray, "M G"]
    """W̄A"""
    plain_features: Float[np.ndarray, "M G"]
    """A"""
    unknown: Float[np.ndarray, "G G"]
    """Cov(δ) given what was released"""
    linear: Float[np.ndarray, " M"]
    linear_noise: float
    noise: Float[np.ndarray, "M M"]
    """ΣWŜW"""
    local: Float[np.ndarray, "M M"]
    """ΣWŜ²W"""
    departure: Float[np.ndarray, "J M M"]
    """ΣWŜB_jŜW"""
    clients: int

    @staticmethod
    def of(
        family: KernelFamily,
        cells: Cells,
        totals: Mapping[str, np.ndarray],
        noise: Scales,
        clients: int,
    ) -> OneOutput:
        """From totals, with the standard deviations of the noise that is in them."""
        A = cells.features
        M, G = A.shape
        W = totals["weight"] / clients
        gram, unknown = totals["known"], np.zeros((G, G))
        if noise.gram == 0.0:
            gram = gram + totals["missing"]
        else:
            before = positive(symmetric(totals["cells"], G))
            rows, unknown = missing_rows(W @ A, A, totals["missing"], before, noise.gram)
            gram = gram + (W @ A * rows) @ A.T
        return OneOutput(
            family=family,
            gram=gram,
            features=W @ A,
            plain_features=A,
            unknown=unknown,
            linear=totals["linear"],
            linear_noise=noise.linear,
            noise=symmetric(totals["noise"], M),
            local=symmetric(totals["local"], M),
            departure=symmetric(totals["departure"], M),
            clients=clients,
        )

    def without(
        self,
        gram: Float[np.ndarray, "M M"],
        linear: Float[np.ndarray, " M"],
        moments: Mapping[str, np.ndarray],
    ) -> OneOutput:
        """The totals of the others, for a client that knows its own part in them: WS, Wb and moments."""
        M = len(self.linear)
        return replace(
            self,
            gram=self.gram - gram,
            linear=self.linear - linear,
            noise=self.noise - symmetric(moments["noise"], M),
            local=self.local - symmetric(moments["local"], M),
            departure=self.departure - symmetric(moments["departure"], M),
            clients=self.clients - 1,
        )

    def own(self, parameters: Parameters, P: Float[np.ndarray, "M M"]) -> Float[np.ndarray, "M M"]:
        """ΣW_i(φS_iPS_i + λS_i² + σ²S_i)W_i"""
        apart = np.einsum("j,jmk->mk", self.family.weights(P), self.departure)
        found = parameters.departure * apart + parameters.local * self.local
        return positive(found + parameters.noise * self.noise)

    def covariance(
        self, parameters: Parameters, P: Float[np.ndarray, "M M"]
    ) -> Float[np.ndarray, "M M"]:
        """Of g̃ given v."""
        A, B = self.plain_features, self.features
        error = B @ (self.unknown * (A.T @ P @ A)) @ B.T
        return self.own(parameters, P) + error + self.linear_noise**2 * np.eye(len(P))

    def seen(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(R, RᵀG, Rᵀg): without noise, in the directions that rows have seen, whitened by them."""
        if self.linear_noise > 0.0:
            return np.eye(len(self.linear)), self.gram, self.linear
        values, vectors = np.linalg.eigh(self.noise)
        kept = values > EXACT_RANK * max(float(values[-1]), 0.0)
        R = vectors[:, kept] / np.sqrt(values[kept])
        return R, R.T @ self.gram, R.T @ self.linear


def missing_rows(
    weighted: Float[np.ndarray, "M G"],
    features: Float[np.ndarray, "M G"],
    released: Float[np.ndarray, "M M"],
    before: Float[np.ndarray, "G G"],
    noise: float,
) -> tuple[Float[np.ndarray, " G"], Float[np.ndarray, "G G"]]:
    """δ ~ N(0, before) given W̄A diag(δ)Aᵀ + noise: its mean and covariance."""
    values, vectors = np.linalg.eigh(before)
    half = vectors * np.sqrt(np.maximum(values, 0.0))
    overlap = (weighted.T @ weighted) * (features.T @ features) / noise**2
    L = np.linalg.cholesky(np.eye(len(values)) + half.T @ overlap @ half)
    root = np.linalg.solve(L, half.T)
    after = root.T @ root
    target = np.einsum("mg,mk,kg->g", weighted, released, features) / noise**2
    return after @ target, after


def posterior(one: OneOutput, parameters: Parameters) -> Found:
    """v ~ N((P⁻¹ + GᵀC⁻¹G)⁻¹GᵀC⁻¹g, (P⁻¹ + GᵀC⁻¹G)⁻¹), and log p(g)."""
    P = prior(one.family.public, parameters)
    M = len(P)
    R, G, g = one.seen()
    C = R.T @ one.covariance(parameters, P) @ R
    L = np.linalg.cholesky(0.5 * (C + C.T))
    half = np.linalg.solve(L, np.concatenate([G, g[:, None]], axis=1))
    HG, Hg = half[:, :M], half[:, M]
    root = np.linalg.cholesky(0.5 * (P + P.T) + JITTER * np.trace(P) / M * np.eye(M))
    factor = np.linalg.cholesky(np.eye(M) + root.T @ (HG.T @ HG) @ root)
    inverse = np.linalg.solve(factor, root.T)
    covariance, h = inverse.T @ inverse, HG.T @ Hg
    mean = covariance @ h
    logs = float(np.sum(np.log(np.diagonal(L)))) + float(np.sum(np.log(np.diagonal(factor))))
    evidence = 0.5 * float(h @ mean - Hg @ Hg) - logs - 0.5 * len(g) * np.log(2 * np.pi)
    return Found(mean, covariance, np.zeros((0, M, M)), np.zeros((0, M)), evidence)


# --------------------------------------------------------------------------------- what residuals tell


@dataclass(frozen=True, eq=False)
class Centre:
    """v̂ = Kg̃ about which residuals are taken, and X = E[(v − v̂)(v − v̂)ᵀ] at some parameters."""

    gain: Float[np.ndarray, "M M"]
    error: Float[np.ndarray, "M M"]
    parameters: Parameters


def centre_of(
    one: OneOutput, parameters: Parameters, gain: Float[np.ndarray, "M M"] | None = None
) -> Centre:
    """With the best gain at these parameters, or with the one by which v̂ was computed."""
    P = prior(one.family.public, parameters)
    C, G, M = one.covariance(parameters, P), one.gram, len(P)
    if gain is None:
        total = G @ P @ G.T + C
        floor = EXACT_RANK * np.trace(total) * np.eye(M)
        gain = np.linalg.solve(total + floor, G @ P).T
    left = np.eye(M) - gain @ G
    return Centre(gain, left @ P @ left.T + gain @ C @ gain.T, parameters)


def residual_scales(
    own: OwnGram, family: KernelFamily, cells: Cells, U: Float[np.ndarray, "M M"], centre: Centre
) -> Float[np.ndarray, " M"]:
    """sd(UᵀW_ir_i) of one client by S̃ alone: r_i = S_i(v − v̂) + η_i, where W_iη_i is a part of v̂'s error."""
    p, W, S = centre.parameters, own.weight, own.gram
    apart = p.departure * prior(family.public, p) + p.local * np.eye(len(S))
    N = own.quadratic(apart, cells) + p.noise * W @ S @ W
    cross = W @ S @ centre.gain @ N
    V = N + W @ S @ centre.error @ S @ W - cross - cross.T
    variances = np.einsum("mk,ml,lk->k", U, V, U)
    most = max(float(variances.max()), 0.0)
    return np.asarray(np.sqrt(np.maximum(variances, LEAST * most)))


@dataclass(frozen=True, eq=False)
class Spread:
    """Σ|UᵀW_ir_i| as released, and Σ sd(UᵀW_ir_i) as clients expect it at `about`."""

    total: Float[np.ndarray, " M"]
    noise: float
    U: Float[np.ndarray, "M M"]
    expected: Float[np.ndarray, " M"]
    about: Parameters

    def log_density(self, one: OneOutput, parameters: Parameters) -> float:
        """log N of the total; other parameters change what is expected as they change ΣW_iCov(η_i)W_i."""
        P, Q = (prior(one.family.public, each) for each in (parameters, self.about))
        now = self.U.T @ one.own(parameters, P) @ self.U
        then = np.einsum("mk,ml,lk->k", self.U, one.own(self.about, Q), self.U)
        sizes = np.sqrt(np.maximum(np.diagonal(now), LEAST**2))
        scales = self.expected * sizes / np.sqrt(np.maximum(then, LEAST**2))
        rho = np.clip(now / np.outer(sizes, sizes), -1.0, 1.0)
        c = (2 / np.pi) * (np.sqrt(1 - rho**2) + rho * np.arcsin(rho) - 1)
        floor = self.noise**2 + LEAST * float(np.max(scales**2)) + LEAST**2
        cov = np.outer(scales, scales) * c / max(one.clients, 1) + floor * np.eye(len(scales))
        gap = self.total - np.sqrt(2 / np.pi) * scales
        L = np.linalg.cholesky(cov)
        half = np.linalg.solve(L, gap)
        logs = float(np.sum(np.log(np.diagonal(L))))
        return -0.5 * float(half @ half) - logs - 0.5 * len(gap) * np.log(2 * np.pi)

    def posterior(self, one: OneOutput, parameters: Parameters) -> Found:
        """That of totals, with the evidence of both."""
        found = posterior(one, parameters)
        return found._replace(evidence=found.evidence + self.log_density(one, parameters))


# ---------------------------------------------------------------------------------------- matrices


def lower(matrix: Float[np.ndarray, "*batch M M"]) -> np.ndarray:
    """Symmetric matrices by their lower triangles."""
    rows, columns = np.tril_indices(matrix.shape[-1])
    return np.asarray(matrix[..., rows, columns])


def symmetric(given: np.ndarray, size: int) -> Float[np.ndarray, "*batch M M"]:
    """The inverse of `lower`."""
    rows, columns = np.tril_indices(size)
    found = np.zeros((*given.shape[:-1], size, size))
    found[..., rows, columns] = given
    found[..., columns, rows] = given
    return found


def positive(matrix: Float[np.ndarray, "M M"]) -> Float[np.ndarray, "M M"]:
    """Without negative eigenvalues."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def stacked(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """One array of each name, by output."""
    return {name: np.stack([part[name] for part in parts]) for name in parts[0]}
