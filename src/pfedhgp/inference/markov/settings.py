"""Settings of the Markov solver, which make its two parties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pfedhgp.base.checks import Check, flag, number, optional, whole
from pfedhgp.gp.kernels import Kernel
from pfedhgp.inference.markov.parties import MarkovClients
from pfedhgp.inference.markov.server import MarkovServer
from pfedhgp.inference.structured.averaging import Averaging
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows
from pfedhgp.model.spec import Spec

_SETTINGS: Mapping[str, Check] = {
    "rounds": whole(1),
    "evaluations": whole(1),
    "frozen_rounds": whole(0),
    "jitter": number(above=0.0),
    "patience": whole(0),
    "learn_shared": flag,
    "averaging": optional(flag),
}


@dataclass(frozen=True)
class Markov:
    """Settings of the Markov solver: shared functions at the rows' own times, in small messages.

    Example:
        >>> from pfedhgp import FederatedGP, Markov
        >>> model = FederatedGP(
        ...     inference=Markov(rounds=12),
        ...     kernel="matern12",
        ...     local="state-space",
        ...     local_kernel="matern12",
        ...     layers=("global", "local"),
        ...     client_loadings=True,
        ...     latents=4,
        ...     inducing=730,
        ... )
    """

    rounds: int = 15
    evaluations: int = 10
    frozen_rounds: int = 4
    """Rounds before local drifts move: else they would take what clients share."""
    jitter: float = 1e-8
    patience: int = 6
    learn_shared: bool = True
    """Whether the shared lengthscales move."""
    averaging: bool | None = True
    """Whether predictions average over a client's loadings, drift and noise."""

    name = "markov"
    start_is_round = False
    knows_bound = True
    learn_inducing = False

    def rounds_to_settle(self, spec: Spec) -> int:
        """Without drifts, every further shared function takes up a part of them, and seems to be needed."""
        return self.frozen_rounds

    def __post_init__(self) -> None:
        for name, check in _SETTINGS.items():
            object.__setattr__(self, name, check(getattr(self, name), name))

    def server(self, spec: Spec, block: GlobalBlock) -> MarkovServer:
        return MarkovServer(self, spec, block)

    def clients(self, spec: Spec, like: Kernel, blocks: ClientBlock, rows: Rows) -> MarkovClients:
        return MarkovClients(
            Structured(averaging=Averaging() if self.averaging else None, jitter=self.jitter),
            spec,
            like,
            blocks,
            rows,
        )
