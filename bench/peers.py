"""Other libraries' Gaussian processes on the same clients, as their own examples use them.

scikit-learn and GPyTorch fit an exact process to each client and output (nothing is shared); for many rows
GPyTorch fits one sparse process (SVGP) to the rows of all clients. Outputs are scaled to mean 0 and sd 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.federations import Federation

Predict = Callable[[str, np.ndarray], tuple[np.ndarray, np.ndarray]]
Single = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Mean and sd of one output in scaled units."""
ADAM_STEPS = 100
SVGP_STEPS, SVGP_BATCH, SVGP_INPUTS = 2000, 1024, 100


def each_alone(
    fit: Callable[[np.ndarray, np.ndarray], Single],
) -> Callable[[Federation], Predict]:
    """Fits every output of every client by itself."""

    def fit_all(data: Federation) -> Predict:
        found: dict[str, list[tuple[Single, float, float]]] = {}
        for name, (X, Y) in data.train.items():
            centres, scales = Y.mean(0), Y.std(0)
            found[name] = [
                (fit(X, (y - c) / s), c, s) for y, c, s in zip(Y.T, centres, scales, strict=True)
            ]
        return lambda name, X: _stacked(found[name], X)

    return fit_all


def _stacked(found: list[tuple[Single, float, float]], X: np.ndarray) -> tuple:
    moments = [(single(X), c, s) for single, c, s in found]
    means = [c + s * mean for (mean, _), c, s in moments]
    return np.stack(means, 1), np.stack([s * sd for (_, sd), _, s in moments], 1)


def scikit_learn() -> Callable[[Federation], Predict]:
    """A constant times an RBF plus white noise, by maximum likelihood."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    def fit(X: np.ndarray, y: np.ndarray) -> Single:
        wide = float(np.ptp(X))
        kernel = ConstantKernel() * RBF(0.1 * wide, (1e-3 * wide, 10.0 * wide)) + WhiteKernel(0.1)
        model = GaussianProcessRegressor(kernel).fit(X, y)
        return lambda at: model.predict(at, return_std=True)

    return each_alone(fit)


def gpytorch_exact() -> Callable[[Federation], Predict]:
    """The same model by 100 steps of Adam, in float64."""
    import gpytorch
    import torch

    class Exact(gpytorch.models.ExactGP):
        def __init__(self, X: Any, y: Any, likelihood: Any) -> None:
            super().__init__(X, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            self.covar_module.base_kernel.lengthscale = 0.1 * float(X.max() - X.min())

        forward = _forward

    def fit(X: np.ndarray, y: np.ndarray) -> Single:
        rows, target = torch.as_tensor(X), torch.as_tensor(y)
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        model = Exact(rows, target, likelihood).double()
        bound = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        _adam(model.parameters(), lambda: -bound(model(rows), target), ADAM_STEPS, 0.1)
        return _prediction(model, likelihood)

    return each_alone(fit)


def gpytorch_svgp() -> Callable[[Federation], Predict]:
    """One sparse variational process of all clients' rows: batches of 1,024, 100 inducing inputs."""
    import gpytorch
    import torch

    class Sparse(gpytorch.models.ApproximateGP):
        def __init__(self, Z: Any) -> None:
            posterior = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
            super().__init__(gpytorch.variational.VariationalStrategy(self, Z, posterior))
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        forward = _forward

    def fit(X: np.ndarray, y: np.ndarray) -> Single:
        torch.manual_seed(0)
        rows, target = torch.as_tensor(X), torch.as_tensor(y)
        Z = rows[torch.linspace(0, len(rows) - 1, min(SVGP_INPUTS, len(rows))).long()].clone()
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        model = Sparse(Z).double()
        bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(rows))

        def loss() -> Any:
            some = torch.randint(len(rows), (min(SVGP_BATCH, len(rows)),))
            return -bound(model(rows[some]), target[some])

        _adam([*model.parameters(), *likelihood.parameters()], loss, SVGP_STEPS, 0.01)
        return _prediction(model, likelihood)

    return lambda data: pooled(fit, data)


def _forward(self: Any, X: Any) -> Any:
    from gpytorch.distributions import MultivariateNormal

    return MultivariateNormal(self.mean_module(X), self.covar_module(X))


def pooled(fit: Callable[[np.ndarray, np.ndarray], Single], data: Federation) -> Predict:
    """One fit for all clients, an output at a time."""
    X = np.concatenate([rows for rows, _ in data.train.values()])
    Y = np.concatenate([outputs for _, outputs in data.train.values()])
    order = np.argsort(X[:, 0])
    one = each_alone(fit)(Federation({"all": (X[order], Y[order])}, {}))
    return lambda name, at: one("all", at)


def _adam(parameters: Any, loss: Callable[[], Any], steps: int, rate: float) -> None:
    import torch

    optimizer = torch.optim.Adam(list(parameters), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()


def _prediction(model: Any, likelihood: Any) -> Single:
    import torch

    model.eval()
    likelihood.eval()

    def predict(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad():
            found = likelihood(model(torch.as_tensor(at)))
            return found.mean.numpy(), found.variance.sqrt().numpy()

    return predict


FITS: Mapping[str, Callable[[], Callable[[Federation], Predict]]] = {
    "scikit-learn": scikit_learn,
    "GPyTorch": gpytorch_exact,
    "GPyTorch SVGP": gpytorch_svgp,
}
"""A call imports the library and gives the function that fits."""
