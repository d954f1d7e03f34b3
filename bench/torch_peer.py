"""The same bound in PyTorch with autograd, for one client or a batch of them (leading axes).

Everything that does not change is computed beforehand: squared distances, the shared features and the
constants. The kernel is checked against GPyTorch's, whose own objects would only add to the time.
The Gaussian integral has its closed-form gradient through `torch.cholesky_inverse`, which beats autograd
through the factor. Two ways to the Gram matrix are offered, and the faster one counts: `dense`, which
stacks loadings and features to H and takes one large product, and `blocks`, which avoids H as we do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gpytorch
import numpy as np
import torch
from torch import Tensor

from bench.problem import JITTER, Problem

WAYS = ("dense", "blocks")


class LogPartition(torch.autograd.Function):
    """½ ηᵀ(I+Λ)⁻¹η − ½ log|I+Λ|, whose gradient is the posterior's moments."""

    @staticmethod
    def forward(ctx: Any, precision: Tensor, linear: Tensor) -> Tensor:
        eye = torch.eye(precision.shape[-1], dtype=precision.dtype)
        factor = torch.linalg.cholesky(precision + eye)
        covariance = torch.cholesky_inverse(factor)
        mean = (covariance @ linear[..., None])[..., 0]
        ctx.save_for_backward(covariance, mean)
        log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return 0.5 * (mean * linear).sum(-1) - log_det

    @staticmethod
    def backward(ctx: Any, *outward: Tensor) -> tuple[Tensor, Tensor]:
        covariance, mean = ctx.saved_tensors
        second = torch.baddbmm(
            covariance.reshape(-1, *covariance.shape[-2:]),
            mean.reshape(-1, mean.shape[-1], 1),
            mean.reshape(-1, 1, mean.shape[-1]),
        ).reshape(covariance.shape)
        scale = outward[0]
        return -0.5 * scale[..., None, None] * second, scale[..., None] * mean


