"""Where a result comes from: each run's record has the device, machine, versions and date of its training.

A study may be resumed on another day or device, and its report may be written on a third machine, so the
machine that writes the report does not matter.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pfedhgp.version import __version__

MADE = "made"
"""The key of a record under which all this is stored."""
UNKNOWN, MIXED = "not recorded", "mixed"
VERSIONS = ("pfedhgp", "python", "jax", "numpy", "scipy")
Record = Mapping[str, Any]


def machine() -> dict[str, Any]:
    """The day, versions and machine of this process, to compare timings."""
    from pfedhgp.studies.common.schedule import cores

    found: dict[str, Any] = {
        "date": today(),
        "pfedhgp": __version__,
        "code": code(),
        "python": platform.python_version(),
    }
    for name in ("jax", "numpy", "scipy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return {**found, "machine": platform.machine(), "processor": _processor(), "cores": cores()}


@cache
def code() -> str:
    """Which code trained: the first digits of the SHA-256 of the package's modules, names and texts."""
    root, found = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root).as_posix()}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


def made_here(device: str) -> dict[str, Any]:
    """What is stored with a run of this process."""
    return {"device": device, "accelerator": _accelerator(device), **machine()}


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def _accelerator(device: str) -> str | None:
    if device != "gpu":
        return None
    import jax

    try:
        return str(jax.devices("gpu")[0].device_kind)
    except RuntimeError:
        return None


def _processor() -> str | None:
    """The name of the processor, if the system knows it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or None
    names = (line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line)
    return next(names, None)


def common(records: Iterable[Record]) -> dict[str, Any] | None:
    """What the records have in common, for a row that combines them; None if they differ."""
    found = [record.get(MADE) for record in records]
    return found[0] if found and all(one == found[0] for one in found) else None


def sets(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Distinct sets of device, machine and versions: each with its first and last `date`, and its `runs`."""
    groups: dict[tuple, dict[str, Any]] = {}
    for record in records:
        made = dict(record.get(MADE) or {})
        day = made.pop("date", None)
        key = tuple(sorted((name, str(value)) for name, value in made.items()))
        one = groups.setdefault(key, {**made, "dates": [day, day], "runs": 0})
        one["runs"] += 1
        if day is not None:
            one["dates"] = [min(one["dates"][0] or day, day), max(one["dates"][1] or day, day)]
    return sorted(groups.values(), key=lambda one: (str(one["dates"][0]), -one["runs"]))


def devices(found: Iterable[Mapping[str, Any]]) -> str:
    """cpu or gpu, `mixed`, or `not recorded`."""
    names = {one.get("device") or UNKNOWN for one in found}
    return names.pop() if len(names) == 1 else MIXED


def lines(found: list[dict[str, Any]]) -> list[str]:
    """One line for each distinct set, after a line that says if there are several."""
    told = [f"{one['runs']:,} records: {_line(one)}" for one in found]
    if len(found) < 2:
        return told
    return [f"Mixed: these results come from {len(found)} sets of machine and versions.", *told]


def _line(one: Mapping[str, Any]) -> str:
    if not one.get("device"):
        return f"device, machine, versions and date {UNKNOWN}."
    first, last = one["dates"]
    day = first if first == last else f"{first} to {last}"
    device = one["device"] + (f" ({one['accelerator']})" if one.get("accelerator") else "")
    about = ", ".join(str(one[name]) for name in ("machine", "processor") if one.get(name))
    versions = ", ".join(f"{name} {one.get(name)}" for name in VERSIONS)
    versions += f", code {one['code']}" if one.get("code") else ""
    cores = f"{one['cores']} core{'' if one['cores'] == 1 else 's'}"
    return f"{day}, {device}, {cores} ({about}); {versions}."
