"""Whether a server's request is one that an honest server could send: where it looks, how closely, at what.

- **The grid.** Shared inducing inputs are the public grid of the unit box, and the unit box is the agreed
  domain, or one that holds this site's rows. A server that laid them on rows would read these rows off.
- **Kernels.** A lengthscale much shorter than the distance of rows would tell every row from the others.
- **Totals.** ΣJ less this site's own J, carried to the new θ_g, is what the others know: positive
  semi-definite. ΣJ = 0 after a site has answered says that nobody has: then the client's step would be that
  of a client alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.data.scaling import Scaling
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.envelope import Refused
from pfedhgp.federation.opening import shared_kernels
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.policy.settings import Policy
from pfedhgp.gp.kernels import Kernel, Periodic, Stationary, leaves_of
from pfedhgp.inference.arrays import block_from_arrays, tree_from_arrays
from pfedhgp.inference.markov.parties import MarkovClients
from pfedhgp.inference.messages import KNOT_SUMS, unpack
from pfedhgp.inference.protocols import ClientParty
from pfedhgp.inference.starts.budget import box_points, spacing
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.inference.structured.clients import StructuredClients
from pfedhgp.model.spec import Spec, with_periods

Arrays = Mapping[str, np.ndarray]
ROUNDING = 1e-9
"""Differences of inputs and domains that are rounding."""
NEGATIVE = 1e-6
"""The most negative eigenvalue of the others' J, as a share of the largest one of ΣJ."""
UNFOUNDED = 0.1
"""The most of h, as a share of its largest entry, in directions that nobody has evidence about."""
INSIDE = 0.95
"""The share of this site's rows that a domain of the server's choice must hold: a few may be strays."""


def check_terms(policy: Policy, plan: Plan) -> None:
    """Refuses terms that the policy cannot go with; their words name the line to change."""
    inference = plan.inference
    needed = requests_of_a_run(plan)
    if needed > policy.rounds:
        _refuse(f"the terms allow {needed} training requests", "rounds", policy.rounds)
    if plan.inducing != "auto" and int(plan.inducing) > policy.inducing:
        _refuse(f"the terms have {plan.inducing} inducing inputs", "inducing", policy.inducing)
    if policy.public_grid and plan.learn_inducing and getattr(inference, "learn_shared", True):
        _refuse("inducing inputs move by these terms", "public_grid", True)


def requests_of_a_run(plan: Plan) -> int:
    """Starts and rounds that the terms allow, restarts counted."""
    return max(1, plan.restarts) * (plan.inference.rounds + 1)


def most_evaluations(plan: Plan) -> int:
    """Of one request, by the terms; mean-field has its own number of steps in them."""
    settings = plan.inference
    named = [getattr(settings, name, 0) for name in ("evaluations", "first_evaluations")]
    return max(int(each) for each in named)


def check_domain(plan: Plan, rows: ClientRows, arrays: Arrays) -> None:
    """The box that inputs are scaled to is the agreed domain, or one that holds nearly all rows."""
    if "lower" not in arrays:
        return
    lower, upper = arrays["lower"], arrays["upper"]
    if plan.domain is not None:
        width = np.maximum(np.abs(plan.domain[0]), np.abs(plan.domain[1])) + 1.0
        sides = zip((lower, upper), plan.domain, strict=True)
        if any(np.any(np.abs(one - two) > ROUNDING * width) for one, two in sides):
            raise Refused("policy", "the domain is not the agreed one")
        return
    slack = ROUNDING * (np.abs(lower) + np.abs(upper) + 1.0)
    inside = np.mean((lower - slack <= rows.X) & (upper + slack >= rows.X), axis=0)
    if np.any(inside < INSIDE):
        raise Refused("policy", "the domain leaves out rows of this site: it looks too closely")


def check_grid(policy: Policy, inputs: np.ndarray) -> None:
    """Z_g is the public grid of its size, and no larger than allowed."""
    if len(inputs) > policy.inducing:
        _refuse(f"{len(inputs)} shared inducing inputs", "inducing", policy.inducing)
    if not policy.public_grid or not inputs.size:
        return
    if not np.allclose(inputs, box_points(*inputs.shape), rtol=0.0, atol=ROUNDING):
        raise Refused("policy", "inducing inputs are not the public grid: they look at single rows")


