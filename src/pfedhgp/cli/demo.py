"""`pfedhgp demo`: a made-up air-quality federation, fitted, judged on held-out readings, and reported."""

from __future__ import annotations

import os
import shutil
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfedhgp.cli.terminal import say

if TYPE_CHECKING:
    from pfedhgp.data.demo import Split
    from pfedhgp.data.rows import ClientRows
    from pfedhgp.estimator import FederatedGP

INPUT, OUTPUT = "time", "NO2 (µg/m³)"
FEDERATED, ALONE, POOLED = "federated", "per-station GP", "pooled GP"
FRACTION = 0.2
DEFAULT = Path("pfedhgp-demo")


@dataclass(frozen=True)
class Size:
    """How large the demo is: rounds, and inducing inputs of the shared and of the local layers."""

    rounds: int = 8
    inducing: int = 48
    local_inducing: int = 32


def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder for model and report.")] = DEFAULT,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the model in --out, whatever it is of.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the made-up town.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on the way.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", hidden=True)] = False,
) -> None:
    """Fit twelve made-up air-quality stations, compare with simple baselines, and write a report.

    Takes about a minute, most of it compilation. Model files hold no readings; report.html shows them.
    """
    check_folder(out, overwrite=overwrite)
    # XLA's notes on cached machine code are not for people who try a demo.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from pfedhgp import report
    from pfedhgp.cli.terminal import result, use_compilation_cache, warnings_as_lines
    from pfedhgp.data import demo as town

    size = Size(rounds=2, inducing=12, local_inducing=6) if tiny else Size()
    sizes = town.Town(days=8, stations=3, newcomer_days=4.0, outage_days=1.0) if tiny else None
    rows = town.simulate(seed=seed, town=sizes)
    split = town.hold_out_blocks(
        rows, fraction=FRACTION, seed=seed, block_days=1.0 if tiny else 4.0
    )
    say(about(rows, split), quiet=quiet)
    use_compilation_cache()
    with warnings_as_lines():
        fitted, scores, seconds = {}, {}, {}
        for i, name in enumerate((FEDERATED, ALONE, POOLED)):
            say(f"{i + 1} of 3: {name}", quiet=quiet)
            began = time.monotonic()
            fitted[name] = train(name, split.train, size, seed=seed, quiet=quiet)
            seconds[name] = time.monotonic() - began
            scores[name] = judge(fitted[name], split.test)
        model = fitted[FEDERATED]
        metrics = {
            "holdout": {"kind": "blocks", "fraction": FRACTION, "seed": seed},
            **scores[FEDERATED],
            "baselines": {name: scores[name]["overall"] for name in (ALONE, POOLED)},
            "seconds": seconds[FEDERATED],
        }
        keep(model, metrics, seed)
        model.save(out, overwrite=True)  # `check_folder` has asked already
        say("writing the report", quiet=quiet)
        page = out / "report.html"
        report.write(page, model, rows=split.train, held_out=split.test, metrics=metrics)
    overall = {name: scores[name]["overall"] for name in scores}
    if as_json:
        result({"run": str(out), "report": str(page), "scores": overall, "seconds": seconds})
        return
    show_table(overall)
    print(textwrap.fill(reading(overall), min(shutil.get_terminal_size().columns, 100)))
    print(f"\nThe report: {page}")


def check_folder(out: Path, *, overwrite: bool) -> None:
    """Only a demo's own folder is used again without asking."""
    from pfedhgp.errors import InputError
    from pfedhgp.model.run_folder import RunFolder, check_target

    if not overwrite and out.is_dir() and any(out.iterdir()):
        try:
            spec = RunFolder.open(out).spec
            ours = bool(spec["settings"].get("demo"))
        except (InputError, KeyError, AttributeError):
            ours = False
        if not ours:
            raise InputError(
                f"{out} exists and is not a demo's: choose another folder with --out, or --overwrite"
            )
    check_target(out, overwrite=True)


def about(rows: Sequence[ClientRows], split: Split) -> str:
    """What there is, in one line."""
    import numpy as np

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
    """One of the three models; all have the same kernel, weather of some days and a daily wave."""
    from pfedhgp.data.demo import DAY
    from pfedhgp.estimator import FederatedGP
    from pfedhgp.kernels import RBF, Periodic
    from pfedhgp.progress import progress

    kernel = RBF(3.0 * DAY) + Periodic(1.0, period=DAY)
    choices: dict[str, dict[str, Any]] = {
        FEDERATED: {
            "kernel": kernel,
            "local_kernel": RBF(6.0 * DAY),
            "inducing": size.inducing,
            "local_inducing": size.local_inducing,
        },
        ALONE: {"layers": ("local",), "local_kernel": kernel, "local_inducing": size.inducing},
        POOLED: {"layers": ("global",), "kernel": kernel, "inducing": size.inducing},
    }
    with progress(rounds=size.rounds, quiet=quiet) as show:
        model = FederatedGP(**choices[name], rounds=size.rounds, seed=seed, callbacks=[show])
        data = {client.name: (client.X, client.Y) for client in rows}
        return model.fit(data, inputs=[INPUT], outputs=[OUTPUT])


def judge(model: FederatedGP, test: Sequence[ClientRows]) -> dict[str, Any]:
    """Scores on the held-out readings, in µg/m³."""
    from pfedhgp.evaluation import summarise
    from pfedhgp.metrics import Scored

    scored = {}
    for client in test:
        if len(client.X):
            p = model.predict(client.name, client.X)
            scored[client.name] = Scored(y=client.Y, mean=p.mean, cov=p.covariance("outputs"))
    return summarise(scored, [OUTPUT])


def keep(model: FederatedGP, metrics: Mapping[str, Any], seed: int) -> None:
    """Puts scores, columns and the mark of a demo into what `save` writes."""
    columns = {
        "client": "station",
        "inputs": [{"name": INPUT, "kind": "datetime", "format": None}],
        "outputs": [OUTPUT],
        "cycle": None,
    }
    settings = {**model.model_.settings, "columns": columns, "demo": {"seed": seed}}
    model.model_ = replace(model.model_, settings=settings, metrics=metrics)


def show_table(scores: Mapping[str, Mapping[str, float]]) -> None:
    """Errors and calibration, a line for each model."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title="Held-out readings, µg/m³", title_justify="left")
    table.add_column("model")
    for column in ("RMSE", "CRPS", "NLL", "95% coverage", "95% width", "ECE"):
        table.add_column(column, justify="right")
    for name, s in scores.items():
        cells = [f"{s['rmse']:.2f}", f"{s['crps']:.2f}", f"{s['nll']:.2f}"]
        cells += [f"{100 * s['coverage']:.1f}%", f"{s['width']:.1f}", f"{s['ece']:.3f}"]
        table.add_row(name, *cells)
    Console().print(table)


def reading(scores: Mapping[str, Mapping[str, float]]) -> str:
    """The table in plain words; what it says follows from the numbers, whoever wins."""
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
            "stations share the weather and keep their own ways, and no reading left its station."
        )
    else:
        end = f"no gain over the {best} on this town; what the layers say is in the report."
    cover = (
        f" Its 95% intervals held {100 * ours['coverage']:.0f}% of the readings at an average width of "
        f"{ours['width']:.0f} µg/m³ (alone {100 * alone['coverage']:.0f}% at {alone['width']:.0f}, pooled "
        f"{100 * pooled['coverage']:.0f}% at {pooled['width']:.0f})."
    )
    return start + end + cover
