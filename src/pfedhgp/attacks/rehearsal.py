"""A rehearsal of dishonest sites: eight attacks on a federation, with the server's own checks.

Made-up sites see windows of half the domain, y = f(x) + √φ δ_i(x) + σ ε with one function f in common. Of
real sites f is not known: the global function of a fit of all of them, before any attack, stands for it.
Some sites attack. What counts is the error of f, beside a fit of the honest sites alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from pfedhgp.base.numerics import with_numerics
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError
from pfedhgp.federation import inprocess
from pfedhgp.federation.grouping import group_clients
from pfedhgp.federation.messages import Message
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.planning import fitted_model, make_plan
from pfedhgp.federation.server import Server
from pfedhgp.model.prediction import Layer, predict
from pfedhgp.settings.table import ModelSettings

PHI, NOISE, SCALE = 0.2, 0.3, 0.15
"""The deviations' share, the noise, and the lengthscale, of a domain from 0 to 1."""
INVENTED = 2000
"""Rows that the plausible liar makes up."""
LEAST_SITES, MOST_PLACES = 4, 300
Function = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Town:
    """The sites' rows, the function that they have in common, and where it is looked at."""

    rows: tuple[ClientRows, ...]
    shared: Function
    """(n, d) to (n, Q)"""
    places: np.ndarray
    unit: np.ndarray
    """(Q,) one standard deviation of the function, for lies"""
    domain: tuple[tuple[float, float], ...]
    middle: np.ndarray | float = 0.0
    """(Q,) about which labels are flipped"""


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
        X = x[:, None]
        y = shared(X) + own(X) + NOISE * rng.normal(size=rows)[:, None]
        found.append(ClientRows(f"site {i + 1}", X, y))
    places = np.linspace(0.0, 1.0, 101)[:, None]
    return Town(tuple(found), shared, places, np.ones(1), ((0.0, 1.0),))


def _wave(rng: np.random.Generator, sd: float, parts: int = 300) -> Function:
    frequency = rng.normal(size=parts) / SCALE
    phase = rng.uniform(0.0, 2.0 * np.pi, parts)

    def wave(X: np.ndarray) -> np.ndarray:
        waves = np.cos(np.outer(X, frequency) + phase).sum(axis=1)
        return np.asarray(sd * np.sqrt(2.0 / parts) * waves)[:, None]

    return wave


@with_numerics
def town_of(rows: Sequence[ClientRows], rounds: int = 10) -> Town:
    """Real sites: f is the global function of a fit of all of them, as they are."""
    if len(rows) < LEAST_SITES:
        raise InputError(
            f"a rehearsal needs at least {LEAST_SITES} sites, and there are {len(rows)}"
        )
    X = np.concatenate([own.X for own in rows])
    domain = tuple((float(low), float(high)) for low, high in zip(X.min(0), X.max(0), strict=True))
    some = X[np.linspace(0, len(X) - 1, min(len(X), MOST_PLACES)).astype(int)]
    plan = _plan(domain, rounds, rows[0].Y.shape[1], "off")
    server = _trained(plan, rows, None)
    shared = partial(_global_mean, plan, server)
    values = shared(some)
    return Town(tuple(rows), shared, some, values.std(axis=0), domain, values.mean(axis=0))


# ---------------------------------------------------------------------- attacks on rows


def _flipped(own: ClientRows, made: Town) -> ClientRows:
    """About the function's mean; made-up towns have 0."""
    return replace(own, Y=2.0 * made.middle - own.Y)


def _bump(own: ClientRows, made: Town) -> ClientRows:
    """Four standard deviations in the middle of the first input's range."""
    low, high = made.domain[0]
    place = (own.X[:, :1] - low) / max(high - low, 1e-300)
    return replace(own, Y=own.Y + 4.0 * made.unit * np.exp(-0.5 * ((place - 0.5) / 0.08) ** 2))


def _plausible(own: ClientRows, made: Town) -> ClientRows:
    rng = np.random.default_rng(len(own.name))
    inside = rng.uniform(own.X.min(axis=0), own.X.max(axis=0), (INVENTED, own.X.shape[1]))
    X = inside[np.argsort(inside[:, 0])]
    noise = NOISE * made.unit * rng.normal(size=(INVENTED, len(made.unit)))
    return ClientRows(own.name, X, made.shared(X) + made.unit + noise)


ON_ROWS: dict[str, Callable[[ClientRows, Town], ClientRows]] = {
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
    of: Town | None = None,
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Every attack by every share of the sites: made-up ones, or those `of` a town."""
    made, found = town(sites, rows, seed) if of is None else of, []
    plan = _plan(made.domain, rounds, len(made.unit), robust)
    for share in shares:
        count = max(1, round(share * len(made.rows)))
        liars = {own.name for own in made.rows[:count]}
        honest = _errors(plan, made, [own for own in made.rows if own.name not in liars])
        for attack in attacks:
            outcome = _attacked(plan, made, attack, liars, share, honest)
            told(outcome)
            found.append(outcome)
    return found


def over_towns(found: Sequence[Outcome]) -> list[Outcome]:
    """One outcome for each attack and share: means over towns, and of squared errors."""
    by: dict[tuple[float, str], list[Outcome]] = {}
    for each in found:
        by.setdefault((each.share, each.attack), []).append(each)
    return [_pooled(some) for some in by.values()]


def _pooled(some: Sequence[Outcome]) -> Outcome:
    squares = [each.rmse**2 for each in some]
    honest = [(each.rmse / each.ratio) ** 2 for each in some]
    rmse = float(np.sqrt(np.mean(squares)))
    return Outcome(
        some[0].attack,
        some[0].share,
        caught=float(np.mean([each.caught for each in some])),
        honest_excluded=float(np.mean([each.honest_excluded for each in some])),
        rmse=rmse,
        ratio=rmse / float(np.sqrt(np.mean(honest))),
        coverage=float(np.mean([each.coverage for each in some])),
        honest_coverage=float(np.mean([each.honest_coverage for each in some])),
    )


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
        rows = [change(own, made) if own.name in liars else own for own in rows]
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
    layer = _global_layer(plan, server, made.places)
    expected = made.shared(made.places)
    gap = np.asarray(layer.mean).reshape(expected.shape) - expected
    inside = np.abs(gap) <= 1.96 * np.asarray(layer.sd).reshape(expected.shape)
    return float(np.sqrt(np.mean(gap**2))), float(inside.mean())


def _global_mean(plan: Plan, server: Server, X: np.ndarray) -> np.ndarray:
    return np.asarray(_global_layer(plan, server, X).mean).reshape(len(X), -1)


def _global_layer(plan: Plan, server: Server, X: np.ndarray) -> Layer:
    """Of a client that was never seen."""
    names = [f"x{j}" for j in range(X.shape[1])], [f"y{q}" for q in range(plan.spec.outputs)]
    model = fitted_model(
        plan,
        server,
        groups=(),
        rows=(),
        input_names=tuple(names[0]),
        output_names=tuple(names[1]),
        settings={},
        messages=[],
    )
    return predict(model, "", X).layers["global"]


def _plan(domain: tuple[tuple[float, float], ...], rounds: int, outputs: int, robust: str) -> Plan:
    settings = ModelSettings(rounds=rounds, domain=domain, layers=("global", "deviation"))
    return replace(make_plan(settings, len(domain), outputs), robust=robust)
