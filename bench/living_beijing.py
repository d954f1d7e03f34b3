"""Models over time on Beijing's PM2.5: injected faults, and a year of daily updates beside weekly fits.

    python -m bench.living_beijing faults DATA [--days 60] [--seeds 5] [--first 59] [--hour 0]
        [--column NO2] [--nobody]
    python -m bench.living_beijing year DATA [--days 365] [--stations 12] [--every 2] [--jobs 12]

`faults`: the odd stations lack the last ten days, which are then judged with and without a fault; with
--nobody all stations lack them. Without a fault, whatever is flagged is a false alarm, ours and the
z-score's. --first is the day of the first row, counted from 1 January 2013, and --hour its hour.
`year`: one fit, then an update a day; beside it a fit a week. Values are log(1 + PM2.5), inputs are days.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from statistics import NormalDist
from typing import Any

import numpy as np

from bench.beijing_rows import stations
from pfedhgp import FederatedGP
from pfedhgp.gp.metrics import crps

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
    for name, (when, values) in list(stations(data, column, list(every)).items())[:count]:
        x, y = when - first, np.log1p(values)  # the data begin on 1 March, day 59
        there = (x >= 0) & (x < days) & np.isfinite(y)
        found[name] = (x[there], y[there])
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


def z_scores(y: np.ndarray, past: np.ndarray) -> np.ndarray:
    """|y − mean|/sd of a station, by its rows of the fit: the simple method beside ours."""
    return np.abs(y - past.mean()) / past.std()


def limit(level: float) -> float:
    """|z| above which a row is flagged, so that a Gaussian is with this chance."""
    return NormalDist().inv_cdf(1.0 - 0.5 * level)


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
    z = [z_scores(y[x >= cut], y[x < cut]) for x, y in judged.values()]
    found["fine"]["z_score"] = {
        str(level): float(np.mean(np.concatenate(z) > limit(level))) for level in LEVELS
    }
    found["fine"]["stations_z_score"] = [float(np.mean(each > limit(LEVEL))) for each in z]
    for fault in FAULTS if arguments.seeds else ():
        ours, simple, there = [], [], []
        for seed in range(arguments.seeds):
            for k, (name, (x, y)) in enumerate(judged.items()):
                rng = np.random.default_rng([seed, k])
                new, past = x >= cut, y[x < cut]
                wrong, where = with_fault(y[new], fault, rng)
                ours.append(-np.log(model.anomalies(name, (x[new], wrong)).chance + 1e-300))
                simple.append(z_scores(wrong, past))
                there.append(where)
        label = np.concatenate(there)
        found[fault] = {
            "auc": auc(np.concatenate(ours), label),
            "auc_z_score": auc(np.concatenate(simple), label),
            "flagged": float(np.mean(np.concatenate(ours)[label] > -np.log(LEVEL))),
            "flagged_z_score": float(np.mean(np.concatenate(simple)[label] > limit(LEVEL))),
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
    """CRPS a day ahead, and processor time, of daily updates and of a fit a week with daily updates.

    Weeks do not depend on each other, so `--jobs` processes share them, the longest fits first.
    """
    data = rows_of(arguments.data, arguments.days + 30, 24 // arguments.every, arguments.stations)
    end = 30 + arguments.days
    weeks = [(day, min(day + 7, end)) for day in reversed(range(30, end, 7))]
    tasks = [(data, first, last, arguments) for first, last in [(30, end), *weeks]]
    found = []
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(days_of, *task) for task in tasks]):
            found.append(done.result())
            if arguments.out:
                with open(arguments.out, "a", encoding="utf-8") as file:
                    print(json.dumps(found[-1]), file=file)
    return year_of(found)


def days_of(data: dict[str, tuple], first: int, last: int, arguments: Any) -> dict[str, Any]:
    """A fit to the rows before the day `first`; then each day is predicted, scored and added."""
    warnings.simplefilter("ignore")
    began = time.process_time()
    model = FederatedGP(
        kernel="matern12", local="state-space", local_kernel="matern12",
        domain=[(0.0, arguments.days + 30.0)], layers=("global", "local"),
        inducing=arguments.inducing, rounds=arguments.rounds,
    )  # fmt: skip
    model.fit({n: (x[x < first], y[x < first]) for n, (x, y) in data.items()})
    fit, updates, scores = time.process_time() - began, [], []
    for day in range(first, last):
        new = {n: (x[m], y[m]) for n, (x, y) in data.items() for m in [(x >= day) & (x < day + 1)]}
        new = {n: rows for n, rows in new.items() if len(rows[0])}
        for n, (x, y) in new.items():
            p = model.predict(n, x[:, None])
            scores.append((day, crps(y[:, None], p.mean[:, None], (p.sd**2)[:, None, None])))
        if new:
            began = time.process_time()
            model.update(new)
            updates.append(time.process_time() - began)
    return {"first": first, "last": last, "fit": fit, "updates": updates, "scores": scores}


def year_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one run with updates only, and of the weeks beside it."""
    once = max(found, key=lambda each: each["last"] - each["first"])
    weekly = [each for each in found if each is not once]
    days = {day for each in weekly for day, _ in each["scores"]}
    fit = float(np.mean([each["fit"] for each in weekly]))
    update = float(np.mean(once["updates"]))
    return {
        "days": len(days),
        "weeks": len(weekly),
        "crps": {
            "once": float(np.mean([score for day, score in once["scores"] if day in days])),
            "weekly": float(np.mean([score for each in weekly for _, score in each["scores"]])),
        },
        "seconds_of_a_fit": fit,
        "seconds_of_an_update": update,
        "share": update / fit,
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
    parser.add_argument("--jobs", type=int, default=1, help="processes of `year`")
    parser.add_argument("--out", help="file for what each week of `year` gave, a line each")
    arguments = parser.parse_args()
    arguments.days = arguments.days or (60.0 if arguments.what == "faults" else 365.0)
    arguments.days = int(arguments.days) if arguments.what == "year" else arguments.days
    warnings.simplefilter("ignore")
    print(json.dumps({"faults": faults, "year": year}[arguments.what](arguments), indent=1))


if __name__ == "__main__":
    main()
