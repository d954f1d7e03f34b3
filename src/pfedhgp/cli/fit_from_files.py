"""A fit from files: reads tables, fits, scores held-out rows, writes RUN and its report."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedhgp.base import progress
from pfedhgp.base.choices import DIFFERENTIAL
from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.base.signals import SignalCallback, Terminated, raise_pending_signal
from pfedhgp.cli import diagnosing
from pfedhgp.cli.fit_summary import about, scores_of, scoring, summary_of
from pfedhgp.cli.report import write_report
from pfedhgp.cli.stopped_run import RunRecord, StoppedRun
from pfedhgp.cli.targets import check_parent, writing_to
from pfedhgp.cli.terminal import say
from pfedhgp.data.calendar_hints import warn_of_calendar
from pfedhgp.data.holdout import Holdout
from pfedhgp.data.ingest import Ingested, ingest
from pfedhgp.data.readers import client_rows, find_columns, read_tables
from pfedhgp.data.tables import GivenData
from pfedhgp.data.text_tables import delimiter_of
from pfedhgp.errors import ExtrapolationWarning, InputError
from pfedhgp.model.run_folder import check_target
from pfedhgp.settings.config import SETTINGS, Config, check_together, check_use, naming_options
from pfedhgp.settings.for_columns import KERNELS, Kernels, kernel_words, model_settings

if TYPE_CHECKING:
    from pfedhgp.base.progress import Progress
    from pfedhgp.data.table import Table
    from pfedhgp.estimator import FederatedGP
    from pfedhgp.settings.table import ModelSettings


@dataclass(frozen=True)
class FitJob:
    """What is fitted: settings, kernels that were read from them, rows, and where checkpoints go."""

    config: Config
    kernels: Kernels
    data: Ingested
    checkpoint: Path
    resume: bool
    quiet: bool


Train = Callable[[FitJob, "Progress"], "FederatedGP"]
"""From a job and what shows its progress to a fitted model."""


def fit_from_files(
    config: Config,
    *,
    overwrite: bool = False,
    stopped: RunRecord | None = None,
    quiet: bool = False,
    train: Train | None = None,
) -> dict[str, Any]:
    """Reads, fits, scores and writes RUN; returns the summary that --json prints.

    `stopped` is what the run that goes on was asked for. `train` fits the model; by default in this process.
    """
    began, federated = time.monotonic(), train is not None
    with naming_options():
        kernels = check_settings(config, federated=federated)
        run, resume = Path(config.out or ""), stopped is not None
        _check_run(run, overwrite=overwrite, resume=resume)
        if stopped is not None:
            stopped.check_settings(config)
        tables = _tables(config)
        record = RunRecord(config, {str(table.path.resolve()): table.sha256 for table in tables})
        if stopped is not None:
            stopped.check_files(record.files)
        data = _ingested(config, tables)
        kernels.check(data.columns)
        if not config.cycle:
            warn_of_calendar(
                data.training, data.columns, [getattr(config, name) for name in KERNELS]
            )
    if config.diagnose and not federated and len(data.training) < 2:
        raise InputError("--diagnose tells clients apart: it needs two at least, and there is one")
    use_compilation_cache()
    _check_device(config.device)
    kept = StoppedRun.of(run)
    if not resume:
        with writing_to(run):
            kept.write(record)
    say(about(data, len(tables)), quiet=quiet)
    more = diagnosing.hint(config, clients=len(data.training), federated=federated)
    if more is not None:
        say(more, quiet=quiet)
    job = FitJob(config, kernels, data, kept.folder, resume, quiet)
    try:
        model, report = _fitted_and_written(job, run, train or train_here, began)
    except (KeyboardInterrupt, Terminated):
        if not kept.folder.exists():  # the model has taken its place
            say(
                f"pfedhgp: stopped; {run} holds the model: `pfedhgp report {run}` writes its report"
            )
        elif kept.there:
            command = "federate" if federated else "fit"
            say(f"pfedhgp: stopped; `pfedhgp {command} --resume --out {run}` goes on from here")
        raise
    finally:
        kept.tidy()
    return summary_of(model, run, data, report, time.monotonic() - began)


def _fitted_and_written(
    job: FitJob, run: Path, train: Train, began: float
) -> tuple[FederatedGP, Path | None]:
    """The model, which is then in RUN with its scores, and the report's path."""
    config, data = job.config, job.data
    shown = config if train is not train_here else _until_settled(config)
    with _progress(shown, scores=bool(data.test), quiet=job.quiet) as show:
        with naming_options():
            model = train(job, show)
            if train is not train_here:
                _warn_unsettled(model)
        _tell(show, scoring(data) if data.test else None)
        _keep_metrics(model, data, began, show)
        with writing_to(run):
            model.save(run, overwrite=True)  # `_check_run` has asked already
        _tell(show, "writing the report" if config.report else None)
        if not config.report:
            return model, None
        rows, held_out = (client_rows(part, data.columns) for part in (data.training, data.test))
        return model, write_report(run / "report.html", model, rows=rows, held_out=held_out)


# ------------------------------------------------------------------------- before the data are read


def check_settings(config: Config, *, federated: bool) -> Kernels:
    """Refuses what can be refused without the data; returns the kernels that the settings describe."""
    check_use(config, federated=federated)
    diagnosing.check(config, federated=federated)
    if config.cycles != Config.cycles and config.cycle is None:
        raise InputError(
            f"--cycles {config.cycles} needs --cycle: the column that numbers the cycles"
        )
    for each in SETTINGS:
        if each.required and not getattr(config, each.name):
            what = f"{each.help[0].lower()}{each.help[1:].split('.')[0]}"
            raise InputError(
                f"{each.on_command_line} is missing ({what}): see `pfedhgp fit --help`"
            )
    check_together(config)
    return Kernels.of(config)