class Peer:
    """Bound and gradient of all clients at once, or of the first alone."""

    def __init__(self, problem: Problem, *, batched: bool, way: str) -> None:
        def tensor(array: np.ndarray) -> Tensor:
            return torch.as_tensor(array if batched else array[0])

        self.way = way
        self.Y, self.mask = tensor(problem.Y), tensor(problem.mask)
        self.J_rest, self.h_rest = tensor(problem.J_rest), tensor(problem.h_rest)
        X, Z = tensor(problem.X), tensor(problem.local_inputs)
        Z_g = torch.as_tensor(problem.shared_inputs)
        scale = torch.as_tensor(problem.shared_lengthscales)[..., None]
        self.distances, self.cross = _squared(Z, Z), _squared(Z, X)
        shared_cross = _squared(Z_g.expand(*X.shape[:-2], *Z_g.shape), X)
        factor = _factor(_squared(Z_g, Z_g), scale)
        self.A_g = torch.linalg.solve_triangular(factor, _rbf(shared_cross, scale), upper=False)
        self.res_g = (1.0 - (self.A_g**2).sum(-2)).clamp_min(0.0)
        self.B_g = torch.as_tensor(problem.shared_loadings).expand(
            *X.shape[:-2], *problem.shared_loadings.shape
        )
        self.log_2pi = self.mask.sum((-2, -1)) * math.log(2.0 * math.pi)
        self.learned = {
            name: tensor(value).clone().requires_grad_() for name, value in problem.learned.items()
        }

    def bound(self) -> Tensor:
        """The cavity bound of each client."""
        variance = self.learned["log_noise"].exp()
        scale = self.learned["log_lengthscale"].exp()[..., None, None]
        precision = self.mask / variance[..., None]
        log_det = (self.mask * self.learned["log_noise"][..., None]).sum((-2, -1))
        A_l = torch.linalg.solve_triangular(
            _factor(self.distances, scale), _rbf(self.cross, scale), upper=False
        )
        res_l = (1.0 - (A_l**2).sum(-2)).clamp_min(0.0)
        layers = [
            (self.A_g, self.B_g, self.res_g),
            (self.A_g, self.learned["deviation"], self.res_g),
            (A_l, self.learned["loadings"], res_l),
        ]
        weighted = precision * self.Y
        constant = -0.5 * (self.log_2pi + log_det + (weighted * self.Y).sum((-2, -1)))
        loadings = torch.cat([B for _, B, _ in layers], -1)
        residuals = torch.cat([res for _, _, res in layers], -2)
        own = precision @ loadings**2
        residual = (own * residuals.transpose(-2, -1)).sum((-2, -1))
        gram = _dense if self.way == "dense" else _blocks
        total, linear = gram(precision, weighted, layers)
        k = self.J_rest.shape[-1]
        rest = total.shape[-1] - k
        total = total + torch.nn.functional.pad(self.J_rest, (0, rest, 0, rest))
        linear = linear + torch.nn.functional.pad(self.h_rest, (0, rest))
        return constant - 0.5 * residual + LogPartition.apply(total, linear)

    def value_and_gradient(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Bounds, and their gradients in what is learned."""
        value = self.bound()
        found = torch.autograd.grad(value.sum(), list(self.learned.values()))
        return value.detach(), dict(zip(self.learned, found, strict=True))


Layers = list[tuple[Tensor, Tensor, Tensor]]


def _dense(precision: Tensor, weighted: Tensor, layers: Layers) -> tuple[Tensor, Tensor]:
    """Λ and η from H, one row for each cell and one column for each weight."""
    parts = []
    for A, B, _ in layers:
        part = B[..., :, :, None, None] * A[..., None, :, :, :]  # q r m n
        parts.append(part.flatten(-3, -2).transpose(-2, -1).flatten(-3, -2))
    H = torch.cat(parts, -1)
    cells = precision.transpose(-2, -1).flatten(-2, -1)
    total = H.transpose(-2, -1) @ (cells[..., None] * H)
    linear = H.transpose(-2, -1) @ weighted.transpose(-2, -1).flatten(-2, -1)[..., None]
    return total, linear[..., 0]


def _blocks(precision: Tensor, weighted: Tensor, layers: Layers) -> tuple[Tensor, Tensor]:
    """Λ and η block by block, A_r (w_rs ⊙ A_s)ᵀ."""
    grid: list[list[Tensor | None]] = [[None] * len(layers) for _ in layers]
    for i, (A, B, _) in enumerate(layers):
        for j in range(i + 1):
            D, C, _ = layers[j]
            pairs = (B[..., :, :, None] * C[..., :, None, :]).flatten(-2, -1)
            w = (precision @ pairs).transpose(-2, -1).unflatten(-2, (B.shape[-1], C.shape[-1]))
            stacked = (w[..., None, :] * D[..., None, :, :, :]).flatten(-3, -2)
            block = (A @ stacked.transpose(-2, -1)).flatten(-3, -2)
            grid[i][j] = block
            if i != j:
                grid[j][i] = block.transpose(-2, -1)
    total = torch.cat([torch.cat(row, -1) for row in grid], -2)
    linear = [
        (A @ (weighted @ B).transpose(-2, -1)[..., None]).flatten(-3, -1) for A, B, _ in layers
    ]
    return total, torch.cat(linear, -1)


def _squared(X: Tensor, Z: Tensor) -> Tensor:
    """Squared distances, with an axis for latents."""
    return ((X[..., :, None, :] - Z[..., None, :, :]) ** 2).sum(-1)[..., None, :, :]


def _rbf(squared: Tensor, scale: Tensor) -> Tensor:
    return (squared * (-0.5 / scale**2)).exp()


def _factor(squared: Tensor, scale: Tensor) -> Tensor:
    eye = torch.eye(squared.shape[-1], dtype=squared.dtype)
    return torch.linalg.cholesky(_rbf(squared, scale) + JITTER * eye)


def check_kernel() -> float:
    """The largest difference between this module's RBF and GPyTorch's."""
    X = torch.linspace(0.0, 10.0, 30, dtype=torch.float64)[:, None]
    scale = torch.tensor(0.7, dtype=torch.float64)
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = scale
    ours = _rbf(_squared(X, X), scale)[0]
    with torch.no_grad():
        return float((kernel(X).to_dense() - ours).abs().max())


def compiled(problem: Problem, *, batched: bool, way: str) -> Callable[[], Any]:
    """A function that returns bound and gradient."""
    return Peer(problem, batched=batched, way=way).value_and_gradient


def search(problem: Problem, *, way: str, evaluations: int) -> Callable[[], np.ndarray]:
    """Maximises every client's bound by torch's L-BFGS with a strong Wolfe search, as many evaluations.

    One optimiser for all clients: their sum separates, and a batch is what makes torch fast.
    """

    def run() -> np.ndarray:
        peer = Peer(problem, batched=True, way=way)
        optimizer = torch.optim.LBFGS(
            list(peer.learned.values()),
            max_iter=evaluations,
            max_eval=evaluations,
            history_size=10,
            line_search_fn="strong_wolfe",
            tolerance_grad=0.0,
            tolerance_change=0.0,
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = -peer.bound().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            return peer.bound().numpy()

    return run
