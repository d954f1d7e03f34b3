"""Personalized federated hierarchical Gaussian processes.

Public names are imported when they are first used, so that `import pfedhgp` and the command line
start without JAX.
"""

from __future__ import annotations

import gc
import importlib
from typing import TYPE_CHECKING, Any

from pfedhgp.version import __version__

if TYPE_CHECKING:
    from pfedhgp.estimator import FederatedGP
    from pfedhgp.estimator.diagnosis_training import train_diagnosis
    from pfedhgp.gp.kernels import RBF, Matern12, Matern32, Matern52, Periodic, RationalQuadratic
    from pfedhgp.inference.markov.settings import Markov
    from pfedhgp.inference.meanfield.training import MeanField
    from pfedhgp.inference.structured.averaging import Averaging
    from pfedhgp.inference.structured.settings import Structured
    from pfedhgp.zones.result import Zones

__all__ = [  # noqa: RUF022 (in the order of the reference)
    "FederatedGP",
    "Structured",
    "Markov",
    "MeanField",
    "Averaging",
    "Zones",
    "train_diagnosis",
    "RBF",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "RationalQuadratic",
    "__version__",
]

# A public name and the module that defines it; keep in step with the imports above.
_MODULE_OF = {
    "Averaging": "pfedhgp.inference.structured.averaging",
    "FederatedGP": "pfedhgp.estimator",
    "Markov": "pfedhgp.inference.markov.settings",
    "Matern12": "pfedhgp.gp.kernels",
    "Matern32": "pfedhgp.gp.kernels",
    "Matern52": "pfedhgp.gp.kernels",
    "MeanField": "pfedhgp.inference.meanfield.training",
    "Periodic": "pfedhgp.gp.kernels",
    "RBF": "pfedhgp.gp.kernels",
    "RationalQuadratic": "pfedhgp.gp.kernels",
    "Structured": "pfedhgp.inference.structured.settings",
    "Zones": "pfedhgp.zones.result",
    "train_diagnosis": "pfedhgp.estimator.diagnosis_training",
}


def __getattr__(name: str) -> Any:
    if name == "plot":  # `pfedhgp.plot` without an import of its own
        return importlib.import_module("pfedhgp.plot")
    try:
        module = _MODULE_OF[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    collects = gc.isenabled()
    gc.disable()  # modules are no garbage, and looking for some takes a tenth of the time
    try:
        value = getattr(importlib.import_module(module), name)
    finally:
        if collects:
            gc.enable()
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF, "plot"})
