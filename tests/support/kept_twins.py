"""The sums that a model keeps for updates, one client and one parameter value at a time."""

from __future__ import annotations

import numpy as np

from pfedhgp.base.batching import on_numpy
from pfedhgp.data.rows import ClientRows, in_order
from pfedhgp.inference.rows import white_rows
from pfedhgp.inference.structured.kept import points_of, sums_at
from pfedhgp.model.fitted import FittedModel


def assert_kept_as_one_by_one(
    model: FittedModel, sites: dict[str, tuple[np.ndarray, np.ndarray]], *, full_noise: bool = False
) -> None:
    """Every client's kept sums are those of its rows at each of its parameters."""
    block = on_numpy(model.shared.block)
    basis = on_numpy(block.basis(np.float64(model.jitter)))
    for site, (X, Y) in sites.items():
        kept, own = model.sums[site], on_numpy(model.clients[site])
        client = ClientRows(site, X[:, None], Y.reshape(len(X), -1))
        rows = white_rows(model.scaling.rows(in_order(client)), full_noise=full_noise)
        points = points_of(model.structure, block, own, kept.best)
        assert points is not None
        assert len(points) == len(kept.linear)
        twin = sums_at(model.structure, block, basis, points, model.jitter_of(site), rows)
        found = {part: getattr(kept, part) for part in ("linear", "constant", "residual")}
        for part, sums in {"precision": kept.matrices(), **found}.items():
            wanted = getattr(twin, part)
            # factors of k(Z, Z), whose condition is up to 1e8, lose eight digits to rounding, and
            # residuals are small differences of numbers near 1
            limit = max(1e-8 * np.abs(wanted).max(), 1e-10)
            np.testing.assert_allclose(sums, wanted, rtol=0, atol=limit)
