"""What `pfedhgp fit` does, once its settings are known."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedhgp.base import atomic_files
from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.base.signals import Heeding, Terminated, heed
from pfedhgp.cli import diagnosing
from pfedhgp.cli.targets import check_parent, writing_to
from pfedhgp.cli.terminal import counted, say
from pfedhgp.data.columns import Columns
from pfedhgp.data.ingest import Ingested, fingerprints, ingest
from pfedhgp.data.readers import client_rows
from pfedhgp.errors import ExtrapolationWarning, InputError, ModelFileError
from pfedhgp.gp import kernel_text
from pfedhgp.model.run_folder import check_target, parse_json
from pfedhgp.settings.config import Config, naming_options, option_of

if TYPE_CHECKING:
    from pfedhgp.estimator import FederatedGP

NOT_COMPARED = {("run", "out"), ("run", "report"), ("data", "datetimes")}
"""What makes no other model: where to, the report, and what is seen in the files anyway."""


@dataclass(frozen=True)
class Unfinished:
    """What a stopped run was asked for, beside its checkpoints: RUN/checkpoint/run.json."""

    folder: Path

    @property
    def there(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return self.folder.is_dir() and any(p.name.isdigit() for p in self.folder.iterdir())

    def write(self, config: Config, files: Mapping[str, str]) -> None:
        content = {"config": config.tree(), "files": dict(files)}
        atomic_files.write_bytes(
            self.folder / "run.json", json.dumps(content, indent=1).encode("ascii")
        )

    def read(self) -> dict[str, Any]:
        path = self.folder / "run.json"
        if not self.there or not path.is_file():
            raise InputError(
                f"{self.folder.parent}: no stopped run to resume: leave --resume out to start one"
            )
        try:
            stored: dict[str, Any] = parse_json(path.read_bytes())
            if not isinstance(stored["config"], dict) or not isinstance(stored["files"], dict):
                raise ValueError("not the settings of a run")
        except (ValueError, KeyError, TypeError) as error:
            raise ModelFileError(f"{path}: {error}") from None
        return stored

    def check(self, config: Config, files: Mapping[str, str]) -> None:
        """Refuses other settings and changed files: the result would be that of neither run."""
        stored = self.read()
        for table, keys in config.tree().items():
            for key, value in keys.items():
                before = stored["config"].get(table, {}).get(key)
                if value != before and (table, key) not in NOT_COMPARED:
                    raise InputError(
                        f"--resume: {option_of(table, key)} is {value!r}, but the run began with "
                        f"{before!r}: leave it out, or start again with --overwrite"
                    )
        for path in sorted({*files, *stored["files"]}):
            if files.get(path) != stored["files"].get(path):
                raise InputError(
                    f"--resume: {path} has changed since the run began: start again with --overwrite"
                )

    def tidy(self) -> None:
        """Takes away what was made for a run that never began."""
        if self.there:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.folder.parent.is_dir() and not any(self.folder.parent.iterdir()):
            self.folder.parent.rmdir()


def check_settings(config: Config, *, overwrite: bool, resume: bool) -> Path:
    """The RUN folder, when all that can be said without reading the data is in order."""
    data = config.data
    for given, option in (
        (data.files, "DATA"),
        (data.inputs, "--input"),
        (data.outputs, "--output"),
    ):
        if not given:
            raise InputError(f"{option} is missing: see `pfedhgp fit --help`")
    if config.run.out is None:
        raise InputError("--out is missing: the folder for the model")
    for name in ("kernel", "local_kernel"):
        text = getattr(config.model, name)
        if text is not None:
            kernel_text.parse(text, option_of("model", name))
    if "deviation" in config.model.layers and "global" not in config.model.layers:
        raise InputError("--layers: a deviation departs from the global layer, which is missing")
    if config.inference.restarts > 1 and config.inference.name == "mean-field":
        raise InputError("--restarts needs a bound to choose by, which mean-field does not send")
    run = Path(config.run.out)
    check_parent(run)
    if resume:
        return run
    unfinished = Unfinished(run / "checkpoint")
    if unfinished.there and not overwrite:
        raise InputError(
            f"{run} holds a run that was stopped: --resume goes on with it, --overwrite starts again"
        )
    check_target(run, overwrite=overwrite)
    return run


Train = Callable[..., "FederatedGP"]


def fit(
    config: Config,
    *,
    overwrite: bool = False,
    resume: bool = False,
    quiet: bool = False,
    train: Train | None = None,
) -> dict[str, Any]:
    """Reads, fits, scores and writes RUN; returns the summary that --json prints.

    `train` is what turns settings and rows into a fitted model; by default in this process.
    """
    began = time.monotonic()
    diagnosing.check(config, federated=train is not None)
    run = check_settings(config, overwrite=overwrite, resume=resume)
    unfinished = Unfinished(run / "checkpoint")
    files = fingerprints(config.data.files)
    if resume:
        unfinished.check(config, files)
    data = ingest(config)
    if config.model.diagnose and len(data.training) < 2:
        raise InputError("--diagnose tells clients apart: it needs two at least, and there is one")
    for name, text in (
        ("kernel", config.model.kernel),
        ("local_kernel", config.model.local_kernel),
    ):
        if text is not None:
            option = option_of("model", name)
            kernel_text.check_inputs(kernel_text.parse(text, option), data.columns.inputs, option)
    use_compilation_cache()
    _check_device(config.run.device)
    if not resume:
        with writing_to(run):
            unfinished.write(config, files)
    say(_about(data, len(files)), quiet=quiet)
    more = diagnosing.hint(config, clients=len(data.training), federated=train is not None)
    if more is not None:
        say(more, quiet=quiet)
    saved = False
    try:
        with _progress(config, scores=bool(data.test), quiet=quiet) as show:
            with naming_options():
                model = (train or _train)(
                    config, data, unfinished.folder, show, resume=resume, quiet=quiet
                )
            _tell(show, _scoring(data) if data.test else None)
            _keep_metrics(model, data, began, show)
            with writing_to(run):
                model.save(run, overwrite=True)  # `check_settings` has asked already
            saved = True
            _tell(show, "writing the report" if config.run.report else None)
            report = _report(model, run, data, quiet=quiet) if config.run.report else None
    except (KeyboardInterrupt, Terminated):
        if saved:
            say(
                f"pfedhgp: stopped; {run} holds the model: `pfedhgp report {run}` writes its report"
            )
        elif unfinished.there:
            command = "fit" if train is None else "federate"
            say(f"pfedhgp: stopped; `pfedhgp {command} --resume --out {run}` goes on from here")
        raise
    finally:
        unfinished.tidy()
    return _summary(model, run, data, report, time.monotonic() - began)


def _progress(config: Config, *, scores: bool, quiet: bool) -> AbstractContextManager[Any]:
    """What is shown on the way, from preparing to the report."""
    from pfedhgp.base import progress
    from pfedhgp.inference.registry import inference_named

    how = config.inference
    settings = inference_named(how.name, rounds=how.rounds, learn_inducing=None)
    averages = how.averaging and how.name == "structured"
    steps = {"averaging": averages, "scoring": scores, "the report": config.run.report}
    return progress.progress(
        rounds=settings.rounds,
        restarts=how.restarts,
        start_is_round=settings.start_is_round,
        finishing=progress.AVERAGING if averages else "finishing",
        after=[name for name, asked in steps.items() if asked],
        quiet=quiet,
    )


def _tell(show: Any, phase: str | None) -> None:
    heed()
    if phase is not None and hasattr(show, "phase"):
        show.phase(phase)


def _step(show: Any, done: int, total: int) -> None:
    heed()
    if hasattr(show, "step"):
        show.step(done, total)


def _check_device(device: str) -> None:
    """Says what is wrong in the command line's words, and before the work begins."""
    if device == "cpu":
        return
    import jax

    try:
        jax.devices(device)
    except RuntimeError:
        raise InputError(
            f"--device {device}: JAX finds none on this machine: leave --device out to use the CPU, "
            "or install JAX's build for it"
        ) from None


