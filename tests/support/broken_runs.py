"""RUN folders with a fault: arrays and spec changed, hashes set right, and the refusal that must follow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from pfedhgp.errors import ModelFileError
from pfedhgp.model.files import load
from pfedhgp.model.run_folder import seal


def reseal(run: Path, change: Callable[[dict], None] = lambda spec: None) -> None:
    """Changes spec.json and sets all hashes right again, so that only deeper checks can object."""
    spec = json.loads((run / "spec.json").read_text())
    for name in spec["files"]:
        if (run / name).exists():
            spec["files"][name] = hashlib.sha256((run / name).read_bytes()).hexdigest()
    change(spec)
    spec["sha256"] = seal(spec)
    (run / "spec.json").write_text(json.dumps(spec))


def edit_arrays(file: Path, **changes: Callable[[np.ndarray], np.ndarray] | None) -> None:
    arrays = safetensors.numpy.load_file(file)
    for name, change in changes.items():
        key = name.replace("__", ".")
        value = arrays.pop(key, None)
        if change is not None:
            arrays[key] = np.array(change(value), order="C")
    file.write_bytes(safetensors.numpy.save(arrays))


def refused(run: Path, file: str, text: str | None = None) -> None:
    """One line, which names the file and says what is wrong."""
    with pytest.raises(ModelFileError, match=text) as caught:
        load(run)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{run / file}: "), message
