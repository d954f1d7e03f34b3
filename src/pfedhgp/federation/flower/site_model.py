"""The model that a site predicts with: from the delivery, and from its own state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from pfedhgp.diagnosis.of_model import with_classifier
from pfedhgp.diagnosis.training import Training
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.diagnosing import from_delivery
from pfedhgp.federation.envelope import Envelope, Refused
from pfedhgp.federation.messages import Message
from pfedhgp.federation.opening import shared_kernels
from pfedhgp.inference.adoption import adopt
from pfedhgp.inference.arrays import State, block_from_arrays
from pfedhgp.inference.cycles.exchange import layer_from_arrays
from pfedhgp.inference.structured.adoption import Adopted
from pfedhgp.inference.structured.averaging import Averaging
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.global_posterior import from_arrays
from pfedhgp.model.posterior import Population

if TYPE_CHECKING:
    from pfedhgp.federation.flower.site import AgreedRows


def site_model(agreed: AgreedRows, group: ClientGroup, request: Envelope) -> FittedModel:
    """From the delivery and the site's own state. A site that did not train fits its own block now."""
    try:
        summary = json.loads(request.summary)
        training = {key: summary[key] for key in ("exchanges", "bound", "starting_scales")}
        training |= {"choice": summary["choice"]} if "choice" in summary else {}
        diagnosis = _delivered_diagnosis(agreed, request, summary)
    except (ValueError, KeyError, TypeError, IndexError):
        raise Refused("malformed") from None
    columns, plan, rows = agreed.agreement.columns, agreed.plan, agreed.rows
    delivered = request.message()
    population = State(delivered.arrays).part("population")
    more = ("population.", "diagnosis.")
    finish = {k: v for k, v in delivered.arrays.items() if not k.startswith(more)}
    attempt = int(finish["attempt"])
    spec, scaling = group.spec_of(finish), group.scaling
    assert scaling is not None
    block = block_from_arrays(finish, shared_kernels(spec, scaling))
    model = FittedModel(
        structure=spec.structure,
        inference=plan.inference.name,
        kernel=spec.kernel,
        local_kernel=spec.local_kernel,
        shared=from_arrays(block, finish, float(finish["jitter"])),
        clients={},
        population=Population(**{name: jnp.asarray(array) for name, array in population.items()}),
        scaling=scaling,
        input_names=columns.input_names,
        output_names=columns.outputs,
        jitter=float(finish["jitter"]),
        scalar_output=spec.outputs == 1,
        settings={**agreed.agreement.settings(), **training},
        cycle_layer=layer_from_arrays(group.starts[attempt]) if plan.cycles is not None else None,
        client_layers=group.own_layers,
    )
    if not any(missed.kind == "start" for missed in request.missed()):
        group.answer(Message("finish", delivered.round, "server", finish))
        jitter = group.parties[attempt].jitter[0]
        own = Adopted(group.posteriors[rows.name], jitter, group.kept.get(rows.name))
    else:
        averages = getattr(plan.inference, "averaging", None)
        solver = Structured(averaging=Averaging() if averages is True else averages or None)
        own = adopt(
            model,
            rows,
            noise=spec.noise,
            settings=solver,
            local_inducing=plan.local_inducing,
            local_latents=spec.local_latents,
        )
    model = own.into(model, rows.name)
    if diagnosis is None:
        return model
    return with_classifier(model, diagnosis.classifier, diagnosis.facts)


def _delivered_diagnosis(
    agreed: AgreedRows, request: Envelope, summary: Mapping[str, Any]
) -> Training | None:
    """The classifier that sites trained together; it must be of the agreed classes."""
    terms = agreed.plan.diagnosis
    if terms is None:
        return None
    found = from_delivery(request.message().arrays, summary["diagnosis"])
    if found.classifier.classes != terms.classes:
        raise ValueError("other classes than the agreed ones")
    return found
