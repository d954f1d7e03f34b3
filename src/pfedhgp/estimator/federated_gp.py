"""`FederatedGP`: fit on many clients' rows, predict for any of them, with honest uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, Unpack

from pfedhgp.base import checks
from pfedhgp.base.choices import DIFFERENTIAL
from pfedhgp.base.kept_memory import kept_memory
from pfedhgp.base.numerics import has_device, on_device, with_numerics
from pfedhgp.data.calendar_hints import warn_of_calendar
from pfedhgp.data.domain import check_domain
from pfedhgp.data.missing_codes import warn_of_codes
from pfedhgp.data.rows import with_observations
from pfedhgp.data.tables import GivenData, clients_from
from pfedhgp.errors import InputError, NotFittedError, warn_caller
from pfedhgp.estimator.adopted_clients import adopted, with_adopted
from pfedhgp.estimator.cycle_methods import CycleMethods
from pfedhgp.estimator.inputs import rows_by_client, rows_of, warn_of_codes_beside, warn_of_far
from pfedhgp.estimator.living_methods import LivingMethods
from pfedhgp.estimator.parameter_methods import ParameterMethods
from pfedhgp.estimator.prediction_methods import PredictionMethods
from pfedhgp.estimator.sklearn_manners import SklearnManners
from pfedhgp.federation import inprocess, kept_settings, planning
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.grouping import group_clients
from pfedhgp.federation.masks.roster import check_count
from pfedhgp.federation.messages import Message
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.server import Server
from pfedhgp.inference.ending import warn_unsettled
from pfedhgp.model import departures
from pfedhgp.model.departures import Departure
from pfedhgp.model.fitted import FittedModel
from pfedhgp.settings.config import checked
from pfedhgp.settings.for_columns import KERNELS, kernel_texts, with_kernels
from pfedhgp.settings.setting import arguments_text
from pfedhgp.settings.table import MODEL_SETTINGS, ModelSettings

if TYPE_CHECKING:
    from pfedhgp.zones.clustering import SketchSettings
    from pfedhgp.zones.result import Zones


class FederatedGP(
    SklearnManners, PredictionMethods, CycleMethods, LivingMethods, ParameterMethods, ModelSettings
):
    """y_i(x) = f_global(x) + f_deviation,i(x) + f_local,i(x) + noise, learned without pooling rows.

    {arguments}

    `fit` checks the arguments, and refuses by name what does not fit.

    Example:
        >>> import numpy as np
        >>> from pfedhgp import FederatedGP
        >>> x = np.linspace(0, 1, 20)
        >>> sites = {name: (x, np.sin(6 * x) + shift) for name, shift in [("a", 0.0), ("b", 0.3)]}
        >>> model = FederatedGP(rounds=4).fit(sites)
        >>> model.predict("a", [0.5]).mean.shape
        (1,)
    """

    # fit --------------------------------------------------------------------------------------

    def fit(
        self,
        data: Any,
        *,
        client: str | None = None,
        inputs: str | Sequence[str] | None = None,
        outputs: str | Sequence[str] | None = None,
        cycle: str | None = None,
        block: Any = None,
        checkpoint: str | Path | None = None,
        resume: bool = False,
    ) -> FederatedGP:
        """Fits to a table (pandas, polars) with a client column, or to {client: (X, y)}.

        NaN in outputs is a missing cell. With `cycle`, rows at equal inputs are replicates; as arrays, cycles
        are y of shape (C, Q, n) with X the grid of n samples. With a cycle layer, `cycle` says which rows
        belong together, and a plain y of shape (n, Q) is one cycle.

        With `block` clients are classes, and the model is trained for `classify` too: the column that names
        the run of each cycle, or {client: the run of each cycle} (see `train_diagnosis`, which has more
        options).

        After each exchange the state of the run goes to the folder `checkpoint`; with `resume` the run that
        is there goes on, and ends as if it had not stopped.
        """
        settings = checked(self)
        folder = None if checkpoint is None else checks.path(checkpoint, "checkpoint")
        if folder is not None and folder.exists() and not folder.is_dir():
            raise InputError(f"`checkpoint`: {folder} is a file: give a folder")
        if checks.flag(resume, "resume") and folder is None:
            raise InputError("`resume` needs `checkpoint`: the folder of the run that goes on")
        if block is not None:
            from pfedhgp.estimator.classes import classes_from

            planning.check_diagnosis(settings.masks)
            classes = classes_from(
                data, block, client=client, inputs=inputs, outputs=outputs, cycle=cycle
            )
        layered = planning.cycle_choice(settings) is not None
        given = clients_from(
            data,
            client=client,
            inputs=inputs,
            outputs=outputs,
            cycle=cycle,
            whole_cycles=layered,
        )
        if layered and any(client.cycles is None for client in given.clients):
            raise InputError("a cycle layer needs cycles: say which column numbers them (`cycle`)")
        warn_of_calendar(given.clients, given.columns, [getattr(settings, k) for k in KERNELS])
        self._fit_given(settings, given, folder, resume=resume)
        if block is not None:
            from pfedhgp.estimator.diagnosis_training import diagnosed

            self.model_ = diagnosed(self._fitted(), classes, settings.seed)
        return self

    def _fit_given(
        self,
        settings: ModelSettings,
        given: GivenData,
        folder: Path | None = None,
        *,
        resume: bool = False,
    ) -> None:
        """Fits to rows that were read, with settings that were checked."""
        data = replace(given, clients=with_observations(given.clients, stacklevel=4))
        warn_of_codes(data.clients, data.columns)
        if settings.masks:
            check_count(len(data.clients))
        if settings.domain is not None:
            needed = settings.privacy in DIFFERENTIAL
            check_domain(settings.domain, data.clients, data.inputs, needed=needed)
        self._fit_checked(with_kernels(settings, data.columns), data, folder, resume=resume)
        kept = {**self.model_.settings, **kernel_texts(settings)}
        self.model_ = replace(self.model_, settings=kept)

    @with_numerics
    def _fit_checked(
        self, settings: ModelSettings, data: GivenData, folder: Path | None, *, resume: bool
    ) -> FederatedGP:
        self._fit_kernels(settings, data, folder, resume=resume)
        told = {"columns": data.columns.to_json(), "flat": data.flat}
        self.model_ = replace(self.model_, settings={**self.model_.settings, **told})
        warn_unsettled(self.model_.history)
        return self

    def _fit_kernels(
        self, settings: ModelSettings, data: GivenData, folder: Path | None, *, resume: bool
    ) -> FederatedGP:
        if settings.privacy in DIFFERENTIAL:
            from pfedhgp.estimator.private_training import private_model

            with kept_memory():
                self.model_ = private_model(settings, data)
            kept = self.model_.settings
            self.exchanges_, self.bound_ = kept["exchanges"], kept["bound"]
            return self
        plan = self.make_plan(settings, len(data.inputs), len(data.outputs))
        with on_device(settings.device), kept_memory():
            server, groups = Server(plan), group_clients(plan, data.clients, batch=settings.batch)
            messages = self._train(server, groups, folder, resume=resume)
        assert server.best is not None
        self.plan_ = plan
        self.model_ = planning.fitted_model(
            plan,
            server,
            groups,
            data.clients,
            input_names=data.inputs,
            output_names=data.outputs,
            settings=kept_settings.kept_settings(settings, server),
            messages=messages,
        )
        with on_device(settings.device), kept_memory():
            self.model_ = with_adopted(self.model_, settings, data.clients)
        self.exchanges_, self.bound_ = server.exchanges, server.best.bound
        return self

    def make_plan(self, settings: ModelSettings, inputs: int, outputs: int) -> Plan:
        """What server and clients compute by; a subclass may change it."""
        return planning.make_plan(planning.until_settled(settings), inputs, outputs)

    def _train(
        self, server: Server, groups: Sequence[ClientGroup], folder: Path | None, *, resume: bool
    ) -> list[dict[str, Any]]:
        """Carries messages until training is done; returns the log of them."""
        messages: list[dict[str, Any]] = []

        def record(message: Message, receiver: str) -> None:
            messages.append(message.log_entry(receiver))

        keep = None
        if folder is not None:
            from pfedhgp.federation.checkpoint import Checkpoint

            kept = Checkpoint(folder)
            if resume:
                messages += kept.restore(server, groups)
            else:
                kept.clear()
            keep = partial(kept.save, server, groups, messages)
        inprocess.run(server, groups, callbacks=self.callbacks, record=record, keep=keep)
        return messages

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

    def departures(self) -> dict[str, Departure]:
        """How far each client departs from the global function: φ_i with a 95% interval, and the odds.

        Known for one output, `structured` inference on a CPU and inducing-point local layers; other
        clients are left out.
        """
        return departures.departures(self._fitted())

    @with_numerics
    def adopt(self, client: str, X: Any, y: Any) -> FederatedGP:
        """Adds a new client on the frozen global block: only its own block is fitted, nothing is sent.

        q(v_g) stays what the other clients made it; the new client's own layers are exact given it. y may
        be cycles (C, Q, n) on the grid X. In a model with a cycle layer, any other y counts as one cycle,
        and the new client gets the shared cycle layer.
        """
        model, settings = self._fitted(), checked(self)
        name = checks.client_name(client, {})
        if name in model.clients:
            raise InputError(
                f"there is a client {name!r} already: give its new rows to `update`, or call "
                "`forget` first to replace it"
            )
        rows = rows_of(model, name, X, y)
        warn_of_codes_beside(model, [rows])
        warn_of_far(model, rows.X, "no global inducing input is near them", stacklevel=4)
        with on_device(settings.device), kept_memory():
            self.model_ = adopted(model, settings, [rows])
        return self

    @with_numerics
    def cluster(
        self,
        groups: int | None = None,
        *,
        method: str | None = None,
        by: str | None = None,
        distance: str = "function",
        choose: str = "eigengap",
        draws: int = 20,
        data: Any = None,
        client: str | None = None,
        **sketch: Unpack[SketchSettings],
    ) -> Zones:
        """Groups clients that behave alike; no rows are pooled.

        Each client sends its own loadings, or a random sketch of its own function (deviation + local).

        Args:
            groups: Number of groups; None chooses it by `choose`, "eigengap" or "silhouette".
            method: "average" (default by loadings), "agglomerative" (Ward's; default by sketches) or
                "spectral" (default with distance="operator").
            by: "loadings" or "sketch". Default: "loadings" if clients have their own (`client_loadings`).
            distance: "function" (expected squared distance between posteriors) or "operator" (the paper's,
                which depends only on input times and kernels, and needs `data` and equal `local_inducing`).
            draws: Number of halves and of bootstraps (or posterior draws) for `stability`; none are sent.
            data: The rows of the fit. Then R² says how well what was sent reproduces them, not the fits.
            client: The client column of `data`, if it is a table.
            sketch: `size` (numbers in a sketch, by default 0.3 of the grid's; more reveal more), `grid` (its
                points, or how many: 800) and `seed` (public; a second one reveals more, and gives a warning).
        """
        from pfedhgp.zones import clustering

        model = self._fitted()
        rows = None if data is None else rows_by_client(model, data, client)
        how = clustering.ClusterSettings(
            groups=groups,
            method=method,
            distance=distance,
            by=by,
            choose=choose,
            draws=draws,
            **sketch,
        )
        found = clustering.discover(model, how, rows=rows)
        self.model_ = replace(model, messages=[*model.messages, *found.messages])
        return found

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes a RUN folder; nothing in it can be executed, and it holds no rows."""
        from pfedhgp.model import files

        target = checks.path(path, "path")
        files.save(self._fitted(), target, overwrite=checks.flag(overwrite, "overwrite"))

    @classmethod
    def load(cls, path: str | Path, *, sums: bool = True) -> FederatedGP:
        """Reads a RUN folder that `save` wrote; without `sums` it predicts, and takes no later rows.

        Its settings are those of the fit, without callbacks. If the fit used a GPU and this machine has
        none, the CPU is used, with a warning.
        """
        from pfedhgp.model import files

        model = files.load(checks.path(path, "path"), sums=sums)
        given = kept_settings.settings_of_model(model)
        if given.get("device") == "gpu" and not has_device("gpu"):
            given["device"] = "cpu"
            warn_caller(
                "the model was fitted on a gpu, and JAX finds none here: predictions use the CPU"
            )
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


def fit_checked(
    settings: ModelSettings, data: GivenData, *, checkpoint: Path, resume: bool
) -> FederatedGP:
    """A fitted model, from settings and rows that a command has checked as it read them."""
    model = FederatedGP(**vars(settings))
    return model._fit_checked(settings, data, checkpoint, resume=resume)


FederatedGP.__doc__ = (FederatedGP.__doc__ or "").replace(
    "{arguments}", indent(arguments_text(MODEL_SETTINGS), "    ").strip()
)
