"""Predictions for many clients as a long table: one row for each input row and output.

The columns are the client, the inputs, output, observed (if the data have the outputs), mean, sd, lower,
upper, the layers (if they are asked for) and known. `pfedhgp predict` writes it, and `FederatedGP.predict`
returns it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedhgp.base.checks import listed
from pfedhgp.data.columns import Columns
from pfedhgp.data.tables import CLIENT
from pfedhgp.errors import ExtrapolationWarning, InputError, warn
from pfedhgp.estimator.inputs import far_words
from pfedhgp.model import prediction
from pfedhgp.model.fitted import FittedModel

if TYPE_CHECKING:
    import narwhals as nw

LAYERS = ("global", "deviation", "local")
NUMBERS = ("mean", "sd", "lower", "upper")
OBSERVED, FLAG = "observed", "known"
"""What the data have; true if the model knows the client, false if it predicts from the population."""
OURS = ("output", OBSERVED, *NUMBERS, *LAYERS, FLAG)


@dataclass(frozen=True, eq=False)
class Asked:
    """Where a client is predicted: X (m, d), and the place of each row in the whole table."""

    name: str
    X: np.ndarray
    place: np.ndarray


def asked_of(owner: Sequence[str], X: np.ndarray) -> list[Asked]:
    """Rows by client, in the order in which clients first appear."""
    names = np.asarray(owner)
    every = dict.fromkeys(owner)
    places = {name: np.flatnonzero(names == name) for name in every}
    return [Asked(name, X[place], place) for name, place in places.items()]


def predicted(
    model: FittedModel, rows: Sequence[Asked], *, level: float, device: str | None = None
) -> dict[str, np.ndarray]:
    """Each of `NUMBERS`, `LAYERS` and `FLAG`: (n, Q), by the rows' places.

    Warns of clients that the model does not know, all in one line, and of rows far outside the data.
    """
    if not 0.0 < level < 1.0:
        raise InputError(f"`level` must be between 0 and 1, got {level}")
    unknown = [each.name for each in rows if each.name not in model.clients]
    if unknown:
        count = "client" if len(unknown) == 1 else f"{len(unknown)} clients"
        text = f"unknown {count} {listed(unknown, 3)}: this is the population's prediction"
        warn(text, stacklevel=4)
    n = sum(len(each.X) for each in rows)
    found = {name: np.empty((n, model.outputs)) for name in (*NUMBERS, *LAYERS)}
    found[FLAG] = np.empty((n, model.outputs), bool)
    for each in rows:
        if (far := far_words(model, each.X, "predictions there rest on the prior")) is not None:
            warn(f"client {each.name!r}: {far}", ExtrapolationWarning, stacklevel=4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExtrapolationWarning)
            p = prediction.predict(model, each.name, each.X, device=device)
        lower, upper = p.interval(level)
        arrays = {"mean": p.mean, "sd": p.sd, "lower": lower, "upper": upper}
        arrays |= {layer: p.layers[layer].mean for layer in LAYERS}
        for name, values in arrays.items():
            found[name][each.place] = values
        found[FLAG][each.place] = p.known
    return found


def named(columns: Columns) -> dict[str, str]:
    """What the columns of the data are called in the table: those with a name of ours get another."""
    client = columns.client or CLIENT
    taken = {*OURS, client}
    labels = {client: f"client {client}" if client in OURS else client}
    return labels | {
        name: f"input {name}" if name in taken else name for name in columns.input_names
    }


def long_table(
    frame: nw.DataFrame[Any],
    columns: Columns,
    found: Mapping[str, np.ndarray],
    *,
    observed: np.ndarray | None = None,
    layers: bool = True,
) -> nw.DataFrame[Any]:
    """The table, of the frame's library: client and inputs are the frame's own, and so is pandas' index."""
    import narwhals as nw

    labels, outputs = named(columns), columns.outputs
    row = np.repeat(np.arange(len(frame)), len(outputs))
    base = frame.select(*labels)[row].rename(labels)
    values: dict[str, Any] = {"output": list(outputs) * len(frame)}
    if observed is not None:
        values[OBSERVED] = observed.reshape(-1)
    kept = (*NUMBERS, *(LAYERS if layers else ()), FLAG)
    values |= {name: found[name].reshape(-1) for name in kept}
    backend = nw.get_native_namespace(frame)
    series = [nw.new_series(name, each, backend=backend) for name, each in values.items()]
    table = base.with_columns(*series)
    return table if observed is None else table.with_columns(nw.col(OBSERVED).fill_nan(None))
