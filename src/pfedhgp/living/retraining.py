"""Training again from where a model is: its fitted kernels, in the data's units, are the starting values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError
from pfedhgp.gp.kernels import Kernel, Stacks, unstack
from pfedhgp.model.fitted import FittedModel, typical_kernels
from pfedhgp.model.fitted_kernels import in_data_units


def together(old: Sequence[ClientRows], new: Sequence[ClientRows]) -> dict[str, Any]:
    """{client: (X, Y)} of old and new rows; a row whose input is in both is refused."""
    found = {each.name: (each.X, each.Y) for each in old}
    for each in new:
        if each.name not in found:
            found[each.name] = (each.X, each.Y)
            continue
        X, Y = found[each.name]
        there = {row.tobytes() for row in np.ascontiguousarray(X)}
        twice = sum(row.tobytes() in there for row in np.ascontiguousarray(each.X))
        if twice:
            raise InputError(
                f"client {each.name!r}: {twice} new rows are among the old ones too: drop them"
            )
        found[each.name] = (np.concatenate([X, each.X]), np.concatenate([Y, each.Y]))
    return found


def warm_kernels(model: FittedModel) -> dict[str, Kernel]:
    """`kernel` and `local_kernel` at their fitted values, in the data's units.

    A layer of several functions starts apart again, as in a fit: there is one template for all of them.
    """
    found: dict[str, Kernel] = {}
    shared, local = model.shared.block.kernels, typical_kernels(model)
    if model.shared.block.loadings.shape[1] == 1 and not isinstance(shared, Stacks):
        found["kernel"] = in_data_units(unstack(shared, 0), model.scaling.extent)
    first = next(iter(model.clients.values())).block
    if local is not None and first.loadings.shape[1] == 1:
        found["local_kernel"] = in_data_units(unstack(local, 0), model.scaling.extent)
    return found
