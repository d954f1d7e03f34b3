"""What `pfedhgp fit --diagnose` does: rows become whole cycles of classes for `train_diagnosis`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedhgp.data.ingest import Ingested
from pfedhgp.data.rows import by_appearance
from pfedhgp.data.tables import gathered
from pfedhgp.errors import InputError
from pfedhgp.settings.config import Config

if TYPE_CHECKING:
    from pfedhgp.data.readers import Observations
    from pfedhgp.estimator import FederatedGP


def check(config: Config, *, federated: bool) -> None:
    """What can be said without the data, of settings that `check_use` has seen."""
    if not config.diagnose:
        return
    if federated and config.label is None:
        raise InputError(
            "--diagnose in a federation needs --label: the column that names the class of each cycle"
        )
    if not federated and config.label is not None:
        raise InputError(
            "--label is for `pfedhgp federate --diagnose`: in a fit the clients are the classes (--client)"
        )
    if federated and config.holdout is not None:
        raise InputError("--diagnose in a federation uses all cycles: leave --holdout out")
    if config.cycle is None:
        raise InputError("--diagnose needs --cycle: the column that numbers the cycles")
    if config.cycles != Config.cycles or config.cycle_sharing != Config.cycle_sharing:
        raise InputError(
            "--diagnose has layers of runs and cycles of its own: leave --cycles and --cycle-sharing out"
        )


def hint(config: Config, *, clients: int, federated: bool) -> str | None:
    """Says that cycles of several clients could be told apart, if the fit does not ask for it."""
    asked = config.diagnose or federated
    if asked or config.cycle is None or clients < 2:
        return None
    return (
        f"cycles of {clients} clients: with --diagnose `pfedhgp classify` can tell them apart, and knows "
        'when a cycle is "none of these"'
    )


def train(config: Config, data: Ingested, make: Callable[..., FederatedGP]) -> FederatedGP:
    """The model of `train_diagnosis`, whose clients are the classes; `make` gives each model to fit."""
    from pfedhgp.estimator.diagnosis_training import train_diagnosis

    grid = np.unique(np.concatenate([client.X for client in data.training]), axis=0)
    classes, blocks = {}, {}
    for client in data.training:
        cycles, owners = cycles_of(client, grid, data.blocks)
        classes[client.name], blocks[client.name] = (grid, cycles), owners
    given: dict[str, Any] = {} if data.domain is None else {"domain": data.domain}
    return train_diagnosis(
        classes,
        block=None if data.blocks is None else blocks,
        inputs=list(data.columns.input_names),
        outputs=list(data.columns.outputs),
        false_alarms=config.false_alarms,
        cycle_basis=config.cycle_basis,
        seed=config.seed,
        make=make,
        **given,
    )


def cycles_of(
    client: Observations, grid: np.ndarray, blocks: np.ndarray | None
) -> tuple[np.ndarray, list[str]]:
    """A client's rows as cycles (C, Q, n) on the grid of all, missing where it has no row; their blocks."""
    from pfedhgp.estimator.classes import runs_of_cycles

    assert client.cycle is not None
    assert client.order is not None
    # Cycles are in the order of their rows: stretches are of time.
    found = np.moveaxis(gathered(client.name, grid, client.X, client.Y, client.cycle), 1, 2)
    which = by_appearance(client.cycle)
    first = np.array([np.flatnonzero(which == c)[0] for c in range(len(found))])
    empty = np.flatnonzero(np.isnan(found).all(axis=(1, 2)))
    if len(empty):
        name = str(client.cycle[first[empty[0]]])
        raise InputError(f"client {client.name!r}: cycle {name!r} has no value")
    if blocks is None:
        return found, []
    return found, runs_of_cycles(client.name, client.cycle, blocks[client.order], "client")
