"""Clients with many rows: time and memory, and what merging rows into weighted ones costs.

    python -m bench.many_rows times 10000 100000 1000000
    python -m bench.many_rows accuracy --data FOLDER

Times are of fresh processes, 2 clients and 6 rounds. Accuracy is the held-out NLL of each cell, with all rows
and with merged ones, on data sets that a search over all rows can still take. FOLDER has beijing/ and
hydraulic/, as in PFEDHGP_DATA.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import time
import warnings
import zipfile
from pathlib import Path

import numpy as np

from pfedhgp import FederatedGP
from pfedhgp.inference import merged_rows

Data = dict[str, tuple[np.ndarray, np.ndarray]]
ROUNDS = 6
BUDGET = {"inducing": 64, "local_inducing": 64}
"""For accuracy: the same for both ways, and so few that a search over all rows takes minutes."""


def waves(rows: int, seed: int = 0, clients: int = 2) -> Data:
    """sin x + .3 sin(.7 x + i) + .2 sin(5 x + 2 i) on [0, 10], noise .1."""
    rng, data = np.random.default_rng(seed), {}
    for i in range(clients):
        x = np.sort(rng.uniform(0.0, 10.0, rows))
        f = np.sin(x) + 0.3 * np.sin(0.7 * x + i) + 0.2 * np.sin(5.0 * x + 2 * i)
        data[f"client {i}"] = (x[:, None], (f + 0.1 * rng.normal(size=rows))[:, None])
    return data


def ripples(rows: int = 20_000) -> Data:
    """sin x + .5 sin(12 x + i), 19 fast waves, and noise of .05: a short scale and little noise."""
    rng, data = np.random.default_rng(1), {}
    for i in range(2):
        x = np.sort(rng.uniform(0.0, 10.0, rows))
        f = np.sin(x) + 0.5 * np.sin(12.0 * x + i)
        data[f"client {i}"] = (x[:, None], (f + 0.05 * rng.normal(size=rows))[:, None])
    return data


def surface(rows: int = 20_000) -> Data:
    """sin 4a cos 3b + .5 sin(2 a b + i) on the unit square, noise .2."""
    rng, data = np.random.default_rng(2), {}
    for i in range(2):
        X = rng.uniform(size=(rows, 2))
        f = np.sin(4 * X[:, 0]) * np.cos(3 * X[:, 1]) + 0.5 * np.sin(2 * X[:, 0] * X[:, 1] + i)
        data[f"client {i}"] = (X, (f + 0.2 * rng.normal(size=rows))[:, None])
    return data


def air(folder: Path, columns: tuple[str, ...], stations: tuple[str, ...]) -> Data:
    """Hourly readings of two years against days; missing ones stay missing."""
    import csv

    def number(text: str) -> float:
        return np.nan if text in ("", "NA") else float(text)

    data: Data = {}
    with zipfile.ZipFile(next((folder / "beijing").glob("*.zip"))) as archive:
        for name in sorted(archive.namelist()):
            if not name.endswith(".csv") or not any(own in name for own in stations):
                continue
            text = io.TextIOWrapper(archive.open(name), "utf-8")
            rows = list(csv.DictReader(text))
            y = np.array([[number(row[c]) for c in columns] for row in rows])
            data[rows[0]["station"]] = (np.arange(len(y))[:, None] / 24.0, y)
    return data


def hydraulic(folder: Path, cycles: int = 300) -> Data:
    """A second's reading against seconds since the start: the same channels of two stretches."""
    found = np.load(folder / "hydraulic" / "hydraulic_valve_cooler.npz")
    channels = [str(name) for name in found["channels"]]
    which = [channels.index(name) for name in ("TS1", "VS1")]
    data = {}
    for name, first in (("early", 0), ("late", 1000)):
        y = found["cycles"][first : first + cycles][:, which]
        y = np.moveaxis(y, 1, 2).reshape(-1, len(which)).astype(np.float64)
        data[name] = (np.arange(len(y), dtype=np.float64)[:, None], y)
    return data


