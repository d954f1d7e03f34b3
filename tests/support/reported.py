"""Models to report without a fit, logs to go with them, and a reader of the SVG that figures are."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.data.scaling import Scaling
from pfedhgp.estimator import FederatedGP
from support.posteriors import Case, make

TIED = {"outputs": 1, "latents": 1, "local_latents": 1, "tied": True, "noise": "scalar"}

HISTORY = [
    {"round": r, "kind": kind, "attempt": 0, "bound": bound, "clients": 3, "inducing": 6}
    | {"bytes_up": 3000, "bytes_down": 6000}
    for r, kind, bound in ((0, "start", -120.0), (1, "round", -60.0), (2, "round", -55.5))
]
MESSAGES = [
    {"round": 0, "kind": kind, "from": sender, "to": receiver, "bytes": 8 * 6, "arrays": arrays}
    for kind, sender, receiver, arrays in (
        ("census", "server", "client 0", {}),
        ("census", "client 0", "server", {"rows": [1], "y_sum": [2]}),
        ("round", "server", "client 0", {"J": [3, 3], "h": [3]}),
        ("round", "client 0", "server", {"U": [4, 4], "evidence": []}),
    )
]
SCORES = {
    "rows": 20,
    "rmse": 0.31,
    "nll": 0.4,
    "crps": 0.17,
    "coverage": 0.93,
    "width": 1.2,
    "ece": 0.03,
}
LEVELS = [round(0.05 * k, 2) for k in range(1, 20)]
BOTH = {"pooled": {**SCORES, "rmse": 0.35}, "client_mean": SCORES}
BY_CLIENT = {f"client {i}": {**SCORES, "rmse": 0.3 + i} for i in range(3)}
METRICS: dict[str, Any] = {
    "holdout": {"kind": "random", "fraction": 0.2, "seed": 7},
    "overall": BOTH,
    "outputs": {"y0": {**BOTH, "clients": BY_CLIENT}},
    "clients": BY_CLIENT,
    "calibration": {
        "levels": LEVELS,
        "coverage": [min(1.03 * level, 1.0) for level in LEVELS],
        "pit": {"edges": [0.0, 0.25, 0.5, 0.75, 1.0], "counts": [4, 6, 7, 3]},
    },
    "baselines": {"pooled GP": {"client_mean": {**SCORES, "rmse": 0.9, "crps": 0.5}}},
    "seconds": 12.5,
}


def case_of(**changes: Any) -> Case:
    """One input from 10 to 14 and outputs around 50, unless said otherwise."""
    options = {**TIED, "sizes": (12, 9, 14), **changes}
    d, Q = options.get("d", 1), options["outputs"]
    scaling = Scaling(np.full(d, 10.0), np.full(d, 14.0), np.full(Q, 50.0), np.full(Q, 5.0))
    return make(seed=4, scaling=scaling, **options)


def estimator_of(case: Case, **changes: Any) -> FederatedGP:
    """A fitted `FederatedGP` around a case's model; `changes` are fields of the model."""
    found = FederatedGP()
    found.model_ = replace(case.model, **{"history": HISTORY, "messages": MESSAGES, **changes})
    found.exchanges_, found.bound_ = 4, -55.5
    return found


def rows_of(case: Case) -> list[ClientRows]:
    """The rows that the case was solved on, in the data's units."""
    scaling = case.model.scaling
    return [
        ClientRows(name, X * scaling.extent + scaling.lower, Y * scaling.spread + scaling.centre)
        for name, X, Y in zip(case.model.clients, case.Xs, case.Ys, strict=True)
    ]


def points_of(path: str) -> np.ndarray:
    """(n, 2): the points of a path, by places ("L 3 4") or by steps ("l.5-1 2 3") from the one before."""
    found: list[np.ndarray] = []
    for command, text in re.findall(r"([A-Za-z])([^A-Za-z]*)", path):
        numbers = np.array(re.findall(r"-?(?:\d+\.?\d*|\.\d+)", text), float).reshape(-1, 2)
        if command == "l":
            numbers = found[-1] + np.cumsum(numbers, axis=0)
        found += list(numbers)
    return np.array(found)


class Svg:
    """What was drawn, in pixels, found by the name that the drawing gave it."""

    def __init__(self, text: str, name: str) -> None:
        self.root, self.name = ElementTree.fromstring(text), name

    def find(self, gid: str) -> ElementTree.Element:
        for element in self.root.iter():
            if element.get("id") == f"{self.name}-{gid}":
                return element
        raise AssertionError(f"{gid} was not drawn")

    def has(self, gid: str) -> bool:
        return any(e.get("id") == f"{self.name}-{gid}" for e in self.root.iter())

    def vertices(self, gid: str) -> np.ndarray:
        """(n, 2): the path under a name, moved to where it is used."""
        element = self.find(gid)
        paths = [e for e in element.iter() if e.tag.endswith("path")]
        uses = [e for e in element.iter() if e.tag.endswith("use")]
        points = points_of(paths[0].get("d", ""))
        if uses:
            points += [float(uses[0].get("x", 0)), float(uses[0].get("y", 0))]
        return points

    def places(self, gid: str) -> np.ndarray:
        """(n, 2): where a marker was put."""
        uses = [e for e in self.find(gid).iter() if e.tag.endswith("use")]
        return np.array([[float(e.get("x", 0)), float(e.get("y", 0))] for e in uses])

    def text(self) -> str:
        return " ".join("".join(e.itertext()) for e in self.root.iter() if e.tag.endswith("text"))


def pixels_of(points: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(slope, offset) from the data's y to pixels, from a curve drawn over all x and its values."""
    ends = points[np.argsort(points[:, 0])][[0, -1], 0]
    at = np.interp(points[:, 0], ends, [x[0], x[-1]])
    fit = np.polyfit(np.interp(at, x, y), points[:, 1], 1)
    assert np.max(np.abs(np.polyval(fit, np.interp(at, x, y)) - points[:, 1])) < 0.25
    return fit
