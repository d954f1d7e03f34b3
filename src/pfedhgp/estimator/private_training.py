"""A private fit: one noisy release a client, the shared function from releases alone, own layers at home.

    release → shared function → own layers

Only a release leaves a client. The server's parameters, rounds and posteriors
are computed from releases, so they cost nothing more. At the end each client fits its deviation and local
layer to its own rows, against what the others' releases say of the shared function.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.data.scaling import Scaling
from pfedhgp.data.tables import GivenData
from pfedhgp.errors import InputError
from pfedhgp.federation.messages import layout_of
from pfedhgp.federation.planning import settings_of_adoption, settings_to_json
from pfedhgp.gp.kernels import RBF, Kernel
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.inference.structured.adoption import adopt
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.posterior import Population
from pfedhgp.model.spec import build_spec, like_shared, noise_form
from pfedhgp.privacy.accounting import mu_for
from pfedhgp.privacy.discrete_gaussian import Below
from pfedhgp.privacy.ledger import Ledger, Limit, request_of
from pfedhgp.privacy.release import JITTER, NoiseScales, PublicBasis, Release, release
from pfedhgp.privacy.shared_function import SharedFunction, shared_function
from pfedhgp.settings.table import ModelSettings

BOUND = 2.0
"""Largest size of scaled outputs: public bounds become ±2."""
SHORTEST = 0.15
"""Shortest lengthscale expected, as a share of the domain, if the kernel names none."""
LOCAL_SCALE = 0.4
"""Of a local layer at the start, in lengthscales of the shared function."""


@dataclass(frozen=True)
class Promise:
    """What each client's rows cost: (ε, δ), and bounds that are public."""

    epsilon: float
    delta: float
    domain: Sequence[tuple[float, float]]
    output_bounds: Sequence[tuple[float, float]]


def promise_of(settings: ModelSettings, inputs: int, outputs: int) -> Promise:
    """What was asked for, if all that is needed is there and public; what has no private form is refused."""
    if settings.device != "cpu":
        raise InputError("a private fit runs on the CPU: leave `device` out")
    for name, wanted, what in (
        ("cycles", "white", "a cycle layer"),
        ("client_loadings", False, "client loadings"),
        ("inference", "structured", "another inference than 'structured'"),
        ("local", "inducing", "local='state-space'"),
        ("layers", ("global", "deviation", "local"), "fewer layers"),
    ):
        if getattr(settings, name) != wanted:
            raise InputError(f"a private fit has no form for {what}: leave `{name}` out")
    if settings.epsilon is None:
        raise InputError("a private fit needs `epsilon`, what each client's rows may cost")
    for name, what, count in (
        ("domain", "the public range of each input", inputs),
        ("output_bounds", "the public range of each output", outputs),
    ):
        given = getattr(settings, name)
        if given is None:
            raise InputError(
                f"a private fit needs `{name}`, {what}: ranges of the rows are private"
            )
        if len(given) != count:
            raise InputError(f"`{name}` has {len(given)} ranges, there are {count}")
    return Promise(settings.epsilon, settings.delta, settings.domain, settings.output_bounds)


def public_scaling(promise: Promise) -> Scaling:
    """Inputs to the unit box and outputs to ±2, by public ranges alone."""
    domain = np.asarray(promise.domain, np.float64)
    bounds = np.asarray(promise.output_bounds, np.float64)
    middle, width = bounds.mean(axis=1), bounds[:, 1] - bounds[:, 0]
    return Scaling(domain[:, 0], domain[:, 1], middle, width / (2 * BOUND))


def public_basis(kernel: object, scaling: Scaling) -> PublicBasis:
    """By the kernel's own lengthscales, if it names them, else for functions of 15% of the domain."""
    size = len(scaling.lower)
    if isinstance(kernel, str) and kernel == "rbf":
        return PublicBasis.over(np.full(size, SHORTEST))
    if not isinstance(kernel, RBF) or kernel.dims is not None:
        raise InputError("a private fit needs kernel='rbf', or RBF with a lengthscale")
    scales = np.asarray(kernel.lengthscale, np.float64)
    if not np.all(np.isfinite(scales)):
        return PublicBasis.over(np.full(size, SHORTEST))
    return PublicBasis.over(np.broadcast_to(scales, (size,)) / scaling.extent)


def private_model(
    settings: ModelSettings, data: GivenData, below: Below = secrets.randbelow
) -> FittedModel:
    """The fitted model of a private fit in one process."""
    promise = promise_of(settings, len(data.inputs), len(data.outputs))
    scaling = public_scaling(promise)
    public = public_basis(settings.kernel, scaling)
    releases = [
        released(settings, promise, public, scaling.rows(client), below) for client in data.clients
    ]
    shared = shared_function(public, releases)
    messages = [_log(client, each) for client, each in zip(data.clients, releases, strict=True)]
    model = _frame(settings, promise, data, shared, messages)
    return with_own_layers(settings, model, shared, data.clients)


