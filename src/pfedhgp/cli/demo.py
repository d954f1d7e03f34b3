"""`pfedhgp demo`: a made-up air-quality federation, fitted, judged on held-out readings, and reported."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from pfedhgp.base import atomic_files
from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.base.signals import SignalCallback, raise_pending_signal
from pfedhgp.cli.fit_summary import scores_of
from pfedhgp.cli.options import AsJson, Quiet
from pfedhgp.cli.targets import check_parent, writing_to
from pfedhgp.cli.terminal import result, say, warnings_as_lines
from pfedhgp.data import demo_town as town
from pfedhgp.errors import InputError
from pfedhgp.model.run_folder import RunFolder, check_target

if TYPE_CHECKING:
    from pfedhgp.data.rows import ClientRows
    from pfedhgp.estimator import FederatedGP
    from pfedhgp.zones.result import KeptZones, Zones

CLIENT, INPUT, OUTPUT = "station", "time", "no2"
FEDERATED, ALONE, POOLED = "federated", "per-station GP", "pooled GP"
FRACTION = 0.2
DEFAULT = Path("pfedhgp-demo")
MODEL, REPORT, TABLE = "RUN", "report.html", "stations.csv"
"""The files in a demo's folder."""
GRID, SKETCH = 200, 24
"""Grid points on which stations are compared, about one per reading, and numbers that each sends."""
NEXT = (
    "{program} fit {table} --client station --input time --output no2 --holdout blocks:0.2 "
    '--kernel "rbf(3 days) + periodic(1 day)" --inducing 48 --local-inducing 32 --out RUN'
)
"""The command to try next."""


@dataclass(frozen=True)
class Size:
    """The size of the demo: rounds, inducing inputs, days of a held-out stretch, and the town."""

    rounds: int = 40
    inducing: int = 48
    local_inducing: int = 32
    block_days: float = 4.0
    town: town.Town = field(default_factory=town.Town)


SIZE = Size()


