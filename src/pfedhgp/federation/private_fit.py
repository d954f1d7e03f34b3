"""The steps of a private fit: what is public, a client's release, the model before and after own layers.

    release → shared function → own layers

Only a release leaves a client. The server's parameters, rounds and posteriors
are computed from releases, so they cost nothing more. At the end each client fits its deviation and local
layer to its own rows, against what the others' releases say of the shared function.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pfedhgp.base.choices import DISTRIBUTED_PRIVACY
from pfedhgp.data.rows import ClientRows
from pfedhgp.data.scaling import Scaling
from pfedhgp.errors import InputError, warn
from pfedhgp.federation.kept_settings import settings_to_json
from pfedhgp.federation.planning import settings_of_adoption
from pfedhgp.gp.kernels import KERNELS, RBF, Kernel, Matern32
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.inference.structured.adoption import adopt
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.posterior import ClientPosterior, GlobalPosterior, Population
from pfedhgp.model.spec import build_spec, noise_form
from pfedhgp.privacy.accounting import mu_for
from pfedhgp.privacy.client_unit import FEWEST_CLIENTS, of_a_row, rows_used
from pfedhgp.privacy.discrete_gaussian import Below
from pfedhgp.privacy.ledger import Ledger, Limit, request_of
from pfedhgp.privacy.release import JITTER, NoiseScales, PublicBasis, Release, release
from pfedhgp.privacy.shared_function import SharedFunction
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
    rows_per_client: int | None = field(default=None, repr=False)
    """With it, ε is of so many rows together, and a client uses no more; None: of each row. Not in `repr`,
    by which ledgers know a promise: see `unit_of`"""


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
    local_kernel(settings)
    if settings.masks and settings.privacy != DISTRIBUTED_PRIVACY:
        raise InputError(
            "a private fit has no form for masks, unless privacy='distributed': leave `masks` out"
        )
    if settings.tolerated is not None and settings.privacy != DISTRIBUTED_PRIVACY:
        raise InputError("`tolerated` is for privacy='distributed': leave it out")
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
    by_client = settings.privacy_unit == "client"
    if by_client and settings.rows_per_client is None:
        raise InputError(
            "privacy_unit='client' needs `rows_per_client`, the most rows of a client that are used: how "
            "many there are is private"
        )
    if settings.rows_per_client is not None and not by_client:
        raise InputError(
            "`rows_per_client` is for privacy_unit='client': give both, or leave it out"
        )
    return Promise(
        settings.epsilon,
        settings.delta,
        _pairs(settings.domain),
        _pairs(settings.output_bounds),
        settings.rows_per_client,
    )


def warn_of_few_clients(promise: Promise, clients: int, *, stacklevel: int = 2) -> None:
    """Whole clients are hidden by noise that only many of them average out."""
    if promise.rows_per_client is not None and clients < FEWEST_CLIENTS:
        warn(
            f"privacy_unit='client' with {clients} clients: below {FEWEST_CLIENTS} the noise that hides a "
            "whole client makes the shared function next to useless",
            stacklevel=stacklevel + 1,
        )


def _pairs(given: Iterable[Sequence[float]]) -> tuple[tuple[float, float], ...]:
    """One spelling, so that equal promises are equal requests to a ledger."""
    return tuple((float(low), float(high)) for low, high in given)


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


def local_kernel(settings: ModelSettings) -> Kernel:
    """That of the local layers, which are fitted at home; matern32 if none was given.

    What is faster than the public basis is left to the local layer. A smooth kernel there swings out where a
    client has no rows, and is sure of it.
    """
    given = settings.local_kernel
    if given is None:
        return Matern32()
    if isinstance(given, Kernel):
        return given
    if isinstance(given, str) and given in KERNELS:
        return KERNELS[given]()
    raise InputError("a private fit does not choose between kernels: give one `local_kernel`")


def own_layers(
    settings: ModelSettings, model: FittedModel, others: GlobalPosterior, rows: ClientRows
) -> tuple[ClientPosterior, float]:
    """A client's own layers, from its own rows and what the others' releases say of the shared function."""
    posterior, jitter, _ = adopt(
        replace(model, shared=others),
        rows,
        noise=noise_form(settings.noise, model.outputs),
        settings=settings_of_adoption(settings),
        local_inducing=settings.local_inducing,
        local_latents=model.outputs,
    )
    return posterior, jitter


def release_request(
    promise: Promise, public: PublicBasis, rows: ClientRows, epoch: str = ""
) -> str:
    """What a ledger calls a client's release: the same for the same public terms and the same rows.

    With an `epoch` it stands for the rows, whatever they are: what leaves a machine may not tell whether
    rows have changed.
    """
    whose = {"epoch": epoch} if epoch else {"X": rows.X, "Y": rows.Y}
    about = {"inputs": public.inputs, "lengthscales": public.lengthscales, "promise": promise}
    return request_of({**whose, **about, **unit_of(promise)})


def unit_of(promise: Promise) -> dict[str, int]:
    """What a ledger's request has besides, if ε is of whole clients."""
    most = promise.rows_per_client
    return {} if most is None else {"rows_per_client": most}


