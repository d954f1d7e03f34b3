"""The options of `fit` and `federate`: one for each setting of the table, and those of the command itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from pfedhgp.settings.config import SETTINGS
from pfedhgp.settings.setting import Setting

RUN = "Run"
Command = TypeVar("Command", bound=Callable[..., None])


def fit_options(command: Command) -> Command:
    """The command with all these options, which it gets by name; None is not given."""
    own = inspect.signature(_of_the_command, eval_str=True).parameters.values()
    parameters = [*(_parameter(each) for each in SETTINGS if each.options), *own]
    signature: Any = command
    signature.__signature__ = inspect.Signature(parameters)
    signature.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _of_the_command(
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Settings in TOML. The command line wins over them.",
            rich_help_panel=RUN,
        ),
    ] = None,
    write_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write all settings to FILE and stop.", rich_help_panel=RUN
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the run that stopped in RUN.", rich_help_panel=RUN),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace RUN if it exists.", rich_help_panel=RUN)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=RUN)
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Say nothing but warnings.", rich_help_panel=RUN),
    ] = False,
) -> None:
    """What is no setting of the model or of the data."""


def _parameter(each: Setting) -> inspect.Parameter:
    text = f"{each.help} {each.words}".rstrip()
    declared: Any
    if not each.options[0].startswith("--"):
        declared = typer.Argument(metavar=each.options[0], help=text)
    else:
        declared = typer.Option(
            "/".join(each.options),
            help=text,
            metavar=each.metavar,
            show_default=each.shown_default or False,
            rich_help_panel=each.panel or each.section.title(),
        )
    return inspect.Parameter(
        each.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[each.kind.option | None, declared],
    )
