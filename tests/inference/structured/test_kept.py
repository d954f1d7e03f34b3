"""The sums that clients keep: the batch at all its parameters against one client and one point at a time."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp import FederatedGP, Structured
from pfedhgp.base.batching import on_numpy
from pfedhgp.data.rows import ClientRows, in_order
from pfedhgp.inference.rows import white_rows
from pfedhgp.inference.structured.kept import points_of, sums_at

CASES = {
    "one output": ({}, 1),
    "no deviation": ({"layers": ("global", "local")}, 1),
    "loadings, missing cells": ({"latents": 2}, 3),
    "full noise": ({"noise": "full"}, 2),
    "client loadings": ({"latents": 2, "client_loadings": True}, 1),
    "not averaged": ({"inference": Structured(averaging=None)}, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_kept_sums_are_those_of_each_client_at_each_of_its_parameters(name):
    settings, outputs = CASES[name]
    sites = made_up(outputs)
    model = FederatedGP(rounds=2, seed=0, **settings).fit(sites).model_
    block = on_numpy(model.shared.block)
    basis = on_numpy(block.basis(np.float64(model.jitter)))
    for site, (X, Y) in sites.items():
        kept, own = model.sums[site], on_numpy(model.clients[site])
        client = ClientRows(site, X[:, None], Y.reshape(len(X), outputs))
        rows = white_rows(
            model.scaling.rows(in_order(client)), full_noise=settings.get("noise") == "full"
        )
        points = points_of(model.structure, block, own, kept.best)
        assert len(points) == len(kept.linear)
        assert (len(points) > 2) == (name != "not averaged")
        twin = sums_at(model.structure, block, basis, points, model.jitter_of(site), rows)
        found = {part: getattr(kept, part) for part in ("linear", "constant", "residual")}
        for part, own in {"precision": kept.matrices(), **found}.items():
            wanted = getattr(twin, part)
            # factors of k(Z, Z), whose condition is up to 1e8, lose eight digits to rounding, and
            # residuals are small differences of numbers near 1
            limit = max(1e-8 * np.abs(wanted).max(), 1e-10)
            np.testing.assert_allclose(own, wanted, rtol=0, atol=limit)


def made_up(outputs: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Three sites of different sizes; with several outputs a tenth of the cells are missing."""
    rng = np.random.default_rng(5)
    sites = {}
    for i, rows in enumerate((12, 19, 25)):
        x = np.sort(rng.uniform(0, 6, rows))
        y = np.sin(x)[:, None] * (1 + np.arange(outputs)) + 0.2 * i
        y = y + 0.1 * rng.normal(size=y.shape)
        if outputs > 1:
            y[rng.uniform(size=y.shape) < 0.1] = np.nan
        sites[f"site {i}"] = (x, y if outputs > 1 else y[:, 0])
    return sites
