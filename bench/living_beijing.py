"""Models over time on Beijing's PM2.5: injected faults, and a year of daily updates beside weekly fits.

    python bench/living_beijing.py faults DATA [--days 60] [--seeds 5] [--first 59] [--hour 0]
        [--column NO2] [--nobody]
    python bench/living_beijing.py year DATA [--days 365] [--stations 12] [--every 2]

`faults`: the odd stations lack the last ten days, which are then judged with and without a fault; with
--nobody all stations lack them. --first is the day of the first row, counted from 1 January 2013, and --hour
its hour. `year`: one fit, then an update a day; beside it a fit a week. Values are log(1 + PM2.5), inputs are
days.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from typing import Any

import numpy as np

from pfedhgp import FederatedGP
from pfedhgp.gp.metrics import crps
from pfedhgp.studies.airquality.stations import load_stations

LEVEL, LEVELS = 0.01, (0.01, 0.05, 0.1)
FAULTS = ("shift", "drift", "stuck", "spike")


def rows_of(
    data: str,
    days: float,
    hours: int,
    count: int,
    first: float = 59.0,
    hour: int = 0,
    column: str = "PM2.5",
) -> dict[str, tuple]:
    """{station: (days, log1p)}, one row every `hours`; rows without a value are left out."""
    found = {}
    every = range(hour, 24, hours)
    for each in load_stations(data, years=[2013, 2014, 2015], columns=[column], hours=list(every))[
        :count
    ]:
        x, y = each.days - first, np.log1p(each.values[:, 0])  # the data begin on 1 March, day 59
        there = (x >= 0) & (x < days) & np.isfinite(y)
        found[each.name] = (x[there], y[there])
    return found


def with_fault(y: np.ndarray, fault: str, rng: np.random.Generator) -> tuple:
    """The rows with one fault of 16 rows (a spike: of one), and where it is; sizes are in sds of y."""
    sd, length = float(np.std(y)), 1 if fault == "spike" else 16
    start = int(rng.integers(4, len(y) - length - 4))
    part = slice(start, start + length)
    wrong, where = np.array(y), np.zeros(len(y), bool)
    where[part] = True
    if fault == "shift":
        wrong[part] += 1.0 * sd
    elif fault == "drift":
        wrong[part] += np.linspace(0.0, 2.0 * sd, length)
    elif fault == "stuck":
        wrong[part] = wrong[start]
    else:
        wrong[part] += 2.0 * sd
    return wrong, where


def auc(score: np.ndarray, wrong: np.ndarray) -> float:
    """The chance that a wrong row has a higher score than a fine one."""
    order = np.argsort(np.argsort(score)) + 1.0
    ones, zeros = wrong.sum(), (~wrong).sum()
    return float((order[wrong].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def faults(arguments: Any) -> dict[str, Any]:
    data = rows_of(
        arguments.data, arguments.days, 3, 12, arguments.first, arguments.hour, arguments.column
    )
    cut = arguments.days - 10.0
    judged = data if arguments.nobody else dict(list(data.items())[1::2])
    known = {n: (x[x < cut], y[x < cut]) if n in judged else (x, y) for n, (x, y) in data.items()}
    model = FederatedGP(kernel="matern32", domain=[(0.0, arguments.days)], rounds=arguments.rounds)
    model.fit(known)
    found: dict[str, Any] = {}
    fine = [model.anomalies(n, (x[x >= cut], y[x >= cut])) for n, (x, y) in judged.items()]
    found["fine"] = {"rows": sum(len(each.row) for each in fine)}
    for part in ("row", "stretch", "chance"):
        each = np.concatenate([getattr(one, part) for one in fine])
        found["fine"][part] = {str(level): float(np.mean(each < level)) for level in LEVELS}
    found["fine"]["stations"] = [float(np.mean(each.chance < LEVEL)) for each in fine]
    for fault in FAULTS if arguments.seeds else ():
        ours, simple, there = [], [], []
        for seed in range(arguments.seeds):
            for k, (name, (x, y)) in enumerate(judged.items()):
                rng = np.random.default_rng([seed, k])
                new, past = x >= cut, y[x < cut]
                wrong, where = with_fault(y[new], fault, rng)
                ours.append(-np.log(model.anomalies(name, (x[new], wrong)).chance + 1e-300))
                simple.append(np.abs(wrong - past.mean()) / past.std())
                there.append(where)
        label = np.concatenate(there)
        found[fault] = {
            "auc": auc(np.concatenate(ours), label),
            "auc_z_score": auc(np.concatenate(simple), label),
            "flagged": float(np.mean(np.concatenate(ours)[label] > -np.log(LEVEL))),
            "flagged_z_score": float(np.mean(np.concatenate(simple)[label] > 2.576)),
        }
    return {**found, "stale": stale_days(model, judged, cut)}


def stale_days(model: FederatedGP, judged: dict[str, tuple], cut: float) -> dict[str, Any]:
    """How often a day's update of one station, and of all, says that parameters are stale."""
    one, days = [], []
    for day in np.arange(cut, cut + 10.0):
        new = {
            n: (x[m], y[m]) for n, (x, y) in judged.items() for m in [(x >= day) & (x < day + 1)]
        }
        new = {n: rows for n, rows in new.items() if len(rows[0])}
        if new:
            model.update(new)
            one += [each.p for each in model.last_update_.surprises]
            days.append(model.last_update_.p)
    return {
        "updates": len(days),
        "share_of_updates": float(np.mean(np.array(days) < LEVEL)),
        "stations": len(one),
        "share_of_stations": {
            str(level): float(np.mean(np.array(one) < level)) for level in LEVELS
        },
    }


