"""What a command says: results to stdout, all else to stderr, warnings as single lines."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pfedhgp.errors import PFedHGPWarning


def say(text: str, *, quiet: bool = False) -> None:
    """A line for people, to stderr."""
    if not quiet:
        print(text, file=sys.stderr, flush=True)


def counted(number: int, thing: str) -> str:
    """ "1 round", "2 rounds" """
    return f"{number} {thing}{'' if number == 1 else 's'}"


def result(summary: dict[str, Any]) -> None:
    """One JSON object for programs, to stdout."""
    print(json.dumps(summary, indent=1, allow_nan=False), flush=True)


@contextmanager
def warnings_as_lines(words: Callable[[str], str] = str) -> Iterator[list[str]]:
    """Our warnings are printed once each as `pfedhgp: warning: …`, in `words`; yields the list of them."""
    seen: list[str] = []
    usual = warnings.showwarning

    def show(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
        if not issubclass(category, PFedHGPWarning):
            usual(message, category, *rest, **more)
            return
        text = words(" ".join(str(message).split()))
        if text not in seen:
            seen.append(text)
            print("pfedhgp: warning:", text, file=sys.stderr, flush=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", PFedHGPWarning)
        warnings.showwarning = show
        yield seen


def use_compilation_cache() -> None:
    """Keeps compiled code in the user's cache folder, so that a second run starts fast.

    $PFEDHGP_CACHE says where, and "" switches it off; by default $XDG_CACHE_HOME/pfedhgp. JAX's own
    setting, where there is one, stays. Only commands do this: the library leaves a program's JAX alone.
    """
    # XLA remarks on every piece of code that it loads again, to stderr; it reads this when it is imported.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    chosen = os.environ.get("PFEDHGP_CACHE")
    if chosen == "" or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = (Path(chosen) if chosen else Path(home) / "pfedhgp") / _machine()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a cache is a convenience
    if not os.access(folder, os.W_OK):
        return
    import jax

    settings: Any = jax.config
    settings.update("jax_compilation_cache_dir", str(folder))
    settings.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def _machine() -> str:
    """A name for the kind of processor: code compiled for another one may not run on this one."""
    about = [platform.machine(), platform.system()]
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
        about += [line for line in text.splitlines() if line.startswith(("flags", "Features"))][:1]
    except OSError:
        about.append(platform.processor())
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]
