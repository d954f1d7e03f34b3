"""`Setting`: one entry of the table, and everything about it that a command, a file or a docstring shows."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from dataclasses import Field, dataclass, field, fields
from types import MappingProxyType
from typing import Any, TypeVar, dataclass_transform

from pfedhgp.errors import InputError
from pfedhgp.settings.kinds import Kind

SECTIONS = ("data", "model", "inference", "federation", "run")
"""The tables of a TOML file."""


@dataclass(frozen=True)
class Setting:
    """One setting: what it is called, what it may be, and what is said about it."""

    name: str
    default: Any
    kind: Kind
    help: str
    """For the docstring and for `--help`."""
    python: str = ""
    """What the docstring adds."""
    words: str = ""
    """What `--help` adds."""
    unset: str = ""
    """What holds while it is None: shown as the default."""
    example: Any = None
    """For a file that does not set it."""
    section: str = ""
    """Its table in a TOML file; "" if it can be given in Python only."""
    key: str = ""
    """Its key there, if that is not its name."""
    option: str | None = ""
    """Its option, such as "--batch/--one-by-one", if that is not its name; None: it has none."""
    metavar: str | None = None
    panel: str = ""
    """Its heading in `--help`, if that is not its section."""
    required: bool = False
    """A fit from files needs it."""
    only_with: str = ""
    """The flag without which it has no meaning, and is refused."""
    agreed: bool = False
    """Server and sites of a federation must have the same; those of [model] and [inference] always."""
    unused: bool = False
    """A federation makes no use of it, and warns if a server's file sets it."""
    refused: str = ""
    """Why a federation refuses it."""

    @property
    def toml_key(self) -> str:
        return self.key or self.name

    @property
    def in_terms(self) -> bool:
        """Whether it is part of what server and sites of a federation agree on."""
        return self.agreed or self.section in ("model", "inference")

    @property
    def options(self) -> tuple[str, ...]:
        """Every name that it has on the command line; of two, the first switches it on."""
        if self.option is None or not self.section:
            return ()
        return tuple((self.option or f"--{self.name.replace('_', '-')}").split("/"))

    @property
    def on_command_line(self) -> str:
        """What a message to a user of the command line calls it."""
        return self.options[0].removesuffix("...") if self.options else f"`{self.toml_key}`"

    @property
    def in_file(self) -> str:
        """What a message about a settings file calls it."""
        return f"`{self.toml_key}` in [{self.section}]"

    @property
    def shown_default(self) -> str | None:
        """The default as `--help` shows it."""
        if self.required:
            return None
        if self.default is None:
            return self.unset
        if isinstance(self.default, bool):
            return self.options[0 if self.default else 1]
        return ",".join(self.default) if isinstance(self.default, tuple) else str(self.default)

    def checked(self, value: Any) -> Any:
        """A value given in Python, as plain Python."""
        if value is None and self.default is None:
            return None
        try:
            return self.kind.check(value, self.name)
        except InputError as error:
            hint = " (None: the default)" if self.default is None else ""
            raise InputError(f"{error}{hint}") from None

    def checked_text(self, value: Any, called: str) -> Any:
        """A value from a file or an option; `called` is what a refusal calls the setting."""
        if value is None and self.default is None:
            return None
        try:
            return (self.kind.written or self.kind.check)(value, self.name)
        except InputError as error:
            raise InputError(str(error).replace(f"`{self.name}`", called, 1)) from None


def setting(*, default: Any, kind: Kind, help: str, **more: Any) -> Any:
    """An entry of a table: a field of the class, and the attributes of its `Setting`."""
    return field(default=default, metadata={"kind": kind, "help": help, **more})


T = TypeVar("T")


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(setting,))
def table(section: str = "") -> Callable[[type[T]], type[T]]:
    """A class whose fields are settings: its constructor takes each of them by name, with its default.

    In files its own fields are in the table `section`; without one they can be given in Python only.
    """

    def decorate(cls: type[T]) -> type[T]:
        for each in vars(cls).values():
            if isinstance(each, Field):
                each.metadata = MappingProxyType({**each.metadata, "section": section})
        return dataclass(kw_only=True, eq=False, repr=False)(cls)

    return decorate


def settings_of(cls: Any) -> tuple[Setting, ...]:
    """The entries of a table."""
    return tuple(Setting(name=f.name, default=f.default, **f.metadata) for f in fields(cls))


def arguments_text(settings: Iterable[Setting], width: int = 100) -> str:
    """The `Args:` of a docstring."""
    lines = ["Args:"]
    for each in settings:
        unset = f"Default: {each.unset}." if each.unset else ""
        text = " ".join(part for part in (f"{each.name}: {each.help}", each.python, unset) if part)
        lines += textwrap.wrap(
            text,
            width,
            initial_indent="    ",
            subsequent_indent="        ",
            break_on_hyphens=False,
        )
    return "\n".join(lines)
