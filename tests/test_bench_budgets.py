"""The table of budgets reads fitted models without JAX's warning of truncated numbers."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
from bench.budgets import most_local_inputs

from pfedhgp.base.numerics import numerics


def test_local_inputs_are_counted_without_float32():
    """After a fit JAX is back to the host's setting, and arrays of the model are still float64."""
    with numerics():
        block = SimpleNamespace(active=jnp.ones(7))
    model = SimpleNamespace(model_=SimpleNamespace(clients={"a": SimpleNamespace(block=block)}))
    with jax.enable_x64(False), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert most_local_inputs(model) == 7
