"""`Config`: all settings of a fit from files, from a TOML file and from the command line, which wins.

The file's tables are [data], [model], [inference] and [run]; `pfedhgp fit --write-config FILE` shows them.
A value is checked where it comes from, so that a refusal can name the file and the key, or the option.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pfedhgp.base.option_names import as_options, naming
from pfedhgp.base.toml_text import quoted
from pfedhgp.errors import InputError
from pfedhgp.settings import kinds
from pfedhgp.settings.diagnosis_table import DiagnosisSection
from pfedhgp.settings.privacy_section import refuse_idle_privacy
from pfedhgp.settings.setting import SECTIONS, Setting, settings_of
from pfedhgp.settings.table import (
    MODEL_SETTINGS,
    DataSection,
    ModelSettings,
    OutputSection,
)


@dataclass(kw_only=True)
class Config(ModelSettings, DataSection, OutputSection, DiagnosisSection):
    """All settings of one fit from files, checked; kernels and domains are still texts. Not to be changed:
    `dataclasses.replace` makes another.
    """

    def tree(self) -> dict[str, dict[str, Any]]:
        """By table and key, as a file has them; for TOML and JSON."""
        found: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        for each in SETTINGS:
            value = getattr(self, each.name)
            found[each.section][each.toml_key] = list(value) if isinstance(value, tuple) else value
        return found


_PARTS = (DataSection, OutputSection, ModelSettings, DiagnosisSection)
SETTINGS: tuple[Setting, ...] = tuple(
    each
    for section in SECTIONS
    for part in _PARTS
    for each in settings_of(part)
    if each.section == section
)
"""All settings of a fit from files, by section."""
BY_KEY: Mapping[tuple[str, str], Setting] = {(s.section, s.toml_key): s for s in SETTINGS}


# ------------------------------------------------------------------------------------------ reading


def read(path: Path, **given: Any) -> Config:
    """The settings of a TOML file; `given` wins over them, but for None."""
    config = check(read_config(path), file=path)
    more = {s.name: s.checked(given[s.name]) for s in SETTINGS if given.get(s.name) is not None}
    return replace(config, **more)


def read_config(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, not yet checked."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8: save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not TOML: {error}") from None


def check(tree: Mapping[str, Any], *, file: Path | None = None) -> Config:
    """The settings of `tree`, and the defaults of those that it does not have."""
    return Config(**values(tree, file=file))


def values(tree: Mapping[str, Any], *, file: Path | None = None) -> dict[str, Any]:
    """The checked settings of `tree`, by name. Refusals name the table and key in `file`, or the option."""
    found: dict[str, Any] = {}
    try:
        for section, table in tree.items():
            if section not in SECTIONS:
                raise _unknown(section, SECTIONS, "table")
            if not isinstance(table, Mapping):
                raise InputError(f"[{section}] must be a table of settings")
            known = [each.toml_key for each in SETTINGS if each.section == section]
            for key, value in table.items():
                if key not in known:
                    raise _unknown(key, known, f"key in [{section}]")
                each = BY_KEY[section, key]
                called = each.on_command_line if file is None else each.in_file
                found[each.name] = each.checked_text(value, called)
    except InputError as error:
        raise error if file is None else InputError(f"{file}: {error}") from None
    return found


def option_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """The checked settings that were given on the command line, by name."""
    found: dict[str, Any] = {}
    for each in SETTINGS:
        given = options.get(each.name)
        if given is not None and given != []:
            found[each.name] = each.checked_text(each.kind.read(given), each.on_command_line)
    return found


def _unknown(name: str, known: Any, what: str) -> InputError:
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known)}"
    return InputError(f"unknown {what}: `{name}`; {guess}")


def anchored(found: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Paths in a settings file are relative to it, wherever the command is run."""
    moved = dict(found)
    for each in SETTINGS:
        value = found.get(each.name)
        if value and each.kind is kinds.PATHS:
            moved[each.name] = tuple(str((folder / name).resolve()) for name in value)
        elif value and each.kind is kinds.PATH:
            moved[each.name] = str(folder / value)
    return moved


# ----------------------------------------------------------------------------------------- checking


def checked(given: Any) -> ModelSettings:
    """The settings of `given` (a `FederatedGP`, say) as plain Python; refuses by name what does not fit."""
    found = {each.name: each.checked(getattr(given, each.name)) for each in MODEL_SETTINGS}
    settings = ModelSettings(**found)
    check_together(settings)
    return settings


def check_together(settings: ModelSettings) -> None:
    """Refuses settings that contradict each other, as far as it can be seen without data."""
    if "deviation" in settings.layers and "global" not in settings.layers:
        raise InputError("`layers`: a deviation departs from the global layer, which is missing")
    how = settings.inference
    knows_bound = how != "mean-field" if isinstance(how, str) else how.knows_bound
    if settings.restarts > 1 and not knows_bound:
        raise InputError("`restarts` needs a bound to choose by, which mean-field does not send")
    refuse_idle_privacy(settings)


def check_use(config: Config, *, federated: bool) -> None:
    """Refuses settings that have no meaning without another, or that a federation cannot follow."""
    for each in SETTINGS:
        if getattr(config, each.name) == each.default:
            continue
        option, other = each.on_command_line, _OPTIONS.get(each.only_with, "")
        if other and not getattr(config, each.only_with):
            raise InputError(f"{option} is for {other}: give both, or leave it out")
        if federated and each.refused:
            raise InputError(f"{option}: {each.refused}")


# ------------------------------------------------------------------------------------------ writing


def to_toml(config: Config) -> str:
    """All settings as a TOML file that `read` reads back; those not set are comments."""
    lines = [
        "# Settings of `pfedhgp fit --config FILE`; the command line wins over them.",
        "# A line that begins with # is not set: it shows an example, and what holds without it.",
    ]
    for section, table in config.tree().items():
        lines += ["", f"[{section}]"]
        for key, value in table.items():
            if value is not None:
                lines.append(f"{key} = {_value(value)}")
            else:
                each = BY_KEY[section, key]
                lines.append(f"# {key} = {_value(each.example)}  # not set: {each.unset}")
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    return repr(value)


# ----------------------------------------------------------------------- the command line's words


def in_options(text: str) -> str:
    """A message of the library's in the command line's words.

    >>> in_options("local='state-space' needs `local_kernel` to be a Matérn kernel")
    '--local state-space needs --local-kernel to be a Matérn kernel'
    """
    return as_options(text, _OPTIONS)


def naming_options() -> AbstractContextManager[None]:
    """Refusals of the library, which name arguments in Python, name options instead."""
    return naming(_OPTIONS)


_OPTIONS = {each.name: each.on_command_line for each in SETTINGS}
