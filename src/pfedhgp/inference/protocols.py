"""What an inference is to the federation: settings that make the server's party and the clients'.

Every inference has the same calls, so that server, groups and engines do not know which one they carry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pfedhgp.gp.kernels import Kernel
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows
from pfedhgp.model.kept_sums import KeptSums
from pfedhgp.model.posterior import ClientPosterior, GlobalPosterior, Population
from pfedhgp.model.spec import Spec

if TYPE_CHECKING:
    from pfedhgp.inference.arrays import State

Arrays = Mapping[str, np.ndarray]


class ServerParty(Protocol):
    """The global block in training."""

    jitter: float
    bounds: list[float]

    @property
    def block(self) -> GlobalBlock: ...

    def request(self) -> dict[str, np.ndarray]:
        """The arrays of the next broadcast."""

    def gather(self, sums: Arrays) -> float | None:
        """Takes the clients' summed replies; returns the bound if it is known."""

    def advance(self, inputs: np.ndarray | None = None) -> None:
        """Moves the block for the next round; to other inducing inputs if given."""

    def finish(self) -> GlobalPosterior:
        """The last step, and q(v_g)."""

    def population(self) -> Population | None:
        """What a client is like on average, if the replies say so."""

    def shared_nats(self) -> float:
        """What the global inducing inputs cost, in nats per client; 0 if it is not known."""

    def state(self) -> State:
        """All that the next exchange depends on, but for the settings: the server's part of a checkpoint."""

    def restore(self, state: State) -> None:
        """Puts back what `state` gave, into a party that was made with the same settings."""


class ClientParty(Protocol):
    """A batch of clients in training."""

    blocks: ClientBlock
    jitter: np.ndarray
    local_nats: np.ndarray | None

    def answer(
        self, arrays: Arrays, kind: str, names: tuple[str, ...]
    ) -> list[dict[str, np.ndarray]]:
        """The replies to a broadcast, one for each client."""

    def forget_last_reply(self, stays: np.ndarray | None = None) -> None:
        """The clients' last reply is not in the totals that come next: they were away, or left out.

        `stays` is true for those of the batch whose reply is.
        """

    def replace_inputs(self, inputs: list[np.ndarray | None]) -> None:
        """Gives clients other local inducing inputs; None leaves a client's as they are."""

    def residual_cost(self) -> np.ndarray | None:
        """The nats that a mean residual of 1 would cost each client's local layer, at most.

        None, or NaN for a client: it keeps its inducing inputs, however many they are.
        """

    def posteriors(self, shared: GlobalPosterior, jitter: float) -> list[ClientPosterior]:
        """What each client keeps for prediction."""

    def kept(
        self, shared: GlobalPosterior, jitter: float, found: Sequence[ClientPosterior]
    ) -> list[KeptSums | None]:
        """What each client keeps for updates; None: its rows cannot be added to."""

    def final_replies(
        self, shared: GlobalPosterior, found: list[ClientPosterior]
    ) -> list[dict[str, np.ndarray]]:
        """The replies to the final delivery, if any."""

    def state(self) -> State:
        """All that the next exchange depends on, but for rows and settings: it never leaves the clients."""

    def restore(self, state: State) -> None:
        """Puts back what `state` gave, into a party that was made with the same rows and settings."""


class Inference(Protocol):
    """Settings, and the makers of both parties."""

    @property
    def name(self) -> str: ...

    @property
    def rounds(self) -> int: ...

    @property
    def patience(self) -> int:
        """Rounds before training may end early."""

    def rounds_to_settle(self, spec: Spec) -> int:
        """Rounds before bounds of models that are trained side by side can be compared."""

    @property
    def jitter(self) -> float: ...

    @property
    def start_is_round(self) -> bool:
        """Whether the first exchange trains already."""

    @property
    def knows_bound(self) -> bool: ...

    def server(self, spec: Spec, block: GlobalBlock) -> ServerParty: ...

    def clients(self, spec: Spec, like: Kernel, blocks: ClientBlock, rows: Rows) -> ClientParty: ...
