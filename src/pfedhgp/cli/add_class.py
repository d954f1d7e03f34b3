"""`pfedhgp add-class RUN DATA --name NAME`: one more class for a model that was trained for diagnosis."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.cli.options import AsJson, Delimiter, Quiet, RunFolder
from pfedhgp.cli.terminal import result, say, warnings_as_lines
from pfedhgp.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from pfedhgp.cli.cycle_batches import Batch
    from pfedhgp.estimator import FederatedGP


def add_class(
    run: RunFolder,
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", help="Cycles of the class: a long table, or an .npz or .mat file."
        ),
    ],
    name: Annotated[str, typer.Option(help="Name of the new class.")],
    cycle: Annotated[
        str | None, typer.Option(help="Column that numbers the cycles of a table.")
    ] = None,
    block: Annotated[str | None, typer.Option(help="Column with the run of each cycle.")] = None,
    classified: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="The table that classify --propose wrote: take the cycles of a proposal alone.",
        ),
    ] = None,
    proposal: Annotated[
        str | None,
        typer.Option(help="With --from: which proposal; needed if there are several."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write the model there. By default it replaces that in RUN."
        ),
    ] = None,
    delimiter: Delimiter = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Add a class to a model for diagnosis; the other classes stay as they are.

    All cycles of DATA are of the new class, or those of one proposal (--from, --proposal).

    The model keeps sums over the runs of the class, and no cycles.
    """
    from pfedhgp.cli.cycle_batches import read_batches
    from pfedhgp.cli.new_classes import chosen_cycles
    from pfedhgp.cli.saved import columns_of, open_run

    with warnings_as_lines() as told:
        if proposal is not None and classified is None:
            raise InputError("--proposal needs --from: the table that `classify --propose` wrote")
        if out is not None and out.exists():
            raise InputError(f"{out} already exists: choose another folder")
        spec = open_run(run)
        if "judged" not in (spec["settings"].get("diagnosis") or {}):
            raise InputError(f"{run} was not trained for diagnosis: fit it with --diagnose")
        kept = None if classified is None else chosen_cycles(classified, proposal)
        batches = read_batches(
            data, columns_of(spec), cycle=cycle, label=None, delimiter=delimiter, block=block
        )
        use_compilation_cache()
        from pfedhgp.estimator import FederatedGP

        model = FederatedGP.load(run)
        cycles, runs = _cycles(model, batches, kept, data)
        model.add_class(name, cycles, block=runs)
        model.save(run if out is None else out, overwrite=out is None)
        facts = model.model_.settings["diagnosis"]["added_classes"][-1]
    if as_json:
        result({"out": str(out or run), **facts, "warnings": told})
    else:
        say(
            f"class {facts['name']!r} of {_counted(facts['cycles'], 'cycle')} in "
            f"{_counted(facts['runs'], 'run')}, beside "
            f"{len(model.model_.settings['diagnosis']['classes']) - 1} others: {out or run}",
            quiet=quiet,
        )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _cycles(
    model: FederatedGP, batches: list[Batch], kept: set[str] | None, data: Path
) -> tuple[np.ndarray, list[str] | None]:
    """Cycles (C, Q, n) on the training grid, and the run of each if the file has runs."""
    import numpy as np

    from pfedhgp.data.cycle_files import on_outputs
    from pfedhgp.diagnosis.of_model import classifier_of
    from pfedhgp.estimator.cycle_methods import on_training_grid
    from pfedhgp.estimator.inputs import inputs_of

    classifier = classifier_of(model.model_)
    assert classifier is not None
    parts, runs, named = [], [], set()
    for batch in batches:
        mine = [c for c, each in enumerate(batch.names) if kept is None or each in kept]
        named |= {batch.names[c] for c in mine}
        X = inputs_of(model.model_, batch.grid)
        plain = on_outputs(batch.cycles[mine], batch.channels, model.model_.output_names)
        parts.append(on_training_grid(plain, X, classifier.coordinates.grid))
        runs += [] if batch.runs is None else [batch.runs[c] for c in mine]
    missing = sorted((kept or set()) - named)
    if missing:
        raise InputError(f"{data}: no cycle {missing[0]!r}, which the proposal has")
    return np.concatenate(parts), runs or None
