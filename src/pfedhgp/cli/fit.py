"""`pfedhgp fit DATA... --client C --input X --output Y --out RUN`: `fit_from_files` does the work."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer

from pfedhgp.base.atomic_files import write_bytes
from pfedhgp.cli.options import AsJson, Overwrite, Quiet
from pfedhgp.cli.targets import check_file, writing_to
from pfedhgp.cli.terminal import result, say, warnings_as_lines
from pfedhgp.errors import InputError
from pfedhgp.settings import config as configs
from pfedhgp.settings.config import SETTINGS, Config, in_options, to_toml
from pfedhgp.settings.setting import Setting

if TYPE_CHECKING:
    from pfedhgp.cli.fit_from_files import Train
    from pfedhgp.cli.stopped_run import RunRecord

RUN = "Run"
Command = TypeVar("Command", bound=Callable[..., None])


def fit_options(command: Command) -> Command:
    """Gives the command all these options. It gets them by name; None means not given."""
    own = inspect.signature(_of_the_command, eval_str=True).parameters.values()
    parameters = [*(_parameter(each) for each in SETTINGS if each.options), *map(_in_panel, own)]
    signature: Any = command
    signature.__signature__ = inspect.Signature(parameters)
    signature.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def with_option(name: str, annotation: Any, default: Any = None) -> Callable[[Command], Command]:
    """Gives a command that has `fit_options` one option more."""

    def decorate(command: Command) -> Command:
        signature: Any = command
        more = inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        known = signature.__signature__.parameters.values()
        signature.__signature__ = inspect.Signature([*known, _in_panel(more)])
        signature.__annotations__[name] = annotation
        return command

    return decorate


def _of_the_command(
    *,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings in TOML. The command line wins over them."),
    ] = None,
    write_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all settings to FILE and stop.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run that stopped in RUN.")
    ] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Options that are not settings of the model or the data."""


def _in_panel(own: inspect.Parameter) -> inspect.Parameter:
    """The option under the heading of those that are about the run."""
    kind, declared = get_args(own.annotation)
    declared = copy.copy(declared)
    declared.rich_help_panel = RUN
    return own.replace(annotation=Annotated[kind, declared])


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


@fit_options
def fit(**options: Any) -> None:
    """Fit a federated model to tables and write it into a folder.

    Without --client, each file is a client by its name.

    Datetimes without a time zone are taken as UTC.

    Ctrl-C stops a run; --resume continues it as if it had not stopped.
    """
    run_command(options)


def run_command(options: dict[str, Any], train: Train | None = None) -> None:
    """What `fit` and `federate` do with their options; `train` as in `fit_from_files`."""
    from pfedhgp.cli.fit_from_files import fit_from_files
    from pfedhgp.cli.fit_summary import print_summary

    quiet, target = options["quiet"], options["write_config"]
    given = given_settings(options)
    stopped = _stopped(given) if options["resume"] else None
    config = Config(**{**({} if stopped is None else vars(stopped.config)), **given})
    if target is not None:
        write_settings(target, config, overwrite=options["overwrite"])
        say(f"settings written to {target}", quiet=quiet)
        return
    with warnings_as_lines(in_options) as told:
        summary = fit_from_files(
            config,
            train=train,
            overwrite=options["overwrite"],
            stopped=stopped,
            quiet=quiet,
        )
    if options["as_json"]:
        result({**summary, "warnings": told})
    elif not quiet:
        print_summary(summary)


def given_settings(options: dict[str, Any]) -> dict[str, Any]:
    """The settings that were given, checked: those of --config, and over them those of the options."""
    found: dict[str, Any] = {}
    if (file := options["config"]) is not None:
        found = configs.values(configs.read_config(file), file=file)
        found = configs.anchored(found, file.resolve().parent)
    return {**found, **configs.option_values(options)}


def _stopped(given: dict[str, Any]) -> RunRecord:
    """What the run that --resume continues was asked for."""
    from pfedhgp.cli.stopped_run import StoppedRun

    if given.get("out") is None:
        raise InputError("--resume needs --out: the folder of the run that stopped")
    return StoppedRun.of(Path(given["out"])).read()


def write_settings(path: Path, config: Config, *, overwrite: bool) -> None:
    """Writes all settings to a TOML file; paths in it are relative to it."""
    from pfedhgp.data.ingest import datetimes_in

    check_file(path, overwrite=overwrite)
    folder = path.resolve().parent
    dated = config.datetimes
    if dated is None:
        dated = datetimes_in(
            config.files,
            config.inputs,
            delimiter=config.delimiter,
            format=config.datetime_format,
        )
    moved = replace(
        config,
        files=tuple(os.path.relpath(name, folder) for name in config.files),
        datetimes=dated,
        out=config.out and os.path.relpath(Path(config.out).resolve(), folder),
    )
    with writing_to(path):
        write_bytes(path, to_toml(moved).encode("utf-8"))
