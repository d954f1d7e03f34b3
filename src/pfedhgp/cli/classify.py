"""`pfedhgp classify RUN DATA --out FILE`: which client each cycle is of, or none of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfedhgp.cli.options import Delimiter

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from pfedhgp.data.columns import Columns
    from pfedhgp.diagnosis.decision import Calibration, Diagnosis, Why
    from pfedhgp.diagnosis.evidence import Evidence
    from pfedhgp.estimator import FederatedGP


def classify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that fit wrote.")],
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Cycles: a long table, .npz or .mat.")
    ],
    out: Annotated[
        str, typer.Option(metavar="FILE", help="A .csv, .csv.gz, .parquet or .feather file, or -.")
    ],
    cycle: Annotated[
        str | None, typer.Option(help="Column of a table that numbers the cycles.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Column or array with true classes: scores are reported.")
    ] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(metavar="DATA", help="Labelled cycles that the fit did not see: thresholds."),
    ] = None,
    false_alarms: Annotated[
        float | None,
        typer.Option(
            help="With --held-out: share of known cycles that may be none of these.",
            show_default="0.01",
        ),
    ] = None,
    prior: Annotated[
        list[str] | None, typer.Option(metavar="CLASS=WEIGHT", help="Of each class; repeats.")
    ] = None,
    why: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what decided, by channel and stretch (.csv)."),
    ] = None,
    delimiter: Delimiter = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that exist.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings.")] = False,
) -> None:
    """Classify whole cycles by their probability under each client.

    RUN is a folder that fit wrote; its clients are the classes.

    DATA is a long table with --cycle, or .npz or .mat with cycles.

    Columns: cycle, class, probability, surprise, log density of each.

    RUN keeps counts and the closest calls for its report, no samples.
    """
    from pfedhgp.base.compilation_cache import use_compilation_cache
    from pfedhgp.cli.predict import _check_options, write_table
    from pfedhgp.cli.saved import columns_of, open_run
    from pfedhgp.cli.terminal import result, say, warnings_as_lines
    from pfedhgp.errors import InputError

    with warnings_as_lines() as told:
        _check_options(out, 0.5, overwrite, as_json)
        if why is not None and why.exists() and not overwrite:
            raise InputError(f"{why} already exists: choose another file, or give --overwrite")
        if held_out is not None and label is None:
            raise InputError("--held-out needs --label: the column or array with true classes")
        rate = _false_alarms(false_alarms, held_out)
        spec = open_run(run)
        classes = [str(entry["name"]) for entry in spec["clients"]]
        if why is not None and len(classes) < 2:
            raise InputError(
                f"--why compares two classes, and {run} has one client: leave --why out"
            )
        priors = _priors(prior, classes)
        columns = columns_of(spec)
        batches = read_batches(data, columns, cycle=cycle, label=label, delimiter=delimiter)
        kept = (
            read_batches(held_out, columns, cycle=cycle, label=label, delimiter=delimiter)
            if held_out is not None
            else None
        )
        use_compilation_cache()
        from pfedhgp.diagnosis import decision
        from pfedhgp.estimator import FederatedGP

        model = FederatedGP.load(run)
        known = model.calibration_
        if kept is not None:
            known = _calibrated(model, kept, rate)
        found = _evidence(model, batches, novelty=known.thresholds is not None)
        told_of = decision.diagnose(found, priors=priors, calibration=known)
        names = [name for batch in batches for name in batch.names]
        truth = [each for batch in batches for each in batch.labels or ()]
        scored = None  # before anything is written: a label may name a class that is not there
        if truth:
            scored = decision.scores(told_of.classes, truth, told_of.probability)
        write_table(table_of(told_of, names), out)
        if why is not None:
            write_table(_reasons(model, batches, told_of), str(why))
        _leave_for_report(run, spec, model, batches, told_of, scored)
    summary: dict[str, Any] = {
        "out": out,
        "cycles": len(names),
        "classes": list(told_of.classes),
        "none": int(told_of.none.sum()),
        "thresholds": known.thresholds is not None,
        "scores": scored,
    }
    if as_json:
        result({**summary, "warnings": told})
    elif out != "-":
        flagged = f", {summary['none']} none of these" if summary["thresholds"] else ""
        say(f"{len(names)} cycles, {len(told_of.classes)} classes{flagged}: {out}", quiet=quiet)
        if scored is not None:
            say(
                f"accuracy {scored['accuracy']:.4f}, log-loss {scored['log_loss']:.3f}, "
                f"ECE {scored['ece']:.3f}",
                quiet=quiet,
            )


def _leave_for_report(
    run: Path,
    spec: Mapping[str, Any],
    model: FederatedGP,
    batches: Sequence[Batch],
    found: Diagnosis,
    scored: Mapping[str, Any] | None,
) -> None:
    """Counts and reasons into RUN; a folder that cannot be written is no reason to fail."""
    import warnings

    from pfedhgp.diagnosis import files as classified
    from pfedhgp.errors import PFedHGPWarning

    places = [(batch, c) for batch in batches for c in range(len(batch.names))]

    def explain(cycle: int, one: str, two: str) -> Why:
        batch, c = places[cycle]
        return model.why(
            batch.cycles[c], grid=batch.grid, chosen=one, other=two, channels=batch.channels
        )

    content = classified.report_content(
        found,
        [batch.names[c] for batch, c in places],
        model=str(spec["sha256"]),
        explain=explain,
        scores=scored,
        layer=spec["settings"].get("diagnosis"),
    )
    try:
        classified.write(run, content)
    except OSError as error:
        text = f"the report will not show these cycles: {run} cannot be written ({error.strerror})"
        warnings.warn(text, PFedHGPWarning, stacklevel=2)


@dataclass(frozen=True, eq=False)
class Batch:
    """Cycles (C, Q, n) of one grid."""

    names: list[str]
    grid: np.ndarray
    cycles: np.ndarray
    channels: tuple[str, ...] | None
    labels: list[str] | None


def read_batches(
    path: Path, columns: Columns, *, cycle: str | None, label: str | None, delimiter: str | None
) -> list[Batch]:
    """The cycles of a file; those of a table are grouped by the inputs that they have."""
    from pfedhgp.data.cycle_files import SUFFIXES, read_cycles
    from pfedhgp.errors import InputError

    if path.suffix.lower() in SUFFIXES:
        found = read_cycles(path, label=label or "label")
        if label is not None and found.label is None:
            raise InputError(f"{path}: no array {label!r}")
        names = [str(c) for c in range(len(found.cycles))]
        labels = list(found.label) if label is not None and found.label is not None else None
        own = found.channels if found.named else columns.outputs
        unknown = [name for name in own if name not in columns.outputs]
        if unknown:
            raise InputError(
                f"{path}: no channel {unknown[0]!r} in the model; it has {', '.join(columns.outputs)}"
            )
        if not found.named and len(own) != found.cycles.shape[1]:
            raise InputError(
                f"{path}: {found.cycles.shape[1]} channels without names, and the model has "
                f"{len(own)} outputs ({', '.join(own)}): add an array `channels` that names them"
            )
        return [Batch(names, found.grid[:, None], found.cycles, own, labels)]
    return _from_table(path, columns, cycle, label, delimiter)


def _from_table(
    path: Path, columns: Columns, cycle: str | None, label: str | None, delimiter: str | None
) -> list[Batch]:
    from dataclasses import replace

    import numpy as np
    import polars as pl

    from pfedhgp.data.readers import observations_of, read_tables
    from pfedhgp.data.text_tables import delimiter_of
    from pfedhgp.errors import InputError

    if cycle is None:
        raise InputError(f"{path}: a table needs --cycle: the column that numbers the cycles")
    given = delimiter_of(delimiter)
    wanted = [*columns.input_names, *columns.outputs, cycle, *([label] if label else [])]
    tables = read_tables([path], wanted=wanted, delimiter=given)
    if len(tables) > 1:
        raise InputError(f"{path}: one table of cycles, not a folder")
    there = tuple(name for name in columns.outputs if name in tables[0].frame.columns)
    if not there:
        tables[0].column(columns.outputs[0])  # says which columns there are
    needed = replace(columns, client=None, outputs=there, cycle=cycle)
    (rows,) = observations_of(tables, needed)
    assert rows.cycle is not None
    truth = None
    if label is not None:
        truth = tables[0].column(label).cast(pl.String).fill_null("").to_list()
    groups: dict[bytes, list[tuple[str, Any, Any, str | None]]] = {}
    for name in dict.fromkeys(rows.cycle.tolist()):
        mine = np.flatnonzero(rows.cycle == name)
        order = np.lexsort(rows.X[mine].T[::-1])
        X, Y = rows.X[mine][order], rows.Y[mine][order]
        if len(np.unique(X, axis=0)) != len(X):
            raise InputError(f"{path}: cycle {name!r} has two rows at the same inputs")
        if not np.isfinite(Y).any():
            raise InputError(f"{path}: cycle {name!r} has no value: every sample of it is missing")
        own = None if truth is None else str(truth[mine[0]])
        groups.setdefault(X.tobytes(), []).append((name, X, Y, own))
    return [
        Batch(
            [each[0] for each in group],
            group[0][1],
            np.stack([each[2].T for each in group]),
            there,
            None if truth is None else [str(each[3]) for each in group],
        )
        for group in groups.values()
    ]


def _evidence(model: FederatedGP, batches: Sequence[Batch], *, novelty: bool) -> Evidence:
    from pfedhgp.diagnosis.evidence import concatenated, evidence
    from pfedhgp.estimator.inputs import cycles_on

    parts = []
    for batch in batches:
        X, Y = cycles_on(model.model_, batch.cycles, batch.grid, batch.channels, names=batch.names)
        parts.append(evidence(model.model_, X, Y, novelty=novelty))
    return concatenated(parts)


def _calibrated(model: FederatedGP, batches: Sequence[Batch], share: float) -> Calibration:
    from pfedhgp.diagnosis.decision import calibrate

    truth = [each for batch in batches for each in batch.labels or ()]
    return calibrate(_evidence(model, batches, novelty=True), truth, false_alarms=share)


def _false_alarms(given: float | None, held_out: Path | None) -> float:
    from pfedhgp.errors import InputError

    if given is None:
        from pfedhgp.diagnosis.decision import FALSE_ALARMS

        return FALSE_ALARMS
    if held_out is None:
        raise InputError(
            "--false-alarms needs --held-out: labelled cycles that the fit did not see, for thresholds"
        )
    if not 0.0 < given < 1.0:
        raise InputError(f"--false-alarms must be between 0 and 1, got {given:g}")
    return given


def _priors(given: Sequence[str] | None, classes: Sequence[str]) -> dict[str, float] | None:
    from pfedhgp.errors import InputError

    if not given:
        return None
    found = {}
    for text in given:
        name, equals, weight = text.rpartition("=")
        try:
            found[name] = float(weight)
        except ValueError:
            equals = ""
        if not equals:
            raise InputError(f"--prior must look like CLASS=WEIGHT, got {text!r}")
        if name not in classes:
            known = ", ".join(classes)
            raise InputError(f"--prior {text}: no class {name!r} in the model; it has {known}")
        if not 0.0 < found[name] < float("inf"):
            raise InputError(f"--prior {text}: a weight must be above 0")
    missing = [name for name in classes if name not in found]
    if missing:
        raise InputError(f"--prior: no weight of {', '.join(missing)}: each class needs one")
    return found


def table_of(found: Any, names: Sequence[str]) -> pl.DataFrame:
    """cycle, class, probability of that class, surprise, and each class's log density."""
    import numpy as np
    import polars as pl

    sure = found.probability[np.arange(len(names)), found.best]
    columns: dict[str, Any] = {
        "cycle": list(names),
        "class": list(found.labels),
        "most probable": [found.classes[k] for k in found.best],
        "probability": sure,
        "surprise": found.surprise,
    }
    for k, name in enumerate(found.classes):
        columns[f"log density: {name}"] = found.log_density[:, k]
    return pl.DataFrame(columns)


def _reasons(model: FederatedGP, batches: Sequence[Batch], found: Any) -> pl.DataFrame:
    """Of each cycle: the best class against the next, in nats, by channel and stretch."""
    import numpy as np
    import polars as pl

    order = np.argsort(-found.log_density, axis=1)
    rows, place = [], 0
    for batch in batches:
        for name, cycle in zip(batch.names, batch.cycles, strict=True):
            one, two = (found.classes[k] for k in order[place, :2])
            reason = model.why(
                cycle, grid=batch.grid, chosen=one, other=two, channels=batch.channels
            )
            for each in reason.stretches():
                rows.append({"cycle": name, "class": one, "against": two, **each})
            place += 1
    return pl.DataFrame(rows)
