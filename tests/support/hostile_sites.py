"""A laboratory with a dishonest site: the real server, sites, checks and messages, and no processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pfedhgp.base.numerics import numerics
from pfedhgp.data.rows import ClientRows
from pfedhgp.federation.agreement import Agreement
from pfedhgp.federation.envelope import Envelope
from pfedhgp.federation.flower.exchange import Engine, Patience
from pfedhgp.federation.flower.site import site_model
from pfedhgp.federation.flower.state import Roster
from pfedhgp.federation.schema import DELIVER
from pfedhgp.federation.server import Server
from pfedhgp.model.prediction import predict
from support.reference_federation import Clock, LocalLink, agreement, site_of

HONEST, LIAR = ("north", "south", "east"), "west"
GAPS = {"north": (1.0, 2.2), "south": (2.5, 3.7), "east": (0.0, 1.0)}
"""Where each honest site has no rows, and is asked for its function."""
Change = Callable[[str, Envelope, Envelope], Envelope | None]


def truth(x: np.ndarray, i: int) -> np.ndarray:
    return np.sin(2.0 * x) + 0.15 * np.cos(x + 2.0 * i)


def rows(seed: int = 0, n: int = 60) -> dict[str, ClientRows]:
    """Four sites with one function in common, and a gap in each honest site's rows."""
    found = {}
    for i, name in enumerate((*HONEST, LIAR)):
        rng = np.random.default_rng([seed, i])
        x = np.sort(rng.uniform(0.0, 5.0, 4 * n))
        low, high = GAPS.get(name, (9.0, 9.0))
        x = x[(x < low) | (x > high)][:: 2 if name in GAPS else 3][:n]
        y = truth(x, i) + 0.1 * rng.normal(size=len(x))
        found[name] = ClientRows(name, x[:, None], y[:, None])
    return found


def terms(**tables: Mapping[str, Any]) -> Agreement:
    settings = {"model": {"inducing": 12, "local_inducing": 8}, "inference": {"rounds": 10}}
    names = {*settings, *tables}
    return agreement(**{name: {**settings.get(name, {}), **tables.get(name, {})} for name in names})


class Laboratory:
    """A run with the sites `names`, of which `change` may alter what is sent."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        change: Change | None = None,
        *,
        data: Mapping[str, ClientRows] | None = None,
        agreed: Agreement | None = None,
    ) -> None:
        self.delivered: dict[str, Any] = {}
        data, agreed = data or rows(), agreed or terms()
        homes = {name: site_of(folder / name, data[name], self.delivered) for name in names}
        self.link = LocalLink(homes) if change is None else LocalLink(homes, change)
        self.roster, clock = Roster(tuple(names), agreed.to_json()), Clock()
        patience = Patience(timeout=30.0, quorum=2, grace=5.0, pause=1.0)
        self.engine = Engine(
            Server(agreed.plan), self.roster, self.link, patience, clock=clock, sleep=clock.sleep
        )

    def run(self) -> Laboratory:
        with numerics():
            self.engine.run()
        return self

    @property
    def log(self) -> list[dict[str, Any]]:
        return self.roster.log

    def blamed(self) -> dict[str, set[str]]:
        """By site: why its replies were refused (a code) or "excluded"."""
        found: dict[str, set[str]] = {}
        for entry in self.log:
            for name, code in entry["missing"].items():
                found.setdefault(name, set()).add(code)
            for name in entry.get("excluded", ()):
                found.setdefault(name, set()).add("excluded")
        return found

    def error(self) -> float:
        """RMSE of the honest sites' predictions where each has no rows."""
        gaps = []
        for i, name in enumerate(HONEST):
            agreed, group, request = self.delivered[name]
            x = np.linspace(*GAPS[name], 40)
            with numerics():
                model = site_model(agreed, group, request)
                mean = np.asarray(predict(model, name, x[:, None]).mean).reshape(-1)
            gaps.append(mean - truth(x, i))
        return float(np.sqrt(np.mean(np.square(gaps))))


def lying(
    alter: Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]], *kinds: str
) -> Change:
    """The liar's replies of these kinds (by default those of training), altered."""
    wanted = kinds or ("start", "round")

    def change(name: str, request: Envelope, reply: Envelope) -> Envelope:
        if name != LIAR or request.kind not in wanted or request.kind == DELIVER or reply.code:
            return reply
        return replace(reply, arrays={**reply.arrays, **alter(dict(reply.arrays))})

    return change


def times(factor: float, *names: str) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Some arrays, or all but counts, multiplied: also of the starts that are compared."""

    def alter(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {
            name: np.asarray(factor * array)
            for name, array in arrays.items()
            if name.rpartition(".")[2] in names or (not names and not name.endswith("clients"))
        }

    return alter
