"""What crosses in a private run between machines: one release up, and the shared function down.

A site sends `gram`, `linear` and `scales` once. It gets the parameters of each output's shared function, its
moments by all releases, and its moments by the others' releases, against which it fits its own layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pfedhgp.federation.envelope import Refused
from pfedhgp.federation.message_checks import Expected, Sent
from pfedhgp.federation.private_fit import sent
from pfedhgp.inference.messages import FINITE, POSITIVE
from pfedhgp.privacy.release import NoiseScales, PublicBasis, Release
from pfedhgp.privacy.shared_function import SharedFunction
from pfedhgp.privacy.twin import Found, Parameters

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Shapes:
    """The shapes of both messages: all of them public."""

    public: PublicBasis
    outputs: int

    def of_release(self) -> Expected:
        Q, M = self.outputs, len(self.public.inputs)
        gram = Sent((Q, M * (M + 1) // 2), FINITE)
        return {"gram": gram, "linear": Sent((Q, M), FINITE), "scales": Sent((2,), POSITIVE)}

    def of_delivery(self) -> Expected:
        Q, (M, d) = self.outputs, self.public.inputs.shape
        moments = {"mean": Sent((Q, M), FINITE), "covariance": Sent((Q, M, M), FINITE)}
        return {
            "parameters": Sent((Q, d + 4), FINITE),
            **moments,
            **{f"others.{name}": each for name, each in moments.items()},
            "evidence": Sent((), FINITE),
            "clients": Sent((), POSITIVE),
        }


def release_arrays(release: Release) -> dict[str, np.ndarray]:
    return {**sent(release), "scales": np.array(release.scales)}


def read_release(arrays: Arrays) -> Release:
    """The inverse; arrays were checked."""
    Q, M = arrays["linear"].shape
    rows, columns = np.tril_indices(M)
    gram = np.zeros((Q, M, M))
    gram[:, rows, columns] = arrays["gram"]
    gram[:, columns, rows] = arrays["gram"]
    return Release(gram, arrays["linear"], NoiseScales(*map(float, arrays["scales"])))


def delivery_arrays(shared: SharedFunction, client: int | None) -> dict[str, np.ndarray]:
    """For the site with this number among the releases; None: it has no part in them."""
    others = shared.moments(client)
    found = {
        "parameters": np.stack([each.to_log() for each in shared.parameters]),
        "mean": np.stack([each.mean for each in shared.found]),
        "covariance": np.stack([each.covariance for each in shared.found]),
        "others.mean": np.stack([mean for mean, _ in others]),
        "others.covariance": np.stack([covariance for _, covariance in others]),
        "evidence": np.asarray(shared.evidence),
        "clients": np.asarray(float(len(shared.found[0].J))),
    }
    return {name: np.asarray(array, np.float64) for name, array in found.items()}


def read_delivery(public: PublicBasis, arrays: Arrays, prefix: str = "") -> SharedFunction:
    """The shared function by all releases, or with "others." by the others'."""
    parameters = tuple(Parameters.from_log(each) for each in arrays["parameters"])
    mean, covariance = arrays[f"{prefix}mean"], arrays[f"{prefix}covariance"]
    M = len(public.inputs)
    nobody = (np.zeros((0, M, M)), np.zeros((0, M)))
    evidence = float(arrays["evidence"]) / len(parameters)
    found = tuple(Found(m, S, *nobody, evidence) for m, S in zip(mean, covariance, strict=True))
    for each in found:
        if np.min(np.linalg.eigvalsh(each.covariance)) < -1e-6 * np.trace(each.covariance):
            raise Refused("out-of-range", "a covariance is not one")
    return SharedFunction(public, parameters, found)
