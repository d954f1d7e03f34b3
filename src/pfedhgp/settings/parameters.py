"""What each parameter of `FederatedGP` may be, as one table; `checked` is where they are looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

from pfedhgp.base.checks import (
    Check,
    auto_or,
    flag,
    functions,
    number,
    one_of,
    optional,
    pairs,
    refusal,
    some_of,
    whole,
)
from pfedhgp.errors import InputError
from pfedhgp.gp.kernels import (
    RBF,
    Kernel,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    refuse_unknown,
)
from pfedhgp.inference.registry import INFERENCES
from pfedhgp.model.cycle_layer import FORMS, SHARED_WHITE, SHARINGS
from pfedhgp.model.spec import LAYERS, LOCALS, NOISES

KERNELS: dict[str, Callable[[], Kernel]] = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "periodic": Periodic,
    "rational_quadratic": RationalQuadratic,
}
DEVICES = ("cpu", "gpu")


def kernel(value: Any, name: str) -> Kernel | str:
    """A kernel of ours, or a kernel's name."""
    if isinstance(value, Kernel):
        refuse_unknown(value, name)
        return value
    if isinstance(value, str) and value in KERNELS:
        return value
    raise refusal(name, f"a kernel or one of {', '.join(KERNELS)}", value)


def inference(value: Any, name: str) -> Any:
    """An inference's name, or a settings object (not its class)."""
    settings = is_dataclass(value) and not isinstance(value, type)
    if settings and hasattr(value, "server") and hasattr(value, "clients"):
        return value
    if isinstance(value, str) and value in INFERENCES:
        return value
    wanted = f"one of {', '.join(INFERENCES)}, or settings such as Structured(...)"
    raise refusal(name, wanted, value)


PARAMETERS: Mapping[str, Check] = {
    "kernel": kernel,
    "local_kernel": optional(kernel),
    "layers": some_of(*LAYERS),
    "latents": optional(whole(1)),
    "local_latents": optional(whole(1)),
    "noise": one_of("auto", *NOISES),
    "local": one_of(*LOCALS),
    "inducing": auto_or(whole(1)),
    "local_inducing": auto_or(whole(1)),
    "learn_inducing": optional(auto_or(flag)),
    "largest_inducing": optional(whole(2)),
    "largest_local_inducing": whole(2),
    "domain": optional(pairs),
    "inference": inference,
    "rounds": optional(whole(1)),
    "averaging": flag,
    "tolerance": number(least=0.0),
    "cycles": one_of(*FORMS, "auto", SHARED_WHITE),
    "cycle_sharing": one_of(*SHARINGS),
    "cycle_basis": auto_or(whole(2)),
    "restarts": whole(1),
    "batch": flag,
    "device": one_of(*DEVICES),
    "seed": whole(0),
    "callbacks": functions,
}


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters as plain Python values; the first that does not fit is refused by name."""
    found = {name: check(given[name], name) for name, check in PARAMETERS.items()}
    if "deviation" in found["layers"] and "global" not in found["layers"]:
        raise InputError("`layers`: a deviation departs from the global layer, which is missing")
    return found