def _train(
    config: Config, data: Ingested, checkpoint: Path, show: Any, *, resume: bool, quiet: bool
) -> FederatedGP:
    if config.model.diagnose:
        _tell(show, "choosing the cycle layer, then trainings with cycles held out in turn")
        return _with_words(diagnosing.train(config, data), config, data)
    fitted = estimator(config, data.columns, data.domain, callbacks=[show, Heeding()]).fit(
        client_rows(data.training, data.columns, whole_cycles=config.model.cycles != "white"),
        inputs=data.columns.input_names,
        outputs=data.columns.outputs,
        checkpoint=checkpoint,
        resume=resume,
    )
    return _with_words(fitted, config, data)


def _with_words(fitted: FederatedGP, config: Config, data: Ingested) -> FederatedGP:
    """With what the user wrote, for the model file."""
    kept = {**fitted.model_.settings, **words_of(config), **columns_of(data)}
    fitted.model_ = replace(fitted.model_, settings=kept)
    return fitted


def words_of(config: Config) -> dict[str, Any]:
    """Kernels as the user wrote them, for the model file."""
    return {"kernel": config.model.kernel, "local_kernel": config.model.local_kernel}


def columns_of(data: Ingested) -> dict[str, Any]:
    """The columns, for the model file."""
    return {"columns": {**data.columns.to_json(), "dropped": list(data.dropped)}}


