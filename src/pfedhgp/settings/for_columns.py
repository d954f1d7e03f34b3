"""From a `Config`, which has kernels and domains as texts, to the settings of a model on known columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pfedhgp.base.choices import AUTO
from pfedhgp.data.columns import Columns
from pfedhgp.data.domain import bounds_of, pairs_of
from pfedhgp.gp import kernel_text
from pfedhgp.settings import kinds
from pfedhgp.settings.config import Config
from pfedhgp.settings.table import MODEL_SETTINGS, ModelSettings

KERNELS = {each.name: each for each in MODEL_SETTINGS if each.kind is kinds.KERNEL}


@dataclass(frozen=True)
class Kernels:
    """The kernels of a `Config` as trees: each text is read once, before the columns are known."""

    trees: Mapping[str, tuple[kernel_text.Leaf | kernel_text.Combined, ...]]
    chosen: Mapping[str, bool]
    """Whether training chooses among the trees of a setting; without any, among the usual ones."""

    @staticmethod
    def of(config: Config) -> Kernels:
        found, chosen = {}, {}
        for name, text in kernel_words(config).items():
            if text is not None:
                option, several = KERNELS[name].on_command_line, kernel_text.listed(text)
                texts = [text] if several is None else several
                chosen[name] = several is not None
                found[name] = tuple(kernel_text.parse(each, option) for each in texts)
        return Kernels(found, chosen)

    def check(self, columns: Columns) -> None:
        """Inputs that they name exist, and units of time belong to datetimes."""
        for name, trees in self.trees.items():
            for tree in trees:
                kernel_text.check_inputs(tree, columns.inputs, KERNELS[name].on_command_line)

    def on(self, columns: Columns) -> dict[str, Any]:
        """Kernels for these columns; a plain name stays one."""
        found: dict[str, Any] = {}
        for name, trees in self.trees.items():
            option = KERNELS[name].on_command_line
            own = tuple(kernel_text.kernel_of(tree, columns.inputs, option) for tree in trees)
            found[name] = (own or AUTO) if self.chosen[name] else own[0]
        return found


def model_settings(
    config: Config,
    columns: Columns,
    *,
    kernels: Kernels | None = None,
    domain: Sequence[tuple[float, float]] | None = None,
) -> ModelSettings:
    """The settings of the model that `config` asks for; `kernels` and `domain` if they were read already."""
    values = {each.name: getattr(config, each.name) for each in MODEL_SETTINGS if each.section}
    values |= (kernels or Kernels.of(config)).on(columns)
    if domain is None and config.domain is not None:
        domain = pairs_of(config.domain, columns)
    bounds = config.output_bounds
    if bounds is not None:
        bounds = bounds_of(bounds, columns.outputs)
    return ModelSettings(**{**values, "domain": domain, "output_bounds": bounds})


def kernel_words(config: Config) -> dict[str, Any]:
    """Kernels as the user wrote them, for the model file."""
    return {name: getattr(config, name) for name in KERNELS}


def kernel_texts(settings: ModelSettings) -> dict[str, str]:
    """Those of the kernels that were given as text in Python."""
    found = {name: getattr(settings, name) for name in KERNELS}
    return {name: text for name, text in found.items() if isinstance(text, str)}


def with_kernels(settings: ModelSettings, columns: Columns) -> ModelSettings:
    """The settings with kernels for these columns in the place of texts: "rbf(3 days) + periodic(1 day)"."""
    found: dict[str, Any] = {}
    for name, text in kernel_texts(settings).items():
        several = kernel_text.listed(text)
        trees = [_tree(each, name, columns) for each in ([text] if several is None else several)]
        own = tuple(kernel_text.kernel_of(tree, columns.inputs, f"`{name}`") for tree in trees)
        found[name] = own[0] if several is None else own or AUTO
    for name in KERNELS:
        if isinstance(given := getattr(settings, name), tuple):
            found[name] = tuple(
                kernel_text.kernel_of(_tree(each, name, columns), columns.inputs, f"`{name}`")
                if isinstance(each, str)
                else each
                for each in given
            )
    return replace(settings, **found)


def _tree(text: str, name: str, columns: Columns) -> kernel_text.Leaf | kernel_text.Combined:
    """A text that was read and belongs to these columns."""
    tree = kernel_text.parse(text, f"`{name}`")
    kernel_text.check_inputs(tree, columns.inputs, f"`{name}`")
    return tree