def _check_run(run: Path, *, overwrite: bool, resume: bool) -> None:
    """Whether RUN may be written."""
    check_parent(run)
    if resume:
        return
    if StoppedRun.of(run).there and not overwrite:
        raise InputError(
            f"{run} holds a run that was stopped: --resume continues it, --overwrite starts again"
        )
    check_target(run, overwrite=overwrite)


def _tables(config: Config) -> list[Table]:
    """The tables of all files, which are read here and nowhere else."""
    others = (config.cycle, config.block, config.label)
    named = (config.client, *config.inputs, *config.outputs, *others)
    wanted = [name for name in named if name is not None]
    return read_tables(config.files, wanted=wanted, delimiter=delimiter_of(config.delimiter))


def _ingested(config: Config, tables: Sequence[Table]) -> Ingested:
    columns = find_columns(
        tables,
        client=config.client,
        inputs=config.inputs,
        outputs=config.outputs,
        cycle=config.cycle,
        datetime_format=config.datetime_format,
    )
    holdout = None
    if config.holdout is not None:
        holdout = Holdout.parse(config.holdout, seed=config.seed)
    return ingest(
        tables,
        columns,
        block=config.block,
        label=config.label,
        domain=config.domain,
        domain_needed=config.privacy in DIFFERENTIAL,
        holdout=holdout,
    )


def _check_device(device: str) -> None:
    """Refuses a device that JAX does not find, before the work begins."""
    from pfedhgp.base.numerics import has_device

    if not has_device(device):
        raise InputError(
            f"--device {device}: JAX finds none on this machine: leave --device out to use the CPU, "
            "or install JAX's build for it"
        )


# ----------------------------------------------------------------------------------------- the fit


def settings_of(job: FitJob, *, callbacks: Sequence[Any] = ()) -> ModelSettings:
    """The settings of the model on the columns that were found. Options were checked when they were read."""
    columns, domain = job.data.columns, job.data.domain
    found = model_settings(job.config, columns, kernels=job.kernels, domain=domain)
    return replace(found, callbacks=callbacks)


def train_here(job: FitJob, show: Progress) -> FederatedGP:
    """Fits in this process."""
    from pfedhgp.estimator.federated_gp import FederatedGP, fit_checked

    config, data = job.config, job.data
    if config.diagnose:
        _tell(show, "judging covariances of cycles by held-out runs")
        common = vars(settings_of(job, callbacks=[SignalCallback()]))

        def make(**settings: Any) -> FederatedGP:
            return FederatedGP(**{**common, **settings})

        fitted = diagnosing.train(config, data, make)
    else:
        columns = data.columns
        rows = client_rows(data.training, columns, whole_cycles=config.cycles != "white")
        fitted = fit_checked(
            settings_of(job, callbacks=[show, SignalCallback()]),
            GivenData(rows, columns),
            checkpoint=job.checkpoint,
            resume=job.resume,
        )
    kept = {**fitted.model_.settings, **words_of(job)}
    fitted.model_ = replace(fitted.model_, settings=kept)
    return fitted


def words_of(job: FitJob) -> dict[str, Any]:
    """Kernels as the user wrote them, and the columns: for the model file."""
    columns, dropped = job.data.columns.to_json(), list(job.data.dropped)
    return {**kernel_words(job.config), "columns": {**columns, "dropped": dropped}}


def _warn_unsettled(model: FederatedGP) -> None:
    """A training at sites is told of here; one in this process has warned itself."""
    from pfedhgp.inference.ending import warn_unsettled

    warn_unsettled(model.history_)


def _until_settled(config: Config) -> Config:
    from pfedhgp.federation.planning import until_settled

    return replace(config, rounds=until_settled(config).rounds)


def _progress(config: Config, *, scores: bool, quiet: bool) -> AbstractContextManager[Progress]:
    """What is shown on the way, from preparing to the report."""
    from pfedhgp.inference.registry import inference_named

    how = inference_named(config.inference, rounds=config.rounds, learn_inducing=None)
    averages = config.averaging and how.name == "structured"
    steps = {"averaging": averages, "scoring": scores, "the report": config.report}
    return progress.progress(
        rounds=how.rounds,
        restarts=config.restarts,
        start_is_round=how.start_is_round,
        finishing=progress.AVERAGING if averages else "finishing",
        after=[name for name, asked in steps.items() if asked],
        quiet=quiet,
    )


def _tell(show: Progress, phase: str | None) -> None:
    raise_pending_signal()
    if phase is not None:
        show.phase(phase)


def _keep_metrics(model: FederatedGP, data: Ingested, began: float, show: Progress) -> None:
    """Scores of the held-out rows into the model's metrics."""
    metrics: dict[str, Any] = {"holdout": None, "data": data.ledger}
    if data.holdout is not None:
        metrics["holdout"] = data.holdout.to_json()
        with warnings.catch_warnings():
            # A test of the future is outside the data: that is its point.
            warnings.simplefilter("ignore", ExtrapolationWarning)
            metrics |= scores_of(model, data.test, data.columns.outputs, show.step)
    if known := model.departures():
        metrics["departures"] = {name: each.to_json() for name, each in known.items()}
    metrics["seconds"] = time.monotonic() - began
    model.model_ = replace(model.model_, metrics=metrics)
