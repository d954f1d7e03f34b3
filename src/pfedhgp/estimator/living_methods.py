"""What `FederatedGP` does over time: new rows in, old rows out."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pfedhgp.base import checks
from pfedhgp.base.choices import DEVICES
from pfedhgp.base.kept_memory import kept_memory
from pfedhgp.base.numerics import on_device, with_numerics
from pfedhgp.data.arrays import refuse_missing
from pfedhgp.data.moments import position
from pfedhgp.data.rows import ClientRows
from pfedhgp.data.tables import GivenData, is_table, outputs_of
from pfedhgp.errors import InputError, StaleWarning, warn, warn_caller
from pfedhgp.estimator.adopted_clients import one_adopted
from pfedhgp.estimator.inputs import (
    client_column,
    clients_of,
    columns_of,
    inputs_of,
    warn_of_codes_beside,
    warn_of_far,
)
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.prediction import far_outside
from pfedhgp.settings.config import checked
from pfedhgp.settings.table import ModelSettings

if TYPE_CHECKING:
    from pfedhgp.data.missing_codes import Code
    from pfedhgp.living.anomalies import Anomalies
    from pfedhgp.living.forecast import Forecast
    from pfedhgp.living.horizons import Length
    from pfedhgp.living.update import Updated


class LivingMethods:
    """The methods of a fitted model that is kept up to date."""

    model_: FittedModel
    exchanges_: int
    bound_: float | None
    last_update_: Updated
    """What the last `update` or `forget` did"""

    def _fitted(self) -> FittedModel:
        raise NotImplementedError

    def _fit_given(self, settings: ModelSettings, given: GivenData) -> None:
        raise NotImplementedError

    @with_numerics
    def update(
        self, data: Any, *, client: str | None = None, retrain: Any = None, rounds: int = 5
    ) -> Self:
        """Adds new rows of known clients, and new clients, without training again.

        For the model's parameters this is exact: it gives what a fit with the same parameters and all rows
        would give. The old rows are not needed. A row whose inputs the client has already is refused. A new
        client's own parameters are fitted to its rows first.

        `last_update_` says what was done, and whether the new rows were as the model expected. If their
        log-score is lower than chance explains (1% false alarms), a `StaleWarning` recommends to fit again.

        Args:
            data: A table with the model's columns, or {client: (X, y)}.
            client: The client column of a table.
            retrain: The rows of the fit again, as `data` are given. Then a few rounds of training on all rows
                follow, from the fitted kernels on: the way out of stale parameters.
            rounds: How many rounds that are.
        """
        from pfedhgp.living import update

        model, settings = self._fitted(), checked(self)
        rows = self._rows(data, client)
        if retrain is not None:
            return self._retrained(rows, self._rows(retrain, client), rounds)
        codes = warn_of_codes_beside(model, rows)
        far = [each.name for each in rows if far_outside(model.scaling.inputs(each.X)).any()]
        warn_of_far(
            model,
            np.concatenate([each.X for each in rows]),
            f"no global inducing input is near them (client{'s' if len(far) > 1 else ''} "
            f"{checks.listed(far, 3)}); fit again, with `domain` up to where rows will come",
            stacklevel=4,
        )
        with on_device(settings.device), kept_memory():
            self.model_, self.last_update_ = update.updated(
                model, rows, lambda now, new: one_adopted(now, settings, new)
            )
        if self.last_update_.stale:
            warn_caller(stale_words(self.last_update_, codes), StaleWarning)
        return self

    @with_numerics
    def forget(
        self,
        client: str,
        rows: Any = None,
        *,
        between: tuple[Any, Any] | None = None,
    ) -> Self:
        """Takes a client out of the model, or some of its rows: exact, as if they had never been summed up.

        Parameters that were learned with these rows stay: only a new fit removes what they taught.

        Args:
            client: The client.
            rows: Its rows to take out, as they were fitted or added: (X, y), or a table with the model's
                columns. None: all of them, and the client.
            between: Only those of `rows` whose first input lies from here to there, both included: numbers,
                or datetimes (also as text) if the input is one.
        """
        from pfedhgp.living import update

        model = self._fitted()
        name = checks.client_name(client, model.clients)
        given = None
        if rows is not None:
            given = self._rows_of(name, rows)
            if between is not None:
                low, high = (_moment(each, "between") for each in between)
                inside = (low <= given.X[:, 0]) & (high >= given.X[:, 0])
                if not inside.any():
                    raise InputError(
                        f"no row of {name!r} lies between {between[0]} and {between[1]}"
                    )
                given = ClientRows(name, given.X[inside], given.Y[inside])
        elif between is not None:
            raise InputError("`between` needs `rows`: the model holds none, so give them again")
        self.model_, self.last_update_ = update.forgotten(model, name, given)
        return self

    def forecast(
        self,
        client: str,
        horizon: Length,
        *,
        step: Length | None = None,
        start: Any = None,
    ) -> Forecast:
        """What a client is predicted to observe after its last row, in the steps of its data.

        Beyond the last row the shared kernel matters, and rows tell it only roughly. So `sd` and `interval`
        are wider than those of `predict`, which takes the kernel as it was fitted.

        Example:
            >>> import numpy as np
            >>> from pfedhgp import FederatedGP
            >>> x = np.arange(40) / 8
            >>> sites = {name: (x, np.sin(x) + shift) for name, shift in [("a", 0.0), ("b", 0.3)]}
            >>> model = FederatedGP(rounds=2).fit(sites)
            >>> model.forecast("a", 0.5).times
            array([5.   , 5.125, 5.25 , 5.375])

        Args:
            client: A client of the model.
            horizon: How far: a number in units of the input, or, if the input is a datetime, text such as
                "3 days", "36h" or "90 min", or a timedelta.
            step: The step of the grid. Default: the usual step of the client's rows.
            start: The input after which the forecast begins, a number or a datetime. Default: the client's
                last row.
        """
        from pfedhgp.living import forecast, horizons
        from pfedhgp.model import prediction, uncertain_kernel
        from pfedhgp.model.words import axes_of

        model = self._fitted()
        name = checks.client_name(client, model.clients)
        if name not in model.clients:
            raise InputError(f"no client {name!r} in the model: only its clients have a last row")
        if model.inputs != 1:
            raise InputError(
                f"a forecast needs one input, time; the model has {model.inputs}: use `predict` with a "
                "table of all inputs"
            )
        kept = model.sums.get(name)
        span = None if kept is None else kept.span
        if span is None and (step is None or start is None):
            raise InputError(
                f"the model does not know the last row of {name!r}: give `start` and `step`, or fit "
                "again with this version"
            )
        last = _moment(start, "start") if start is not None else float(span[0])  # type: ignore[index]
        each = float(span[1]) if step is None else horizons.length(model, step, "step")  # type: ignore[index]
        if each <= 0:
            raise InputError(f"client {name!r} has one row, and so no step: give `step`")
        dates = horizons.has_dates(model)
        x = horizons.grid(last, each, horizons.length(model, horizon, "horizon"), dates=dates)
        device = checks.one_of(*DEVICES)(vars(self).get("device", "cpu"), "device")
        found = prediction.predict(model, name, x[:, None], device=device)
        wider = uncertain_kernel.added_variance(model, name, x[:, None])
        if model.settings.get("flat"):
            found, wider = found.flat(), wider[:, 0]
        times = np.round(x * 1e6).astype("datetime64[us]") if dates else x
        axis, names, column = axes_of(model)[0], model.output_names, columns_of(model).client
        return forecast.Forecast(
            name, times, x - last, found, axis, tuple(names), column, kernel_variance=wider
        )

    @with_numerics
    def anomalies(self, client: str, rows: Any, *, fine: Any = None) -> Anomalies:
        """How likely new rows are if nothing is wrong: `row`, `stretch`, `kind`, and `flagged(level)`.

        The rows must not be in the model. They are judged in order of their inputs, each beside those before
        it. If the model is right, at most 1% of fine rows have a `chance` below 1%.

        Args:
            client: A client of the model; another name is judged by the population.
            rows: (X, y), or a table with the model's columns.
            fine: Other rows of the client that are not in the model and are known to be fine. Chances are
                then ranks among theirs, and hold for data with heavy tails too.
        """
        from pfedhgp.living import anomalies

        model = self._fitted()
        given = self._rows_of(checks.client_name(client, model.clients), rows)
        warn_of_codes_beside(model, [given])
        if (text := anomalies.doubts(model, given.name, given.X, given.Y)) is not None:
            warn(text, stacklevel=3)
        found = anomalies.anomalies(model, given.name, given.X, given.Y)
        if fine is None:
            return found
        known = self._rows_of(given.name, fine)
        return found.among(anomalies.anomalies(model, given.name, known.X, known.Y))

    def backtest(
        self,
        data: Any,
        horizon: Length,
        *,
        origins: int = 5,
        client: str | None = None,
        season: Length | None = None,
        bins: int = 7,
    ) -> dict[str, Any]:
        """How good forecasts would have been: CRPS, RMSE and coverage by lead time, as a JSON table.

        A model with the same settings is fitted to the rows before the first of the last `origins` windows,
        and moved on by `update`. Beside it: the value one `season` ago, and climatology. If 95% intervals
        held less than 85% at some lead, a warning says so; `widen` is how many times as wide they should be.

        Args:
            data: The rows, as `fit` takes them.
            horizon: As for `forecast`.
            origins: How many windows at the end of the data.
            client: The client column of a table.
            season: Length of a season, such as "1 day". Without one there is climatology only.
            bins: Ranges of lead times that are scored.
        """
        from pfedhgp.living import forecast, horizons
        from pfedhgp.model import prediction, uncertain_kernel

        model = self._fitted()
        if model.inputs != 1:
            raise InputError(f"a back-test needs one input, time; the model has {model.inputs}")
        rows = self._rows(data, client)
        low = min(float(each.X.min()) for each in rows)
        high = max(float(each.X.max()) for each in rows)
        settings = {**vars(checked(self)), "domain": [(low, high)], "callbacks": ()}

        def fit(known: Any) -> Any:
            again = type(self)(**settings)
            again._fit_given(checked(again), GivenData(list(known), columns_of(model)))
            return again

        def update(now: Any, new: Any) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", StaleWarning)
                now.update({each.name: (each.X, each.Y) for each in new})

        def predict(now: Any, name: str, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = prediction.predict(now.model_, name, X)
            wider = uncertain_kernel.added_variance(now.model_, name, X)
            return found.mean, np.sqrt(found.sd**2 + wider)

        found = forecast.backtest(
            rows,
            count=checks.whole(1)(origins, "origins"),
            horizon=horizons.length(model, horizon, "horizon"),
            season=None if season is None else horizons.length(model, season, "season"),
            bins=checks.whole(1)(bins, "bins"),
            fit=fit,
            update=update,
            predict=predict,
        )
        found |= {"input": model.input_names[0], "dates": horizons.has_dates(model)}
        if (text := forecast.too_sure(found)) is not None:
            warn(text, stacklevel=3)
        return found

    def _retrained(self, new: list[ClientRows], old: list[ClientRows], rounds: int) -> Self:
        """Trained on old and new rows, from the fitted kernels on; the settings stay those of the fit."""
        from pfedhgp.living import retraining
        from pfedhgp.living.update import retrained

        before, settings = self._fitted(), vars(checked(self))
        warm = {"rounds": checks.whole(1)(rounds, "rounds"), **retraining.warm_kernels(before)}
        again = type(self)(**{**settings, **warm})
        rows = retraining.together(old, new)
        clients = [ClientRows(name, X, Y) for name, (X, Y) in rows.items()]
        again._fit_given(checked(again), GivenData(clients, columns_of(before)))
        self.model_, self.last_update_ = retrained(before, again.model_, new)
        self.exchanges_, self.bound_ = again.exchanges_, again.bound_
        return self

    def _rows(self, data: Any, client: str | None) -> list[ClientRows]:
        """Rows as `fit` takes them, of the model's columns; clients without an observation are left out."""
        found = clients_of(self._fitted(), data, client)
        kept = [each for each in found if np.isfinite(each.Y).any()]
        if not kept:
            raise InputError("no new row has an observed output")
        return kept

    def _rows_of(self, name: str, rows: Any) -> ClientRows:
        """One client's rows: (X, y), or a table, of whose client column only its own rows count."""
        model = self._fitted()
        if not is_table(rows):
            return self._rows({name: rows}, None)[0]
        if client_column(model, rows, None) is not None:
            mine = [each for each in self._rows(rows, None) if each.name == name]
            if not mine:
                raise InputError(f"the table has no row of client {name!r}")
            return mine[0]
        import narwhals as nw

        X = inputs_of(model, rows)
        frame = nw.from_native(rows, eager_only=True)
        refuse_missing(frame, model.output_names)
        return self._rows({name: (X, outputs_of(frame, model.output_names))}, None)[0]


def _moment(value: Any, name: str) -> float:
    """A place along the first input, in its units."""
    try:
        return position(value)
    except (TypeError, ValueError):
        raise checks.refusal(name, "a number or a datetime", value) from None


def stale_words(done: Updated, codes: Sequence[Code] = ()) -> str:
    """What is said if new rows are not as expected; `codes` are values among them that look like codes.

    Parameters have gone stale only if no code explains it.
    """
    worst = min(done.surprises, key=lambda each: each.p)
    found = (
        f"new rows of {worst.client!r} have a log-score of {worst.log_score:.3g} a cell where "
        f"{worst.expected:.3g} was expected (chance {done.p:.1g})"
    )
    mine = [code for code in codes if worst.client in code.counts]
    if not mine:
        return f"the parameters have gone stale: {found}: fit again with all rows"
    return (
        f"{found}, and {checks.listed([each.shown for each in mine])} among them looks like a code for "
        "missing: `forget` these rows, and `update` with them again without it"
    )
