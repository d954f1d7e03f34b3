"""What a stopped run was asked for, beside its checkpoints: RUN/checkpoint/run.json."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pfedhgp.base import atomic_files
from pfedhgp.errors import InputError, ModelFileError
from pfedhgp.model.run_folder import parse_json
from pfedhgp.settings import config as configs
from pfedhgp.settings.config import SETTINGS, Config

NOT_COMPARED = ("out", "report", "datetimes")
"""Settings that do not change the model: the folder, the report, and what the files show anyway."""


@dataclass(frozen=True)
class RunRecord:
    """The settings of a run, and the SHA-256 of each of its files."""

    config: Config
    files: Mapping[str, str]

    def check_settings(self, config: Config) -> None:
        """Refuses other settings: the result would be that of neither run."""
        before = self.config
        for each in SETTINGS:
            new, old = getattr(config, each.name), getattr(before, each.name)
            if new != old and each.name not in NOT_COMPARED:
                new, old = (list(v) if isinstance(v, tuple) else v for v in (new, old))
                raise InputError(
                    f"--resume: {each.on_command_line} is {new!r}, but the run began with "
                    f"{old!r}: leave it out, or start again with --overwrite"
                )

    def check_files(self, files: Mapping[str, str]) -> None:
        """Refuses files that have changed."""
        before = self.files
        for path in sorted({*files, *before}):
            if files.get(path) != before.get(path):
                raise InputError(
                    f"--resume: {path} has changed since the run began: start again with --overwrite"
                )


@dataclass(frozen=True)
class StoppedRun:
    """A run that may have stopped, by the folder of its checkpoints."""

    folder: Path

    @staticmethod
    def of(run: Path) -> StoppedRun:
        return StoppedRun(run / "checkpoint")

    @property
    def there(self) -> bool:
        """Whether there is a checkpoint to continue from."""
        return self.folder.is_dir() and any(p.name.isdigit() for p in self.folder.iterdir())

    def write(self, record: RunRecord) -> None:
        content = {"config": record.config.tree(), "files": dict(record.files)}
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_files.write_bytes(
            self.folder / "run.json", json.dumps(content, indent=1).encode("ascii")
        )

    def read(self) -> RunRecord:
        path = self.folder / "run.json"
        if not self.there or not path.is_file():
            raise InputError(
                f"{self.folder.parent}: no stopped run to resume: leave --resume out to start one"
            )
        try:
            stored = parse_json(path.read_bytes())
            if not isinstance(stored["config"], dict) or not isinstance(stored["files"], dict):
                raise ValueError("not the settings of a run")
        except (ValueError, KeyError, TypeError) as error:
            raise ModelFileError(f"{path}: {error}") from None
        return RunRecord(configs.check(stored["config"]), stored["files"])

    def tidy(self) -> None:
        """Removes what was made for a run that never began."""
        if self.there:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.folder.parent.is_dir() and not any(self.folder.parent.iterdir()):
            self.folder.parent.rmdir()