def year(arguments: Any) -> dict[str, Any]:
    """CRPS a day ahead, and processor time, of daily updates and of a fit a week with daily updates."""
    data = rows_of(arguments.data, arguments.days + 30, 24 // arguments.every, arguments.stations)
    domain = [(0.0, arguments.days + 30.0)]

    def fitted(until: float) -> tuple[FederatedGP, float]:
        began = time.process_time()
        model = FederatedGP(
            kernel="matern12", local="state-space", local_kernel="matern12", domain=domain,
            layers=("global", "local"), inducing=arguments.inducing, rounds=arguments.rounds,
        )  # fmt: skip
        model.fit({n: (x[x < until], y[x < until]) for n, (x, y) in data.items()})
        return model, time.process_time() - began

    scores: dict[str, list[float]] = {"once": [], "weekly": []}
    fits, updates = [], []
    models = {}
    for day in range(30, 30 + arguments.days):
        for name in ("once", "weekly"):
            if day == 30 or (name == "weekly" and (day - 30) % 7 == 0):
                models[name], seconds = fitted(float(day))
                fits.append(seconds)
        new = {}
        for n, (x, y) in data.items():
            mine = (x >= day) & (x < day + 1)
            if mine.any():
                new[n] = (x[mine], y[mine])
        for name, model in models.items():
            for n, (x, y) in new.items():
                p = model.predict(n, x[:, None])
                scores[name].append(crps(y[:, None], p.mean, p.covariance()))
            began = time.process_time()
            model.update(new)
            if name == "once":
                updates.append(time.process_time() - began)
    return {
        "crps": {name: float(np.mean(each)) for name, each in scores.items()},
        "seconds_of_a_fit": float(np.mean(fits)),
        "seconds_of_an_update": float(np.mean(updates)),
        "share": float(np.mean(updates) / np.mean(fits)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["faults", "year"])
    parser.add_argument("data")
    parser.add_argument("--days", type=float, default=None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=float, default=59.0)
    parser.add_argument("--hour", type=int, default=0)
    parser.add_argument("--column", default="PM2.5")
    parser.add_argument("--nobody", action="store_true")
    parser.add_argument("--stations", type=int, default=12)
    parser.add_argument("--every", type=int, default=2, help="rows a day")
    parser.add_argument("--inducing", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    arguments.days = arguments.days or (60.0 if arguments.what == "faults" else 365.0)
    arguments.days = int(arguments.days) if arguments.what == "year" else arguments.days
    warnings.simplefilter("ignore")
    print(json.dumps({"faults": faults, "year": year}[arguments.what](arguments), indent=1))


if __name__ == "__main__":
    main()