def demo(
    out: Annotated[
        Path, typer.Option("--out", help="The folder for the model, the readings and the report.")
    ] = DEFAULT,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace the files of a demo, even if they were changed."),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the made-up town.")] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Fit twelve made-up air-quality stations, compare with simple baselines, find zones, write a report.

    Takes about 20 seconds on two cores.

    The folder gets report.html, stations.csv (the readings) and RUN (the model, without readings).
    """
    started = time.monotonic()
    check_folder(out, overwrite=overwrite)
    use_compilation_cache()  # before JAX is imported, or XLA talks
    from pfedhgp import report
    from pfedhgp.cli.cluster import FOLDER, write

    size = SIZE
    rows = town.simulate(seed=seed, town=size.town)
    blocks: Any = {"fraction": FRACTION, "seed": seed, "block_days": size.block_days}
    split = town.hold_out_blocks(rows, **blocks)
    say(about(rows, split), quiet=quiet)
    with warnings_as_lines(), writing_to(out):
        fitted, scores, seconds = {}, {}, {}
        for i, name in enumerate((FEDERATED, ALONE, POOLED)):
            say(f"{i + 1} of 3: {name}", quiet=quiet)
            began = time.monotonic()
            fitted[name] = train(name, split.train, size, seed=seed, quiet=quiet)
            seconds[name] = time.monotonic() - began
            raise_pending_signal()
            test = [client for client in split.test if len(client.X)]
            scores[name] = scores_of(fitted[name], test, [OUTPUT])
        model = fitted[FEDERATED]
        metrics = {
            "holdout": {"kind": "blocks", **blocks},
            "data": ledger_of(rows, split),
            **scores[FEDERATED],
            "baselines": {name: scores[name]["overall"] for name in (ALONE, POOLED)},
            "seconds": seconds[FEDERATED],
        }
        keep(model, metrics, seed=seed)
        say("finding zones", quiet=quiet)
        raise_pending_signal()
        zones = zones_of(model, split)
        atomic_files.write_bytes(out / TABLE, table_of(rows))
        model.save(out / MODEL, overwrite=True)  # `check_folder` has asked already
        write(zones, out / MODEL / FOLDER, RunFolder.open(out / MODEL).spec["sha256"])
        say("writing the report", quiet=quiet)
        raise_pending_signal()
        page = out / REPORT
        report.write(
            page, model, rows=split.train, held_out=split.test, metrics=metrics, zones=zones
        )
    took = {"seconds": time.monotonic() - started, "cpu_seconds": time.process_time()}
    overall = {name: scores[name]["overall"]["client_mean"] for name in scores}
    command = NEXT.format(program=program(), table=out / TABLE)
    if as_json:
        files = {"run": str(out / MODEL), "report": str(page), "data": str(out / TABLE)}
        found = {"members": zones.zones.members(), "ari": zones.agreement()}
        told = {"scores": overall, "seconds_by_model": seconds, "zones": found}
        result({**files, **told, **took, "next": command})
        return
    show_table(overall)
    for text in (scores_in_words(overall), "", *zones_in_words(zones)):
        print(textwrap.fill(text, min(shutil.get_terminal_size().columns, 100)))
    print(
        f"\nDone in {took['seconds']:.0f} s ({took['cpu_seconds']:.0f} s of processor time).\n"
        f"The report: {page}\nThe readings: {out / TABLE}\nTo try it yourself:\n  {command}"
    )


def program() -> str:
    """`pfedhgp` as it can be typed here: by the path that started this demo, if it is not on the PATH."""
    if shutil.which("pfedhgp"):
        return "pfedhgp"
    by_path = Path(sys.argv[0]).stem == "pfedhgp"
    return shlex.quote(sys.argv[0]) if by_path else f"{shlex.quote(sys.executable)} -m pfedhgp"


def table_of(rows: Sequence[ClientRows]) -> bytes:
    return town.as_csv(rows, client=CLIENT, time=INPUT, output=OUTPUT)


def ledger_of(rows: Sequence[ClientRows], split: town.Split) -> dict[str, dict[str, Any]]:
    """Counts and checksums of stations.csv, as a fit stores them."""
    from pfedhgp.data.holdout import ledger
    from pfedhgp.data.readers import Observations

    parts = (town.since_the_first_reading(rows), split.train, split.test)
    everything, training, test = (
        [Observations(client.name, client.X, client.Y) for client in part if len(client.X)]
        for part in parts
    )
    return ledger(everything, training, test)


def check_folder(out: Path, *, overwrite: bool) -> None:
    """Without --overwrite only an unchanged demo is replaced."""
    check_parent(out)
    if os.path.lexists(out) and not out.is_dir():
        raise InputError(f"{out} is a file: choose a folder with --out")
    there = {p.name for p in out.iterdir()} if out.is_dir() else set()
    there = {name for name in there if not name.startswith(".pfedhgp-")}
    if not out.is_dir():  # nothing is written for a while: check now that it can be
        try:
            out.mkdir()
            out.rmdir()
        except OSError as error:
            raise InputError(f"{out}: cannot write there ({error.strerror})") from None
    if strange := sorted(there - {MODEL, REPORT, TABLE}):
        raise InputError(
            f"{out} contains {strange[0]!r}, which is not part of a demo: choose another folder with --out"
        )
    check_target(out / MODEL, overwrite=True)
    if overwrite or not there:
        return
    try:
        kept = RunFolder.open(out / MODEL).spec["settings"]["demo"]
        before = table_of(town.simulate(seed=int(kept["seed"]), town=SIZE.town))
    except (InputError, KeyError, TypeError, ValueError):
        raise InputError(
            f"{out} exists and is not a complete demo: choose another folder with --out, or give --overwrite"
        ) from None
    if (out / TABLE).is_file() and (out / TABLE).read_bytes() != before:
        raise InputError(
            f"{out / TABLE} was changed: choose another folder with --out, or give --overwrite"
        )


def about(rows: Sequence[ClientRows], split: town.Split) -> str:
    """The data in one line."""
    seen = {client.name: int(np.isfinite(client.Y).sum()) for client in rows}
    least = min(seen, key=lambda name: seen[name])
    held = sum(len(client.X) for client in split.test)
    return (
        f"{len(rows)} made-up stations with {sum(seen.values())} readings of nitrogen dioxide "
        f"({least} has {seen[least]}); {held} of them, in whole stretches, are held out"
    )


def train(
    name: str, rows: Sequence[ClientRows], size: Size, *, seed: int, quiet: bool
) -> FederatedGP:
    """One of the three models; all have the same kernel, for weather of some days and a daily wave."""
    from pfedhgp.base.progress import AVERAGING, progress
    from pfedhgp.estimator import FederatedGP
    from pfedhgp.gp.kernels import RBF, Periodic

    kernel = RBF(3.0 * town.DAY) + Periodic(1.0, period=town.DAY)
    choices: dict[str, dict[str, Any]] = {
        FEDERATED: {
            "kernel": kernel,
            "local_kernel": RBF(6.0 * town.DAY),
            "inducing": size.inducing,
            "local_inducing": size.local_inducing,
        },
        ALONE: {"layers": ("local",), "local_kernel": kernel, "local_inducing": size.inducing},
        POOLED: {"layers": ("global",), "kernel": kernel, "inducing": size.inducing},
    }
    for baseline in (ALONE, POOLED):  # as is usual: at the best parameters
        choices[baseline]["averaging"] = False
    finishing = AVERAGING if name == FEDERATED else "finishing"
    after = ["averaging"] if name == FEDERATED else []
    after += ["scoring", "the report"] if name == POOLED else ["scoring", "the next model"]
    with progress(rounds=size.rounds, finishing=finishing, after=after, quiet=quiet) as show:
        model = FederatedGP(
            **choices[name], rounds=size.rounds, seed=seed, callbacks=[show, SignalCallback()]
        )
        data = {client.name: (client.X, client.Y) for client in rows}
        return model.fit(data, inputs=[INPUT], outputs=[OUTPUT])


def keep(model: FederatedGP, metrics: Mapping[str, Any], *, seed: int) -> None:
    """Adds scores, columns and the mark of a demo to the model, for `save`."""
    columns = {
        "client": CLIENT,
        "inputs": [{"name": INPUT, "kind": "datetime", "format": None}],
        "outputs": [OUTPUT],
        "cycle": None,
    }
    settings = {**model.model_.settings, "columns": columns, "demo": {"seed": seed}}
    model.model_ = replace(model.model_, settings=settings, metrics=metrics)


def zones_of(model: FederatedGP, split: town.Split) -> KeptZones:
    """Stations in as many groups as the town has zones, with those zones; R² is about readings of the fit."""
    from pfedhgp.zones.clustering import ClusterSettings, discover
    from pfedhgp.zones.result import KeptZones

    truth = {name: zone for zone, names in town.ZONES.items() for name in names}
    here = {name: zone for name, zone in truth.items() if name in model.model_.clients}
    rows = {client.name: (client.X, client.Y) for client in split.train}
    how = ClusterSettings(groups=len({*here.values()}), grid=GRID, size=SKETCH)
    found = discover(model.model_, how, rows=rows)
    return KeptZones(found, truth=here)


def zones_in_words(zones: KeptZones) -> list[str]:
    """The groups that were found, and whether they are the town's."""
    truth = zones.truth or {}
    lines = [f"Zones found (the town was made with {len({*truth.values()})}):"]
    for i, members in enumerate(zones.zones.members()):
        inside = dict.fromkeys(truth[name] for name in members)
        lines.append(f"  {i + 1}  {', '.join(members)}: {' and '.join(inside)}")
    ari = zones.agreement()
    same = "the town's own zones" if ari == 1.0 else "not quite the town's own zones"
    lines.append(f"These are {same} (agreement, ARI, {ari:.2f}). {sent_for(zones.zones)}")
    return lines


