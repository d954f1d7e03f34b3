"""How server and clients agree on a cycle layer: one exchange of sums, or a few if cells are missing.

The server says on which basis. Clients send their sums over cycles (`CycleSums`) in two halves. The server
fits (Ψ, Σ_ε) to the total and broadcasts the layer with the start of training. If cycles lack cells, the
clients' sums are expected ones under the layer of the request (EM), and the server asks again until the
layer no longer changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pfedhgp.base.choices import FORMS
from pfedhgp.errors import InputError
from pfedhgp.inference.cycles.forms import Halves, choose_form, estimate, mixed
from pfedhgp.inference.cycles.scatter import CycleSums, halves_of
from pfedhgp.inference.protocols import Arrays
from pfedhgp.inference.starts import budget
from pfedhgp.inference.starts.census import Scales
from pfedhgp.model.cycle_layer import CycleBasis, CycleChoice, CycleLayer

LARGEST_BASIS, SMALLEST_BASIS = 81, 8
EM_ITERATIONS = 12
EM_TOLERANCE = 0.01
"""Relative change of the layer's variances at which EM ends."""


def basis_size(scales: Scales, dimensions: int, rows: float) -> int:
    """Spacing at most half the census's short scale, and no more than two thirds of a client's rows."""
    wanted = int(np.ceil((1.0 + 2.0 / scales.short) ** dimensions))
    most = max(min(LARGEST_BASIS, int(rows * 2 / 3)), 2)
    return int(np.clip(wanted, min(SMALLEST_BASIS, most), most))


@dataclass
class CycleServer:
    """The server's side: `request`, `gather`, until `done`."""

    choice: CycleChoice
    noise: str
    layer: CycleLayer
    done: bool = False
    cycles: float = 0.0
    """How many cycles a client has on average."""
    evidence: dict[str, float] = field(default_factory=dict)
    """Held-out evidence of each form, where the form was to be chosen."""
    iterations: int = 0

    @staticmethod
    def start(
        choice: CycleChoice, *, noise: str, outputs: int, inputs: int, rows: float, scales: Scales
    ) -> CycleServer:
        size = basis_size(scales, inputs, rows) if choice.basis == "auto" else int(choice.basis)
        basis = CycleBasis.on(budget.box_points(size, inputs))
        spread = (scales.noise_variance + scales.short_variance) * np.eye(outputs)
        white = CycleLayer(basis, np.zeros((outputs * size, 0)), spread, "white")
        return CycleServer(choice, noise, white)

    def request(self) -> dict[str, np.ndarray]:
        return layer_to_arrays(self.layer)

    def progress(self) -> dict[str, Any]:
        """How far the exchange has come, without the layer: its part of a checkpoint."""
        return {
            "settled": self.done,
            "cycles": self.cycles,
            "evidence": self.evidence,
            "turn": self.iterations,
        }

    @staticmethod
    def resumed(
        choice: CycleChoice, noise: str, layer: CycleLayer, progress: Mapping[str, Any]
    ) -> CycleServer:
        """The server as far as it had come, from `progress`."""
        done, iterations = bool(progress["settled"]), int(progress["turn"])
        cycles, evidence = float(progress["cycles"]), dict(progress["evidence"])
        return CycleServer(choice, noise, layer, done, cycles, evidence, iterations)

    def gather(self, sums: Arrays, clients: int) -> None:
        """Fits the layer to the clients' sums."""
        halves = CycleSums.from_arrays(sums, "first."), CycleSums.from_arrays(sums, "rest.")
        if halves[0].freedom + halves[1].freedom <= 0:
            raise InputError(
                "a cycle layer needs a client with at least two cycles: use cycles='white'"
            )
        self.iterations += 1
        self.cycles = float(sums["cycles"]) / clients
        before = _variances(self.layer)
        form = self._form(halves)
        self.layer = estimate(halves, self.layer.basis, form=form, noise=self.noise)
        change = np.max(np.abs(np.log(_variances(self.layer) / before)))
        complete = float(sums["incomplete"]) == 0
        self.done = complete or self.iterations >= EM_ITERATIONS or bool(change < EM_TOLERANCE)

    def _form(self, halves: Halves) -> str:
        if self.choice.form != "auto":
            return self.choice.form
        form, self.evidence = choose_form(halves, self.layer.basis, noise=self.noise)
        return form


def reply(
    X: np.ndarray, cycles: np.ndarray, arrays: Arrays
) -> tuple[dict[str, np.ndarray], Halves]:
    """A client's answer to a `cycles` request, and the sums that it keeps; all in scaled units."""
    layer = layer_from_arrays(arrays)
    halves = halves_of(X, cycles, layer.basis, layer)
    lacking = (~np.isfinite(cycles)).any(axis=(1, 2)).sum()
    arrays_up = {
        **halves[0].as_arrays("first."),
        **halves[1].as_arrays("rest."),
        "cycles": np.asarray(float(len(cycles))),
        "incomplete": np.asarray(float(lacking)),
    }
    return arrays_up, halves


def own_layer(choice: CycleChoice, shared: CycleLayer, halves: Halves, noise: str) -> CycleLayer:
    """A client's own layer: the shared one, its own, or a shrunk mix; the shared one with a single cycle."""
    if choice.sharing == "shared" or halves[0].freedom + halves[1].freedom <= 0:
        return shared
    if choice.sharing == "client":
        return estimate(halves, shared.basis, form=shared.form, noise=noise)
    return mixed(halves, shared, form=shared.form, noise=noise)[0]


def layer_to_arrays(layer: CycleLayer) -> dict[str, np.ndarray]:
    """Basis, factor of Ψ, Σ_ε, form and worth, as they travel."""
    return {
        "cycle_inputs": np.asarray(layer.basis.inputs, np.float64),
        "cycle_factor": np.asarray(layer.factor, np.float64),
        "cycle_noise": np.asarray(layer.noise, np.float64),
        "cycle_form": np.asarray(float(FORMS.index(layer.form))),
        "cycle_worth": np.asarray(float(layer.worth)),
    }


def layer_from_arrays(arrays: Arrays) -> CycleLayer:
    """The inverse."""
    basis = CycleBasis.on(arrays["cycle_inputs"])
    form = FORMS[int(arrays["cycle_form"])]
    worth = float(arrays.get("cycle_worth", 0.0))  # checkpoints of earlier versions have none
    return CycleLayer(basis, arrays["cycle_factor"], arrays["cycle_noise"], form, worth)


def _variances(layer: CycleLayer) -> np.ndarray:
    """The variances of the layer and of the noise, output by output."""
    power = np.sum(layer.factor**2, axis=1).reshape(layer.outputs, -1).mean(1)
    return np.concatenate([power + 1e-12, np.diagonal(layer.noise)])
