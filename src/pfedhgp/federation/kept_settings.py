"""Settings as a model's files and a federation's terms have them, and back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pfedhgp.base.choices import AUTO
from pfedhgp.federation.server import Server
from pfedhgp.gp.kernels import KERNELS, Kernel, Stacks
from pfedhgp.inference.registry import INFERENCES
from pfedhgp.inference.structured.averaging import Averaging
from pfedhgp.model.codec import plain_json
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.spec import name_of
from pfedhgp.settings import kinds
from pfedhgp.settings.table import MODEL_SETTINGS, ModelSettings


def kept_settings(settings: ModelSettings, server: Server) -> dict[str, Any]:
    """The settings as JSON has them, and what a loaded model also needs: starting scales, the bound."""
    assert server.best is not None
    kept = {**settings_to_json(settings), **server.summary()}
    if (cycles := server.best.prepared.cycles) is not None:
        kept["cycle_form"] = cycles.layer.form
        kept["cycle_evidence"] = dict(cycles.evidence)
    return kept


def settings_to_json(settings: ModelSettings) -> dict[str, Any]:
    """By name. Kernels are kept as arrays with the model; callbacks are code, and are not kept."""
    kept: dict[str, Any] = {}
    for each in MODEL_SETTINGS:
        value = getattr(settings, each.name)
        if each.kind is kinds.INFERENCE:
            kept[each.name] = _inference_to_json(value)
        elif each.kind is kinds.KERNEL and isinstance(value, tuple):
            kept[each.name] = (
                f"{AUTO}: {', '.join(name_of(KERNELS[k]() if isinstance(k, str) else k) for k in value)}"
            )
        elif each.kind is not kinds.FUNCTIONS and not isinstance(value, Kernel):
            kept[each.name] = plain_json(value, each.name, strict=True)
    return kept


def _inference_to_json(given: Any) -> Any:
    """A name stays one; settings of ours are kept by name and field, another's by their name."""
    if isinstance(given, str) or type(given) not in INFERENCES.values():
        return given if isinstance(given, str) else given.name
    return {"name": given.name, **plain_json(asdict(given), "inference", strict=True)}


def settings_of_model(model: FittedModel) -> dict[str, Any]:
    """The settings of a model that was read from a file, by name: the inverse of `kept_settings`."""
    kept = model.settings
    given = {each.name: kept[each.name] for each in MODEL_SETTINGS if each.name in kept}
    given["inference"] = _inference_from_json(given.get("inference", ModelSettings.inference))
    found = {"kernel": model.kernel, "local_kernel": model.local_kernel}
    if isinstance(model.kernel, Stacks):
        found["kernel"], found["deviation_kernel"] = model.kernel.kernels
    return given | {name: kernel for name, kernel in found.items() if kernel is not None}


def _inference_from_json(kept: Any) -> Any:
    """The inverse of `_inference_to_json`."""
    if not isinstance(kept, dict):
        return kept
    fields = dict(kept)
    settings = INFERENCES[fields.pop("name")]
    if isinstance(fields.get("averaging"), list | tuple):
        fields["averaging"] = Averaging(*fields["averaging"])
    return settings(**fields)
