"""`Agreement`: what the sites of a federation agree on before the first message: columns and settings.

The server makes it from its settings and sends it with every request. A site makes the same plan from it, and
reads its own file by it. It names columns and choices, and holds nothing of anybody's data.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pfedhgp.base.checks import short
from pfedhgp.base.choices import (
    AUTO,
    DIFFERENTIAL,
    DISTRIBUTED_PRIVACY,
    LOCAL_PRIVACY,
    NO_PRIVACY,
    SUMS_PRIVACY,
)
from pfedhgp.base.toml_text import quoted
from pfedhgp.data import cells
from pfedhgp.data.columns import Columns, InputColumn
from pfedhgp.data.domain import outside, pairs_of
from pfedhgp.data.readers import (
    Observations,
    client_rows,
    joined,
    observations_of,
    read_tables,
    wanted_names,
)
from pfedhgp.data.rows import ClientRows
from pfedhgp.data.table import Table
from pfedhgp.data.text_tables import RepeatedColumn, delimiter_of
from pfedhgp.diagnosis.federated.terms import SiteCycles
from pfedhgp.errors import InputError, warn
from pfedhgp.federation.envelope import Refused
from pfedhgp.federation.kept_settings import settings_to_json
from pfedhgp.federation.labelled_cycles import check_diagnosis, labelled, terms_of
from pfedhgp.federation.masks.roster import refuse_with, unmasking
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.planning import make_plan
from pfedhgp.federation.private_fit import Promise, promise_of, public_basis, public_scaling
from pfedhgp.federation.telling import is_closed, refuse_open
from pfedhgp.federation.totals_fit import Terms
from pfedhgp.privacy.accounting import mu_for
from pfedhgp.privacy.noise_shares import tolerated
from pfedhgp.privacy.release import PublicBasis
from pfedhgp.settings import config as configs
from pfedhgp.settings.config import SETTINGS, Config, check_together, check_use
from pfedhgp.settings.for_columns import kernel_words, model_settings
from pfedhgp.settings.table import ModelSettings


@dataclass(frozen=True)
class Agreement:
    """Columns with their kinds, and the settings that make the plan."""

    columns: Columns
    config: Config

    @staticmethod
    def of(config: Config) -> Agreement:
        """From a server's settings; datetimes must be named, because there is no file to find them in."""
        for given, name in ((config.inputs, "inputs"), (config.outputs, "outputs")):
            if not given:
                raise InputError(f"`{name}` in [data] is missing: the columns that every site has")
        others = [name for name in (config.cycle, config.label, config.block) if name]
        used = [*config.inputs, *config.outputs, *others]
        twice = [name for name in used if used.count(name) > 1]
        if twice:
            raise InputError(f"column {twice[0]!r} is used twice")
        check_use(config, federated=True)
        if config.privacy is None:
            config = replace(config, privacy=SUMS_PRIVACY)
        dated = config.datetimes or ()
        strange = [name for name in dated if name not in config.inputs]
        if strange:
            raise InputError(f"`datetimes` in [data]: {strange[0]!r} is not an input")
        inputs = tuple(
            InputColumn(name, "datetime", config.datetime_format)
            if name in dated
            else InputColumn(name)
            for name in config.inputs
        )
        check_diagnosis(config)
        columns = Columns(None, inputs, tuple(config.outputs), config.cycle)
        found = Agreement(columns, config)
        if found.promise is not None:
            _ = found.public
        _ = found.plan  # what cannot be planned is said now
        return found

    def to_json(self) -> str:
        """One spelling, so that equal agreements are equal texts."""
        tree, kept = self.config.tree(), _terms()
        for each in SETTINGS:
            if each.in_terms:
                kept[each.section][each.toml_key] = tree[each.section][each.toml_key]
        content = {"columns": self.columns.to_json(), "settings": kept}
        return json.dumps(content, sort_keys=True, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Agreement:
        """Checked as a settings file is: unknown keys are refused. Older versions had fewer parts."""
        try:
            tree = json.loads(text)
            columns, settings = Columns.from_json(tree["columns"]), tree["settings"]
            if not set(settings) <= set(_terms()) or set(tree) != {"columns", "settings"}:
                raise ValueError("unknown parts")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError("the server's settings cannot be read: another version?") from None
        config = configs.check(settings)
        if "privacy" not in settings.get("run", {}):  # before there was a choice
            config = replace(config, privacy=NO_PRIVACY)
        return Agreement(columns, config)

    @cached_property
    def model_settings(self) -> ModelSettings:
        """The settings of the model, with kernels for the agreed columns."""
        check_together(self.config)
        return model_settings(self.config, self.columns)

    @cached_property
    def plan(self) -> Plan:
        """The plan that server and sites share."""
        columns = self.columns
        settings = self.model_settings
        if settings.privacy in DIFFERENTIAL:  # there are no rounds to be planned
            settings = replace(settings, privacy=NO_PRIVACY)
        plan = make_plan(settings, len(columns.inputs), len(columns.outputs))
        if plan.learn_inducing == "auto":
            raise InputError('learn_inducing = "auto" is decided in one process: say true or false')
        terms = terms_of(self.config, columns.outputs)
        if terms is not None:
            refuse_with(plan.masks, "diagnosis")
        if is_closed(plan):
            refuse_open("a diagnosis", terms is not None)
        robust = "test" if self.model_settings.robust == AUTO and not plan.masks else plan.robust
        return replace(plan, diagnosis=terms, robust=robust)

    @cached_property
    def promise(self) -> Promise | None:
        """With differential privacy: what rows may cost, and public bounds. There are no rounds then."""
        if self.model_settings.privacy not in DIFFERENTIAL:
            return None
        if self.config.diagnose:
            raise InputError("a private fit has no form for a diagnosis: leave `diagnose` out")
        if self.model_settings.privacy == DISTRIBUTED_PRIVACY:
            _check_distributed(self.model_settings)
        columns = self.columns
        return promise_of(self.model_settings, len(columns.inputs), len(columns.outputs))

    def totals(self, sites: int) -> Terms | None:
        """With differential privacy by totals: what `sites` know of each other; None in other runs."""
        settings, promise = self.model_settings, self.promise
        if promise is None or settings.privacy == LOCAL_PRIVACY:
            return None
        if settings.privacy != DISTRIBUTED_PRIVACY:
            return Terms(promise, self.public, 0, 0, at_server=True)  # nobody adds a share
        missing = tolerated(sites, settings.tolerated, unmasking(sites))
        found = Terms(promise, self.public, sites, missing)
        found.shares(mu_for(promise.epsilon, promise.delta))  # too little noise is refused now
        return found

    @cached_property
    def public(self) -> PublicBasis:
        """With differential privacy: the basis of releases."""
        assert self.promise is not None
        return public_basis(self.model_settings.kernel, public_scaling(self.promise))

    def settings(self) -> dict[str, Any]:
        """What a model file keeps of it."""
        kept = {**settings_to_json(self.model_settings), **kernel_words(self.config)}
        columns = {**self.columns.to_json(), "dropped": []}
        return {**kept, "domain": None, "columns": columns}

    def read(
        self, files: Sequence[Path], name: str, *, delimiter: str | None, least_rows: int
    ) -> tuple[ClientRows, SiteCycles | None]:
        """A site's own rows, read by the agreed columns; for a diagnosis, also its cycles."""
        columns, terms, config = self.columns, self.plan.diagnosis, self.config
        parts: list[Observations] = []
        own: SiteCycles | None = None
        texts = [each for each in (config.label, config.block) if terms is not None and each]
        named = [*wanted_names(columns), *texts]
        try:
            tables = read_tables(files, wanted=named, delimiter=delimiter_of(delimiter))
            for table in tables:
                _check_columns(table, columns, named)
                parts += observations_of([table], columns)
            if terms is not None:
                whole, own = labelled(joined(name, parts), tables, config, terms)
        except RepeatedColumn as error:
            if error.column in named:
                raise Refused("data", str(error)) from None
            raise Refused("data", "two columns of the header have the same name") from None
        except InputError as error:  # it names files, rows and columns, and no value
            raise Refused("data", str(error)) from None
        if own is None:
            whole = joined(name, parts)
        seen = int(np.isfinite(whole.Y).any(axis=1).sum())
        if seen < least_rows:
            raise Refused("data", f"{seen} rows with an observed output: fewer than {least_rows}")
        layered = self.config.cycles != "white"
        (found,) = client_rows([whole], columns, whole_cycles=layered)
        if self.config.domain is not None:
            j = outside(pairs_of(self.config.domain, columns), found.X)
            if j is not None:
                why = f"column {columns.inputs[j].name!r}: there are rows outside the agreed domain"
                raise Refused("data", why)
        return found, own


def _check_distributed(settings: ModelSettings) -> None:
    """Refuses terms between machines on which ε would not be kept from the server or from a site."""
    if not settings.masks:
        raise InputError(
            'privacy = "distributed" between machines needs masks (`masks = true` in [federation], or '
            "--masks): without them the server would see each site's sums with a share of the noise alone"
        )
    if settings.tolerated == 0:
        raise InputError(
            "`tolerated` must be at least 1 between machines: every site knows its own share of the noise"
        )


def _terms() -> dict[str, dict[str, Any]]:
    """The sections that sites agree on, empty."""
    return {each.section: {} for each in SETTINGS if each.in_terms}


def _check_columns(table: Table, columns: Columns, named: Sequence[str]) -> None:
    """The agreed columns are there and of their kind; others are not named: a header may be a row."""
    for name in named:
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
    """One line for all settings of a server's file that a federation makes no use of."""
    found = [s.in_file for s in SETTINGS if s.unused and getattr(config, s.name) != s.default]
    if found:
        text = f"{file}: not used by a federation, where each site has files of its own: "
        warn(text + ", ".join(found))


def refuse_zones(config: Config) -> None:
    """Refuses zones on terms that hide what single sites send."""
    refuse_with(bool(config.masks), "grouping sites (zones)")
    if config.privacy in DIFFERENTIAL:
        raise InputError(
            "zones have no private form: each site would send a sketch of its own function, which was "
            "fitted to its rows: leave out --zones or `privacy`"
        )


def same(kept: str, sent: str) -> bool:
    """Whether two texts agree; settings that an earlier version did not know have their defaults."""
    if kept == sent:
        return True
    try:
        return Agreement.from_json(kept).to_json() == sent
    except InputError:
        return False


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