def reach(leaf: Stationary) -> np.ndarray:
    """Over which distance a kernel falls off: its lengthscale, or that part of a period."""
    length = np.asarray(leaf.lengthscale)
    if isinstance(leaf, Periodic):
        return np.asarray(leaf.period) * np.minimum(length, 1.0) / (2.0 * np.pi)
    return length


def check_kernels(
    policy: Policy, spec: Spec, group: ClientGroup, rows: ClientRows, arrays: Arrays
) -> None:
    """No lengthscale is shorter than `shortest`, unless rows are closer or the terms name such a one.

    The request's own box counts: a start says it, and later requests cannot change it.
    """
    scaling = Scaling.from_arrays(arrays) if "lower" in arrays else group.scaling
    if scaling is None:
        return
    apart = min(policy.shortest, float(np.min(spacing(rows.X / scaling.extent))))
    # A period that the terms leave open is the server's word: it lowers nothing.
    terms = group.plan.candidates[int(arrays.get("candidate", 0))]
    agreed = shared_kernels(with_periods(terms, scaling.extent), scaling)
    sent = kernels_of(shared_kernels(spec, scaling), arrays)
    for now, named in zip(leaves_of(sent), leaves_of(agreed), strict=True):
        allowed = min(apart, 0.5 * float(np.min(reach(named), initial=np.inf)))
        _check_length(float(np.min(reach(now), initial=np.inf)), allowed)
    if "scales" in arrays:  # where local kernels start
        _check_length(Start.from_array(arrays["scales"]).local, apart)


def _check_length(length: float, allowed: float) -> None:
    if not length >= allowed:
        raise Refused(
            "policy",
            f"a lengthscale of {length:.2g} of the domain tells single rows apart; `shortest` in "
            f"policy.toml and the rows allow {allowed:.2g}",
        )


def kernels_of(like: Kernel, arrays: Arrays) -> Kernel:
    """The shared kernels of a broadcast; mean-field's come in coordinates, log(1 + eˢ)."""
    if "kernel" in arrays:
        return block_from_arrays(arrays, like).kernels
    prefix = "free.kernels."
    found = {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
    return tree_from_arrays({n: np.logaddexp(0.0, a) for n, a in found.items()}, like)


def check_totals(party: ClientParty, arrays: Arrays) -> None:
    """ΣJ of a round holds what this site sent, and something at all.

    Mean-field has no totals. The Markov solver's come in units of the server's choice, and its clients do not
    take their own out of them.
    """
    if isinstance(party, MarkovClients):
        found = unpack(KNOT_SUMS, {name: arrays[name] for name in ("knot_J", "knot_h")})
        _check_evidence(found["knot_J"], found["knot_h"], None, None)
    elif isinstance(party, StructuredClients):
        J, h = np.asarray(arrays["J"])[None], np.asarray(arrays["h"])[None]
        if party.own is None:
            _check_evidence(J, h, None, None)
        else:
            others = party.others(party.broadcast_of(arrays))
            _check_evidence(J, h, J - np.asarray(others.J), h - np.asarray(others.h))


def _check_evidence(
    J: np.ndarray, h: np.ndarray, own_J: np.ndarray | None, own_h: np.ndarray | None
) -> None:
    """Totals (k, m, m) and (k, m), and this site's part in them if it has one."""
    if not J.size:
        return
    scale = float(np.abs(J).max())
    if scale == 0.0:
        raise Refused("policy", "the totals are zero, although sites have answered before")
    if np.abs(J - np.swapaxes(J, 1, 2)).max() > NEGATIVE * scale:
        raise Refused("policy", "the totals are not symmetric")
    others_J = J if own_J is None else J - own_J
    others_h = h if own_h is None else h - own_h
    values, vectors = np.linalg.eigh(0.5 * (others_J + np.swapaxes(others_J, 1, 2)))
    if values.min() < -NEGATIVE * scale:
        raise Refused("policy", "the totals do not hold what this site sent before")
    along = np.einsum("kab,ka->kb", vectors, others_h)
    unknown = np.abs(np.where(values <= NEGATIVE * scale, along, 0.0)).max()
    # |h| ≤ √(J · Σ y²/σ²): what is hardly known cannot say much
    if unknown > UNFOUNDED * (1.0 + float(np.abs(h).max())):
        raise Refused("policy", "the totals say something that no rows can have said")


def _refuse(what: str, line: str, allowed: object) -> None:
    text = str(allowed).lower() if isinstance(allowed, bool) else str(allowed)
    raise Refused("policy", f"{what}, and policy.toml has `{line} = {text}`")
