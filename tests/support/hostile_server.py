"""A server that lies: it lays inducing inputs on a site's rows, and reads them off, M in each exchange.

With ℓ → 0 the features of a row are 1 at its own inducing input and 0 elsewhere, for shared and local layers.
Then C is diagonal, U = diag(1/c) and y = y_i/c at the rows i that were asked about: y_i = y/U. The inputs are
known to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pfedhgp.federation.agreement import Agreement
from pfedhgp.federation.envelope import Envelope
from pfedhgp.federation.flower.site import Site
from pfedhgp.federation.messages import hash_arrays
from pfedhgp.inference.messages import Field
from pfedhgp.inference.starts.budget import box_points
from pfedhgp.inference.structured.traits import SUMS, Population, count_traits

TINY = 1e-8
HONEST = (0.2, 0.05, 0.3, 0.3, 0.1)
"""Starting scales that an honest server could send."""
RUN = "ab" * 16


@dataclass
class HostileServer:
    """Asks a site for all it can; `codes` are the site's refusals, by exchange."""

    site: Site
    terms: Agreement
    inputs: np.ndarray
    """The rows' inputs, which it knows"""
    run: str = RUN
    exchange: int = 0
    counted: int = 0
    codes: list[str] = field(default_factory=list)
    replies: list[dict[str, np.ndarray]] = field(default_factory=list)

    def ask(self, kind: str, number: int, arrays: dict[str, Any]) -> dict[str, np.ndarray]:
        """The arrays of the site's reply; none if it refuses."""
        sent = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
        self.exchange += 1
        request = Envelope(
            run=self.run,
            exchange=self.exchange,
            kind=kind,
            round=number,
            sender="server",
            arrays=sent,
            block=hash_arrays(sent),
            counted=self.counted,
            agreement=self.terms.to_json(),
        )
        reply = self.site.answer(request)
        self.codes.append(reply.code)
        if reply.code:
            self.exchange -= 1
            return {}
        self.counted = self.exchange
        self.replies.append(dict(reply.arrays))
        return self.replies[-1]

    def prepare(self) -> None:
        """Census and extent, as ever."""
        self.ask("census", 0, {})
        self.ask("extent", 0, {"centre": [0.5], "spread": [0.3]})

    def block(self, inputs: np.ndarray, **changes: Any) -> dict[str, Any]:
        """A broadcast: totals of nothing, a tiny lengthscale, these inducing inputs."""
        size, traits = len(inputs), count_traits(self.terms.plan.spec)
        unknown = Population.unknown(traits)
        return {
            "kernel": [TINY],
            "inputs": inputs,
            "loadings": [[1.0]],
            "phi": 0.1,
            "J": np.zeros((size, size)),
            "h": np.zeros(size),
            "jitter": 1e-8,
            "kernels_free": 0.0,
            "evaluations": 0.0,
            "derivatives": 0.0,
            "traits": np.zeros((SUMS, traits)),
            "traits_at": np.stack(unknown),
            **changes,
        }

    def opening(self, **changes: Any) -> dict[str, Any]:
        """What a start request has beside a broadcast."""
        scales = [0.2, TINY, 0.3, 0.3, 0.1]
        sides = {"lower": [0.0], "upper": [1.0], "centre": [0.0], "spread": [1.0]}
        return {"scales": scales, **sides, "attempt": 0.0, **changes}

    def honest(self, size: int, **changes: Any) -> dict[str, Any]:
        """A broadcast that an honest server could send at the start."""
        return self.block(box_points(size, 1), kernel=[0.2], **changes)

    def start(self, size: int) -> dict[str, np.ndarray]:
        """An honest start."""
        return self.ask("start", 0, {**self.honest(size), **self.opening(scales=HONEST)})

    def steal(self, size: int) -> np.ndarray:
        """The readings, `size` in each exchange; 0, the mean, where the site refused."""
        found = np.zeros(len(self.inputs))
        self.prepare()
        for number, first in enumerate(range(0, len(found), size)):
            some = slice(first, first + size)
            asked = self.block(self.inputs[some])
            if number:
                reply = self.ask("round", self.exchange - 2, asked)
            else:
                reply = self.ask("start", 0, {**asked, **self.opening()})
                if not reply:
                    self.start(size)
            if reply:
                found[some] = reply["y"] / np.diagonal(whole(reply["U"]))
        return found


def whole(packed: np.ndarray) -> np.ndarray:
    """A symmetric matrix from its triangle."""
    return Field("U", "M M", "", triangle="symmetric").unpack(packed)


def r_squared(truth: np.ndarray, guess: np.ndarray) -> float:
    """1 − Σ(y − ŷ)²/Σ(y − ȳ)²"""
    return 1.0 - float(np.sum((truth - guess) ** 2) / np.sum((truth - truth.mean()) ** 2))
