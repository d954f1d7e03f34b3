"""Zones at the server of a federation: asks the sites that have the model, and groups those that answer.

The numbers are those of `clustering.discover`, which has all clients in one place: with the same fit and seed
the labels are the same. Each site measures R² itself, and may refuse.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pfedhgp.base.checks import short
from pfedhgp.base.numerics import with_numerics
from pfedhgp.errors import InputError
from pfedhgp.federation.flower.participation import Gathered
from pfedhgp.model.fitted import FittedModel
from pfedhgp.zones import sketches as sketching
from pfedhgp.zones.clustering import GRID, ClusterSettings, zones_of, zones_of_loadings
from pfedhgp.zones.comparison import (
    Sketch,
    SketchDistances,
    SketchLog,
    grid_name,
    key_of,
    with_few_rows,
)
from pfedhgp.zones.loadings import Loadings
from pfedhgp.zones.result import Zones

log = logging.getLogger("pfedhgp.server")
Requests = Mapping[str, Mapping[str, np.ndarray]]
Ask = Callable[[str, Requests], Gathered]
"""One exchange of a kind with the sites that it names."""
Replies = dict[str, Mapping[str, np.ndarray]]


@dataclass
class ZonesAtServer:
    """`find` asks the sites; whatever comes of it, `tell` says to each which group it is in."""

    ask: Ask
    model: FittedModel
    """The shared block, without clients"""
    sites: tuple[str, ...]
    how: ClusterSettings

    @with_numerics
    def find(self) -> Zones:
        """The groups of the sites that answered; refuses if fewer than two did."""
        own_loadings = self.model.structure.client_loadings
        self.how.checked(len(self.sites), own_loadings=own_loadings)  # before anybody is asked
        by_loadings = own_loadings and self.how.size is None
        return self._by_loadings() if by_loadings else self._by_sketches()

    def tell(self, zones: Zones | None) -> None:
        """Ends the sites' part; 0 stands for no group."""
        labels = {} if zones is None else zones.labels
        groups = 0 if zones is None else zones.groups
        about = {
            name: _numbers(group=labels.get(name, -1) + 1, groups=groups) for name in self.sites
        }
        self.ask("zones: groups", about)

    def _by_sketches(self) -> Zones:
        model, how = self.model, self.how
        points = sketching.public_grid(model, GRID)
        cells = len(points) * model.outputs
        size = how.sketch_size(cells)
        request = _numbers(grid=cells, size=size, seed=how.seed)
        replies = self._asked("zones", dict.fromkeys(self.sites, request))
        names = tuple(sorted(replies))
        how = self._settings(len(names))
        first = Sketch(grid_name(points), size, how.seed)
        said = SketchLog(names)
        said.request(request, [_without_r2(replies[n]) for n in names], first.log_entry())
        covered = np.array([float(replies[n]["coverage"]) for n in names])
        r2 = {name: float(replies[name]["r2"]) for name in names}
        masked: dict[int, np.ndarray] = {}
        near = sketching.neighbours(model.scaling.inputs(points))
        for i in map(int, with_few_rows(covered, 2 if how.groups is None else how.groups)):
            found = self._near(names[i], names, near, first)
            if found is None:
                log.warning("zones: %s is compared as if it had many rows", short(names[i]))
                continue
            coverage, others = found
            masked[i] = np.stack([others[n]["sketch"] for n in names])
            one = Sketch(first.grid, masked[i].shape[1], how.seed, names[i])
            said.near_rows(one, coverage, list(masked[i]))
            r2 |= {name: float(reply["r2"]) for name, reply in others.items()}
        distances = SketchDistances(
            np.stack([replies[n]["sketch"] for n in names]),
            np.array([float(replies[n]["variance"]) for n in names]),
            np.array(sorted(masked), int),
            masked,
        )
        return zones_of(
            distances,
            names,
            how,
            grid=len(points),
            r2=r2,
            r2_of="rows",
            coverage=dict(zip(names, map(float, covered), strict=True)),
            messages=said.entries,
        )

    def _near(
        self, few: str, names: tuple[str, ...], near: np.ndarray, first: Sketch
    ) -> tuple[np.ndarray, Replies] | None:
        """Where a client has its few rows, and all clients' sketches there; None if one is missing."""
        cells = len(near) * self.model.outputs
        told = self._asked("zones: coverage", {few: _numbers(grid=cells)}).get(few)
        if told is None:
            return None
        coverage = np.clip(np.asarray(told["coverage"]), 0.0, 1.0)
        size = int(sketching.peaks_of(coverage.reshape(len(near), -1), near).sum())
        asked = _numbers(size=size, seed=first.seed, key=key_of(few)) | {"coverage": coverage}
        others = self._asked("zones: few rows", dict.fromkeys(names, asked))
        return (coverage, others) if set(others) == set(names) else None

    def _by_loadings(self) -> Zones:
        empty: dict[str, np.ndarray] = {}
        replies = self._asked("zones: loadings", dict.fromkeys(self.sites, empty))
        names = tuple(sorted(replies))
        how = self._settings(len(names))
        found = replace(
            Loadings.of(self.model),
            names=names,
            numbers=np.stack([replies[n]["loadings"] for n in names]),
            told=np.array([float(replies[n]["information"]) for n in names]),
        )
        r2 = {name: float(replies[name]["r2"]) for name in names}
        return zones_of_loadings(found, how, grid=0, r2=r2, r2_of="rows")

    def _settings(self, answered: int) -> ClusterSettings:
        if answered < 2:
            raise InputError(f"zones need at least two sites, and {answered} answered")
        own = self.model.structure.client_loadings
        return self.how.checked(answered, own_loadings=own)

    def _asked(self, kind: str, requests: Requests) -> Replies:
        found = self.ask(kind, requests).replies
        # Copies: the next exchange takes the place of these replies.
        return {n: {k: np.array(a) for k, a in r.arrays.items()} for n, r in found.items()}


def _without_r2(reply: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: array for name, array in reply.items() if name != "r2"}


def _numbers(**values: float) -> dict[str, np.ndarray]:
    return {name: np.asarray(float(value)) for name, value in values.items()}
