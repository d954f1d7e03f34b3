"""What this installation has, what it lacks, and what to do about it: the findings of `pfedhgp doctor`.

A finding is `ok`; `missing`, a part that only some tasks need; `warning`, a part that is there and will not
serve; or `error`, without which nothing works. Only `errors_in` decides about the exit code.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from pfedhgp.base.compilation_cache import cache_folder
from pfedhgp.version import __version__

Status = Literal["ok", "missing", "warning", "error"]
OLDEST = (3, 11)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
IN_A_CHECKOUT = "in a checkout of pfedhgp"
FLOWER = f"python3 -m pip install '.[flower]' {IN_A_CHECKOUT}"
GIB = 2.0**30
LITTLE = 0.5 * GIB
"""Memory or disk below this is worth a warning: a fit keeps up to 1 GiB."""


@dataclass(frozen=True)
class Finding:
    """`advice` is one line of what to do; empty if there is nothing to do."""

    group: str
    name: str
    status: Status
    found: str
    advice: str = ""


def errors_in(findings: Iterable[Finding]) -> list[Finding]:
    """What keeps the core from working."""
    return [each for each in findings if each.status == "error"]


def python() -> Finding:
    """The interpreter, and whether it is new enough."""
    fine = sys.version_info >= OLDEST
    found = f"{platform.python_version()}, {sys.executable}"
    advice = "" if fine else f"install Python {'.'.join(map(str, OLDEST))} or newer"
    return Finding("core", "Python", "ok" if fine else "error", found, advice)


def package() -> Finding:
    """The version of pfedhgp, and where it lies."""
    return Finding("core", "pfedhgp", "ok", f"{__version__}, {Path(__file__).resolve().parents[1]}")


def requirements(extra: str | None = None) -> list[str]:
    """What pfedhgp's metadata asks for, as written: of the core, or of an extra alone."""
    from packaging.requirements import Requirement

    found = []
    for text in metadata.requires("pfedhgp") or ():
        marker = Requirement(text).marker
        core = marker is None or marker.evaluate({"extra": ""})
        of_extra = marker is not None and not core and marker.evaluate({"extra": extra or ""})
        if of_extra if extra else core:
            found.append(text.partition(";")[0].strip())
    return found


