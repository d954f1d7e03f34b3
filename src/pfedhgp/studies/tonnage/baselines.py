"""Other classifiers of whole cycles on the same split. Each returns class probabilities of new cycles.

They get each cycle as one flat row of numbers. Long cycles are first averaged over at most `MOST` stretches
per channel: a covariance of 4804 values would take minutes, and the curves are smooth enough.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
MOST = 121
KERNEL = 9
"""Weights in each MiniRocket-style kernel: six are −1 and three are 2."""


def thinned(cycles: FloatArray) -> FloatArray:
    """Cycles (C, Q, n) averaged over stretches of equal length; the last one may be shorter."""
    n = cycles.shape[2]
    starts = np.arange(0, n, max(1, -(-n // MOST)))
    sums = np.add.reduceat(cycles, starts, axis=2)
    return np.asarray(sums / np.diff(np.append(starts, n)))


def lda(train: FloatArray, labels: FloatArray, new: FloatArray) -> FloatArray:
    """Linear discriminant analysis with Ledoit–Wolf shrinkage."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    return model.fit(_flat(train), labels).predict_proba(_flat(new))


def plain_lda(train: FloatArray, labels: FloatArray, new: FloatArray) -> FloatArray:
    """Linear discriminant analysis without shrinkage, by singular values."""
    import warnings

    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # variables are collinear: that is what it is here for
        return LinearDiscriminantAnalysis().fit(_flat(train), labels).predict_proba(_flat(new))


def pca_ridge(train: FloatArray, labels: FloatArray, new: FloatArray) -> FloatArray:
    """Principal components (99% of the variance), then a ridge classifier."""
    from sklearn.decomposition import PCA
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(
        StandardScaler(), PCA(0.99, random_state=0), RidgeClassifierCV(np.geomspace(1e-3, 1e3, 13))
    )
    return _shares(model.fit(_flat(train), labels).decision_function(_flat(new)))


def nearest(train: FloatArray, labels: FloatArray, new: FloatArray) -> FloatArray:
    """The class of the nearest training cycle, channels standardised."""
    from sklearn.neighbors import KNeighborsClassifier

    centre, spread = train.mean(axis=(0, 2)), train.std(axis=(0, 2)) + 1e-12
    one, two = ((part - centre[:, None]) / spread[:, None] for part in (train, new))
    return KNeighborsClassifier(1).fit(_flat(one), labels).predict_proba(_flat(two))


def minirocket(train: FloatArray, labels: FloatArray, new: FloatArray) -> FloatArray:
    """Shares of positive values after fixed kernels at several dilations, then a ridge classifier.

    In the style of MiniRocket (Dempster and others, 2021). Biases are quantiles of the output for a training
    cycle. Each kernel at each dilation sees the sum of two random channels.
    """
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    centre, spread = train.mean(axis=(0, 2)), train.std(axis=(0, 2)) + 1e-12
    one, two = ((part - centre[:, None]) / spread[:, None] for part in (train, new))
    features = _rocket(one, two)
    model = make_pipeline(StandardScaler(), RidgeClassifierCV(np.geomspace(1e-3, 1e3, 13)))
    return _shares(model.fit(features[0], labels).decision_function(features[1]))


BASELINES: dict[str, Callable[[FloatArray, FloatArray, FloatArray], FloatArray]] = {
    "lda": lda,
    "plain lda": plain_lda,
    "pca+ridge": pca_ridge,
    "1-nn": nearest,
    "minirocket-style": minirocket,
}
LABELS_ONLY = frozenset({"1-nn"})
"""These return a class without a probability, so they have no log-loss and no ECE."""


def _rocket(train: FloatArray, new: FloatArray) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(0)
    n = train.shape[2]
    dilations = [d for d in (1, 2, 4, 8, 16) if d * (KERNEL - 1) < n]
    out: tuple[list[FloatArray], list[FloatArray]] = ([], [])
    both = np.concatenate([train, new])
    for dilation in dilations:
        pad = dilation * (KERNEL // 2)
        padded = np.pad(both, ((0, 0), (0, 0), (pad, pad)))
        windows = [padded[:, :, j * dilation : j * dilation + n] for j in range(KERNEL)]
        total = -np.sum(windows, axis=0)  # weights −1 everywhere; three places get 3 more
        for places in combinations(range(KERNEL), 3):
            pair = rng.choice(both.shape[1], min(2, both.shape[1]), replace=False)
            seen = sum(3.0 * windows[j][:, pair] for j in places) + total[:, pair]
            value = seen.sum(axis=1)
            biases = np.quantile(value[rng.integers(len(train))], rng.uniform(0.1, 0.9, 3))
            for bias in biases:
                share = np.mean(value > bias, axis=1)
                out[0].append(share[: len(train)])
                out[1].append(share[len(train) :])
    return np.stack(out[0], axis=1), np.stack(out[1], axis=1)


def _flat(cycles: FloatArray) -> FloatArray:
    return cycles.reshape(len(cycles), -1)


def _shares(decision: FloatArray) -> FloatArray:
    """Softmax of a ridge classifier's decision values: good for ranking, but not calibrated."""
    if decision.ndim == 1:
        decision = np.stack([-decision, decision], axis=1)
    from scipy.special import softmax

    return np.asarray(softmax(decision, axis=1))
