"""A rehearsal of dishonest sites: eight attacks on a made-up federation, with the server's own checks.

Sites see windows of half the domain, y = f(x) + √φ δ_i(x) + σ ε with one function f in common. Some of them
attack. What counts is the error of f, beside a fit of the honest sites alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from pfedhgp.base.numerics import with_numerics
from pfedhgp.data.rows import ClientRows
from pfedhgp.federation import inprocess
from pfedhgp.federation.grouping import group_clients
from pfedhgp.federation.messages import Message
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.planning import fitted_model, make_plan
from pfedhgp.federation.server import Server
from pfedhgp.model.prediction import predict
from pfedhgp.settings.table import ModelSettings

PHI, NOISE, SCALE = 0.2, 0.3, 0.15
"""The deviations' share, the noise, and the lengthscale, of a domain from 0 to 1."""
INVENTED = 2000
"""Rows that the plausible liar makes up."""
Function = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Town:
    """The sites' rows, and the function that they have in common."""

    rows: tuple[ClientRows, ...]
    shared: Function


@dataclass(frozen=True)
class Outcome:
    """What an attack by a share of the sites came to."""

    attack: str
    share: float
    caught: float
    """of the attackers, in the last exchange"""
    honest_excluded: float
    """of the honest sites, in the last exchange"""
    rmse: float
    ratio: float
    """rmse over that of the honest sites alone"""
    coverage: float
    """of f by the 95% intervals of the global function"""
    honest_coverage: float
    """the same with the honest sites alone"""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def town(sites: int, rows: int, seed: int) -> Town:
    """Drawn from the model."""
    rng = np.random.default_rng([seed, sites, rows])
    shared, found = _wave(rng, 1.0), []
    for i in range(sites):
        low, own = rng.uniform(0.0, 0.5), _wave(rng, np.sqrt(PHI))
        x = np.sort(rng.uniform(low, low + 0.5, rows))
        y = shared(x) + own(x) + NOISE * rng.normal(size=rows)
        found.append(ClientRows(f"site {i + 1}", x[:, None], y[:, None]))
    return Town(tuple(found), shared)


def _wave(rng: np.random.Generator, sd: float, parts: int = 300) -> Function:
    frequency = rng.normal(size=parts) / SCALE
    phase = rng.uniform(0.0, 2.0 * np.pi, parts)
    return lambda x: sd * np.sqrt(2.0 / parts) * np.cos(np.outer(x, frequency) + phase).sum(axis=1)


# ---------------------------------------------------------------------- attacks on rows


def _flipped(own: ClientRows, shared: Function) -> ClientRows:
    return replace(own, Y=-own.Y)


def _bump(own: ClientRows, shared: Function) -> ClientRows:
    return replace(own, Y=own.Y + 4.0 * np.exp(-0.5 * ((own.X - 0.5) / 0.08) ** 2))


def _plausible(own: ClientRows, shared: Function) -> ClientRows:
    rng = np.random.default_rng(len(own.name))
    x = np.sort(rng.uniform(own.X.min(), own.X.max(), INVENTED))
    y = shared(x) + 1.0 + NOISE * rng.normal(size=INVENTED)
    return ClientRows(own.name, x[:, None], y[:, None])


ON_ROWS: dict[str, Callable[[ClientRows, Function], ClientRows]] = {
    "labels flipped": _flipped,
    "a bump at one place": _bump,
    "plausible lie": _plausible,
}

# ------------------------------------------------------------------- attacks on replies

Arrays = dict[str, np.ndarray]


def _parts(arrays: Arrays) -> Iterator[str]:
    """Prefixes of the starts that a reply has statistics of."""
    yield from (name.removesuffix("U") for name in arrays if name == "U" or name.endswith(".U"))


def _times(factor: float, *names: str) -> Callable[[Arrays, Sequence[Arrays]], Arrays]:
    def alter(own: Arrays, honest: Sequence[Arrays]) -> Arrays:
        some = {p + n for p in _parts(own) for n in names}
        return {n: np.asarray(factor * a) if n in some else a for n, a in own.items()}

    return alter


def _sure(own: Arrays, honest: Sequence[Arrays]) -> Arrays:
    """Fifty times as sure, of the opposite."""
    return _times(50.0, "U")(_times(-50.0, "y")(own, honest), honest)


