"""The table of budgets reads fitted models without JAX's warning of truncated numbers."""

from __future__ import annotations

import warnings
from pathlib import Path

from bench.budgets import most_local_inputs

from pfedhgp import FederatedGP

RUN = Path(__file__).parent / "fixtures" / "structured" / "RUN"


def test_local_inputs_are_counted_in_float64():
    model = FederatedGP.load(RUN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = most_local_inputs(model)
    assert found == max(len(c.block.inputs) for c in model.model_.clients.values())
