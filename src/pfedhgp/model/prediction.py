"""Predictions in the data's own units: mean, sd, covariances, samples, and each layer on its own.

    p = predict(model, "Dongsi", X)
    p.mean, p.sd                        # (n, Q); sd is that of an observation, noise included
    p.covariance("joint")               # (nQ, nQ), made only when asked for
    p.layers["deviation"].sd            # of the function, without noise

Rows go through in chunks, so that memory is O(chunk), not O(n M), but for "joint" and samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from pfedhgp.base.checks import flag, number, one_of, optional, refusal, whole
from pfedhgp.base.numerics import with_numerics
from pfedhgp.errors import InputError
from pfedhgp.model.at_inputs import AtInputs, Kind
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.predictor import LAYERS

__all__ = ["Layer", "Prediction", "far_outside", "predict", "reach_of"]

FloatArray = npt.NDArray[np.float64]
FAR = 0.1


@dataclass(frozen=True, eq=False, repr=False)
class Layer:
    """One layer of a prediction, without noise: `mean` and `sd` are (n, Q), or (n,) if y was (n,) in the fit.

    The layers' means add up to the prediction's (the outputs' centre, on which all clients agreed,
    is in the global one). Their variances do not: layers are anti-correlated, because what one
    explains the others need not, and together they can be several times the total's.
    """

    mean: FloatArray
    sd: FloatArray
    _view: AtInputs
    _name: str

    def covariance(self, kind: Kind = "outputs") -> FloatArray:
        """(n, Q, Q), one block per input, or "joint": (nQ, nQ) with cell (n, q) at n·Q + q."""
        return self._view.covariance(self._name, self._name, kind)

    def __repr__(self) -> str:
        return f"Layer({self._name!r}, shape={self.mean.shape})"


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """What one client is predicted to observe at n inputs: `mean` and `sd` (n, Q), sd WITH noise.

    If y was (n,) for all clients of the fit, or `outputs` one name, `mean`, `sd`, `interval`, `sample` and
    layers have no last axis: (n,) instead of (n, 1). Covariances keep theirs.

    With a cycle layer, noise is what a NEW cycle adds to the client's function: sd, covariances, intervals
    and samples are those of one more cycle, its cells correlated over the inputs and between outputs.

    `layers` has "global", "deviation" and "local", each WITHOUT noise. Layer variances do not add
    up to the total's: layers are anti-correlated (see `Layer`); `cross_covariance` says how much.

    `known` is False for a client that the model has not seen. Such a prediction is the
    population's: the global layer's mean, and the variance of the global layer (with the error in
    its split from the deviations, see `pfedhgp.model.undetermined`), of a typical deviation, of a
    typical local layer and of the mean noise. Between inputs its deviation is correlated by the
    mean of the global kernels, and its local layer by the local kernel of a typical client. (Older model
    files and mean-field do not know that kernel: there the local layer is uncorrelated between
    different inputs, and samples are rougher than the truth.)
    """

    client: str
    known: bool
    mean: FloatArray
    sd: FloatArray
    layers: Mapping[str, Layer]
    _view: AtInputs
    _flat: bool = False

    def flat(self) -> Prediction:
        """The same without the axis of outputs, of which there is one."""
        layers = {
            name: replace(layer, mean=layer.mean[:, 0], sd=layer.sd[:, 0])
            for name, layer in self.layers.items()
        }
        return replace(
            self,
            mean=self.mean[:, 0],
            sd=self.sd[:, 0],
            layers=MappingProxyType(layers),
            _flat=True,
        )

    def __repr__(self) -> str:
        rows, outputs = len(self.mean), self.mean.size // max(len(self.mean), 1)
        return f"Prediction({self.client!r}, rows={rows}, outputs={outputs}, known={self.known})"

    def covariance(self, kind: Kind = "outputs", *, noise: bool = True) -> FloatArray:
        """(n, Q, Q), one block per input, or "joint": (nQ, nQ) with cell (n, q) at n·Q + q.

        Noise is in unless `noise=False`; it belongs to a row: in "joint", to the diagonal blocks. With a
        cycle layer, the covariance of one new cycle is in with it, in all blocks.
        """
        cov = self._view.covariance("total", "total", kind)
        return self._view.with_noise(cov, kind) if flag(noise, "noise") else cov

    def cross_covariance(self, first: str, second: str, kind: Kind = "outputs") -> FloatArray:
        """Cov(f_first(x)_q, f_second(x)_p) of two layers, (n, Q, Q) or "joint"; without noise."""
        for name, value in (("first", first), ("second", second)):
            one_of(*LAYERS)(value, name)
        return self._view.covariance(first, second, kind)

    def interval(self, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """(lower, upper), each as the mean: they hold an observation between them with this chance."""
        reach = reach_of(level) * self.sd
        return self.mean - reach, self.mean + reach

    def sample(
        self, count: int, *, seed: int | np.random.Generator, noise: bool = True
    ) -> FloatArray:
        """(count, n, Q): joint draws of observations; of the function with `noise=False`.

        (count, n) if the mean is (n,). With a cycle layer each draw is one new cycle.
        """
        if not isinstance(seed, np.random.Generator):
            seed = np.random.default_rng(whole(0)(seed, "seed"))
        found = self._view.draw(whole(0)(count, "count"), seed, flag(noise, "noise"))
        return found[..., 0] if self._flat else found


def reach_of(level: float) -> float:
    """How many sds an interval of this level reaches to both sides."""
    if not number(above=0.0)(level, "level") < 1.0:
        raise refusal("level", "between 0 and 1", level)
    return float(ndtri(0.5 * (1.0 + level)))


@with_numerics
def predict(
    model: FittedModel,
    client: str,
    X: npt.ArrayLike,
    *,
    chunk: int | None = None,
    device: str | None = None,
) -> Prediction:
    """Predicts `client` at X (n, d), in the data's own units.

    `chunk` rows are worked on at a time, by default as many as fit a fixed amount of memory. `device` is
    "cpu", "gpu" or, by default, JAX's choice; covariances and samples are computed there too, later.
    """
    chunk = optional(whole(1))(chunk, "chunk")
    view = AtInputs.of(model, client, _inputs(X, model.inputs), chunk, device)
    means, variances = view.marginals()
    layers = {name: Layer(means[name], np.sqrt(variances[name]), view, name) for name in LAYERS}
    return Prediction(
        client=client,
        known=view.predictor.known,
        mean=means["total"],
        sd=np.sqrt(variances["total"] + view.noise_variances()),
        layers=MappingProxyType(layers),
        _view=view,
    )


def far_outside(X_scaled: FloatArray) -> npt.NDArray[np.bool_]:
    """Which rows are beyond the agreed domain, [0, 1] when scaled, by more than a tenth in any input."""
    return np.any((X_scaled < -FAR) | (X_scaled > 1.0 + FAR), axis=1)


def _inputs(X: npt.ArrayLike, inputs: int) -> FloatArray:
    try:
        array = np.asarray(X, np.float64)
    except (TypeError, ValueError):
        raise InputError("`X` must be a table of numbers") from None
    if array.ndim != 2 or array.shape[1] != inputs:
        raise InputError(f"`X` must have shape (rows, {inputs}), got {array.shape}")
    bad = np.flatnonzero(~np.all(np.isfinite(array), axis=1))
    if len(bad):
        raise InputError(f"`X` is not finite in row {bad[0]}")
    return array
