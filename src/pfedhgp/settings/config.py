"""All settings of a fit, from a TOML file and from the command line, which wins.

[data]       files, client, inputs, outputs, cycle, block, delimiter, datetimes, datetime_format
[model]      kernel, local_kernel, layers, latents, local_latents, local, noise, inducing, local_inducing,
             learn_inducing, largest_inducing, largest_local_inducing, cycles, cycle_sharing,
             cycle_basis, diagnose, false_alarms, domain
[inference]  name, rounds, tolerance, restarts, batch, averaging
[run]        out, holdout, seed, device, report
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from pfedhgp.base.option_names import as_options, naming
from pfedhgp.base.toml_text import quoted
from pfedhgp.errors import InputError

Count = Annotated[int, Field(ge=1)]
Budget = Literal["auto"] | Count
Layer = Literal["global", "deviation", "local"]


class _Part(BaseModel):
    """Unknown keys are refused, and "3" is not a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Data(_Part):
    """What is read."""

    files: list[str] = []
    client: str | None = None
    inputs: list[str] = []
    outputs: list[str] = []
    cycle: str | None = None
    block: str | None = None
    delimiter: str | None = None
    datetimes: list[str] | None = None
    """Inputs that are datetimes: for a federation's server, which has no file to see it in."""
    datetime_format: str | None = None


class Model(_Part):
    """What is fitted; the names are `FederatedGP`'s."""

    kernel: str = "rbf"
    local_kernel: str | None = None
    layers: list[Layer] = ["global", "deviation", "local"]
    latents: Count | None = None
    local_latents: Count | None = None
    local: Literal["inducing", "state-space"] = "inducing"
    noise: Literal["auto", "scalar", "output", "full"] = "auto"
    inducing: Budget = "auto"
    local_inducing: Budget = "auto"
    learn_inducing: bool | Literal["auto"] | None = None
    largest_inducing: Annotated[int, Field(ge=2)] | None = None
    largest_local_inducing: Annotated[int, Field(ge=2)] = 200
    cycles: Literal["white", "stationary", "free", "auto"] = "white"
    cycle_sharing: Literal["shared", "client", "mixed"] = "shared"
    cycle_basis: Budget = "auto"
    diagnose: bool = False
    false_alarms: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.01
    domain: list[str] | None = None


class Inference(_Part):
    """How."""

    name: Literal["structured", "mean-field"] = "structured"
    rounds: Count | None = None
    tolerance: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.02
    restarts: Count = 1
    batch: bool = True
    averaging: bool = True


class Run(_Part):
    """Where to, and what else."""

    out: str | None = None
    holdout: str | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    device: Literal["cpu", "gpu"] = "cpu"
    report: bool = True


class Config(_Part):
    """One fit."""

    data: Data = Data()
    model: Model = Model()
    inference: Inference = Inference()
    run: Run = Run()

    def tree(self) -> dict[str, dict[str, Any]]:
        """As nested dictionaries, for JSON."""
        return self.model_dump()


def read_config(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, not yet checked."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8: save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not TOML: {error}") from None


