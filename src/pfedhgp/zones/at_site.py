"""Zones at a site of a federation: what it sends, and how much of its rows that would reveal.

Before a site sends a sketch, it computes the R² with which somebody who knows everything except its outputs
could reproduce its rows from all that it sent for zones so far (`sketches.Attack`). Above its ceiling it
refuses.

    HOME/zones.json     the public settings of every sketch that it sent, and its group
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pfedhgp.base.atomic_files import write_bytes
from pfedhgp.base.numerics import with_numerics
from pfedhgp.errors import InputError, MessageError
from pfedhgp.federation import message_checks
from pfedhgp.federation.agreement import refuse_zones
from pfedhgp.federation.envelope import Envelope, Refused
from pfedhgp.federation.flower.site import DELIVERED, MODEL, AgreedRows
from pfedhgp.federation.messages import hash_arrays
from pfedhgp.model import files
from pfedhgp.model.fitted import FittedModel
from pfedhgp.zones import sketches as sketching
from pfedhgp.zones.comparison import near_rows
from pfedhgp.zones.loadings import Loadings, loadings_r2

log = logging.getLogger("pfedhgp.site")
FILE = "zones.json"
Arrays = Mapping[str, np.ndarray]


@dataclass
class ZonesAtSite:
    """Answers the requests of zones; `reveal` is the site's ceiling of R², 0 for no zones at all."""

    home: Path
    reveal: float

    @with_numerics
    def __call__(self, agreed: AgreedRows, request: Envelope) -> Arrays:
        delivered = self.home / DELIVERED
        if not delivered.is_file() or delivered.read_text(encoding="ascii") != request.run:
            raise Refused("stale", "zones of a run whose model is not the one that is here")
        arrays = _checked(agreed, request)
        if request.kind == "zones: groups":
            return self._take(arrays)
        if self.reveal <= 0.0:
            raise Refused("reveal", "this site sends nothing for zones: start it with --reveal")
        model = files.load(self.home / MODEL)
        if request.kind == "zones: loadings":
            return self._loadings(model, agreed)
        return _Sketches(self, model, agreed).answer(request.kind, arrays)

    def allow(self, r2: float, what: str) -> np.ndarray:
        """R² as it is sent, or a refusal if it is above the ceiling; NaN (a single row) counts as 1."""
        found = 1.0 if np.isnan(r2) else r2
        if found > self.reveal:
            why = f"{what} would reveal this site's rows with R² {found:.2f}"
            raise Refused("reveal", f"{why}, and its ceiling (--reveal) is {self.reveal:g}")
        log.info("zones: %s reveals this site's rows with R² %.2f", what, found)
        return np.asarray(np.round(found, 2))

    def sent(self) -> list[dict[str, Any]]:
        """The sketches that were sent before, by their public settings."""
        return list(self._read().get("sketches", []))

    def keep(self, sketches: list[dict[str, Any]]) -> None:
        """Written before the sketch is sent."""
        self._write(self._read() | {"sketches": sketches})

    def _take(self, arrays: Arrays) -> Arrays:
        group, groups = int(arrays["group"]), int(arrays["groups"])
        self._write(self._read() | {"group": group, "groups": groups})
        log.info("zones: %s", f"this site is in group {group} of {groups}" if group else "none")
        return {}

    def _loadings(self, model: FittedModel, agreed: AgreedRows) -> Arrays:
        found, rows = Loadings.of(model), agreed.rows
        grid = sketching.public_grid(model, 2)
        r2, _ = loadings_r2(model, grid, {rows.name: (rows.X, rows.Y)})
        revealed = self.allow(r2.get(rows.name, np.nan), "its loadings")
        numbers, p = found.numbers[0], np.asarray(found.information[0])
        return {"loadings": numbers, "information": p, "r2": revealed}

    def _read(self) -> dict[str, Any]:
        path = self.home / FILE
        if not path.is_file():
            return {}
        try:
            found = json.loads(path.read_bytes())
            if not isinstance(found, dict):
                raise ValueError
            return found
        except ValueError:
            text = "does not say what this site sent for zones; restore it from a backup"
            raise InputError(f"{path}: {text}") from None

    def _write(self, content: dict[str, Any]) -> None:
        write_bytes(self.home / FILE, (json.dumps(content) + "\n").encode("ascii"))


@dataclass
class _Sketches:
    """One request for a sketch, with all that it takes."""

    site: ZonesAtSite
    model: FittedModel
    agreed: AgreedRows

    def answer(self, kind: str, arrays: Arrays) -> Arrays:
        cells = int(arrays["grid"]) if "grid" in arrays else len(arrays["coverage"])
        Q = self.model.outputs
        if cells % Q or not 2 * Q <= cells <= message_checks.LARGEST_GRID:
            raise Refused(
                "malformed", "the cells of the grid are not points times outputs, or too many"
            )
        grid, name = sketching.public_grid(self.model, cells // Q), self.agreed.rows.name
        own = sketching.own_function(self.model, name, grid)
        if kind == "zones: coverage":
            return {"coverage": own.coverage.reshape(-1)}
        if not 1 <= int(arrays["size"]) <= cells:
            raise Refused(
                "malformed", "a sketch has from 1 to as many numbers as the grid has cells"
            )
        asked: dict[str, Any] = {k: int(arrays[k]) for k in ("size", "seed", "key") if k in arrays}
        asked["cells"] = cells
        if "coverage" in arrays:
            asked["coverage"] = arrays["coverage"].tolist()
        before = self.site.sent()
        every = before if asked in before else [*before, asked]
        # Sketches on other grids are of other numbers; the ceiling counts those of this grid together.
        matrices = [_matrix(each, own) for each in every if each["cells"] == cells]
        attack = sketching.Attack.on(
            self.model, name, grid, (self.agreed.rows.X, self.agreed.rows.Y)
        )
        omega, mean = np.concatenate(matrices, axis=1), own.mean.reshape(-1)
        r2 = self.site.allow(attack.r2(omega, sketching.rounded(mean @ omega)), "its sketch")
        self.site.keep(every)
        reply = {"sketch": sketching.rounded(mean @ _matrix(asked, own))}
        if kind == "zones":
            reply |= {"variance": np.asarray(own.variance.mean())}
            reply |= {"coverage": np.asarray(own.coverage.mean())}
        return reply | {"r2": r2}


def _matrix(asked: Mapping[str, Any], own: sketching.OwnFunction) -> np.ndarray:
    """Ω of a sketch: of the whole function, or near the rows of a client that has few."""
    if "coverage" not in asked:
        return sketching.projection(own.mean.size, asked["size"], (asked["seed"], 0))
    coverage = np.asarray(asked["coverage"])
    peaks = sketching.peaks_of(coverage.reshape(own.mean.shape), own.near)
    omega = near_rows(peaks, size=asked["size"], seed=asked["seed"], key=asked["key"])
    mine = np.array_equal(coverage, own.coverage.reshape(-1))
    return omega if mine else coverage[:, None] * omega


def _checked(agreed: AgreedRows, request: Envelope) -> dict[str, np.ndarray]:
    """The arrays of a request that is as the schema says, on terms that allow zones."""
    plan, (arrays, missed) = agreed.plan, request.parts()
    try:
        refuse_zones(agreed.agreement.config)
        expected = message_checks.of_request(plan, request.kind, arrays)
    except (InputError, MessageError) as error:
        raise Refused("malformed", str(error)) from None
    message_checks.check_arrays(arrays, expected)
    if missed or request.block != hash_arrays(arrays):
        raise Refused("malformed", "the hash is not that of the arrays")
    return dict(arrays)
