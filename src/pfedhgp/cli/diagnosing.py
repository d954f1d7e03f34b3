"""What `pfedhgp fit --diagnose` does: rows become whole cycles of classes for `train_diagnosis`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pfedhgp.base.signals import Heeding
from pfedhgp.data.ingest import Ingested
from pfedhgp.errors import InputError
from pfedhgp.settings.config import Model

if TYPE_CHECKING:
    from pfedhgp.data.readers import Observations
    from pfedhgp.estimator import FederatedGP
    from pfedhgp.settings.config import Config


def check(config: Config, *, federated: bool) -> None:
    """What can be said without the data."""
    if not config.model.diagnose:
        if config.data.block is not None:
            raise InputError("--block is for --diagnose: give both, or leave --block out")
        if config.model.false_alarms != Model.model_fields["false_alarms"].default:
            raise InputError("--false-alarms is for --diagnose: give both, or leave it out")
        return
    if federated:
        raise InputError("--diagnose chooses by cycles of all classes at once: use `pfedhgp fit`")
    if config.data.cycle is None:
        raise InputError("--diagnose needs --cycle: the column that numbers the cycles")
    if config.model.cycles != "white" or config.model.cycle_sharing != "shared":
        raise InputError(
            "--diagnose chooses the cycle layer: leave --cycles and --cycle-sharing out"
        )


def hint(config: Config, *, clients: int, federated: bool) -> str | None:
    """That cycles of several clients can be told apart, for who fits them without asking for it."""
    asked = config.model.diagnose or federated
    if asked or config.data.cycle is None or clients < 2:
        return None
    return (
        f"cycles of {clients} clients: with --diagnose the fit is one for `pfedhgp classify`, and chooses "
        'how cycles differ and what is "none of these"'
    )


def train(config: Config, data: Ingested) -> FederatedGP:
    """The model of `train_diagnosis`: its clients are the classes."""
    from pfedhgp.cli.fitting import estimator
    from pfedhgp.estimator.diagnosis_training import default_basis, train_diagnosis

    grid = np.unique(np.concatenate([client.X for client in data.training]), axis=0)
    classes, blocks = {}, {}
    for client in data.training:
        cycles, owners = _cycles(client, grid, data.blocks)
        classes[client.name], blocks[client.name] = (grid, cycles), owners

    def make(**settings: Any) -> FederatedGP:
        return estimator(config, data.columns, data.domain, callbacks=[Heeding()]).set_params(
            **settings
        )

    basis: Any = config.model.cycle_basis
    if basis == "auto":
        basis = default_basis(len(grid), len(data.columns.outputs))
    given: dict[str, Any] = {} if data.domain is None else {"domain": data.domain}
    return train_diagnosis(
        classes,
        blocks=None if data.blocks is None else blocks,
        inputs=list(data.columns.input_names),
        outputs=list(data.columns.outputs),
        false_alarms=config.model.false_alarms,
        cycle_basis=basis,
        seed=config.run.seed,
        make=make,
        **given,
    )


def _cycles(
    client: Observations, grid: np.ndarray, blocks: np.ndarray | None
) -> tuple[np.ndarray, list[str]]:
    """A client's rows as cycles (C, Q, n) on the grid of all, missing where it has no row; their blocks."""
    assert client.cycle is not None
    assert client.order is not None
    place = {tuple(row): n for n, row in enumerate(grid.tolist())}
    at = np.array([place[tuple(row)] for row in client.X.tolist()])
    names, which = np.unique(client.cycle, return_inverse=True)
    first = np.array([np.flatnonzero(which == c)[0] for c in range(len(names))])
    turn = np.argsort(np.argsort(first))  # cycles in the order of their rows: stretches are of time
    which, first = turn[which], np.sort(first)
    if len(np.unique(which * len(grid) + at)) != len(at):
        raise InputError(f"client {client.name!r}: a cycle has two rows at the same inputs")
    found = np.full((len(names), client.Y.shape[1], len(grid)), np.nan)
    found[which, :, at] = client.Y
    empty = np.flatnonzero(np.isnan(found).all(axis=(1, 2)))
    if len(empty):
        name = str(client.cycle[first[empty[0]]])
        raise InputError(f"client {client.name!r}: cycle {name!r} has no value")
    if blocks is None:
        return found, []
    own = blocks[client.order]
    for c in range(len(names)):
        if len(set(own[which == c])) > 1:
            name = str(client.cycle[first[c]])
            raise InputError(f"client {client.name!r}: cycle {name!r} is in two blocks")
    return found, [str(own[row]) for row in first]
