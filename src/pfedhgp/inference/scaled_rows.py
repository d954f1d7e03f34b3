"""A client's rows and replicates without a cycle layer, as the solvers take them: padded and masked."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.model.blocks import Rows


def white_rows(client: ClientRows, *, full_noise: bool, length: int | None = None) -> Rows:
    """A client's scaled rows, padded to `length` with rows that do not count."""
    X, Y = client.X, client.Y
    seen, outputs = np.isfinite(Y), Y.shape[1]
    counts = seen.astype(np.float64) if client.counts is None else client.counts
    extra = (length or len(X)) - len(X)
    if client.scatter is None or client.scatter_seen is None:
        scatter, cells = np.zeros((1, outputs, outputs)), np.ones((1, outputs))
    else:
        scatter, cells = client.scatter, client.scatter_seen
    if not full_noise:  # a diagonal Σ⁻¹ is the same for all patterns
        scatter, cells = scatter.sum(axis=0, keepdims=True), np.ones((1, outputs))
    return Rows(
        X=jnp.asarray(np.pad(X, ((0, extra), (0, 0)), mode="edge")),
        Y=jnp.asarray(np.pad(np.where(seen, Y, 0.0), ((0, extra), (0, 0)))),
        mask=jnp.asarray(np.pad(np.where(seen, counts, 0.0), ((0, extra), (0, 0)))),
        scatter=jnp.asarray(scatter),
        scatter_seen=jnp.asarray(cells),
    )


def equal_patterns(rows: Sequence[Rows]) -> list[Rows]:
    """The same rows with equally many patterns of cells, those that are added without scatter."""
    most = max(0 if own.scatter is None else len(own.scatter) for own in rows)
    return [own if own.scatter is None else _with_patterns(own, most) for own in rows]


def _with_patterns(rows: Rows, count: int) -> Rows:
    assert rows.scatter is not None
    assert rows.scatter_seen is not None
    extra = count - len(rows.scatter)
    return Rows(
        rows.X,
        rows.Y,
        rows.mask,
        scatter=jnp.pad(rows.scatter, ((0, extra), (0, 0), (0, 0))),
        scatter_seen=jnp.pad(rows.scatter_seen, ((0, extra), (0, 0))),
    )
