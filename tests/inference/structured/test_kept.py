"""The sums that clients keep: the batch at all its parameters against one client and one point at a time."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp import FederatedGP, Structured
from support.kept_twins import assert_kept_as_one_by_one

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
    for kept in model.sums.values():
        assert (len(kept.linear) > 2) == (name != "not averaged")
    assert_kept_as_one_by_one(model, sites, full_noise=settings.get("noise") == "full")


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
