"""Candidate new classes on the command line: what `classify --propose` says, and which cycles it means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pfedhgp.errors import InputError

if TYPE_CHECKING:
    from pfedhgp.cli.cycle_batches import Batch
    from pfedhgp.diagnosis.decision import Diagnosis
    from pfedhgp.diagnosis.proposals import Proposal
    from pfedhgp.estimator import FederatedGP

SHOWN = 2
"""Stretches that a line names."""


def proposed(
    model: FederatedGP, batches: Sequence[Batch], found: Diagnosis
) -> tuple[Proposal, ...]:
    """Groups of the flagged cycles of all batches, which are numbered through."""
    from pfedhgp.diagnosis.of_model import classifier_of
    from pfedhgp.diagnosis.proposals import Flagged, propose
    from pfedhgp.estimator.inputs import cycles_on

    classifier = classifier_of(model.model_)
    if classifier is None or found.calibration.thresholds is None:
        raise InputError(
            "--propose groups cycles that are none of these, but this model cannot tell them: fit it with "
            "--diagnose, and with more than a few runs"
        )
    grids, cycles, runs = [], [], []
    for batch in batches:
        X, Y = cycles_on(model.model_, batch.cycles, batch.grid, batch.channels, names=batch.names)
        grids += [X] * len(Y)
        cycles += list(Y)
        runs += batch.names if batch.runs is None else batch.runs
    flagged = [c for c in range(len(cycles)) if found.none[c]]
    by_run = any(batch.runs is not None for batch in batches)
    given = Flagged(
        grids=tuple(grids[c] for c in flagged),
        cycles=tuple(cycles[c] for c in flagged),
        runs=tuple(runs[c] for c in flagged) if by_run else None,
    )
    some = propose(classifier, given, model.model_.output_names)
    return tuple(each.at(flagged) for each in some)


def lines_of(proposals: Sequence[Proposal]) -> list[str]:
    """One line for each proposal: how many cycles, what is nearest, and where they differ most."""
    out = []
    for each in proposals:
        count = len(each.cycles)
        size = f"{count} cycle{'' if count == 1 else 's'}"
        if each.runs != count:
            size += f" in {each.runs} run{'' if each.runs == 1 else 's'}"
        parts = []
        for part in each.stretches[:SHOWN]:
            gap = part["difference"]
            side = (
                "differs"
                if gap is None
                else f"{'higher' if gap > 0 else 'lower'} by {abs(gap):.3g}"
            )
            where = f"{part['channel']} from {part['start']:g} to {part['end']:g}"
            parts.append(f"{where} {side} ({part['nats']:.0f} nats)")
        differs = f"; {', '.join(parts)}" if parts else ""
        out.append(f"{each.name}: {size}, nearest to {each.nearest}{differs}")
    return out


def chosen_cycles(file: Path, proposal: str | None) -> set[str]:
    """The names of the cycles of one proposal, from the table that `classify --propose` wrote."""
    from pfedhgp.data.readers import read_tables

    (table,) = read_tables([file], wanted=["cycle", "proposal"], delimiter=None)
    cycles, groups = (
        [None if v is None else str(v) for v in table.column(name).to_list()]
        for name in ("cycle", "proposal")
    )
    found: dict[str, set[str]] = {}
    for cycle, group in zip(cycles, groups, strict=True):
        if group:
            found.setdefault(group, set()).add(str(cycle))
    if not found:
        raise InputError(f"{file}: no cycle has a proposal: write it with `classify --propose`")
    if proposal is None:
        if len(found) > 1:
            raise InputError(
                f"{file} has {len(found)} proposals ({', '.join(list(found)[:12])}): choose one with "
                "--proposal"
            )
        return next(iter(found.values()))
    if proposal not in found:
        raise InputError(f"{file}: no proposal {proposal!r}; it has {', '.join(list(found)[:12])}")
    return found[proposal]
