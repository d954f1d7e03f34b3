"""`FederatedGP`: fit on many clients' rows, predict for any of them, with honest uncertainty."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from pfedhgp import predict as prediction
from pfedhgp.data.rows import ClientRows
from pfedhgp.data.tables import clients_from, cycles_of, numeric, whole_cycles_of
from pfedhgp.errors import ExtrapolationWarning, InputError, NotFittedError, PFedHGPWarning
from pfedhgp.federation import inprocess
from pfedhgp.federation.cohort import Cohort, make_cohorts
from pfedhgp.federation.messages import Message
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.server import Server
from pfedhgp.inference.registry import inference_named
from pfedhgp.kernels import RBF, Kernel, Matern12, Matern32, Matern52, Periodic, RationalQuadratic
from pfedhgp.model.cycles import FORMS, SHARINGS, CycleChoice
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.spec import build_spec
from pfedhgp.runtime import with_numerics

if TYPE_CHECKING:
    from pfedhgp.zones import Zones

KERNELS: dict[str, Callable[[], Kernel]] = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "periodic": Periodic,
    "rational_quadratic": RationalQuadratic,
}
LAYERS = ("global", "deviation", "local")


class FederatedGP:
    """y_i(x) = f_global(x) + f_deviation,i(x) + f_local,i(x) + noise, learned without pooling rows.

    Args:
        kernel: Of the global and deviation layers: a kernel, or a name such as "rbf" or "matern52". A
            lengthscale that is given is a starting value, in the data's units.
        local_kernel: Of the local layers; by default as `kernel`'s name, with its own lengthscales.
        layers: Which layers there are; fewer than three are ablations.
        latents: Latent functions of the global (and deviation) layer; by default 1 for one output, else 2.
        local_latents: The same for the local layers.
        noise: "scalar", "output" (one variance each), "full" (a covariance), or "auto": as "output".
        local: "inducing" (local layers of any kernel, on inducing inputs) or "state-space": exact and O(n) at
            any resolution, for one input (time) and Matérn kernels; each output has one local function.
        inducing: Global inducing inputs: "auto" or a number.
        local_inducing: Local inducing inputs a client: "auto" or a number.
        learn_inducing: Whether inducing inputs move while training (the default places them well enough).
        domain: (lower, upper) of each input where it is known; spares one exchange.
        inference: "structured" (default), "mean-field" (the paper's Algorithm 1), or settings of either.
        rounds: Rounds of training; by default the inference's own.
        averaging: Whether predictions average over a client's parameters (loadings, local kernels, noise)
            where its rows are few, instead of trusting their best values; `structured` only.
        tolerance: Training ends early after two rounds that gain less than this, in nats a client.
        cycles: What cycles (`fit(..., cycle=...)`, or arrays (C, Q, n)) do beside their client's function:
            "white" (nothing: replicates with white noise), "stationary" (a smooth function each, of a kernel
            times a channel covariance), "free" (any covariance on a basis, shrunk towards the stationary
            one), or "auto": whichever lets one half of the cycles predict the other best. Noise is then
            settled with it, before training, and predictions are those of a new cycle.
        cycle_sharing: "shared" (one cycle layer for all clients), "client" (one each), or "mixed" (one each,
            shrunk towards the shared one). Clients with one cycle, and unseen ones, have the shared layer.
        cycle_basis: Basis functions of the cycle layer, a channel: "auto" or a number.
        restarts: Trainings from different starting values, of which the best bound is kept.
        batch: Whether clients of like size compute together.
        device: "cpu" or "gpu".
        seed: Of everything random (restarts, sampled pairs).
        callbacks: Functions of each round's record; one that returns True ends training.

    Example:
        >>> import numpy as np
        >>> from pfedhgp import FederatedGP
        >>> x = np.linspace(0, 1, 20)
        >>> sites = {name: (x, np.sin(6 * x) + shift) for name, shift in [("a", 0.0), ("b", 0.3)]}
        >>> model = FederatedGP(rounds=4).fit(sites)
        >>> model.predict("a", [[0.5]]).mean.shape
        (1, 1)
    """

    def __init__(
        self,
        *,
        kernel: Kernel | str = "rbf",
        local_kernel: Kernel | str | None = None,
        layers: Sequence[str] = LAYERS,
        latents: int | None = None,
        local_latents: int | None = None,
        noise: str = "auto",
        local: str = "inducing",
        inducing: int | str = "auto",
        local_inducing: int | str = "auto",
        learn_inducing: bool = False,
        domain: Any = None,
        inference: Any = "structured",
        rounds: int | None = None,
        averaging: bool = True,
        tolerance: float = 0.02,
        cycles: str = "white",
        cycle_sharing: str = "shared",
        cycle_basis: int | str = "auto",
        restarts: int = 1,
        batch: bool = True,
        device: str = "cpu",
        seed: int = 0,
        callbacks: Sequence[inprocess.Callback] = (),
    ) -> None:
        self.kernel = kernel
        self.local_kernel = local_kernel
        self.layers = layers
        self.latents = latents
        self.local_latents = local_latents
        self.noise = noise
        self.local = local
        self.inducing = inducing
        self.local_inducing = local_inducing
        self.learn_inducing = learn_inducing
        self.domain = domain
        self.inference = inference
        self.rounds = rounds
        self.averaging = averaging
        self.tolerance = tolerance
        self.cycles = cycles
        self.cycle_sharing = cycle_sharing
        self.cycle_basis = cycle_basis
        self.restarts = restarts
        self.batch = batch
        self.device = device
        self.seed = seed
        self.callbacks = callbacks

    # scikit-learn's manners -------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {name: getattr(self, name) for name in _parameters()}

    def set_params(self, **params: Any) -> FederatedGP:
        """Changes some of them; unknown names are refused."""
        known = _parameters()
        for name, value in params.items():
            if name not in known:
                raise InputError(f"no parameter `{name}`; there are {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = _parameters()
        changed = (
            f"{name}={getattr(self, name)!r}"
            for name, default in defaults.items()
            if getattr(self, name) is not default and getattr(self, name) != default
        )
        return f"FederatedGP({', '.join(changed)})"

    # fit --------------------------------------------------------------------------------------

    @with_numerics
    def fit(
        self,
        data: Any,
        *,
        client: str | None = None,
        inputs: str | Sequence[str] | None = None,
        outputs: str | Sequence[str] | None = None,
        cycle: str | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = False,
    ) -> FederatedGP:
        """Fits to a table (pandas, polars) with a client column, or to {client: (X, y)}.

        NaN in outputs is a missing cell. With `cycle`, rows at equal inputs are replicates; as arrays, cycles
        are y of shape (C, Q, n) with X the grid of n samples. With a cycle layer, `cycle` says which rows
        belong together, and a plain y of shape (n, Q) is one cycle.

        After each exchange the state of the run goes to the folder `checkpoint`; with `resume` the run that
        is there goes on, and ends as if it had not stopped.
        """
        choice = _cycle_choice(self.cycles, self.cycle_sharing, self.cycle_basis)
        rows, input_names, output_names = clients_from(
            data,
            client=client,
            inputs=inputs,
            outputs=outputs,
            cycle=cycle,
            whole_cycles=choice is not None,
        )
        if choice is not None and any(client.cycles is None for client in rows):
            raise InputError("a cycle layer needs cycles: say which column numbers them (`cycle`)")
        rows = _with_observations(rows)
        plan = self._plan(rows, choice)
        with _on(self.device):
            server = Server(plan)
            cohorts = make_cohorts(plan, rows, batch=self.batch)
            messages: list[dict[str, Any]] = []

            def record(message: Message, receiver: str) -> None:
                messages.append(message.log_entry(receiver))

            keep = None
            if checkpoint is not None:
                from pfedhgp.federation.checkpoint import Checkpoint

                kept = Checkpoint(Path(checkpoint))
                if resume:
                    messages += kept.restore(server, cohorts)
                else:
                    kept.clear()
                keep = partial(kept.save, server, cohorts, messages)
            self._exchange(server, cohorts, record, keep)
        self._keep(plan, server, cohorts, rows, input_names, output_names, messages)
        return self

    def _exchange(
        self,
        server: Server,
        cohorts: Sequence[Cohort],
        record: Callable[[Message, str], None],
        keep: Callable[[], None] | None,
    ) -> None:
        """Carries the messages until training is done."""
        inprocess.run(server, cohorts, callbacks=self.callbacks, record=record, keep=keep)

    def _plan(self, rows: Sequence[ClientRows], choice: CycleChoice | None) -> Plan:
        inference = inference_named(
            self.inference,
            rounds=self.rounds,
            learn_inducing=self.learn_inducing,
            averaging=bool(self.averaging),
        )
        if choice is not None and inference.name != "structured":
            raise InputError("a cycle layer needs inference='structured': mean-field has none")
        kernel = _kernel(self.kernel, "kernel")
        name_or_kernel = self.local_kernel
        if name_or_kernel is None:
            name_or_kernel = self.kernel if isinstance(self.kernel, str) else "rbf"
            name_or_kernel = "matern32" if self.local == "state-space" else name_or_kernel
        d, Q = rows[0].X.shape[1], rows[0].Y.shape[1]
        spec = build_spec(
            inputs=d,
            outputs=Q,
            kernel=kernel,
            local_kernel=_kernel(name_or_kernel, "local_kernel"),
            layers=(self.layers,) if isinstance(self.layers, str) else tuple(self.layers),
            latents=self.latents,
            local_latents=self.local_latents,
            noise=self.noise,
            local=self.local,
        )
        if spec.state_space and (inference.name != "structured" or choice is not None):
            raise InputError(
                "local='state-space' needs inference='structured', and goes with no cycle layer"
            )
        for name in ("inducing", "local_inducing"):
            value = getattr(self, name)
            if value != "auto" and (not isinstance(value, int | np.integer) or value < 1):
                raise InputError(
                    f"`{name}` must be 'auto' or a positive whole number, got {value!r}"
                )
        if not isinstance(self.restarts, int | np.integer) or self.restarts < 1:
            raise InputError(f"`restarts` must be a positive whole number, got {self.restarts!r}")
        if self.restarts > 1 and not inference.knows_bound:
            raise InputError(
                "`restarts` needs a bound to choose by, which mean-field does not send"
            )
        return Plan(
            spec=spec,
            inference=inference,
            inducing=self.inducing,
            local_inducing=self.local_inducing,
            domain=_domain(self.domain, rows),
            tolerance=float(self.tolerance),
            restarts=int(self.restarts),
            seed=int(self.seed),
            cycles=choice,
        )

    def _keep(
        self,
        plan: Plan,
        server: Server,
        cohorts: Sequence[Cohort],
        rows: Sequence[ClientRows],
        input_names: tuple[str, ...],
        output_names: tuple[str, ...],
        messages: list[dict[str, Any]],
    ) -> None:
        assert server.best is not None
        bound, attempt, shared, population, jitter = server.best
        own_jitter = {
            name: float(value)
            for cohort in cohorts
            for name, value in zip(cohort.names, cohort.trainers[attempt].jitter, strict=True)
        }
        found = {name: p for cohort in cohorts for name, p in cohort.posteriors.items()}
        shared_layer = None if server.cycles is None else server.cycles.layer
        own_layers = {
            name: layer
            for cohort in cohorts
            for name, layer in cohort.layers.items()
            if plan.cycles is not None and plan.cycles.sharing != "shared"
        }
        self.plan_ = plan
        self.model_ = FittedModel(
            structure=plan.spec.structure,
            inference=plan.inference.name,
            kernel=plan.spec.kernel,
            local_kernel=plan.spec.local_kernel,
            shared=shared,
            clients={row.name: found[row.name] for row in rows},
            population=population,
            scaling=server.scaling,
            input_names=input_names,
            output_names=output_names,
            jitter=float(jitter),
            client_jitter=own_jitter,
            scalar_output=plan.spec.outputs == 1,
            settings=self._settings(server),
            history=server.history,
            messages=messages,
            cycle_layer=shared_layer,
            client_layers=own_layers,
        )
        self.exchanges_ = server.exchanges
        self.bound_ = bound

    def _settings(self, server: Server) -> dict[str, Any]:
        """The parameters that JSON can hold, and the starting scales that `adopt` needs."""
        plain = (str, int, float, bool, type(None))
        kept: dict[str, Any] = {
            name: v for name, v in self.get_params().items() if isinstance(v, plain)
        }
        kept["layers"] = [self.layers] if isinstance(self.layers, str) else list(self.layers)
        kept["starting_scales"] = server.scales.as_dict()
        kept["exchanges"] = server.exchanges
        assert server.best is not None
        kept["bound"] = None if server.best[0] is None else float(server.best[0])
        if server.cycles is not None:
            kept["cycle_form"] = server.cycles.layer.form
            kept["cycle_evidence"] = dict(server.cycles.evidence)
        return kept

    # after fit --------------------------------------------------------------------------------

    @property
    def clients_(self) -> tuple[str, ...]:
        """The clients' names, in the order in which they came."""
        return tuple(self._fitted().clients)

    @property
    def history_(self) -> list[dict[str, Any]]:
        """One record a round: bound, exchanges, bytes, inducing inputs."""
        return list(self._fitted().history)

    @property
    def messages_(self) -> list[dict[str, Any]]:
        """All that crossed between server and clients: kind, sender, names, shapes and bytes."""
        return list(self._fitted().messages)

    def predict(self, client: str, X: Any) -> prediction.Prediction:
        """The client's predictive distribution at X, an array (n, d) or a table with the input columns.

        A client that was not in the data gets the population's prediction, and a warning.
        """
        model = self._fitted()
        array = self._inputs(X)
        far = prediction.outside(model.scaling.inputs(array))
        if far.any():
            warnings.warn(
                f"{int(far.sum())} of {len(far)} rows are far outside the data: "
                "predictions there rest on the prior",
                ExtrapolationWarning,
                stacklevel=2,
            )
        name = str(client)
        if name not in model.clients:
            warnings.warn(
                f"no client {name!r} in the data: this is the population's prediction",
                PFedHGPWarning,
                stacklevel=2,
            )
        return prediction.predict(model, name, array)

    @with_numerics
    def adopt(self, client: str, X: Any, y: Any) -> FederatedGP:
        """Adds a new client on the frozen global block: only its own block is fitted, nothing is sent.

        q(v_g) stays what the other clients made it; the new client's own layers are exact given it. y may
        be cycles (C, Q, n) on the grid X; in a model with a cycle layer y is else one cycle, and the new
        client has the shared layer.
        """
        from pfedhgp.inference.adoption import adopt
        from pfedhgp.inference.structured_training import Structured

        model = self._fitted()
        name = str(client)
        if name in model.clients:
            raise InputError(f"there is a client {name!r} already")
        rows = self._adopted(name, self._inputs(X), y)
        Y = rows.Y
        if len(rows.X) != len(Y):
            raise InputError(
                f"client {name!r}: {len(rows.X)} rows of inputs but {len(Y)} of outputs"
            )
        if Y.shape[1] != model.outputs:
            raise InputError(
                f"client {name!r}: {Y.shape[1]} outputs, the model has {model.outputs}"
            )
        if not np.isfinite(Y).any():
            raise InputError(
                f"client {name!r} has no observed output: use predict, it gets the population's"
            )
        with _on(self.device):
            settings = Structured() if self.averaging else Structured(averaging=None)
            posterior, jitter = adopt(model, rows, noise=self._noise_form(), settings=settings)
        self.model_ = replace(
            model,
            clients={**model.clients, name: posterior},
            client_jitter={**model.client_jitter, name: jitter},
        )
        return self

    @with_numerics
    def cluster(
        self,
        groups: int | None = None,
        *,
        method: str = "agglomerative",
        distance: str = "function",
        choose: str = "eigengap",
        size: int | None = None,
        grid: Any = 800,
        seed: int = 0,
        draws: int = 20,
        data: Any = None,
        client: str | None = None,
    ) -> Zones:
        """Groups clients whose own functions (deviation + local) are alike; no rows are pooled.

        Each client sends a random sketch of its function on a public grid, which is then in `messages_`.

        Args:
            groups: How many; None chooses by `choose`, "eigengap" or "silhouette".
            method: "agglomerative" (Ward's), "average" (linkage) or "spectral".
            distance: "function" (expected squared distance between posteriors), or "operator", the paper's:
                it sees input times and kernels alone, and needs `data` and equal `local_inducing`.
            size: Numbers in a sketch; by default 0.375 of the grid's. More are more exact, and tell more.
            grid: Points of the public grid, or their number.
            seed: Of the sketch; public.
            draws: Sketches and bootstraps for `stability`.
            data: The rows again, as `fit` takes them, for the R² with which sketches reproduce them. Without
                them R² is that of the fitted functions.
            client: The client column of `data`, where it is a table.
        """
        from pfedhgp import zones

        model = self._fitted()
        rows = None
        if data is not None:
            found, _, _ = clients_from(
                data,
                client=client,
                inputs=None if client is None else list(model.input_names),
                outputs=None if client is None else list(model.output_names),
            )
            rows = {each.name: (each.X, each.Y) for each in found}
        result = zones.discover(
            model,
            groups,
            method=method,
            distance=distance,
            choose=choose,
            size=size,
            grid=grid,
            seed=seed,
            draws=draws,
            rows=rows,
        )
        self.model_ = zones.with_messages(model, result)
        return result

    def _adopted(self, name: str, X: np.ndarray, y: Any) -> ClientRows:
        """A new client's rows; as cycles where the model has a cycle layer, or where they come as cycles."""
        layered = self._fitted().cycle_layer is not None
        if np.ndim(y) == 3:
            return cycles_of(name, X, np.asarray(y), whole=layered)
        Y = numeric(y, f"client {name!r}: outputs", missing=True)
        if layered and len(X) == len(Y):
            return whole_cycles_of(name, X, Y[None])
        return ClientRows(name, X, Y)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes a RUN folder; nothing in it can be executed, and it holds no rows."""
        from pfedhgp.model import files

        files.save(self._fitted(), Path(path), overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path) -> FederatedGP:
        """Reads a RUN folder that `save` wrote."""
        from pfedhgp.model import files

        model = files.load(Path(path))
        known = _parameters()
        given = {name: value for name, value in model.settings.items() if name in known}
        for name, kernel in (("kernel", model.kernel), ("local_kernel", model.local_kernel)):
            if kernel is not None:
                given[name] = kernel
        found = cls(**given)
        found.model_ = model
        found.exchanges_ = int(model.settings.get("exchanges", 0))
        last = model.history[-1]["bound"] if model.history else None
        found.bound_ = model.settings.get("bound", last)
        return found

    def _fitted(self) -> FittedModel:
        if not hasattr(self, "model_"):
            raise NotFittedError("this FederatedGP is not fitted yet: call `fit` or `load` first")
        return self.model_

    def _noise_form(self) -> str:
        model = self._fitted()
        return (
            ("scalar" if model.outputs == 1 else "output") if self.noise == "auto" else self.noise
        )

    def _inputs(self, X: Any) -> np.ndarray:
        model = self._fitted()
        if not isinstance(X, Mapping | np.ndarray | list | tuple):
            import narwhals as nw

            try:
                frame = nw.from_native(X, eager_only=True)
            except TypeError:
                pass
            else:
                missing = [name for name in model.input_names if name not in frame.columns]
                if missing:
                    raise InputError(
                        f"no column {missing[0]!r}; the table has {', '.join(frame.columns)}"
                    )
                X = np.stack([frame[name].to_numpy() for name in model.input_names], axis=1)
        array = numeric(X, "`X`", missing=False)
        if array.shape[1] != model.inputs:
            raise InputError(
                f"`X` has {array.shape[1]} columns, the model has {model.inputs} inputs"
            )
        return array


def _parameters() -> dict[str, Any]:
    signature = inspect.signature(FederatedGP.__init__)
    return {n: p.default for n, p in signature.parameters.items() if n != "self"}


def _kernel(given: Kernel | str, name: str) -> Kernel:
    if isinstance(given, Kernel):
        return given
    if isinstance(given, str) and given in KERNELS:
        return KERNELS[given]()
    raise InputError(f"`{name}` must be a kernel or one of {', '.join(KERNELS)}, got {given!r}")


def _cycle_choice(form: Any, sharing: Any, basis: Any) -> CycleChoice | None:
    """What was asked of the cycle layer; None for white cycles, which are plain replicates."""
    for name, value, known in (
        ("cycles", form, (*FORMS, "auto")),
        ("cycle_sharing", sharing, SHARINGS),
    ):
        if value not in known:
            raise InputError(f"`{name}` must be one of {', '.join(known)}, got {value!r}")
    whole = isinstance(basis, int | np.integer) and not isinstance(basis, bool)
    if basis != "auto" and (not whole or basis < 2):
        raise InputError(f"`cycle_basis` must be 'auto' or a number of at least 2, got {basis!r}")
    return None if form == "white" else CycleChoice(form, sharing, basis)


def _domain(given: Any, rows: Sequence[ClientRows]) -> tuple[np.ndarray, np.ndarray] | None:
    if given is None:
        return None
    d = rows[0].X.shape[1]
    try:
        pairs = np.asarray(given, np.float64).reshape(d, 2)
    except (TypeError, ValueError):
        raise InputError(f"`domain` must be {d} pairs (lower, upper), got {given!r}") from None
    lower, upper = pairs[:, 0], pairs[:, 1]
    if not np.all(np.isfinite(pairs)) or np.any(upper <= lower):
        raise InputError(f"`domain` must have lower < upper for each input, got {given!r}")
    for client in rows:
        if np.any(lower > client.X) or np.any(upper < client.X):
            raise InputError(f"client {client.name!r} has rows outside `domain`")
    return lower, upper


def _with_observations(rows: list[ClientRows]) -> list[ClientRows]:
    """Clients without an observed cell are left out, and said so."""
    kept = [client for client in rows if np.isfinite(client.Y).any()]
    empty = [client.name for client in rows if not np.isfinite(client.Y).any()]
    if empty:
        warnings.warn(
            f"{len(empty)} clients without observations are left out, the first is {empty[0]!r}",
            PFedHGPWarning,
            stacklevel=3,
        )
    if not kept:
        raise InputError("no client has an observed output")
    if sum(len(client.X) for client in kept) < 2:
        raise InputError("one row in all: a model needs at least two")
    return kept


@contextmanager
def _on(device: str) -> Iterator[None]:
    """JAX's default device inside the block."""
    if device not in ("cpu", "gpu"):
        raise InputError(f"`device` must be 'cpu' or 'gpu', got {device!r}")
    try:
        found = jax.devices(device)[0]
    except RuntimeError:
        raise InputError(f"no {device} was found by JAX: use device='cpu'") from None
    with jax.default_device(found):
        yield