def version_of(name: str) -> str | None:
    """The installed version of a distribution; None if it is not there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def unmet(wanted: Sequence[str]) -> list[str]:
    """Each requirement that is missing or has a version out of its range, with what is there.

    >>> unmet(["no-such-package>=1"])
    ['no-such-package>=1 (missing)']
    """
    from packaging.requirements import Requirement

    found = []
    for text in wanted:
        requirement = Requirement(text)
        version = version_of(requirement.name)
        if version is None:
            found.append(f"{text} (missing)")
        elif not requirement.specifier.contains(version, prereleases=True):
            found.append(f"{text} ({version} is installed)")
    return found


def dependencies() -> Finding:
    """Whether every package that pfedhgp needs is there in a version that it works with."""
    try:
        wanted = requirements()
        lacking = unmet(wanted)
    except (metadata.PackageNotFoundError, ModuleNotFoundError) as error:
        advice = f"python3 -m pip install . {IN_A_CHECKOUT}"
        return Finding("core", "packages", "warning", f"cannot be checked: {error}", advice)
    if lacking:
        names = " ".join(f"'{each.partition(' (')[0]}'" for each in lacking)
        advice = f"python3 -m pip install {names}"
        return Finding("core", "packages", "error", "; ".join(lacking), advice)
    shown = ", ".join(f"{name} {version_of(name)}" for name in ("jax", "jaxlib", "numpy", "scipy"))
    return Finding("core", "packages", "ok", f"all {len(wanted)} in range: {shown}")


def optional(
    group: str, name: str, *, packages: Sequence[str], extra: str, purpose: str, install: str
) -> Finding:
    """Packages of an extra, which only `purpose` needs."""
    versions = {each: version_of(each) for each in packages}
    absent = [each for each, version in versions.items() if version is None]
    if absent:
        found = f"no {', no '.join(absent)}; needed for {purpose}"
        return Finding(group, name, "missing", found, install)
    shown = ", ".join(f"{each} {version}" for each, version in versions.items())
    try:
        wrong = unmet([r for r in requirements(extra) if r.startswith(tuple(packages))])
    except (metadata.PackageNotFoundError, ModuleNotFoundError):
        wrong = []
    if wrong:
        return Finding(group, name, "warning", f"untested with {'; '.join(wrong)}", install)
    return Finding(group, name, "ok", shown)


def browser(which: Callable[[str], str | None] = shutil.which) -> Finding:
    """Chromium, in which the tests open pages. Reports open in any browser."""
    place = next(filter(None, map(which, BROWSERS)), None)
    if place is not None:
        return Finding("development", "Chromium", "ok", place)
    found = "not found; needed for tests that open the report, nothing else"
    return Finding("development", "Chromium", "missing", found, "apt-get install chromium")


def cache() -> Finding:
    """Whether compiled code can be kept between commands."""
    given = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    place = Path(given) if given else cache_folder()
    if place is None:
        found = "off (PFEDHGP_CACHE is empty): every command compiles anew"
        return Finding("machine", "cache", "warning", found, "unset PFEDHGP_CACHE")
    there = next(each for each in (place, *place.parents) if each.exists())
    if not os.access(there, os.W_OK):
        advice = "set PFEDHGP_CACHE to a folder that you may write in"
        return Finding("machine", "cache", "warning", f"{place} cannot be written", advice)
    return _with_room("cache", str(place), shutil.disk_usage(there).free, "free disk space there")


def memory() -> Finding:
    """Memory that is free, or that the container allows."""
    free = free_memory()
    if free is None:
        return Finding("machine", "memory", "ok", "unknown on this system")
    return _with_room("memory", "", free, "close other programs, or fit with --one-by-one")


def _with_room(name: str, place: str, free: float, advice: str) -> Finding:
    found = f"{place}{', ' * bool(place)}{free / GIB:.1f} GiB free"
    little = free < LITTLE
    return Finding("machine", name, "warning" if little else "ok", found, advice if little else "")


def free_memory(root: Path = Path("/")) -> float | None:
    """Bytes: the least of what the machine has available and what the control group still allows."""
    limits = []
    try:
        lines = (root / "proc/meminfo").read_text("ascii").splitlines()
        limits += [1024.0 * int(x.split()[1]) for x in lines if x.startswith("MemAvailable")]
    except OSError:
        pass
    group = root / "sys/fs/cgroup"
    try:
        most, used = ((group / f"memory.{n}").read_text("ascii") for n in ("max", "current"))
        limits += [float(most) - float(used)] if most.strip() != "max" else []
    except OSError:
        pass
    return min(limits, default=None)


def cores() -> Finding:
    """Processors that this process may use, and the threads of linear algebra."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = f"{count} of {os.cpu_count()}, {platform.machine()}, {platform.system()}"
    return Finding("machine", "processors", "ok", found)


def linear_algebra() -> Finding:
    """BLAS libraries and their threads. Fits use one thread of each, and compute clients side by side."""
    try:
        import numpy  # noqa: F401  (loads its own)
        import scipy.linalg  # noqa: F401
        from threadpoolctl import threadpool_info
    except Exception as error:
        return Finding("core", "BLAS", "error", one_line(error), "install numpy and scipy again")
    found = {
        f"{each['internal_api']} {each['version']} (threads: {each['num_threads']})"
        for each in threadpool_info()
        if each["user_api"] == "blas"
    }
    return Finding("core", "BLAS", "ok", "; ".join(sorted(found)) or "not one that is known")


def one_line(error: BaseException) -> str:
    """An error's name and text, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
