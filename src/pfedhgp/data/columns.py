"""Which columns of a table are the client, the inputs, the outputs and the cycle; as JSON in a RUN folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedhgp.errors import ModelFileError

if TYPE_CHECKING:
    import polars as pl

KINDS = ("number", "datetime")


@dataclass(frozen=True)
class InputColumn:
    """An input's name and kind; a datetime may need a `format`, as of `strptime`, to be read."""

    name: str
    kind: str = "number"
    format: str | None = None
    zone: bool | None = field(default=None, compare=False)
    """Whether the datetimes of the fit had a time zone; None if that is not known"""

    def shown(self, values: np.ndarray) -> np.ndarray:
        """The model's numbers as people know them: those of a datetime become UTC datetimes again."""
        if self.kind != "datetime":
            return values
        return np.round(values * 1e6).astype("datetime64[us]")

    def series(self, values: np.ndarray, name: str) -> pl.Series:
        """The same as a column of a table, with its time zone."""
        import polars as pl

        found = pl.Series(name, self.shown(values))
        return found.dt.replace_time_zone("UTC") if self.kind == "datetime" else found


@dataclass(frozen=True)
class Columns:
    """The columns that a model was fitted to, by name; `client` is None if each file is a client."""

    client: str | None
    inputs: tuple[InputColumn, ...]
    outputs: tuple[str, ...]
    cycle: str | None = None

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.inputs)

    def to_json(self) -> dict[str, Any]:
        return {
            "client": self.client,
            "inputs": [_to_json(column) for column in self.inputs],
            "outputs": list(self.outputs),
            "cycle": self.cycle,
        }

    @staticmethod
    def from_json(tree: Any) -> Columns:
        """The inverse of `to_json`; other keys are left alone."""
        try:
            inputs = tuple(_input(each) for each in tree["inputs"])
            return Columns(
                client=_name(tree["client"], optional=True),
                inputs=inputs,
                outputs=tuple(str(_name(name)) for name in tree["outputs"]),
                cycle=_name(tree["cycle"], optional=True),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"the model's columns cannot be read: {error}") from None


def _to_json(column: InputColumn) -> dict[str, Any]:
    found = {"name": column.name, "kind": column.kind, "format": column.format}
    return found if column.zone is None else {**found, "zone": column.zone}


def _input(tree: Mapping[str, Any]) -> InputColumn:
    if tree["kind"] not in KINDS:
        raise ValueError(f"an input is of kind {tree['kind']!r}, known: {', '.join(KINDS)}")
    zone = tree.get("zone")
    if zone is not None and not isinstance(zone, bool):
        raise TypeError("`zone` is neither true nor false")
    format_ = _name(tree["format"], optional=True)
    return InputColumn(str(_name(tree["name"])), tree["kind"], format_, zone)


def _name(value: Any, *, optional: bool = False) -> str | None:
    if not isinstance(value, str) and not (optional and value is None):
        raise TypeError(f"{value!r} is not a name")
    return value