def _alie(own: Arrays, honest: Sequence[Arrays]) -> Arrays:
    """What honest sites say on average, less 1.5 of their standard deviations (a little is enough)."""
    found = dict(own)
    for prefix in _parts(own):
        for name in ("U", "y"):
            all_ = np.stack([each[prefix + name] for each in honest])
            found[prefix + name] = all_.mean(axis=0) - 1.5 * all_.std(axis=0)
    return found


ON_REPLIES: dict[str, Callable[[Arrays, Sequence[Arrays]], Arrays]] = {
    "x 100": _times(100.0, "U", "y", "evidence", "d_h", "d_J", "d_evidence", "curvature"),
    "-5 h": _times(-5.0, "y"),
    "ALIE, 1.5 sd": _alie,
    "sure of -f": _sure,
    "J negative": _times(-1.0, "U"),
}
ATTACKS = (*ON_REPLIES, *ON_ROWS)


def _tampering(attack: str, liars: set[str]) -> Callable[[Message, list[Message]], list[Message]]:
    alter = ON_REPLIES[attack]

    def tamper(request: Message, replies: list[Message]) -> list[Message]:
        if request.kind not in ("start", "round"):
            return replies
        honest = [dict(r.arrays) for r in replies if r.sender not in liars]
        return [
            replace(r, arrays=alter(dict(r.arrays), honest)) if r.sender in liars else r
            for r in replies
        ]

    return tamper


# ------------------------------------------------------------------------------- the study


@with_numerics
def rehearse(
    *,
    attacks: Sequence[str] = ATTACKS,
    shares: Sequence[float] = (0.1, 0.2, 0.3),
    sites: int = 20,
    rows: int = 50,
    rounds: int = 10,
    seed: int = 0,
    robust: str = "test",
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Every attack by every share of the sites."""
    made, found = town(sites, rows, seed), []
    settings = ModelSettings(rounds=rounds, domain=((0.0, 1.0),), layers=("global", "deviation"))
    plan = replace(make_plan(settings, 1, 1), robust=robust)
    for share in shares:
        count = max(1, round(share * sites))
        liars = {own.name for own in made.rows[:count]}
        honest = _errors(plan, made, [own for own in made.rows if own.name not in liars])
        for attack in attacks:
            outcome = _attacked(plan, made, attack, liars, share, honest)
            told(outcome)
            found.append(outcome)
    return found


def _attacked(
    plan: Plan,
    made: Town,
    attack: str,
    liars: set[str],
    share: float,
    honest: tuple[float, float],
) -> Outcome:
    change, rows = ON_ROWS.get(attack), list(made.rows)
    if change is not None:
        rows = [change(own, made.shared) if own.name in liars else own for own in rows]
    tamper = _tampering(attack, liars) if attack in ON_REPLIES else None
    server = _trained(plan, rows, tamper)
    rmse, coverage = _scores(plan, server, made)
    last = [each["name"] for each in server.run.left_out if each["exchange"] == server.exchanges]
    caught = sum(name in liars for name in last) / len(liars)
    wrong = sum(name not in liars for name in last) / (len(rows) - len(liars))
    return Outcome(attack, share, caught, wrong, rmse, rmse / honest[0], coverage, honest[1])


def _errors(plan: Plan, made: Town, rows: Sequence[ClientRows]) -> tuple[float, float]:
    return _scores(plan, _trained(plan, rows, None), made)


def _trained(plan: Plan, rows: Sequence[ClientRows], tamper: Any) -> Server:
    server = Server(plan)
    inprocess.run(server, group_clients(plan, rows, batch=True), tamper=tamper)
    return server


def _scores(plan: Plan, server: Server, made: Town) -> tuple[float, float]:
    """RMSE of the global function, and how often its 95% interval holds f."""
    model = fitted_model(
        plan,
        server,
        groups=(),
        rows=(),
        input_names=("x",),
        output_names=("y",),
        settings={},
        messages=[],
    )
    x = np.linspace(0.0, 1.0, 101)
    layer = predict(model, "", x[:, None]).layers["global"]
    gap = np.asarray(layer.mean).reshape(-1) - made.shared(x)
    inside = np.abs(gap) <= 1.96 * np.asarray(layer.sd).reshape(-1)
    return float(np.sqrt(np.mean(gap**2))), float(inside.mean())
