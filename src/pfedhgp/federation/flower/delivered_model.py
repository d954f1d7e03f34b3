"""The fitted model of a site (with its own block) and of the server (with no client's block)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.data.scaling import Scaling
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.messages import Message
from pfedhgp.federation.opening import kernels_like
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.server import Server
from pfedhgp.inference.arrays import block_from_arrays
from pfedhgp.inference.cycles.exchange import layer_from_arrays
from pfedhgp.inference.structured.adoption import adopt
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.posterior import GlobalPosterior, Population
from pfedhgp.model.spec import Spec


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
    finish = {k: v for k, v in delivered.arrays.items() if not k.startswith("population.")}
    attempt = int(finish["attempt"])
    start, scaling = group.starts[attempt], group.scaling
    assert scaling is not None
    powers = {
        name.removeprefix("population."): jnp.asarray(array)
        for name, array in delivered.arrays.items()
        if name.startswith("population.")
    }
    moments = (jnp.asarray(finish[name]) for name in ("mean", "covariance"))
    shared = GlobalPosterior(block_from_arrays(finish, kernels_like(group.spec, scaling)), *moments)
    spec, jitter = group.spec, float(finish["jitter"])
    model = _model(plan, spec, shared, Population(**powers), scaling, jitter, names)
    own_layers = group.layers if plan.cycles and plan.cycles.sharing != "shared" else {}
    model = replace(
        model,
        settings=dict(settings),
        cycle_layer=layer_from_arrays(start) if plan.cycles is not None else None,
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


def server_model(
    server: Server,
    *,
    names: tuple[tuple[str, ...], tuple[str, ...]],
    settings: Mapping[str, Any],
    messages: list[dict[str, Any]],
    metrics: Mapping[str, Any],
) -> FittedModel:
    """The server's model. It predicts for a client that was never seen."""
    best = server.best
    assert best is not None
    assert best.population is not None
    known = best.prepared
    model = _model(
        server.plan,
        known.spec,
        best.shared,
        best.population,
        known.scaling,
        float(best.jitter),
        names,
    )
    return replace(
        model,
        settings=dict(settings),
        history=server.history,
        messages=messages,
        metrics=dict(metrics),
        cycle_layer=None if known.cycles is None else known.cycles.layer,
    )


def _model(
    plan: Plan,
    spec: Spec,
    shared: GlobalPosterior,
    population: Population,
    scaling: Scaling,
    jitter: float,
    names: tuple[tuple[str, ...], tuple[str, ...]],
) -> FittedModel:
    inputs, outputs = names
    return FittedModel(
        structure=spec.structure,
        inference=plan.inference.name,
        kernel=spec.kernel,
        local_kernel=spec.local_kernel,
        shared=shared,
        clients={},
        population=population,
        scaling=Scaling(*(np.asarray(v) for v in vars(scaling).values())),
        input_names=inputs,
        output_names=outputs,
        jitter=jitter,
        scalar_output=plan.spec.outputs == 1,
    )
