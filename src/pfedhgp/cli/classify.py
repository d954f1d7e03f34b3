"""`pfedhgp classify RUN DATA --out FILE`: the client that each cycle belongs to, or none of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.cli.new_classes import lines_of, proposed
from pfedhgp.cli.options import AsJson, Delimiter, Overwrite, Quiet, RunFolder, TableFile
from pfedhgp.cli.targets import check_file, check_table, write_table
from pfedhgp.cli.terminal import result, say, warnings_as_lines
from pfedhgp.errors import InputError, warn

if TYPE_CHECKING:
    import polars as pl

    from pfedhgp.cli.cycle_batches import Batch
    from pfedhgp.diagnosis.decision import Diagnosis, Why
    from pfedhgp.diagnosis.evidence import Evidence
    from pfedhgp.diagnosis.proposals import Proposal
    from pfedhgp.estimator import FederatedGP

Explain = Callable[[int, str, str], "Why"]


def classify(
    run: RunFolder,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Cycles: a long table, or an .npz or .mat file.")
    ],
    out: TableFile,
    cycle: Annotated[
        str | None, typer.Option(help="Column that numbers the cycles of a table.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Column or array with the true classes, to report scores.")
    ] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA", help="Labelled cycles that the fit did not see, to set thresholds."
        ),
    ] = None,
    false_alarms: Annotated[
        float | None,
        typer.Option(
            help="With --held-out: share of known cycles that may be called none of these.",
            show_default="0.01",
        ),
    ] = None,
    prior: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS=WEIGHT", help="Prior weight of a class; give it for every class."
        ),
    ] = None,
    propose: Annotated[
        bool,
        typer.Option(
            "--propose", help="Group cycles that are none of these into candidate new classes."
        ),
    ] = False,
    block: Annotated[
        str | None,
        typer.Option(
            help="With --propose: column with the run of each cycle; cycles of a run stay together."
        ),
    ] = None,
    why: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write what decided each cycle, by channel and stretch (.csv)."
        ),
    ] = None,
    delimiter: Delimiter = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Classify whole cycles by their probability under each client.

    The clients of RUN are the classes.

    DATA is a long table with --cycle, or an .npz or .mat file with cycles.

    The output has the columns cycle, class, probability, surprise and the log density of each class. With
    --propose it also has the column proposal; add-class then makes a class of a proposal.

    RUN stores counts and the closest calls for its report, but no samples.
    """
    from pfedhgp.cli.cycle_batches import read_batches
    from pfedhgp.cli.saved import columns_of, open_run

    with warnings_as_lines() as told:
        check_table(out, overwrite=overwrite, as_json=as_json)
        if why is not None:
            check_file(why, overwrite=overwrite)
        if held_out is not None and label is None:
            raise InputError("--held-out needs --label, the column or array with the true classes")
        if block is not None and not propose:
            raise InputError("--block needs --propose: runs are kept together in proposals alone")
        rate = _false_alarms(false_alarms, held_out)
        spec = open_run(run)
        classes = _classes_of(spec)
        if why is not None and len(classes) < 2:
            raise InputError(
                f"--why compares two classes, but {run} has one client: leave --why out"
            )
        priors = _priors(prior, classes)
        columns = columns_of(spec)
        batches = read_batches(
            data, columns, cycle=cycle, label=label, delimiter=delimiter, block=block
        )
        kept = None
        if held_out is not None:
            kept = read_batches(held_out, columns, cycle=cycle, label=label, delimiter=delimiter)
        use_compilation_cache()
        from pfedhgp.diagnosis import decision
        from pfedhgp.estimator import FederatedGP

        model = FederatedGP.load(run)
        known = model.calibration_
        if kept is not None:
            labels = [each for batch in kept for each in batch.labels or ()]
            held = _evidence(model, kept, novelty=True)
            known = decision.calibrate(held, labels, false_alarms=rate)
        found = _evidence(model, batches, novelty=known.thresholds is not None)
        diagnosis = decision.diagnose(found, priors=priors, calibration=known)
        names = [name for batch in batches for name in batch.names]
        truth = [each for batch in batches for each in batch.labels or ()]
        scored = None  # before anything is written: a label may name an unknown class
        if truth:
            scored = decision.scores(diagnosis.classes, truth, diagnosis.probability)
        proposals = proposed(model, batches, diagnosis) if propose else None
        write_table(table_of(diagnosis, names, proposals), out)
        explain = _explainer(model, batches)
        if why is not None:
            write_table(_reasons(diagnosis, names, explain), str(why))
        shown = None if proposals is None else [each.to_json(names) for each in proposals]
        _store_for_report(run, spec, diagnosis, names, explain, scored, shown)
    summary: dict[str, Any] = {
        "out": out,
        "cycles": len(names),
        "classes": list(diagnosis.classes),
        "none": int(diagnosis.none.sum()),
        "thresholds": known.thresholds is not None,
        "scores": scored,
        **({} if shown is None else {"proposals": shown}),
    }
    if as_json:
        result({**summary, "warnings": told})
    elif out != "-":
        flagged = f", {summary['none']} none of these" if summary["thresholds"] else ""
        say(f"{len(names)} cycles, {len(diagnosis.classes)} classes{flagged}: {out}", quiet=quiet)
        if scored is not None:
            say(
                f"accuracy {scored['accuracy']:.4f}, log-loss {scored['log_loss']:.3f}, "
                f"ECE {scored['ece']:.3f}",
                quiet=quiet,
            )
        for line in lines_of(proposals or ()):
            say(line, quiet=quiet)