def released_rows(promise: Promise, rows: ClientRows, ledger: Ledger | None) -> ClientRows:
    """The rows that leave a trace: all, or as many as the promise says, the same ones in each step."""
    if promise.rows_per_client is None:
        return rows
    key = secrets.token_bytes(32) if ledger is None else ledger.key()
    used = rows_used(len(rows.X), promise.rows_per_client, key)
    return ClientRows(rows.name, rows.X[used], rows.Y[used])


def released(
    promise: Promise,
    public: PublicBasis,
    rows: ClientRows,
    *,
    ledger: Ledger | None,
    limit: Limit | None = None,
    below: Below = secrets.randbelow,
    epoch: str = "",
) -> Release:
    """One client's release of its scaled rows: new, or the one that its ledger has for the same request.

    Without a `limit` the promise is the limit of all releases of the ledger, and this one gets what is left.
    """

    def make(mu: float) -> dict[str, np.ndarray]:
        used, each = released_rows(promise, rows, ledger), of_a_row(mu, promise.rows_per_client)
        found = release(public, used.X, used.Y, bound=BOUND, mu=each, below=below)
        return {"gram": found.gram, "linear": found.linear, "scales": np.array(found.scales)}

    mu = mu_for(promise.epsilon, promise.delta)
    if ledger is None:
        arrays = make(mu)
    else:
        arrays = ledger.release(
            release_request(promise, public, rows, epoch),
            purpose=f"statistics on {len(public.inputs)} basis functions",
            limit=limit or Limit(promise.epsilon, promise.delta),
            make=make,
            mu=None if limit is None else mu,
        )
    return Release(arrays["gram"], arrays["linear"], NoiseScales(*map(float, arrays["scales"])))


def sent(release: Release) -> dict[str, np.ndarray]:
    """A release as arrays: symmetric matrices by their lower triangles."""
    rows, columns = np.tril_indices(release.linear.shape[1])
    return {"gram": release.gram[:, rows, columns], "linear": release.linear}


def frame(
    settings: ModelSettings,
    promise: Promise,
    names: tuple[Sequence[str], Sequence[str]],
    shared: SharedFunction,
    clients: int,
    messages: Sequence[dict[str, Any]] = (),
    exchanges: int = 1,
    missing: int = 0,
    *,
    at_server: bool = False,
) -> FittedModel:
    """The model before any client has its own layers; `names` are those of inputs and outputs.

    `missing` clients may drop out or collude, with privacy="distributed". `at_server`: the server drew the
    noise of totals, and had each client's sums without any.
    """
    outputs = len(names[1])
    kernel = settings.kernel if isinstance(settings.kernel, Kernel) else RBF()
    spec = build_spec(
        inputs=len(names[0]),
        outputs=outputs,
        kernel=kernel,
        local_kernel=local_kernel(settings),
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
    population = Population(np.diag(departure), empty, np.diag(noise), np.float64(clients), empty)
    mu = mu_for(promise.epsilon, promise.delta)
    kept = {
        **settings_to_json(settings),
        "exchanges": exchanges,
        "bound": shared.evidence,
        "starting_scales": start.as_dict(),
        "privacy_spent": {
            "mu": mu,
            "epsilon": promise.epsilon,
            "delta": promise.delta,
            "mode": settings.privacy,
            "tolerated": missing,
            **({"noise_at_server": True} if at_server else {}),
            **unit_of(promise),
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
        input_names=tuple(names[0]),
        output_names=tuple(names[1]),
        jitter=JITTER,
        scalar_output=outputs == 1,
        settings=kept,
        messages=list(messages),
    )
