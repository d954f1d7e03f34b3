"""Which release a run is answered with: the owner of a site says when rows are new, and nothing else does.

    HOME/ledger/epochs.json     the epoch of each run, and the SHA-256 of the rows with which each began

A release is of public terms and an epoch. Whether rows have changed is nobody's business but the owner's: if
that decided whether a release is new, a server could see it. So the hash is compared for one line on the
site's own terminal. A new epoch begins with the first run after `pfedhgp client --new-rows`.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path

from pfedhgp.base.atomic_files import write_bytes
from pfedhgp.data.rows import ClientRows
from pfedhgp.model.run_folder import naming
from pfedhgp.privacy.ledger import request_of

log = logging.getLogger("pfedhgp.site")
FILE = "epochs.json"


@dataclass
class RowEpochs:
    """The file in a ledger's folder. `new_rows`: the owner has said so when this process began."""

    folder: Path
    new_rows: bool = False
    _told: set[str] = field(default_factory=set, repr=False)

    def of(self, run: str) -> str:
        """The epoch of a run, as requests of the ledger name it."""
        runs = self._read()["runs"]
        if run in runs:
            self._settle()  # the same command goes on with a run that has begun
            return _name(runs[run])
        return _name(_next(runs, self.new_rows))

    def begin(self, run: str) -> None:
        """Before a run's first release: from now on its epoch stays."""
        kept = self._read()
        if run not in kept["runs"]:
            kept["runs"][run] = _next(kept["runs"], self.new_rows)
            self._write(kept)
        self._settle()

    def withdraw(self, run: str) -> None:
        """Nothing was released in this run: if its epoch began with it, that has not begun."""
        kept = self._read()
        number = kept["runs"].get(run)
        if number is not None and str(number) not in kept["rows"]:
            del kept["runs"][run]
            self._write(kept)

    def tell(self, run: str, rows: ClientRows) -> None:
        """After a release: keeps the hash of an epoch's rows, or says here that they are not the same."""
        kept, own = self._read(), request_of({"X": rows.X, "Y": rows.Y})
        number = str(kept["runs"].get(run, 0))
        if number not in kept["rows"]:
            kept["rows"][number] = own
            self._write(kept)
        elif kept["rows"][number] != own and run not in self._told:
            self._told.add(run)
            log.warning(
                "the rows here are not those that were released before: what was kept of them is sent "
                "again. To draw and pay for a new release, start the client with --new-rows"
            )

    def _settle(self) -> None:
        self.new_rows = False

    @property
    def _path(self) -> Path:
        return self.folder / FILE

    def _read(self) -> dict[str, dict[str, int | str]]:
        if not self._path.is_file():
            return {"runs": {}, "rows": {}}
        with naming(self._path):
            kept = json.loads(self._path.read_bytes())
            return {"runs": dict(kept["runs"]), "rows": dict(kept["rows"])}

    def _write(self, kept: dict[str, dict[str, int | str]]) -> None:
        write_bytes(self._path, json.dumps(kept, sort_keys=True).encode("ascii"))


def _next(runs: dict[str, int | str], new_rows: bool) -> int:
    """The epoch of a run that begins: the last one, or the one after."""
    return max((int(n) for n in runs.values()), default=-int(new_rows)) + int(new_rows)


def _name(number: int | str) -> str:
    return f"epoch {number}"
