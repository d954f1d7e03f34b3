"""Zones on disk: RUN/zones/zones.json. A report shows them if its model is the one that was clustered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfedhgp.base import atomic_files
from pfedhgp.errors import InputError
from pfedhgp.model.run_folder import parse_json
from pfedhgp.zones.groups import agreement
from pfedhgp.zones.result import Zones

FOLDER, FILE = "zones", "zones.json"
Places = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, eq=False)
class KeptZones:
    """The groups, where the clients are, and the true zones of made-up data."""

    zones: Zones
    places: Places | None = None
    """(latitude, longitude)"""
    truth: Mapping[str, str] | None = None

    def agreement(self) -> float:
        """The adjusted Rand index of the groups with the true zones."""
        truth, names = self.truth or {}, self.zones.clients
        return agreement([truth[n] for n in names], [self.zones.labels[n] for n in names])


def write(folder: Path, kept: KeptZones, model: str) -> None:
    """zones.json; `model` is the SHA-256 of the spec that was clustered."""
    content: dict[str, Any] = {**kept.zones.to_json(), "model": model}
    for name in ("places", "truth"):
        if (found := getattr(kept, name)) is not None:
            content[name] = dict(found)
    atomic_files.write_bytes(
        folder / FILE, (json.dumps(content, allow_nan=False) + "\n").encode("ascii")
    )


def read(folder: Path, model: str) -> KeptZones | None:
    """What `write` wrote, or None if there is nothing; zones of another model are refused."""
    path = folder / FILE
    if not path.is_file():
        return None
    again = "run `pfedhgp cluster` again, with --overwrite"
    try:
        found = parse_json(path.read_bytes())
        if found["model"] != model:
            raise InputError(f"{path}: these zones belong to another model: {again}")
        places, truth = found.get("places"), found.get("truth")
        if places is not None:
            places = {str(n): (float(p[0]), float(p[1])) for n, p in places.items()}
        if truth is not None:
            truth = {str(n): str(z) for n, z in truth.items()}
        kept = KeptZones(Zones.from_json(found), places, truth)
        for given in (places, truth):
            if given is not None and not {*kept.zones.clients} <= {*given}:
                raise ValueError("a client's place or true zone is missing")
        return kept
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(f"{path}: not zones ({' '.join(str(error).split())}): {again}") from None
