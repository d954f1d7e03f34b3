"""Which models are trained side by side, and when one of them is out.

Before training, sums of clients' own log evidences (`forms`, `periodogram`) leave a few of the models that
were asked for. These are trained in the same exchanges, and their bounds compare: a difference of bounds is
about the log of the odds between two models that were equally likely before. A model with more shared
parameters pays ½ log(cells) for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pfedhgp.gp.kernels import Kernel, Periodic, Stationary, Sum, leaves_of, split_scale
from pfedhgp.inference.starts.forms import FORMS
from pfedhgp.model.spec import Spec, name_of

UNSURE, UNSURE_A_CELL = 6.0, 0.005
"""Nats, in all and per cell, by which evidences before training may be wrong about a model."""
MARGINS = (0.25, 0.05, 0.02, 0.01, 0.0)
"""Nats a cell by which a model may be behind the best after rounds 1, 2, …: loadings and noise settle first.
After the last of these rounds one is left."""


def has_waves(kernel: Kernel) -> bool:
    return any(isinstance(leaf, Periodic) for leaf in leaves_of(kernel))


def form_of(kernel: Kernel) -> int | None:
    """Number of the form, but for a periodic part; None if evidences before training do not know it."""
    unit = split_scale(kernel)[1]
    parts = unit.kernels if isinstance(unit, Sum) else (unit,)
    found = [part for part in parts if not isinstance(part, Periodic)]
    if len(found) != 1 or not isinstance(found[0], Stationary) or found[0].lengthscale is not None:
        return None
    name = name_of(found[0])
    return FORMS.index(name) if name in FORMS else None


def shortlist(
    specs: Sequence[Spec], evidence: np.ndarray, gain: float, *, cells: float, clients: int
) -> tuple[int, ...]:
    """Numbers of the models worth training; `evidence` by form (shared, local), `gain` of a periodic part.

    The best by evidence, the best with another form of the shared kernel, and the best with (or without) a
    periodic part if the first is without (or with), as long as they are not clearly behind. Models of which
    evidences say nothing are all trained. A local rational quadratic pays a nat for each client's α.
    """
    scores: dict[int, float] = {}
    unknown = []
    for number, spec in enumerate(specs):
        shared, local = form_of(spec.kernel), form_of(spec.local_kernel)
        if shared is None or local is None:
            unknown.append(number)
        else:
            more = clients * spec.local_latents * (FORMS[local] == "rational_quadratic")
            scores[number] = float(evidence[shared, local]) - more + gain * has_waves(spec.kernel)
    order = sorted(scores, key=lambda number: (-scores[number], number))
    kept = order[:1]
    if kept:
        best, slack = specs[kept[0]], max(UNSURE, UNSURE_A_CELL * cells)
        near = [specs[n] for n in order if scores[n] >= scores[kept[0]] - slack]
        numbers = [n for n in order if scores[n] >= scores[kept[0]] - slack]
        waves = [has_waves(spec.kernel) == has_waves(best.kernel) for spec in near]
        forms = [form_of(spec.kernel) == form_of(best.kernel) for spec in near]
        places = zip(numbers, waves, forms, strict=True)
        kept += [n for n, same_waves, same_form in places if same_waves and not same_form][:1]
        kept += [n for n, same in zip(numbers, waves, strict=True) if not same][:1]
    return tuple(kept + unknown)


def penalty(parameters: int, cells: float) -> float:
    """½ log(cells) for each shared parameter."""
    return 0.5 * parameters * float(np.log(max(cells, 2.0)))


def behind(scores: Sequence[float]) -> list[float]:
    """How far each is behind the best, in nats."""
    best = max(scores)
    return [best - score for score in scores]


def margin(number: int, cells: float) -> float:
    """What a model may be behind after round `number` of training, in nats; before round 1, anything."""
    return MARGINS[min(number, len(MARGINS)) - 1] * cells if number > 0 else float(np.inf)


def label(spec: Spec) -> dict[str, str]:
    return {"kernel": name_of(spec.kernel), "local_kernel": name_of(spec.local_kernel)}


def in_words(choice: Sequence[Mapping[str, Any]]) -> str | None:
    """One line on what was compared, by how much, and what that means as odds.

    >>> in_words(
    ...     [
    ...         {"kernel": "rbf", "local_kernel": "rbf", "round": None, "behind": 0.0},
    ...         {"kernel": "matern52", "local_kernel": "rbf", "round": 2, "behind": 2.303},
    ...     ]
    ... )
    'rbf (local rbf) chosen; behind: matern52 (local rbf) by 2.3 nats in round 2 (odds 10 to 1)'

    With numbers of latents, shared + local, if these were compared, too.
    """
    if not choice:
        return None
    shown = [_shown(each) for each in choice]
    others = [
        f"{name} by {each['behind']:.1f} nats in round {each['round']} ({odds(each['behind'])})"
        for name, each in zip(shown, choice, strict=True)
        if each["round"] is not None
    ]
    first = next(n for n, each in zip(shown, choice, strict=True) if each["round"] is None)
    return f"{first} chosen" + (f"; behind: {', '.join(others)}" if others else "")


def _shown(each: Mapping[str, Any]) -> str:
    """Kernels, and the numbers of latents if they were chosen, too."""
    kernels = f"{each['kernel']} (local {each['local_kernel']})"
    if "latents" not in each:
        return kernels
    return f"{kernels} with {each['latents']} + {each['local_latents']} latents"


def subject(choice: Sequence[Mapping[str, Any]]) -> str:
    """What was chosen: kernels, or numbers of latents with them."""
    return "kernels and latents" if choice and "latents" in choice[0] else "kernels"


def odds(nats: float) -> str:
    """exp(nats) in words."""
    return "odds over a million to 1" if nats > np.log(1e6) else f"odds {np.exp(nats):.0f} to 1"
