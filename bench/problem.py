"""The clients that are timed, as plain arrays that every competitor reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

JITTER = 1e-8
DOMAIN = 10.0


@dataclass(frozen=True)
class Sizes:
    """The paper's client: 50 rows of 4 outputs, 20 shared and 50 own inducing inputs, R = 2."""

    rows: int = 50
    outputs: int = 4
    shared: int = 20
    local: int = 50
    latents: int = 2
    clients: int = 1

    @property
    def weights(self) -> int:
        """Weights of the global, the deviation and the local layer together."""
        return self.latents * (2 * self.shared + self.local)


@dataclass(frozen=True)
class Problem:
    """Arrays with a leading axis for clients, except those of the global block."""

    sizes: Sizes
    X: np.ndarray
    Y: np.ndarray
    mask: np.ndarray
    shared_inputs: np.ndarray
    shared_lengthscales: np.ndarray
    shared_loadings: np.ndarray
    local_inputs: np.ndarray
    J_rest: np.ndarray
    h_rest: np.ndarray
    learned: dict[str, np.ndarray]
    """What the gradient is taken in: log_lengthscale, deviation, loadings and log_noise."""


def make_problem(sizes: Sizes, seed: int = 0) -> Problem:
    """Random clients; lengthscales so that inducing inputs are 0.4 to 0.8 of one apart."""
    rng = np.random.default_rng(seed)
    C, n, Q, R = sizes.clients, sizes.rows, sizes.outputs, sizes.latents
    X = np.sort(rng.uniform(0.0, DOMAIN, (C, n, 1)), axis=1)
    waves = np.sin(X * rng.uniform(0.5, 4.0, (C, 1, Q)) + rng.uniform(0.0, 6.0, (C, 1, Q)))
    others = rng.normal(size=(C, 8 * sizes.shared * R, sizes.shared * R))
    return Problem(
        sizes=sizes,
        X=X,
        Y=waves + 0.2 * rng.normal(size=(C, n, Q)),
        mask=np.ones((C, n, Q)),
        shared_inputs=np.linspace(0.0, DOMAIN, sizes.shared)[:, None],
        shared_lengthscales=_apart(sizes.shared, R, 1.0)[:, None],
        shared_loadings=rng.normal(size=(Q, R)),
        local_inputs=np.tile(np.linspace(0.0, DOMAIN, sizes.local)[None, :, None], (C, 1, 1)),
        J_rest=np.swapaxes(others, 1, 2) @ others,
        h_rest=rng.normal(size=(C, sizes.shared * R)),
        learned={
            "log_lengthscale": np.log(_apart(sizes.local, R, 1.0)) + 0.05 * rng.normal(size=(C, R)),
            "deviation": 0.5 * rng.normal(size=(C, Q, R)),
            "loadings": 0.5 * rng.normal(size=(C, Q, R)),
            "log_noise": np.log(0.04) + 0.1 * rng.normal(size=(C, 1)),
        },
    )


def _apart(inputs: int, latents: int, scale: float) -> np.ndarray:
    """One lengthscale a latent, in proportion to the distance between inducing inputs."""
    return scale * DOMAIN / (inputs - 1) * np.linspace(1.3, 2.2, latents)
