"""What the sites of a federation agree on before the first message: columns, model and inference.

The server makes it from its settings and sends it with every request; a site makes the same plan from it, and
reads its own file by it. It names columns and choices, and holds nothing of anybody's data.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedhgp.base.toml_text import quoted
from pfedhgp.cli import diagnosing
from pfedhgp.cli.fitting import estimator, words_of
from pfedhgp.data import cells
from pfedhgp.data.columns import Columns, InputColumn
from pfedhgp.data.ingest import delimiter_of, domain_of
from pfedhgp.data.readers import (
    Observations,
    client_rows,
    observations_of,
    read_tables,
    wanted_names,
)
from pfedhgp.data.rows import ClientRows
from pfedhgp.data.table import Table, short
from pfedhgp.data.text_tables import RepeatedColumn
from pfedhgp.errors import InputError, PFedHGPWarning
from pfedhgp.federation.flower.envelope import Refused
from pfedhgp.settings import config as configs
from pfedhgp.settings.config import Config

if TYPE_CHECKING:
    from pfedhgp.federation.plan import Plan

KEPT = {"model": None, "inference": None, "run": ("seed",)}
"""What of the settings concerns the sites."""
UNUSED = {
    "data": ("files", "client", "delimiter"),
    "inference": ("batch",),
    "run": ("out", "holdout", "device", "report"),
}
"""What is for `fit` alone; `block`, `diagnose` and `false_alarms` are refused."""


@dataclass(frozen=True)
class Agreement:
    """Columns with their kinds, and the settings that make the plan."""

    columns: Columns
    config: Config

    @staticmethod
    def of(config: Config) -> Agreement:
        """From a server's settings; datetimes have to be named, for there is no file to see them in."""
        data = config.data
        for given, name in ((data.inputs, "inputs"), (data.outputs, "outputs")):
            if not given:
                raise InputError(f"`{name}` in [data] is missing: the columns that every site has")
        used = [*data.inputs, *data.outputs, *([data.cycle] if data.cycle else [])]
        twice = [name for name in used if used.count(name) > 1]
        if twice:
            raise InputError(f"column {twice[0]!r} is used twice")
        diagnosing.check(config, federated=True)
        dated = data.datetimes or []
        strange = [name for name in dated if name not in data.inputs]
        if strange:
            raise InputError(f"`datetimes` in [data]: {strange[0]!r} is not an input")
        inputs = tuple(
            InputColumn(name, "datetime", data.datetime_format)
            if name in dated
            else InputColumn(name)
            for name in data.inputs
        )
        columns = Columns(None, inputs, tuple(data.outputs), data.cycle)
        found = Agreement(columns, config)
        found.plan()  # what cannot be planned is said now
        return found

    def to_json(self) -> str:
        """One spelling, so that equal agreements are equal texts."""
        tree = self.config.tree()
        kept = {
            table: {k: v for k, v in tree[table].items() if keys is None or k in keys}
            for table, keys in KEPT.items()
        }
        content = {"columns": self.columns.to_json(), "settings": kept}
        return json.dumps(content, sort_keys=True, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Agreement:
        """Checked as a settings file is: unknown keys and types are refused."""
        try:
            tree = json.loads(text)
            columns, settings = Columns.from_json(tree["columns"]), tree["settings"]
            if set(settings) != set(KEPT) or set(tree) != {"columns", "settings"}:
                raise ValueError("unknown parts")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError("the server's settings cannot be read: another version?") from None
        return Agreement(columns, configs.check(settings))

    def plan(self) -> Plan:
        """The plan that server and sites share."""
        from pfedhgp.federation.planning import cycle_choice

        columns, model = self.columns, self.config.model
        domain = domain_of(model.domain, columns)
        d, Q = len(columns.inputs), len(columns.outputs)
        lower = np.zeros(d) if domain is None else np.array([low for low, _ in domain])
        # The plan depends on rows only by their numbers of columns, and on a domain by their being in it.
        probe = ClientRows("", lower[None], np.zeros((1, Q)))
        asked = estimator(self.config, columns, domain)
        plan = asked._plan([probe], cycle_choice(asked._chosen()))
        if getattr(plan.inference, "learn_inducing", False) == "auto":
            raise InputError('learn_inducing = "auto" is decided in one process: say true or false')
        return plan

    def settings(self) -> dict[str, Any]:
        """What a model file keeps of it."""
        plain = (str, int, float, bool, type(None))
        given = estimator(self.config, self.columns, None).get_params()
        kept: dict[str, Any] = {n: value for n, value in given.items() if isinstance(value, plain)}
        kept |= {"layers": list(self.config.model.layers), **words_of(self.config)}
        return {**kept, "columns": {**self.columns.to_json(), "dropped": []}}

    def rows(
        self, files: Sequence[Path], name: str, *, delimiter: str | None, least_rows: int
    ) -> ClientRows:
        """A site's own rows, read by the agreed columns."""
        columns = self.columns
        data = self.config.data.model_copy(update={"delimiter": delimiter})
        parts: list[Observations] = []
        try:
            tables = read_tables(files, wanted=wanted_names(columns), delimiter=delimiter_of(data))
            for table in tables:
                _check_columns(table, columns)
                parts += [replace(part, name=name) for part in observations_of([table], columns)]
        except RepeatedColumn as error:
            if error.column in wanted_names(columns):
                raise Refused("data", str(error)) from None
            raise Refused("data", "two columns of the header have the same name") from None
        except InputError as error:  # it names files, rows and columns, and no value
            raise Refused("data", str(error)) from None
        whole = joined(parts)
        seen = int(np.isfinite(whole.Y).any(axis=1).sum())
        if seen < least_rows:
            raise Refused("data", f"{seen} rows with an observed output: fewer than {least_rows}")
        layered = self.config.model.cycles != "white"
        (found,) = client_rows([whole], columns, whole_cycles=layered)
        domain = domain_of(self.config.model.domain, columns)
        if domain is not None:
            lower, upper = np.array(domain).T
            outside = np.any((lower > found.X) | (upper < found.X), axis=0)
            for column, is_outside in zip(columns.inputs, outside, strict=True):
                if is_outside:
                    why = f"column {column.name!r}: there are rows outside the agreed domain"
                    raise Refused("data", why)
        return found


def _check_columns(table: Table, columns: Columns) -> None:
    """The agreed columns are there and of their kind; others are not named: a header may be a row."""
    for name in wanted_names(columns):
        if name not in table.names:
            raise InputError(f"{table.path}: no column {name!r}, which the server's settings name")
    for column in columns.inputs:
        if not len(table) or cells.kind_of(table, column.name, column.format) == column.kind:
            continue
        if column.kind == "datetime":
            why = "a datetime, as `datetimes` in [data] of the server's run.toml says"
        else:
            line = f"`datetimes = [{quoted(column.name)}]`"
            why = f"a number but a date: [data] of the server's run.toml lacks {line}"
        raise InputError(f"{table.path}: column {column.name!r} is not {why}")


def warn_of_unused(config: Config, file: Path) -> None:
    """One line for all settings of a server's file that say something, and that no federation heeds."""
    usual, given = Config().tree(), config.tree()
    found = [
        f"`{key}` in [{table}]"
        for table, keys in UNUSED.items()
        for key in keys
        if given[table][key] != usual[table][key]
    ]
    if found:
        text = f"{file}: not used by a federation, where each site has files of its own: "
        warnings.warn(text + ", ".join(found), PFedHGPWarning, stacklevel=2)


def difference(here: str, there: str) -> str:
    """The first setting in which two agreements differ, by its name, here and at the server."""
    both = [json.loads(text) for text in (here, there)]
    one, two = (_named({"columns": tree["columns"], **tree["settings"]}) for tree in both)
    for name in [*one, *two]:
        if one.get(name) != two.get(name):
            mine, other = (short(json.dumps(each.get(name))) for each in (one, two))
            return f"`{name}` is {mine} here and {other} at the server"
    return "the settings are another version's"


def _named(tree: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Leaves by their names: model.kernel, columns.outputs."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= (
            _named(value, f"{above}{key}.") if isinstance(value, dict) else {above + key: value}
        )
    return found


def joined(parts: Sequence[Observations]) -> Observations:
    """One client's rows from several files."""
    cycles = [part.cycle for part in parts if part.cycle is not None]
    return Observations(
        parts[0].name,
        np.concatenate([part.X for part in parts]),
        np.concatenate([part.Y for part in parts]),
        np.concatenate(cycles) if cycles else None,
    )
