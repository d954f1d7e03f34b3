"""A run whose training is over, opened again: its sites are asked for something else, such as zones."""

from __future__ import annotations

import json
from pathlib import Path

from pfedhgp.errors import InputError
from pfedhgp.federation.flower.audit import LOG
from pfedhgp.federation.flower.state import RUN_ID, Roster
from pfedhgp.federation.server import Server
from pfedhgp.model.run_folder import SPEC, naming

PARTICIPATION = "participation.jsonl"


def is_finished(out: Path) -> bool:
    """Whether RUN has the model of a federation."""
    return all((out / name).is_file() for name in (SPEC, PARTICIPATION, LOG))


def reopen(out: Path, server: Server, roster: Roster) -> None:
    """Puts the run's identifier, its log and the number of its exchanges back."""
    with naming(out / PARTICIPATION):
        roster.log = [json.loads(line) for line in (out / PARTICIPATION).read_bytes().splitlines()]
        server.run.exchanges = max(int(entry["exchange"]) for entry in roster.log)
        server.run.round = max(int(entry["round"]) for entry in roster.log)
    with naming(out / LOG):
        lines = (out / LOG).read_bytes().splitlines()
        runs = [json.loads(line).get("run", "") for line in lines]
    known = [run for run in runs if RUN_ID.fullmatch(run)]
    if not known:
        raise InputError(f"{out / LOG}: does not say which run this was: zones need a new run")
    roster.run = known[-1]
    roster.delivered = list(roster.sites)
