"""Inputs to the unit box and outputs to zero mean and unit variance, agreed from sums alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from pfedhgp.data.rows import ClientRows


@dataclass(frozen=True)
class Scaling:
    """x → (x − lower)/(upper − lower), y → (y − centre)/spread; one spread for all outputs, or one each."""

    lower: np.ndarray
    upper: np.ndarray
    centre: np.ndarray
    spread: np.ndarray

    def as_arrays(self) -> dict[str, np.ndarray]:
        """By name, as messages and files have them."""
        return dict(vars(self))

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> Scaling:
        """The inverse; other arrays may be among them."""
        return Scaling(*(arrays[field.name] for field in fields(Scaling)))

    @property
    def extent(self) -> np.ndarray:
        """upper − lower; 1 for an input that does not vary."""
        width = self.upper - self.lower
        return np.where(width > 0, width, 1.0)

    def inputs(self, X: np.ndarray) -> np.ndarray:
        return (X - self.lower) / self.extent

    def outputs(self, Y: np.ndarray) -> np.ndarray:
        return (Y - self.centre) / self.spread

    def rows(self, client: ClientRows) -> ClientRows:
        """All of a client's rows, with their scatter and whole cycles."""
        scatter, cycles = client.scatter, client.cycles
        if scatter is not None:
            spread = np.broadcast_to(self.spread, client.Y.shape[1:])
            scatter = scatter / spread[:, None] / spread[None, :]
        return replace(
            client,
            X=self.inputs(client.X),
            Y=self.outputs(client.Y),
            scatter=scatter,
            cycles=None if cycles is None else self.outputs(cycles),
        )
