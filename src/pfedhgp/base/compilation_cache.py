"""Compiled code is kept between runs, in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import Any


def use_compilation_cache() -> None:
    """Keeps compiled code in the user's cache folder, so that a second run starts fast.

    $PFEDHGP_CACHE names the folder, and "" switches the cache off; the default is $XDG_CACHE_HOME/pfedhgp.
    A folder that the user gave to JAX stays. Only commands call this; the library leaves JAX alone.
    """
    # XLA writes to stderr each time it loads compiled code; it reads this variable when it is imported.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    folder = cache_folder()
    if folder is None or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
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


def cache_folder() -> Path | None:
    """Where commands keep compiled code for this kind of processor; None if the user switched it off."""
    chosen = os.environ.get("PFEDHGP_CACHE")
    if chosen == "":
        return None
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return (Path(chosen) if chosen else Path(home) / "pfedhgp") / _machine()


def _machine() -> str:
    """A name for the kind of processor: code compiled for another one may not run on this one."""
    about = [platform.machine(), platform.system()]
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
        about += [line for line in text.splitlines() if line.startswith(("flags", "Features"))][:1]
    except OSError:
        about.append(platform.processor())
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]
