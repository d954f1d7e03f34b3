"""Where the sites of a `federate` run have their homes: RUN/sites/<hash>."""

from __future__ import annotations

import hashlib
from pathlib import Path

SITES = "sites"


def site_hash(name: str) -> str:
    """sha256(name)[:16]: names never reach a path."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def homes_of(run: Path) -> list[Path]:
    """Of a run whose sites were on the same machine; none of other runs and of a site's own home."""
    folder = run / SITES
    return sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
