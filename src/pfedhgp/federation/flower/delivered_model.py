"""The fitted model of a site, with its own block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from pfedhgp.data.rows import ClientRows
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.messages import Message
from pfedhgp.federation.opening import kernels_like
from pfedhgp.federation.plan import Plan
from pfedhgp.inference.arrays import State, block_from_arrays
from pfedhgp.inference.cycles.exchange import layer_from_arrays
from pfedhgp.inference.structured.adoption import adopt
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.posterior import GlobalPosterior, Population


def site_model(
    plan: Plan,
    rows: ClientRows,
    group: ClientGroup,
    delivered: Message,
    *,
    trained: bool,
    names: tuple[tuple[str, ...], tuple[str, ...]],
    settings: Mapping[str, Any],
) -> FittedModel:
    """From the delivery and the site's own state. A site that did not train fits its own block now."""
    population = State(delivered.arrays).part("population")
    finish = {k: v for k, v in delivered.arrays.items() if not k.startswith("population.")}
    attempt = int(finish["attempt"])
    spec, scaling = group.spec, group.scaling
    assert scaling is not None
    moments = (jnp.asarray(finish[name]) for name in ("mean", "covariance"))
    own_layers = group.layers if plan.cycles and plan.cycles.sharing != "shared" else {}
    model = FittedModel(
        structure=spec.structure,
        inference=plan.inference.name,
        kernel=spec.kernel,
        local_kernel=spec.local_kernel,
        shared=GlobalPosterior(block_from_arrays(finish, kernels_like(spec, scaling)), *moments),
        clients={},
        population=Population(**{name: jnp.asarray(array) for name, array in population.items()}),
        scaling=scaling,
        input_names=names[0],
        output_names=names[1],
        jitter=float(finish["jitter"]),
        scalar_output=spec.outputs == 1,
        settings=dict(settings),
        cycle_layer=layer_from_arrays(group.starts[attempt]) if plan.cycles is not None else None,
        client_layers=dict(own_layers),
    )
    if trained:
        group.answer(Message("finish", delivered.round, "server", finish))
        posterior, own_jitter = group.posteriors[rows.name], group.parties[attempt].jitter[0]
    else:
        solver = Structured(averaging=getattr(plan.inference, "averaging", None))
        posterior, own_jitter = adopt(model, rows, noise=plan.spec.noise, settings=solver)
    return replace(
        model, clients={rows.name: posterior}, client_jitter={rows.name: float(own_jitter)}
    )
