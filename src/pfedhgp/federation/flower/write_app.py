"""`python -m pfedhgp.federation.flower.write_app DIR`: the Flower app as a folder, for `flwr run DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

from pfedhgp.errors import InputError
from pfedhgp.federation.flower.bundles import app_files


def write_app(folder: Path) -> None:
    """Writes the app into a new folder; it holds no code but the import of this package's apps."""
    if folder.exists():
        raise InputError(f"{folder} already exists: choose a new folder for the app")
    for name, content in app_files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m pfedhgp.federation.flower.write_app DIR")
    try:
        write_app(Path(sys.argv[1]))
    except InputError as error:
        print(f"pfedhgp: error: {error}", file=sys.stderr)
        sys.exit(2)
