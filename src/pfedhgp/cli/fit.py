"""`pfedhgp fit DATA... --client C --input X --output Y --out RUN`: `fit_from_files` does the work."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedhgp.cli.fit_options import fit_options

if TYPE_CHECKING:
    from pfedhgp.cli.fit_from_files import Train
    from pfedhgp.settings.config import Config


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
    from pfedhgp.cli.terminal import result, say, warnings_as_lines
    from pfedhgp.settings.config import in_options

    quiet, target = options["quiet"], options["write_config"]
    config = config_of(options)
    if target is not None:
        write_settings(target, config, overwrite=options["overwrite"])
        say(f"settings written to {target}", quiet=quiet)
        return
    with warnings_as_lines(in_options) as told:
        summary = fit_from_files(
            config,
            train=train,
            overwrite=options["overwrite"],
            resume=options["resume"],
            quiet=quiet,
        )
    if options["as_json"]:
        result({**summary, "warnings": told})
    elif not quiet:
        print_summary(summary)


def config_of(options: dict[str, Any]) -> Config:
    """All settings: those of a stopped run, over them those of --config, over both those of the options."""
    from pfedhgp.cli.stopped_run import StoppedRun
    from pfedhgp.errors import InputError
    from pfedhgp.settings import config as configs

    given, file = configs.option_values(options), options["config"]
    found: dict[str, Any] = {}
    if file is not None:
        found = configs.values(configs.read_config(file), file=file)
        found = configs.anchored(found, file.resolve().parent)
    if options["resume"]:
        where = given.get("out") or found.get("out")
        if where is None:
            raise InputError("--resume needs --out: the folder of the run that stopped")
        found = {**vars(StoppedRun.of(Path(where)).read().config), **found}
    return configs.Config(**{**found, **given})


def write_settings(path: Path, config: Config, *, overwrite: bool) -> None:
    """Writes all settings to a TOML file; paths in it are relative to it."""
    from pfedhgp.base.atomic_files import write_bytes
    from pfedhgp.cli.targets import check_file, writing_to
    from pfedhgp.data.ingest import datetimes_in
    from pfedhgp.settings.config import to_toml

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
