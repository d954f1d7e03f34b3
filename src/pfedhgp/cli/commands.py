"""Commands by name, imported only when they run, and their help as plain text.

`pfedhgp --help` must not wait for what a command needs, nor for rich, which typer would draw it with.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import typer
from typer.core import TyperCommand, TyperGroup

from pfedhgp.errors import InputError

COMMANDS = {
    "demo": "Fit twelve made-up air-quality stations, compare with simple baselines, find zones, "
    "write a report.",
    "fit": "Fit a federated model to tables and write it into a folder.",
    "predict": "Predict for the rows of tables, with uncertainty and layer by layer.",
    "update": "Add new rows, and new clients, to a fitted model without training again.",
    "forget": "Take a client, or some of its rows, out of a fitted model.",
    "forecast": "Forecast each client's next steps, with uncertainty; or score past forecasts.",
    "watch": "Say which rows of a file look wrong, as they come.",
    "classify": "Classify whole cycles by their probability under each client.",
    "add-class": "Add a class to a model for diagnosis; the other classes stay as they are.",
    "cluster": "Find groups of clients that behave alike, without pooling rows.",
    "report": "Write a report of a fitted model: one HTML file, no network.",
    "server": "Train with sites on their own machines.",
    "client": "Take part in a federation with rows that stay here.",
    "policy": "Write the policy of a site: what it allows a server. Or check one.",
    "federate": "Fit with one process for each client; the processes exchange only sums.",
    "simulate": "Try a federation of hundreds of made-up sites.",
    "certs": "Make a certificate authority, a server certificate and site keys.",
    "audit": "Check that no line of an audit log was changed, moved or removed.",
    "ledger": "Show what was released of rows, and what it cost in differential privacy.",
    "rehearse": "Rehearse attacks by dishonest sites, and show what was caught and what it cost.",
    "doctor": "Say what is installed, what is missing, and what to do about it.",
    "reproduce": "Run the paper's experiments and write their results.",
}
"""Each is the function (or the `app`) in the module of its name; the texts are their first lines."""
WIDEST = 100
SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": WIDEST,
}


class PlainCommand(TyperCommand):
    """A command whose options are listed under their headings (`rich_help_panel`)."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if getattr(param, "hidden", False):
                continue
            argument = param.param_type_name == "argument"
            usual = "Arguments" if argument else "Options"
            section = getattr(param, "rich_help_panel", None) or usual
            line = _argument(self, param) if argument else _option(param)
            sections.setdefault(section, []).append(line)
        if len(sections) > 1 and "Options" in sections:
            sections["Options"] = sections.pop("Options")  # --help alone: last
        for section, lines in sections.items():
            with formatter.section(section):
                formatter.write_dl(lines)


def _option(param: Any) -> tuple[str, str]:
    names = " / ".join(
        ", ".join(sorted(each, key=lambda name: (name.startswith("--"), name)))
        for each in (param.opts, param.secondary_opts)
        if each
    )
    if not param.is_flag:
        names += f" {param.metavar or param.type.name.upper()}"
    notes = []
    if isinstance(param.show_default, str):
        notes.append(f"default: {param.show_default}")
    elif (
        param.show_default
        and not param.is_flag
        and isinstance(param.default, str | int | float | Path)
    ):
        notes.append(f"default: {param.default}")
    if param.required:
        notes.append("required")
    return names, (param.help or "") + (f"  [{'; '.join(notes)}]" if notes else "")


def _argument(command: click.Command, param: Any) -> tuple[str, str]:
    """From 8.4 on click loses the help that typer set, so it is read from the function."""
    name = param.metavar or str(param.name).upper()
    text = param.help or ""
    if not text and command.callback is not None:
        hint = inspect.get_annotations(inspect.unwrap(command.callback), eval_str=True)[param.name]
        text = next(info.help for info in hint.__metadata__ if hasattr(info, "help")) or ""
    return name, text


class PlainGroup(TyperGroup):
    """Lists commands with the whole first line of each."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, (command.help or "").split("\n\n")[0].replace("\n", " "))
                    for name, command in self.commands.items()
                ]
            )


class Commands(TyperGroup):
    """The commands of `COMMANDS`, each imported only when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.commands or cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        function = cmd_name.replace("-", "_")
        module = importlib.import_module(f"pfedhgp.cli.{function}")
        if hasattr(module, "app"):
            found = typer.main.get_command(module.app)
        else:
            alone = typer.Typer(
                add_completion=False,
                rich_markup_mode=None,
                context_settings=SETTINGS,
                pretty_exceptions_show_locals=False,
            )
            alone.command(cls=PlainCommand)(getattr(module, function))
            found = typer.main.get_command(alone)
        found.name = cmd_name
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], known)
            guess = f" Did you mean {', '.join(map(repr, near))}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{guess}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def require_flower() -> None:
    """Raises an error if Flower, which commands of a federation need, is not installed."""
    if find_spec("flwr") is None:
        raise InputError(
            "this command needs Flower: python3 -m pip install '.[flower]' in a checkout of pfedhgp"
        )