def sent_for(zones: Zones) -> str:
    """What zones cost in privacy: the sketch, and how much it reveals about the readings."""
    mean, most = sum(zones.r2.values()) / len(zones.r2), max(zones.r2.values())
    return (
        f"To find them each station sent a sketch: {zones.size} numbers about its fitted function, not its "
        "readings. But the sketch reveals much about them: an attacker who knows everything except the "
        "readings (kernels, times, the global layer) can reconstruct them from it with "
        f"R² {mean:.2f} on average, {most:.2f} at most."
    )


def show_table(scores: Mapping[str, Mapping[str, float]]) -> None:
    """Errors and calibration, one line per model."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        title="Held-out readings, µg/m³, mean over stations",
        title_justify="left",
    )
    table.add_column("model")
    for column in ("RMSE", "CRPS", "NLL", "95% coverage", "95% width", "ECE"):
        table.add_column(column, justify="right")
    for name, s in scores.items():
        cells = [f"{s['rmse']:.2f}", f"{s['crps']:.2f}", f"{s['nll']:.2f}"]
        cells += [f"{100 * s['coverage']:.1f}%", f"{s['width']:.1f}", f"{s['ece']:.3f}"]
        table.add_row(name, *cells)
    Console().print(table)


def scores_in_words(scores: Mapping[str, Mapping[str, float]]) -> str:
    """The table in words, which follow from the numbers, whichever model is best."""
    ours, alone, pooled = (scores[name] for name in (FEDERATED, ALONE, POOLED))
    best = min((ALONE, POOLED), key=lambda name: scores[name]["rmse"])
    gain = 1.0 - ours["rmse"] / scores[best]["rmse"]
    start = (
        f"On days that a station missed, the federated model is off by {ours['rmse']:.1f} µg/m³ (RMSE), "
        f"against {alone['rmse']:.1f} for stations that learn alone and {pooled['rmse']:.1f} for one model "
        "of all: "
    )
    if gain > 0.02:
        end = (
            f"{100 * gain:.0f}% less than the better of the two. A station alone does not know the weather "
            "of the days that it missed, and one model of all does not know how stations differ; here "
            "stations share the weather and keep their own ways. To train it they sent sums over their "
            "readings, not the readings."
        )
    else:
        end = f"no gain over the {best} on this town; what the layers say is in the report."
    cover = (
        f" Its 95% intervals held {100 * ours['coverage']:.0f}% of the readings at an average width of "
        f"{ours['width']:.0f} µg/m³ (alone {100 * alone['coverage']:.0f}% at {alone['width']:.0f}, pooled "
        f"{100 * pooled['coverage']:.0f}% at {pooled['width']:.0f})."
    )
    return start + end + cover