def _classes_of(spec: Mapping[str, Any]) -> list[str]:
    """Those that the model was trained to tell apart; without such training, its clients."""
    trained = spec["settings"].get("diagnosis") or {}
    return [str(name) for name in trained.get("classes") or (e["name"] for e in spec["clients"])]


def _store_for_report(
    run: Path,
    spec: Mapping[str, Any],
    found: Diagnosis,
    names: Sequence[str],
    explain: Explain,
    scored: Mapping[str, Any] | None,
    proposals: Sequence[Mapping[str, Any]] | None,
) -> None:
    """Stores counts and reasons in RUN; warns if the folder cannot be written."""
    from pfedhgp.diagnosis import files as classified

    content = classified.report_content(
        found,
        names,
        model=str(spec["sha256"]),
        explain=explain,
        scores=scored,
        proposals=proposals,
        layer=_older_layer(spec["settings"].get("diagnosis")),
    )
    try:
        classified.write(run, content)
    except OSError as error:
        text = f"the report will not show these cycles: cannot write to {run} ({error.strerror})"
        warn(text)


def _older_layer(trained: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The cycle layer that an older version chose for a diagnosis."""
    return trained if trained and "form" in trained else None


def _explainer(model: FederatedGP, batches: Sequence[Batch]) -> Explain:
    """Why a cycle, by its number in all batches, is of one class rather than of another."""
    places = [(batch, c) for batch in batches for c in range(len(batch.names))]

    def explain(cycle: int, one: str, two: str) -> Why:
        batch, c = places[cycle]
        return model.why(
            batch.cycles[c], grid=batch.grid, chosen=one, other=two, channels=batch.channels
        )

    return explain


def _evidence(model: FederatedGP, batches: Sequence[Batch], *, novelty: bool) -> Evidence:
    from pfedhgp.diagnosis.evidence import concatenated
    from pfedhgp.diagnosis.of_model import evidence_of
    from pfedhgp.estimator.inputs import cycles_on

    parts = []
    for batch in batches:
        X, Y = cycles_on(model.model_, batch.cycles, batch.grid, batch.channels, names=batch.names)
        parts.append(evidence_of(model.model_, X, Y, novelty=novelty))
    return concatenated(parts)


def _false_alarms(given: float | None, held_out: Path | None) -> float:
    if given is None:
        from pfedhgp.diagnosis.decision import FALSE_ALARMS

        return FALSE_ALARMS
    if held_out is None:
        raise InputError(
            "--false-alarms needs --held-out: labelled cycles that the fit did not see"
        )
    if not 0.0 < given < 1.0:
        raise InputError(f"--false-alarms must be between 0 and 1, got {given:g}")
    return given


def _priors(given: Sequence[str] | None, classes: Sequence[str]) -> dict[str, float] | None:
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
            raise InputError(f"--prior {text}: the weight must be above 0")
    missing = [name for name in classes if name not in found]
    if missing:
        raise InputError(f"--prior: no weight for {', '.join(missing)}: every class needs one")
    return found


def table_of(
    found: Diagnosis, names: Sequence[str], proposals: Sequence[Proposal] | None = None
) -> pl.DataFrame:
    """cycle, class, probability of that class, surprise, the log density of each class; and proposals."""
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
    table = pl.DataFrame(columns)
    if proposals is None:
        return table
    group = {c: each.name for each in proposals for c in each.cycles}
    own = pl.Series("proposal", [group.get(c) for c in range(len(names))], pl.String)
    return table.with_columns(own)


def _reasons(found: Diagnosis, names: Sequence[str], explain: Explain) -> pl.DataFrame:
    """For each cycle the best class against the second best, in nats, by channel and stretch.

    With the channel that runs wild, if one does.
    """
    import numpy as np
    import polars as pl

    rows = []
    for place, order in enumerate(np.argsort(-found.log_density, axis=1)):
        one, two = (found.classes[k] for k in order[:2])
        reason = explain(place, one, two)
        wild = next(iter(reason.wild), None)
        for each in reason.stretches():
            about = {"cycle": names[place], "class": one, "against": two, **each}
            rows.append({**about, "runs wild": wild})
    return pl.DataFrame(rows, schema_overrides={"runs wild": pl.String}, infer_schema_length=None)
