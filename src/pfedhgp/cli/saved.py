"""What a RUN folder says about its model, read without JAX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pfedhgp.data.columns import Columns, InputColumn
from pfedhgp.errors import InputError
from pfedhgp.model.run_folder import RunFolder


def model_of(path: Path) -> Path:
    """The model's folder: RUN itself, or HOME/model if it is a site's home."""
    own = path / "model"
    marks = ("site.json", "flower", "lock")  # the last two are there before any message has come
    is_home = any((path / n).exists() for n in marks) and not (path / "spec.json").exists()
    if is_home and not own.is_dir():
        raise InputError(f"{path}: this site has no model yet: it gets one when training ends")
    return own if is_home else path


def open_run(path: Path) -> Mapping[str, Any]:
    """The spec of a model, checked."""
    return RunFolder.open(path).spec


def columns_of(spec: Mapping[str, Any], datetime_format: str | None = None) -> Columns:
    """The columns of the fit; for a fit from Python, plain numbers and a `client` column.

    Files have their datetimes in `datetime_format`; without it, as those of the fit.
    """
    found = _columns_of(spec)
    if datetime_format is None:
        return found
    if not any(each.kind == "datetime" for each in found.inputs):
        raise InputError("--datetime-format: no input of the model is a datetime: leave it out")
    inputs = [
        replace(each, format=datetime_format) if each.kind == "datetime" else each
        for each in found.inputs
    ]
    return replace(found, inputs=tuple(inputs))


def _columns_of(spec: Mapping[str, Any]) -> Columns:
    stored = spec["settings"].get("columns")
    if stored is not None:
        return Columns.from_json(stored)
    inputs = tuple(InputColumn(str(name)) for name in spec["inputs"])
    return Columns("client", inputs, tuple(str(name) for name in spec["outputs"]))


def clients_of(spec: Mapping[str, Any]) -> set[str]:
    return {str(entry["name"]) for entry in spec["clients"]}


def dropped_of(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Inputs of the fit that were constant, and are not part of the model."""
    columns = spec["settings"].get("columns") or {}
    return tuple(str(name) for name in columns.get("dropped") or ())
