"""What `FederatedGP` predicts: for one client, for a table of many, and how good that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, overload

import numpy as np

from pfedhgp.base import checks
from pfedhgp.base.choices import DEVICES
from pfedhgp.data.arrays import refuse_missing
from pfedhgp.data.tables import client_names, is_table, outputs_of
from pfedhgp.errors import InputError, warn
from pfedhgp.estimator.inputs import (
    client_column,
    clients_of,
    columns_of,
    inputs_of,
    warn_of_far,
)
from pfedhgp.gp import metrics
from pfedhgp.model import prediction
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.prediction import Prediction

SCORES = ("log-density", "r2")


class PredictionMethods:
    """Predictions of a fitted model."""

    def _fitted(self) -> FittedModel:
        raise NotImplementedError

    @overload
    def predict(self, data: str | int, X: Any) -> Prediction: ...

    @overload
    def predict(self, data: Mapping[Any, Any], X: None = None) -> dict[str, Prediction]: ...

    @overload
    def predict(
        self,
        data: Any,
        X: None = None,
        *,
        client: str | None = None,
        level: float = 0.95,
        layers: bool = False,
    ) -> Any: ...

    def predict(
        self,
        data: Any,
        X: Any = None,
        *,
        client: str | None = None,
        level: float = 0.95,
        layers: bool = False,
    ) -> Any:
        """The predictive distribution of one client at X, or predictions for a table of many clients.

        A client that was not in the data gets the population's prediction, and a warning.

        Example:
            >>> import numpy as np
            >>> import polars as pl
            >>> from pfedhgp import FederatedGP
            >>> x = np.linspace(0, 1, 20)
            >>> sites = {
            ...     name: (x, np.sin(6 * x) + shift) for name, shift in [("a", 0.0), ("b", 0.3)]
            ... }
            >>> model = FederatedGP(rounds=4).fit(sites)
            >>> model.predict("a", x).mean.shape
            (20,)
            >>> model.predict(pl.DataFrame({"client": ["a", "b"], "x": [0.5, 0.5]})).columns
            ['client', 'x', 'output', 'mean', 'sd', 'lower', 'upper', 'known']

        Args:
            data: A client's name. Or a table (pandas, polars) with the client column and the input columns:
                then a table comes back, one row for each row and output, with client, inputs, output,
                observed (if the table has the outputs), mean, sd, lower, upper and known; pandas keeps its
                index. Or {client: X}: then {client: `Prediction`}.
            X: With a client's name: an array (n, d), or a table with the input columns.
            client: The client column of a table. Default: that of the fit.
            level: Of the interval from lower to upper of a table, for an observation, with noise.
            layers: Whether a table also has the means of the global, deviation and local layers.
        """
        model = self._fitted()
        if isinstance(data, Mapping):
            if X is not None or not data:
                raise InputError(
                    "`client` must be one client's name with `X`; {client: X} has the inputs of each"
                )
            return {str(name): self._one(model, name, own) for name, own in data.items()}
        if is_table(data):
            if X is not None:
                raise InputError("a table has the inputs of all clients: leave `X` out")
            return self._table(model, data, client, level, layers=checks.flag(layers, "layers"))
        if X is None:
            raise InputError(
                "`X` is missing: predict(client, X), or predict(table) with a client column"
            )
        return self._one(model, data, X)

    def _device(self) -> str:
        return str(checks.one_of(*DEVICES)(vars(self).get("device", "cpu"), "device"))

    def _one(self, model: FittedModel, client: Any, X: Any) -> Prediction:
        device = self._device()
        name = checks.client_name(client, model.clients)
        array = inputs_of(model, X)
        warn_of_far(model, array, "predictions there rest on the prior", stacklevel=4)
        if name not in model.clients:
            text = f"no client {name!r} in the data: this is the population's prediction"
            warn(text, stacklevel=3)
        found = prediction.predict(model, name, array, device=device)
        return found.flat() if model.settings.get("flat") else found

    def _table(
        self, model: FittedModel, data: Any, client: str | None, level: float, *, layers: bool
    ) -> Any:
        """The long table of the data's library."""
        from dataclasses import replace

        import narwhals as nw

        from pfedhgp.estimator.long_table import asked_of, long_table, predicted

        column = client_column(model, data, checks.optional(checks.column)(client, "client"))
        frame = nw.from_native(data, eager_only=True)
        if column is None:
            raise InputError(
                f"the table has no column {columns_of(model).client!r}, which named the clients in the fit: "
                "say which one does (`client`), or give one client: predict(client, table)"
            )
        refuse_missing(frame, (column, *model.input_names))
        columns = replace(columns_of(model), client=column)
        rows = asked_of(client_names(frame, column), inputs_of(model, data))
        share = checks.number(above=0.0)(level, "level")
        found = predicted(model, rows, level=share, device=self._device())
        there = [name for name in model.output_names if name in frame.columns]
        observed = None
        if there:
            observed = np.full((len(frame), model.outputs), np.nan)
            places = [model.output_names.index(name) for name in there]
            observed[:, places] = outputs_of(frame, there)
        table = long_table(frame, columns, found, observed=observed, layers=layers)
        return table.to_native()

    def score(self, data: Any, *, client: str | None = None, metric: str = "log-density") -> float:
        """How well rows are predicted: the mean log predictive density of a row, or R². Higher is better.

        The density is that of a row's outputs together, noise included, in the data's units. Rows of clients
        that the model does not know are scored by the population's prediction. Rows that the model was
        fitted to score too well: give others.

        Args:
            data: A table with the model's columns, or {client: (X, y)}.
            client: The client column of a table. Default: that of the fit.
            metric: "log-density", or "r2": 1 − Σ(y − mean)² / Σ(y − ȳ)², ȳ of each output over these rows,
                its mean over outputs.
        """
        model = self._fitted()
        checks.one_of(*SCORES)(metric, "metric")
        rows = [each for each in clients_of(model, data, client) if np.isfinite(each.Y).any()]
        if not rows:
            raise InputError("no row has an observed output: there is nothing to score")
        found = [
            prediction.predict(model, each.name, each.X, device=self._device()) for each in rows
        ]
        y, mean = (np.concatenate(part) for part in ([r.Y for r in rows], [p.mean for p in found]))
        if metric == "r2":
            return _r2(y, mean)
        return -metrics.nll(y, mean, np.concatenate([p.covariance() for p in found]))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """The names of the outputs, in the order of a prediction's columns."""
        return np.asarray(self._fitted().output_names, dtype=object)


def _r2(y: np.ndarray, mean: np.ndarray) -> float:
    """The mean over outputs of 1 − Σ(y − mean)² / Σ(y − ȳ)²; cells that are NaN are left out."""
    rest = np.nansum((y - mean) ** 2, axis=0)
    whole = np.nansum((y - np.nanmean(y, axis=0)) ** 2, axis=0)
    if not np.all(whole > 0):
        raise InputError("R² needs outputs that vary over these rows: use metric='log-density'")
    return float(np.mean(1.0 - rest / whole))
