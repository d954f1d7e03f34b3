"""Settings of the structured solver, which make its two parties.

A round is one exchange. The server broadcasts θ_g, B_g, φ, ΣJ and Σh; each client improves its own block
on its cavity bound and returns its sums; the server then takes the exact step in B_g, a Newton step in
θ_g, and the closed form for φ. Kernels are held for the first rounds, while loadings and noise find
their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pfedhgp.base.checks import Check, auto_or, flag, number, optional, refusal, whole
from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference.structured.averaging import Averaging
from pfedhgp.inference.structured.clients import StructuredClients
from pfedhgp.inference.structured.server import StructuredServer
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows
from pfedhgp.model.spec import Spec

__all__ = ["Structured", "StructuredClients", "StructuredServer"]


def _averaging(value: Any, name: str) -> Averaging:
    if not isinstance(value, Averaging):
        raise refusal(name, "Averaging(...)", value)
    return value


_SETTINGS: Mapping[str, Check] = {
    "rounds": whole(1),
    "evaluations": whole(1),
    "first_evaluations": whole(1),
    "frozen_rounds": whole(0),
    "radius": number(above=0.0),
    "largest_radius": number(above=0.0),
    "learn_inducing": auto_or(flag),
    "averaging": optional(_averaging),
    "jitter": number(above=0.0),
    "chunk": whole(1),
    "patience": whole(0),
    "probes": whole(0),
    "learn_shared": flag,
}
SETTLING_LOADINGS = 5
"""Rounds before models whose clients mix shared functions are compared."""


@dataclass(frozen=True)
class Structured:
    """Settings of the structured solver, the default.

    Example:
        >>> from pfedhgp import FederatedGP, Structured
        >>> model = FederatedGP(inference=Structured(evaluations=80, frozen_rounds=4))
    """

    rounds: int = 10
    evaluations: int = 40
    first_evaluations: int = 60
    frozen_rounds: int = 2
    radius: float = 0.3
    largest_radius: float = 0.8
    learn_inducing: bool | str = False
    """Whether Z_i and Z_g move while training; "auto": where the budgets given are much too small."""
    averaging: Averaging | None = field(default_factory=Averaging)
    """Whether, and how, predictions average over a client's parameters."""
    jitter: float = 1e-8
    chunk: int = 1024
    patience: int = 4
    probes: int = 0
    """More than 0: clients search at the broadcast q(v_g), its spread by this many random columns, and not on
    the cavity bound. For long series with state-space local layers and no deviation: see `long_series`."""
    learn_shared: bool = True
    """Whether θ_g moves. If not, kernels of the global layer stay as given; B_g and φ are learned."""

    name = "structured"
    start_is_round = False
    knows_bound = True

    def __post_init__(self) -> None:
        for name, check in _SETTINGS.items():
            object.__setattr__(self, name, check(getattr(self, name), name))

    def rounds_to_settle(self, spec: Spec) -> int:
        """Loadings of clients' own start from random draws, and take rounds to agree on functions."""
        return SETTLING_LOADINGS if spec.client_loadings else 0

    def server(self, spec: Spec, block: GlobalBlock) -> StructuredServer:
        return StructuredServer(self, spec, block)

    def clients(
        self, spec: Spec, like: Kernel, blocks: ClientBlock, rows: Rows
    ) -> StructuredClients:
        return StructuredClients(self, spec, like, blocks, rows)