def score(data: Data, kernel: str, *, merged: bool, **settings: object) -> dict[str, float]:
    """Held-out NLL and RMSE (in outputs' standard deviations), and the seconds of the fit."""
    rng = np.random.default_rng(0)
    held = {name: rng.random(len(y)) < 0.1 for name, (_, y) in data.items()}
    kept = {name: (x[~held[name]], y[~held[name]]) for name, (x, y) in data.items()}
    few, merged_rows.FEW = merged_rows.FEW, merged_rows.FEW if merged else 10**9
    began, cpu = time.perf_counter(), time.process_time()
    try:
        model = FederatedGP(kernel=kernel, local_kernel=kernel, rounds=ROUNDS, **settings).fit(kept)
    finally:
        merged_rows.FEW = few
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    gaps, nats = [], []
    for name, (x, y) in data.items():
        p = model.predict(name, x[held[name]])
        spread = np.nanstd(y, axis=0)
        z = (y[held[name]] - p.mean) / p.sd
        seen = np.isfinite(z)
        nats.append((0.5 * z**2 + np.log(p.sd / spread) + 0.5 * np.log(2 * np.pi))[seen])
        gaps.append((((y[held[name]] - p.mean) / spread) ** 2)[seen])
    M = len(model.model_.shared.block.inputs)
    return {
        "nll": float(np.mean(np.concatenate(nats))),
        "rmse": float(np.sqrt(np.mean(np.concatenate(gaps)))),
        "seconds": seconds,
        "processor": cpu,
        "inducing": M,
    }


def accuracy(folder: Path, only: str) -> None:
    """A line for each data set, kernel and way: all rows, or merged ones."""
    sets = {
        "waves": lambda: waves(20_000),
        "ripples": ripples,
        "surface": surface,
        "temperature": lambda: air(folder, ("TEMP", "DEWP"), ("Dongsi", "Huairou")),
        "ozone": lambda: air(folder, ("O3", "NO2"), ("Dongsi", "Dingling")),
        "hydraulic": lambda: hydraulic(folder),
    }
    print("| data | kernel | rows | NLL | RMSE | inducing | s | s of processor |", flush=True)
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name, make in sets.items():
        if only and name not in only.split(","):
            continue
        for kernel in ("rbf", "matern32"):
            for merged in (True, False):
                r = score(make(), kernel, merged=merged, **BUDGET)
                how = "merged" if merged else "all"
                print(
                    f"| {name} | {kernel} | {how} | {r['nll']:.4f} | {r['rmse']:.4f} "
                    f"| {r['inducing']} | {r['seconds']:.1f} | {r['processor']:.1f} |",
                    flush=True,
                )


def times(sizes: list[int]) -> None:
    """Seconds and peak memory of a fresh process for each number of rows."""
    for rows in sizes:
        code = f"from bench.many_rows import one; one({rows})"
        subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


def one(rows: int) -> None:
    """Fits two clients, and says what it took; memory as the kernel counts it for this process."""
    data = waves(rows)
    began, cpu = time.perf_counter(), time.process_time()
    FederatedGP(rounds=ROUNDS).fit(data)
    taken, cpu = time.perf_counter() - began, time.process_time() - cpu
    status = Path("/proc/self/status").read_text()
    peak = float(status.split("VmHWM:")[1].split()[0]) / 2**20
    print(f"{rows:9d} rows: {taken:6.1f} s, {cpu:6.1f} s of processor, {peak:.2f} GiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("times", "accuracy"))
    parser.add_argument("sizes", type=int, nargs="*")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("PFEDHGP_DATA", ".")))
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.what == "times":
        times(args.sizes or [10_000, 100_000, 1_000_000])
    else:
        accuracy(args.data, args.only)


if __name__ == "__main__":
    main()
