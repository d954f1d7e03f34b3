"""`FederatedGP`: fit on many clients' rows, predict for any of them, with honest uncertainty."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedhgp.base import checks
from pfedhgp.base.numerics import has_device, on_device, with_numerics
from pfedhgp.data.rows import ClientRows
from pfedhgp.data.tables import clients_from
from pfedhgp.errors import ExtrapolationWarning, InputError, NotFittedError, PFedHGPWarning
from pfedhgp.estimator import inputs as asked
from pfedhgp.federation import inprocess, planning
from pfedhgp.federation.clients import Cohort, make_cohorts
from pfedhgp.federation.messages import Message
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.server import Server
from pfedhgp.gp.kernels import Kernel
from pfedhgp.model import prediction
from pfedhgp.model.cycle_layer import CycleChoice
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.spec import LAYERS
from pfedhgp.settings import parameters
from pfedhgp.settings.parameters import KERNELS

if TYPE_CHECKING:
    from pfedhgp.diagnosis.decision import Calibration, Diagnosis, Why
    from pfedhgp.zones.result import Zones

__all__ = ["KERNELS", "FederatedGP"]


class FederatedGP:
    """y_i(x) = f_global(x) + f_deviation,i(x) + f_local,i(x) + noise, learned without pooling rows.

    Args:
        kernel: Of the global and deviation layers: a kernel, or a name such as "rbf" or "matern52". A
            lengthscale that is given is a starting value, in the data's units. A variance is not:
            variances start from the data, and of a sum only the ratios count.
        local_kernel: Of the local layers; by default of `kernel`'s form, with its own lengthscales.
        layers: Which layers there are; fewer than three are ablations.
        latents: Latent functions of the global (and deviation) layer; by default 1 for one output, else 2.
        local_latents: The same for the local layers.
        noise: "scalar", "output" (one variance each), "full" (a covariance), or "auto": as "output".
        local: "inducing" (local layers of any kernel, on inducing inputs) or "state-space": exact and O(n) at
            any resolution, for one input (time) and Matérn kernels; each output has one local function.
        inducing: Global inducing inputs: "auto" or a number.
        local_inducing: Local inducing inputs a client: "auto" or a number.
        learn_inducing: Whether inducing inputs move while training; by default as the inference has it
            (`structured` places them well and leaves them, the paper's `mean-field` moves them). "auto":
            where a number that was given is much too small for the data's lengthscales.
        largest_inducing: The most global inducing inputs that "auto" takes; by default 256, or 128 where
            there are many outputs. A warning says where it is too low.
        largest_local_inducing: The same for a client's own.
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
            settled with it, before training, and predictions are those of a new cycle. "white-shared" is
            "white" with noise that is settled so too, one for all clients.
        cycle_sharing: "shared" (one cycle layer for all clients), "client" (one each), or "mixed" (one each,
            shrunk towards the shared one). Clients with one cycle, and unseen ones, have the shared layer.
        cycle_basis: Basis functions of the cycle layer, a channel: "auto" or a number.
        restarts: Trainings from different starting values, of which the best bound is kept.
        batch: Whether clients of like size compute together.
        device: "cpu" or "gpu", for fitting and for predicting.
        seed: Of everything random (restarts, sampled pairs).
        callbacks: Functions of each round's record; one that returns True ends training.

    Parameters are checked by `fit`, which refuses what does not fit by name.

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
        learn_inducing: bool | str | None = None,
        largest_inducing: int | None = None,
        largest_local_inducing: int = planning.LARGEST_LOCAL,
        domain: Any = None,
        inference: Any = "structured",
        rounds: int | None = None,
        averaging: bool = True,
        tolerance: float = planning.TOLERANCE,
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
        self.largest_inducing = largest_inducing
        self.largest_local_inducing = largest_local_inducing
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
        unknown = [name for name in params if name not in known]
        if unknown:
            raise InputError(f"no parameter `{unknown[0]}`; there are {', '.join(known)}")
        for name, value in params.items():
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
        chosen, choice = self._chosen(), planning.cycle_choice(self._chosen())
        folder = None if checkpoint is None else checks.path(checkpoint, "checkpoint")
        if folder is not None and folder.exists() and not folder.is_dir():
            raise InputError(f"`checkpoint`: {folder} is a file: give a folder")
        if checks.flag(resume, "resume") and folder is None:
            raise InputError("`resume` needs `checkpoint`: the folder of the run that goes on")
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
        rows = planning.with_observations(rows)
        plan = self._plan(rows, choice)
        with on_device(chosen["device"]):
            server = Server(plan)
            cohorts = make_cohorts(plan, rows, batch=chosen["batch"])
            messages: list[dict[str, Any]] = []

            def record(message: Message, receiver: str) -> None:
                messages.append(message.log_entry(receiver))

            keep = None
            if folder is not None:
                from pfedhgp.federation.checkpoint import Checkpoint

                kept = Checkpoint(folder)
                if resume:
                    messages += kept.restore(server, cohorts)
                else:
                    kept.clear()
                keep = partial(kept.save, server, cohorts, messages)
            self._exchange(server, cohorts, record, keep)
        self._keep(plan, server, cohorts, rows, input_names, output_names, messages)
        return self

    def _chosen(self) -> dict[str, Any]:
        """The parameters, checked."""
        return parameters.checked(self.get_params())

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
        return planning.make_plan(self._chosen(), rows, choice)

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
        self.plan_ = plan
        self.model_ = planning.fitted_model(
            plan,
            server,
            cohorts,
            rows,
            input_names=input_names,
            output_names=output_names,
            settings=planning.kept_settings(self._chosen(), server),
            messages=messages,
        )
        assert server.best is not None
        self.exchanges_, self.bound_ = server.exchanges, server.best.bound

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
        model, device = self._fitted(), self._device()
        name = checks.client_name(client, model.clients)
        array = asked.inputs_of(model, X)
        _warn_of_far(model, array, "predictions there rest on the prior")
        if name not in model.clients:
            warnings.warn(
                f"no client {name!r} in the data: this is the population's prediction",
                PFedHGPWarning,
                stacklevel=2,
            )
        return prediction.predict(model, name, array, device=device)

    def classify(
        self,
        cycles: Any,
        *,
        grid: Any,
        channels: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        priors: Mapping[str, float] | None = None,
        calibration: Calibration | None = None,
    ) -> Diagnosis:
        """Which client each cycle (C, Q, n) on the grid of n samples is of, by predictive log-likelihood.

        Any grid will do; NaN is a missing sample. With `channels`, which outputs the cycles have, in their
        order: others count as missing. `priors` are class weights, by default equal. Temperature and
        thresholds of "none of these" are those that `train_diagnosis` left in the model, or `calibration`.
        """
        from pfedhgp.diagnosis import decision
        from pfedhgp.diagnosis.evidence import evidence

        X, Y = asked.cycles_on(self._fitted(), cycles, grid, channels)
        known = calibration or self.calibration_
        found = evidence(self._fitted(), X, Y, classes, novelty=known.thresholds is not None)
        return decision.diagnose(found, priors=priors, calibration=known)

    def why(
        self,
        cycle: Any,
        *,
        grid: Any,
        chosen: str,
        other: str,
        channels: Sequence[str] | None = None,
    ) -> Why:
        """What of one cycle (Q, n) speaks for `chosen` rather than `other`, by channel and along the axis."""
        from pfedhgp.diagnosis import decision
        from pfedhgp.diagnosis.evidence import check_classes, class_gaussian_of

        model = self._fitted()
        one, two = check_classes(model, (chosen, other))
        X, Y = asked.cycles_on(model, [cycle], grid, channels)
        gaussians = (class_gaussian_of(model, one, X), class_gaussian_of(model, two, X))
        return decision.why(gaussians, (one, two), grid=X, channels=model.output_names, cycle=Y[0])

    @property
    def calibration_(self) -> Calibration:
        """Temperature and thresholds of the model; neutral where it was not trained for diagnosis."""
        from pfedhgp.diagnosis.decision import Calibration

        tree = self._fitted().settings.get("diagnosis")
        return Calibration() if tree is None else Calibration.from_json(tree["calibration"])

    @with_numerics
    def adopt(self, client: str, X: Any, y: Any) -> FederatedGP:
        """Adds a new client on the frozen global block: only its own block is fitted, nothing is sent.

        q(v_g) stays what the other clients made it; the new client's own layers are exact given it. y may
        be cycles (C, Q, n) on the grid X; in a model with a cycle layer y is else one cycle, and the new
        client has the shared layer.
        """
        from pfedhgp.inference.structured.adoption import adopt

        model, chosen = self._fitted(), self._chosen()
        name = checks.client_name(client, {})
        if name in model.clients:
            raise InputError(f"there is a client {name!r} already")
        rows = asked.rows_of(model, name, X, y)
        _warn_of_far(model, rows.X, "no global inducing input is near them", stacklevel=4)
        with on_device(chosen["device"]):
            posterior, jitter = adopt(
                model,
                rows,
                noise=self._noise_form(),
                settings=planning.settings_of_adoption(chosen),
                local_inducing=chosen["local_inducing"],
            )
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
        method: str | None = None,
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

        Each client sends a random sketch of its function on a public grid; `messages_` then lists it.

        Args:
            groups: Number of groups; None chooses it by `choose`, "eigengap" or "silhouette".
            method: "agglomerative" (Ward's), "average" (linkage) or "spectral". Default: "agglomerative", or
                "spectral" with distance="operator", as in the paper.
            distance: "function" (expected squared distance between posteriors) or "operator" (the paper's,
                which depends only on input times and kernels, and needs `data` and equal `local_inducing`).
            size: Numbers in a sketch, by default 0.3 of the grid's. A larger sketch is more exact, and
                reveals more.
            grid: Points of the public grid, or their number.
            seed: Public seed of the sketch. A second seed reveals more about the rows, and gives a warning.
            draws: Number of halves and of bootstraps for `stability`; nothing more is sent for them.
            data: The rows of the fit, and no others, as `fit` takes them. Then R² says how well everything
                sent for zones reproduces them; without `data` it is about the fitted functions.
            client: The client column of `data`, if it is a table.
        """
        from pfedhgp.zones import clustering

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
        how = clustering.ClusterSettings(
            groups=groups,
            method=method,
            distance=distance,
            choose=choose,
            size=size,
            grid=grid,
            seed=seed,
            draws=draws,
        )
        result = clustering.discover(model, how, rows=rows)
        self.model_ = clustering.with_messages(model, result)
        return result

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes a RUN folder; nothing in it can be executed, and it holds no rows."""
        from pfedhgp.model import files

        target = checks.path(path, "path")
        files.save(self._fitted(), target, overwrite=checks.flag(overwrite, "overwrite"))

    @classmethod
    def load(cls, path: str | Path) -> FederatedGP:
        """Reads a RUN folder that `save` wrote.

        Parameters are those of the fit, but for callbacks; where this machine lacks the fit's device, the
        CPU takes its place, with a warning.
        """
        from pfedhgp.model import files

        model = files.load(checks.path(path, "path"))
        known = _parameters()
        given = {name: value for name, value in model.settings.items() if name in known}
        given["inference"] = planning.inference_from_json(given.get("inference", "structured"))
        for name, kernel in (("kernel", model.kernel), ("local_kernel", model.local_kernel)):
            if kernel is not None:
                given[name] = kernel
        if given.get("device") == "gpu" and not has_device("gpu"):
            given["device"] = "cpu"
            warnings.warn(
                "the model was fitted on a gpu, and JAX finds none here: predictions use the CPU",
                PFedHGPWarning,
                stacklevel=2,
            )
        found = cls(**given)
        found.model_ = model
        found.exchanges_ = int(model.settings.get("exchanges", 0))
        last = model.history[-1]["bound"] if model.history else None
        found.bound_ = model.settings.get("bound", last)
        return found

    def _device(self) -> str:
        device: str = parameters.PARAMETERS["device"](self.device, "device")
        return device

    def _fitted(self) -> FittedModel:
        if not hasattr(self, "model_"):
            raise NotFittedError("this FederatedGP is not fitted yet: call `fit` or `load` first")
        return self.model_

    def _noise_form(self) -> str:
        model = self._fitted()
        return (
            ("scalar" if model.outputs == 1 else "output") if self.noise == "auto" else self.noise
        )


def _warn_of_far(model: FittedModel, X: np.ndarray, then: str, *, stacklevel: int = 3) -> None:
    """Says how many rows are far outside the data, and what follows."""
    far = prediction.outside(model.scaling.inputs(X))
    if far.any():
        warnings.warn(
            f"{int(far.sum())} of {len(far)} rows are far outside the data: {then}",
            ExtrapolationWarning,
            stacklevel=stacklevel,
        )


def _parameters() -> dict[str, Any]:
    signature = inspect.signature(FederatedGP.__init__)
    return {n: p.default for n, p in signature.parameters.items() if n != "self"}
