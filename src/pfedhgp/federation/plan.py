"""What server and clients agree on before the first message."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pfedhgp.base.choices import NO_PRIVACY
from pfedhgp.diagnosis.federated.terms import Terms
from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference.protocols import Inference
from pfedhgp.model.codec import kernel_to_json, plain_json
from pfedhgp.model.cycle_layer import CycleChoice
from pfedhgp.model.spec import Spec
from pfedhgp.settings.table import ModelSettings

LARGEST_INDUCING = 256
"""The most global inducing inputs of an automatic budget, unless the plan says otherwise."""


@dataclass(frozen=True)
class Plan:
    """The model, the solver and the budgets; a known `domain` (lower, upper) saves one exchange."""

    spec: Spec
    inference: Inference
    inducing: int | str = "auto"
    local_inducing: int | str = "auto"
    domain: tuple[np.ndarray, np.ndarray] | None = None
    scale_outputs: bool = True
    largest_inducing: int | None = None
    """The most that "auto" takes; None: 256, or 128 if there are many outputs."""
    largest_local_inducing: int = ModelSettings.largest_local_inducing
    tolerance: float = ModelSettings.tolerance
    restarts: int = 1
    seed: int = 0
    cycles: CycleChoice | None = None
    """A cycle layer; None: cycles are replicates with white residuals."""
    masks: bool = False
    """The server gets totals alone: see `federation.masks`."""
    privacy: str = NO_PRIVACY
    """"sums": the server asks for no more than clients tell without giving rows away: see `telling`."""
    robust: str = "off"
    """How replies that do not fit the others' are treated: "test", "clip" or "off" (`federation.robust`)."""
    diagnosis: Terms | None = None
    """Sites also train a classifier of their cycles together."""
    specs: tuple[Spec, ...] = ()
    """Models with different kernels, of which training chooses one; `spec` is the first. None: no choice."""
    ranks: tuple[tuple[int, int], ...] = ()
    """Pairs (latents, local latents) of which training chooses one; those of `spec` are the first."""

    @property
    def learn_inducing(self) -> bool | str:
        """Whether inducing inputs move: "auto" if the server decides; never if the inference has no say."""
        return getattr(self.inference, "learn_inducing", False)

    def to_json(self) -> dict[str, Any]:
        """Every choice by its name: two plans are the same if these are."""
        choices = _fields_of(self.spec)
        others = {f.name for f in fields(self)} - {"spec", "specs", "ranks", "diagnosis"}
        choices |= {f.name: getattr(self, f.name) for f in fields(self) if f.name in others}
        settings: Any = self.inference
        choices["inference"] = {"name": self.inference.name, **asdict(settings)}
        plain = {name: _plain(value, name) for name, value in choices.items()}
        if self.diagnosis is not None:
            plain["diagnosis"] = _plain(self.diagnosis, "diagnosis")
        if self.specs:
            plain["specs"] = [
                {name: _plain(value, name) for name, value in _fields_of(spec).items()}
                for spec in self.specs
            ]
        return plain | ({"ranks": [list(pair) for pair in self.ranks]} if self.ranks else {})

    @property
    def chooses(self) -> bool:
        """Whether training chooses among several models."""
        return bool(self.specs or self.ranks)

    @cached_property
    def candidates(self) -> tuple[Spec, ...]:
        """The models that training chooses from, by number: each kernel with the first pair of `ranks`, then
        with the second, and so on; the one model if there is no choice."""
        kernels = self.specs or (self.spec,)
        if not self.ranks:
            return kernels
        return tuple(
            replace(spec, latents=shared, local_latents=local)
            for shared, local in self.ranks
            for spec in kernels
        )


def _fields_of(spec: Spec) -> dict[str, Any]:
    return {f.name: getattr(spec, f.name) for f in fields(spec)}


def _plain(value: Any, name: str) -> Any:
    if is_dataclass(value) and not isinstance(value, Kernel | type):
        value = asdict(value)
    if not isinstance(value, Kernel):
        return plain_json(value, name, strict=True)
    tree, arrays = kernel_to_json(value, "")
    return {"tree": tree, "arrays": plain_json(arrays, name, strict=True)}
