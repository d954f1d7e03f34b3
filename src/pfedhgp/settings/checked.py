"""Checks of settings: one by one, together, and for what they are used for."""

from __future__ import annotations

from typing import Any

from pfedhgp.errors import InputError
from pfedhgp.settings.config import SETTINGS, Config
from pfedhgp.settings.table import MODEL_SETTINGS, ModelSettings


def checked(given: Any) -> ModelSettings:
    """The settings of `given` (a `FederatedGP`, say) as plain Python; refuses by name what does not fit."""
    found = {each.name: each.checked(getattr(given, each.name)) for each in MODEL_SETTINGS}
    settings = ModelSettings(**found)
    check_together(settings)
    return settings


def check_together(settings: ModelSettings) -> None:
    """Refuses settings that contradict each other, as far as it can be seen without data."""
    if "deviation" in settings.layers and "global" not in settings.layers:
        raise InputError("`layers`: a deviation departs from the global layer, which is missing")
    how = settings.inference
    knows_bound = how != "mean-field" if isinstance(how, str) else how.knows_bound
    if settings.restarts > 1 and not knows_bound:
        raise InputError("`restarts` needs a bound to choose by, which mean-field does not send")


def check_use(config: Config, *, federated: bool) -> None:
    """Refuses settings that have no meaning without another, or that a federation cannot follow."""
    option = {each.name: each.on_command_line for each in SETTINGS}
    for each in SETTINGS:
        if getattr(config, each.name) == each.default:
            continue
        if each.only_with and not getattr(config, each.only_with):
            raise InputError(
                f"{option[each.name]} is for {option[each.only_with]}: give both, or leave it out"
            )
        if federated and each.refused:
            raise InputError(f"{option[each.name]}: {each.refused}")