def with_own_layers(
    settings: ModelSettings,
    model: FittedModel,
    shared: SharedFunction,
    clients: Sequence[ClientRows],
) -> FittedModel:
    """Each client's own layers, from its own rows and the others' releases."""
    posteriors, jitter = {}, {}
    for index, client in enumerate(clients):
        others = replace(model, shared=shared.posterior(without=index))
        posteriors[client.name], jitter[client.name] = adopt(
            others,
            client,
            noise=noise_form(settings.noise, model.outputs),
            settings=settings_of_adoption(settings),
            local_inducing=settings.local_inducing,
            local_latents=model.outputs,
        )
    return replace(model, clients=posteriors, client_jitter=jitter)


def released(
    settings: ModelSettings, promise: Promise, public: PublicBasis, rows: ClientRows, below: Below
) -> Release:
    """One client's release of its scaled rows: new, or the one that its ledger has for the same request."""

    def make(mu: float) -> dict[str, np.ndarray]:
        found = release(public, rows.X, rows.Y, bound=BOUND, mu=mu, below=below)
        return {"gram": found.gram, "linear": found.linear, "scales": np.array(found.scales)}

    if settings.ledger is None:
        arrays = make(mu_for(promise.epsilon, promise.delta))
    else:
        request = request_of(
            {
                "X": rows.X,
                "Y": rows.Y,
                "inputs": public.inputs,
                "lengthscales": public.lengthscales,
                "promise": promise,
            }
        )
        home = Path(settings.ledger) / hashlib.sha256(rows.name.encode()).hexdigest()[:16]
        limit = Limit(promise.epsilon, promise.delta)
        purpose = f"statistics on {len(public.inputs)} basis functions"
        arrays = Ledger(home).release(request, purpose=purpose, limit=limit, make=make)
    return Release(arrays["gram"], arrays["linear"], NoiseScales(*map(float, arrays["scales"])))


def _log(client: ClientRows, released: Release) -> dict[str, Any]:
    """What the message log keeps of a release."""
    M = released.linear.shape[1]
    rows, columns = np.tril_indices(M)
    arrays = {"gram": released.gram[:, rows, columns], "linear": released.linear}
    return {
        "round": 0,
        "kind": "release",
        "from": client.name,
        "to": "server",
        "bytes": sum(array.nbytes for array in arrays.values()),
        "arrays": layout_of(arrays),
    }


def _frame(
    settings: ModelSettings,
    promise: Promise,
    data: GivenData,
    shared: SharedFunction,
    messages: list[dict[str, Any]],
) -> FittedModel:
    """The model before any client has its own layers."""
    outputs = len(data.outputs)
    kernel = settings.kernel if isinstance(settings.kernel, Kernel) else RBF()
    spec = build_spec(
        inputs=len(data.inputs),
        outputs=outputs,
        kernel=kernel,
        local_kernel=like_shared(kernel),
        layers=("global", "deviation", "local"),
        latents=outputs,
        local_latents=outputs,
        noise=settings.noise,
    )
    each = shared.parameters
    noise = np.array([p.noise for p in each])
    variance, departure = (
        np.array([p.variance for p in each]),
        np.array([p.variance * p.departure for p in each]),
    )
    scale = float(np.mean([np.mean(p.lengthscales) for p in each]))
    start = Start(
        shared=scale,
        local=LOCAL_SCALE * scale,
        shared_variance=float(np.mean(variance + departure)),
        local_variance=float(np.mean(0.1 * variance)),
        noise_variance=float(np.mean(noise)),
    )
    empty = np.zeros((outputs, outputs))
    population = Population(
        np.diag(departure), empty, np.diag(noise), np.float64(len(data.clients)), empty
    )
    mu = mu_for(promise.epsilon, promise.delta)
    kept = {
        **settings_to_json(settings),
        "exchanges": 1,
        "bound": shared.evidence,
        "starting_scales": start.as_dict(),
        "privacy_spent": {
            "mu": mu,
            "epsilon": promise.epsilon,
            "delta": promise.delta,
        },
    }
    return FittedModel(
        structure=spec.structure,
        inference="structured",
        kernel=kernel,
        local_kernel=spec.local_kernel,
        shared=shared.posterior(),
        clients={},
        population=population,
        scaling=public_scaling(promise),
        input_names=data.inputs,
        output_names=data.outputs,
        jitter=JITTER,
        scalar_output=outputs == 1,
        settings=kept,
        messages=messages,
    )
