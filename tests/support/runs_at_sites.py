"""Runs of known classes that lie at several sites: simulated, dealt out in several ways, and trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pfedhgp.diagnosis.candidates import Candidate
from pfedhgp.diagnosis.federated.party import Party
from pfedhgp.diagnosis.federated.terms import SiteCycles, Terms
from pfedhgp.diagnosis.training import Training
from pfedhgp.federation.diagnosing import train_with
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.planning import make_plan
from pfedhgp.settings.table import ModelSettings

CLASSES = ("normal", "worn", "bent")
FEW = (Candidate("cell", 0.1), Candidate("smooth", 0.3), Candidate("within", 0.1, heavy=True))
Dealt = Callable[[str, int], str]
"""From class and number of the run to the site."""
WAYS: dict[str, Dealt] = {
    "one site": lambda name, run: "A",
    "by run": lambda name, run: "ABC"[run % 3],
    "a site for each class": lambda name, run: name,
    "uneven": lambda name, run: "A" if run == 0 else "B" if name == "normal" else "C",
}


def simulated(
    seed: int = 0,
    *,
    samples: int = 10,
    channels: int = 2,
    runs: int = 6,
    length: int = 4,
    classes: tuple[str, ...] = CLASSES,
):
    """(grid, cycles, class of each, run of each): dents, levels of runs, and noise."""
    rng, grid = np.random.default_rng(seed), np.linspace(0.0, 1.0, samples)[:, None]
    cycles, names, numbers = [], [], []
    for k, name in enumerate(classes):
        dent = k * np.exp(-0.5 * ((grid[:, 0] - 0.5) / 0.15) ** 2)
        for run in range(runs):
            level = 0.4 * rng.normal(size=(1, channels, 1))
            noise = 0.1 * rng.normal(size=(length, channels, samples))
            cycles.append(5.0 + dent + level + noise)
            names += [name] * length
            numbers += [run] * length
    return grid, np.concatenate(cycles), names, numbers


def parties(terms: Terms, data, deal: Dealt) -> dict[str, Party]:
    """Each site with its own runs."""
    grid, cycles, names, numbers = data
    homes = np.array([deal(*pair) for pair in zip(names, numbers, strict=True)])
    found = {}
    for site in dict.fromkeys(homes.tolist()):
        at = np.flatnonzero(homes == site)
        runs = [str(numbers[c]) for c in at] if terms.blocks else None
        own = SiteCycles.of(terms, grid, cycles[at], [names[c] for c in at], runs)
        found[site] = Party(terms, own)
    return found


def plan_of(terms: Terms, channels: int = 2) -> Plan:
    return replace(make_plan(ModelSettings(), 1, channels), diagnosis=terms)


def trained(terms: Terms, data, deal: Dealt, record=lambda message, receiver: None) -> Training:
    """As sites train it in one process."""
    channels = data[1].shape[1]
    return train_with(plan_of(terms, channels), parties(terms, data, deal), record)