def estimator(
    config: Config,
    columns: Columns,
    domain: list[tuple[float, float]] | None,
    *,
    callbacks: Sequence[Any] = (),
) -> FederatedGP:
    """The estimator that the settings ask for."""
    from pfedhgp.estimator import FederatedGP

    model, how = config.model, config.inference
    return FederatedGP(
        kernel=_kernel(model.kernel, "kernel", columns),
        local_kernel=_kernel(model.local_kernel, "local_kernel", columns),
        layers=tuple(model.layers),
        latents=model.latents,
        local_latents=model.local_latents,
        local=model.local,
        noise=model.noise,
        inducing=model.inducing,
        local_inducing=model.local_inducing,
        learn_inducing=model.learn_inducing,
        largest_inducing=model.largest_inducing,
        largest_local_inducing=model.largest_local_inducing,
        domain=domain,
        cycles=model.cycles,
        cycle_sharing=model.cycle_sharing,
        cycle_basis=model.cycle_basis,
        inference=how.name,
        rounds=how.rounds,
        tolerance=how.tolerance,
        restarts=how.restarts,
        batch=how.batch,
        averaging=how.averaging,
        device=config.run.device,
        seed=config.run.seed,
        callbacks=callbacks,
    )


def _kernel(text: str | None, name: str, columns: Columns) -> Any:
    """A plain name stays one, which lets the estimator choose the local kernel by it."""
    if text is None:
        return None
    option = option_of("model", name)
    tree = kernel_text.parse(text, option)
    if isinstance(tree, kernel_text.Leaf) and not (tree.numbers or tree.inputs):
        return tree.name
    return kernel_text.build(tree, columns.inputs, option)


def _keep_metrics(model: FederatedGP, data: Ingested, began: float, show: Any) -> None:
    """Scores of the held-out rows, in the data's own units, into the model's metrics."""
    from pfedhgp.estimator.evaluation import summarise
    from pfedhgp.gp.metrics import Scored

    metrics: dict[str, Any] = {"holdout": None, "data": data.ledger}
    if data.holdout is not None:
        metrics["holdout"] = data.holdout.to_json()
        with (
            warnings.catch_warnings()
        ):  # a test of the future is outside the data: that is its point
            warnings.simplefilter("ignore", ExtrapolationWarning)
            found = {}
            for done, client in enumerate(data.test):
                _step(show, done, len(data.test))
                found[client.name] = model.predict(client.name, client.X)
        scored = {
            client.name: Scored(
                y=client.Y, mean=found[client.name].mean, cov=found[client.name].covariance()
            )
            for client in data.test
        }
        metrics |= summarise(scored, data.columns.outputs)
    metrics["seconds"] = time.monotonic() - began
    model.model_ = replace(model.model_, metrics=metrics)


def _report(model: FederatedGP, run: Path, data: Ingested, *, quiet: bool) -> Path | None:
    from pfedhgp.cli.report import write_report

    rows, held_out = (client_rows(part, data.columns) for part in (data.training, data.test))
    return write_report(run / "report.html", model, rows=rows, held_out=held_out, quiet=quiet)


def _held_out(data: Ingested) -> int:
    return sum(len(part.X) for part in data.test)


def _scoring(data: Ingested) -> str:
    clients = len(data.test)
    return f"scoring {counted(_held_out(data), 'held-out row')} of {counted(clients, 'client')}"


def _about(data: Ingested, files: int) -> str:
    held = _held_out(data)
    test = f", {held} of them held out" if held else ""
    kinds = ", ".join(
        f"{c.name} (datetime)" if c.kind == "datetime" else c.name for c in data.columns.inputs
    )
    outputs = ", ".join(data.columns.outputs)
    return (
        f"{counted(len(data.training), 'client')}, {counted(data.rows, 'row')}{test}, from "
        f"{counted(files, 'file')}: {outputs} by {kinds}"
    )


def _summary(
    model: FederatedGP, run: Path, data: Ingested, report: Path | None, seconds: float
) -> dict[str, Any]:
    from pfedhgp.inference.ending import in_words

    metrics = model.model_.metrics
    return {
        "run": str(run),
        "clients": len(model.clients_),
        "rows": data.rows,
        "held_out": _held_out(data),
        "missing": data.missing,
        "inputs": list(data.columns.input_names),
        "dropped": list(data.dropped),
        "outputs": list(data.columns.outputs),
        "rounds": sum(1 for record in model.history_ if record["kind"] == "round"),
        "exchanges": model.exchanges_,
        "bound": model.bound_,
        "ended": in_words(model.history_),
        "seconds": seconds,
        "holdout": metrics["holdout"],
        "overall": metrics.get("overall"),
        "by_output": {
            name: {average: table[average] for average in ("pooled", "client_mean")}
            for name, table in metrics.get("outputs", {}).items()
        },
        "report": None if report is None else str(report),
    }
