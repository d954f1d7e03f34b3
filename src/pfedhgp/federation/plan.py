"""What server and clients agree on before the first message."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pfedhgp.inference.parties import Inference
from pfedhgp.model.cycles import CycleChoice
from pfedhgp.model.spec import Spec


@dataclass(frozen=True)
class Plan:
    """The model, the solver and the budgets; a known `domain` (lower, upper) spares one exchange."""

    spec: Spec
    inference: Inference
    inducing: int | str = "auto"
    local_inducing: int | str = "auto"
    domain: tuple[np.ndarray, np.ndarray] | None = None
    scale_outputs: bool = True
    largest_inducing: int = 128
    largest_local_inducing: int = 200
    tolerance: float = 0.02
    restarts: int = 1
    seed: int = 0
    cycles: CycleChoice | None = None
    """A cycle layer, or none: then cycles are replicates with white residuals."""