def merge(below: Mapping[str, Any], above: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`below` with what is given in `above`; None is not given."""
    merged: dict[str, Any] = {
        name: dict(table) if isinstance(table, Mapping) else table for name, table in below.items()
    }
    for name, table in above.items():
        given = {key: value for key, value in table.items() if value is not None}
        if given and isinstance(merged.setdefault(name, {}), dict):
            merged[name] |= given
    return merged


def check(tree: Mapping[str, Any], *, file: Path | None = None) -> Config:
    """The settings of `tree`; what is wrong is named by its table and key in `file`, or by its option."""
    try:
        return Config.model_validate(dict(tree))
    except pydantic.ValidationError as error:
        problem = error.errors()[0]
        if file is not None:
            raise InputError(f"{file}: {_complaint(problem)}") from None
        table, key = (str(part) for part in problem["loc"][:2])
        raise InputError(f"{option_of(table, key)}: {_asked(problem)}") from None


def option_of(table: str, key: str) -> str:
    """The command line's name for a setting."""
    special = {("data", "inputs"): "--input", ("data", "outputs"): "--output"}
    special |= {("data", "files"): "DATA", ("inference", "name"): "--inference"}
    return special.get((table, key), f"--{key.replace('_', '-')}")


_OTHERS = {
    "inference",
    "cycle",
    "device",
    "seed",
    "distance",
    "method",
    "choose",
    "groups",
    "size",
    "data",
}
_NAMES = {*Model.model_fields, *Inference.model_fields, *_OTHERS}


def in_options(text: str) -> str:
    """A message of the library's in the command line's words.

    >>> in_options("local='state-space' needs `local_kernel` to be a Matérn kernel")
    '--local state-space needs --local-kernel to be a Matérn kernel'
    """
    return as_options(text, _NAMES)


def naming_options() -> AbstractContextManager[None]:
    """Refusals of the library's, which name Python's arguments, name options."""
    return naming(_NAMES)


def _asked(problem: Any) -> str:
    """What would have been right; of a budget both ways, where pydantic names the first alone."""
    table, key = (str(part) for part in (*problem["loc"], "")[:2])
    part: Any = Config.model_fields[table].annotation
    if key in part.model_fields and part.model_fields[key].annotation == Budget:
        return f"must be auto or a whole number from 1, got {problem['input']!r:.40}"
    return _lowered(problem["msg"])


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _complaint(problem: Any) -> str:
    place = [str(part) for part in problem["loc"]]
    if problem["type"] == "extra_forbidden":
        tables = Config.model_fields
        if len(place) == 1:
            known, where = list(tables), "table"
        else:
            part: Any = tables[place[0]].annotation
            known, where = list(part.model_fields), f"key in [{place[0]}]"
        near = difflib.get_close_matches(place[-1], known, n=1)
        guess = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known)}"
        return f"unknown {where}: `{place[-1]}`; {guess}"
    name = f"`{place[1]}` in [{place[0]}]" if len(place) > 1 else f"[{place[0]}]"
    return f"{name}: {_asked(problem)}"


UNSET: Mapping[tuple[str, str], tuple[Any, str]] = {
    ("data", "client"): ("station", "each file is a client"),
    ("data", "cycle"): ("stroke", "rows are no cycles"),
    ("data", "block"): ("shift", "blocks of cycles are not known"),
    ("data", "delimiter"): (";", "a comma"),
    ("data", "datetimes"): (["time"], "seen in the files; only a federation's server needs it"),
    ("data", "datetime_format"): ("%d/%m/%Y", "ISO 8601"),
    ("model", "local_kernel"): ("matern32", "of kernel's form; matern32 with state-space"),
    ("model", "latents"): (2, "1 for one output, else 2"),
    ("model", "local_latents"): (2, "1 for one output, else 2"),
    ("model", "learn_inducing"): (False, "false for structured, true for mean-field"),
    ("model", "largest_inducing"): (256, "256, or 128 where there are many outputs"),
    ("model", "domain"): (["0..10"], "the range of the data"),
    ("inference", "rounds"): (10, "10 for structured, 20 for mean-field"),
    ("run", "out"): ("RUN", "must be given, here or as --out"),
    ("run", "holdout"): ("blocks:0.2", "nothing is held out"),
}
"""Settings that may be left unset: an example, and what holds without them."""


def to_toml(config: Config) -> str:
    """All settings as a TOML file that `read_config` reads back; those not set are comments."""
    lines = [
        "# Settings of `pfedhgp fit --config FILE`; the command line wins over them.",
        "# A line that begins with # is not set: it shows an example, and what holds without it.",
    ]
    for name, table in config.tree().items():
        lines += ["", f"[{name}]"]
        for key, value in table.items():
            if value is not None:
                lines.append(f"{key} = {_value(value)}")
            else:
                example, meaning = UNSET[name, key]
                lines.append(f"# {key} = {_value(example)}  # not set: {meaning}")
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    return repr(value)
