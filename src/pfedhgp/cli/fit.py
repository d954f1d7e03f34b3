"""`pfedhgp fit DATA... --client C --input X --output Y --out RUN`: its options. `fitting` does the work."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pfedhgp.settings.config import Config

DATA, MODEL, INFERENCE, RUN = "Data", "Model", "Inference", "Run"


def fit(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="DATA...",
            help="CSV (gz too), Parquet or Feather: files, or a folder with one file per client.",
        ),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(
            help="Column that names the client; without it each file is a client.",
            rich_help_panel=DATA,
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="An input column; may be repeated.", rich_help_panel=DATA),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option("--output", help="An output column; may be repeated.", rich_help_panel=DATA),
    ] = None,
    cycle: Annotated[
        str | None,
        typer.Option(
            help="Column that numbers whole repetitions of the input grid.", rich_help_panel=DATA
        ),
    ] = None,
    block: Annotated[
        str | None,
        typer.Option(
            help="With --diagnose: column that names runs of cycles that belong together.",
            rich_help_panel=DATA,
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(
            help="Of CSV files, where it is not a comma: ';' or tab.",
            show_default="a comma; tab in .tsv files",
            rich_help_panel=DATA,
        ),
    ] = None,
    datetime_format: Annotated[
        str | None,
        typer.Option(
            help="Of datetime inputs that are not ISO 8601, such as %d/%m/%Y.",
            show_default="ISO 8601",
            rich_help_panel=DATA,
        ),
    ] = None,
    holdout: Annotated[
        str | None,
        typer.Option(
            metavar="KIND:PART",
            help="Keep rows of each client for testing: random:0.2, last:0.2 or blocks:0.2.",
            show_default="no rows",
            rich_help_panel=DATA,
        ),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option(
            help="Of the shared layers: rbf, matern12, matern32, matern52, periodic, rational_quadratic, "
            "and sums and products such as 'rbf + periodic(1 day)'.",
            show_default="rbf",
            rich_help_panel=MODEL,
        ),
    ] = None,
    local_kernel: Annotated[
        str | None,
        typer.Option(
            help="Of the local layers.",
            show_default="the kernel's form; matern32 with state-space",
            rich_help_panel=MODEL,
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            help="Which layers there are: global,deviation,local or fewer.",
            show_default="global,deviation,local",
            rich_help_panel=MODEL,
        ),
    ] = None,
    latents: Annotated[
        int | None,
        typer.Option(
            help="Latent functions of the shared layers.",
            show_default="1 for one output, else 2",
            rich_help_panel=MODEL,
        ),
    ] = None,
    local_latents: Annotated[
        int | None,
        typer.Option(
            help="Latent functions of the local layers.",
            show_default="1 for one output, else 2",
            rich_help_panel=MODEL,
        ),
    ] = None,
    local: Annotated[
        str | None,
        typer.Option(
            help="How local layers are carried: inducing, or state-space (one input, Matérn kernels).",
            show_default="inducing",
            rich_help_panel=MODEL,
        ),
    ] = None,
    noise: Annotated[
        str | None,
        typer.Option(
            help="auto, scalar, output (one variance each) or full.",
            show_default="auto",
            rich_help_panel=MODEL,
        ),
    ] = None,
    inducing: Annotated[
        str | None,
        typer.Option(
            help="Global inducing inputs: auto or a number.",
            show_default="auto",
            rich_help_panel=MODEL,
        ),
    ] = None,
    local_inducing: Annotated[
        str | None,
        typer.Option(
            help="Local inducing inputs a client: auto or a number.",
            show_default="auto",
            rich_help_panel=MODEL,
        ),
    ] = None,
    learn_inducing: Annotated[
        bool | None,
        typer.Option(
            "--learn-inducing/--fixed-inducing",
            help="Whether inducing inputs move while training.",
            show_default="fixed for structured, learned for mean-field",
            rich_help_panel=MODEL,
        ),
    ] = None,
    cycles: Annotated[
        str | None,
        typer.Option(
            help="How cycles vary around their client's function: white (as noise, value by value), "
            "stationary, free, or auto (what predicts best).",
            show_default="white",
            rich_help_panel=MODEL,
        ),
    ] = None,
    cycle_sharing: Annotated[
        str | None,
        typer.Option(
            help="Whose the cycle layer is: shared, client or mixed.",
            show_default="shared",
            rich_help_panel=MODEL,
        ),
    ] = None,
    cycle_basis: Annotated[
        str | None,
        typer.Option(
            help="Basis functions of the cycle layer a channel: auto or a number.",
            show_default="auto",
            rich_help_panel=MODEL,
        ),
    ] = None,
    diagnose: Annotated[
        bool | None,
        typer.Option(
            "--diagnose/--no-diagnose",
            help="Clients are classes, for `classify`: choose the cycle layer that tells them apart, and set "
            "thresholds of none of these from cycles held out in turn.",
            show_default="--no-diagnose",
            rich_help_panel=MODEL,
        ),
    ] = None,
    false_alarms: Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            help="With --diagnose: share of known cycles that may be none of these.",
            show_default="0.01",
            rich_help_panel=MODEL,
        ),
    ] = None,
    domain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOW..HIGH",
            help="Of each input in turn, where it is known: spares one exchange.",
            show_default="the range of the data",
            rich_help_panel=MODEL,
        ),
    ] = None,
    inference: Annotated[
        str | None,
        typer.Option(
            help="structured or mean-field.", show_default="structured", rich_help_panel=INFERENCE
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            help="Rounds of training at most.",
            show_default="10 for structured, 20 for mean-field",
            rich_help_panel=INFERENCE,
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="End after two rounds that gain less, in nats a client.",
            show_default="0.02",
            rich_help_panel=INFERENCE,
        ),
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(
            help="Trainings, of which the best is kept.",
            show_default="1",
            rich_help_panel=INFERENCE,
        ),
    ] = None,
    batch: Annotated[
        bool | None,
        typer.Option(
            "--batch/--one-by-one",
            help="Whether clients of like size compute together.",
            show_default="--batch",
            rich_help_panel=INFERENCE,
        ),
    ] = None,
    averaging: Annotated[
        bool | None,
        typer.Option(
            "--averaging/--best-parameters",
            help="Whether predictions average over a client's parameters where rows are few.",
            show_default="--averaging",
            rich_help_panel=INFERENCE,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="The folder for the model.", rich_help_panel=RUN),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Settings in TOML; the command line wins over them.",
            rich_help_panel=RUN,
        ),
    ] = None,
    write_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write all settings to FILE and stop.", rich_help_panel=RUN
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Of everything that is drawn at random.", show_default="0", rich_help_panel=RUN
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or gpu.", show_default="cpu", rich_help_panel=RUN)
    ] = None,
    report: Annotated[
        bool | None,
        typer.Option(
            "--report/--no-report",
            help="Whether to write RUN/report.html.",
            show_default="--report",
            rich_help_panel=RUN,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with the run that stopped in RUN.", rich_help_panel=RUN
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace RUN where it exists.", rich_help_panel=RUN)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=RUN)
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Say nothing but warnings.", rich_help_panel=RUN),
    ] = False,
) -> None:
    """Fit a federated model to tables and write it into a folder.

    Without --client, each file is a client by its name.

    Datetimes without a time zone are taken as UTC.

    Ctrl-C stops a run; --resume goes on as if it had not stopped.
    """
    run_command(dict(locals()))


def run_command(options: dict[str, Any], train: Any = None) -> None:
    """What `fit` does with its options, by their Python names; `train` as of `fitting.fit`."""
    from pfedhgp.cli.fitting import Unfinished
    from pfedhgp.cli.fitting import fit as run_fit
    from pfedhgp.cli.terminal import result, say, warnings_as_lines
    from pfedhgp.errors import InputError
    from pfedhgp.settings import config as configs

    o = options
    given: dict[str, dict[str, Any]] = {
        "data": {
            "files": [str(p.resolve()) for p in o["files"]] if o["files"] else None,
            "client": o["client"],
            "inputs": o["inputs"] or None,
            "outputs": o["outputs"] or None,
            "cycle": o["cycle"],
            "block": o["block"],
            "delimiter": o["delimiter"],
            "datetime_format": o["datetime_format"],
        },
        "model": {
            "kernel": o["kernel"],
            "local_kernel": o["local_kernel"],
            "layers": None
            if o["layers"] is None
            else [each.strip() for each in o["layers"].split(",")],
            "latents": o["latents"],
            "local_latents": o["local_latents"],
            "local": o["local"],
            "noise": o["noise"],
            "inducing": _budget(o["inducing"]),
            "local_inducing": _budget(o["local_inducing"]),
            "learn_inducing": o["learn_inducing"],
            "cycles": o["cycles"],
            "cycle_sharing": o["cycle_sharing"],
            "cycle_basis": _budget(o["cycle_basis"]),
            "diagnose": o["diagnose"],
            "false_alarms": o["false_alarms"],
            "domain": o["domain"] or None,
        },
        "inference": {
            "name": o["inference"],
            "rounds": o["rounds"],
            "tolerance": o["tolerance"],
            "restarts": o["restarts"],
            "batch": o["batch"],
            "averaging": o["averaging"],
        },
        "run": {
            "out": None if o["out"] is None else str(o["out"]),
            "holdout": o["holdout"],
            "seed": o["seed"],
            "device": o["device"],
            "report": o["report"],
        },
    }
    base: dict[str, Any] = {}
    if o["config"] is not None:
        base = configs.read_config(o["config"])
        base = configs.check(base, file=o["config"]).model_dump(exclude_unset=True)
        _anchor_files(base, o["config"].resolve().parent)
    if o["resume"]:
        where = o["out"] or (base.get("run") or {}).get("out")
        if where is None:
            raise InputError("--resume needs --out: the folder of the run that stopped")
        stored = Unfinished(Path(where) / "checkpoint").read()["config"]
        base = configs.merge(stored, base)
    settings = configs.check(configs.merge(base, given))
    if o["write_config"] is not None:
        _write_settings(o["write_config"], settings, o["overwrite"])
        say(f"settings written to {o['write_config']}", quiet=o["quiet"])
        return
    with warnings_as_lines(configs.in_options) as told:
        summary = run_fit(
            settings, train=train, overwrite=o["overwrite"], resume=o["resume"], quiet=o["quiet"]
        )
    if o["as_json"]:
        result({**summary, "warnings": told})
    elif not o["quiet"]:
        _print(summary)


def _budget(given: str | None) -> int | str | None:
    """A number where it is one; the settings' check says what else is allowed."""
    return int(given) if given is not None and re.fullmatch(r"[+-]?\d+", given) else given


def _anchor_files(tree: dict[str, Any], folder: Path) -> None:
    """Paths in a settings file are relative to it, wherever the command is run."""
    data, run = tree.get("data", {}), tree.get("run", {})
    if data.get("files"):
        data["files"] = [str((folder / name).resolve()) for name in data["files"]]
    if run.get("out"):
        run["out"] = str(folder / run["out"])


def _write_settings(path: Path, settings: Config, overwrite: bool) -> None:
    from pfedhgp.base.atomic_files import write_bytes
    from pfedhgp.cli.targets import check_file, writing_to
    from pfedhgp.data.ingest import with_dates
    from pfedhgp.settings.config import to_toml

    check_file(path, overwrite=overwrite)
    folder = path.resolve().parent
    files = [os.path.relpath(name, folder) for name in settings.data.files]
    out = settings.run.out and os.path.relpath(Path(settings.run.out).resolve(), folder)
    moved = settings.model_copy(
        update={
            "data": with_dates(settings.data).model_copy(update={"files": files}),
            "run": settings.run.model_copy(update={"out": out}),
        }
    )
    with writing_to(path):
        write_bytes(path, to_toml(moved).encode("utf-8"))


def _print(summary: dict[str, Any]) -> None:
    """The summary for people."""
    from pfedhgp.cli.terminal import counted

    bound = "unknown" if summary["bound"] is None else f"{summary['bound']:.2f}"
    print(
        f"fitted {counted(summary['clients'], 'client')} in {summary['seconds']:.0f} s: "
        f"{counted(summary['rounds'], 'round')}, {counted(summary['exchanges'], 'exchange')}, bound {bound}"
    )
    if summary["ended"] is not None:
        more = ": --rounds sets a higher limit" if "at the limit" in summary["ended"] else ""
        if more and "below round" in summary["ended"]:
            more = ": a higher limit (--rounds) lets it take its last steps back"
        print(f"training {summary['ended']}{more}")
    if summary["overall"] is not None:
        for line in _score_lines(summary):
            print(line)
    print(f"model   {summary['run']}")
    if summary["report"] is not None:
        print(f"report  {summary['report']}")
    sys.stdout.flush()


def _score_lines(summary: dict[str, Any]) -> list[str]:
    """A line for each output and average; what the averages are is said in words."""
    from pfedhgp.data.table import short

    holdout, rows = summary["holdout"], summary["overall"]["pooled"]["rows"]
    what = f"held-out row{'' if rows == 1 else 's'} ({holdout['kind']})"
    lines = [f"on {rows} {what}, in each output's own units:"]
    names = {"pooled": "over rows", "client_mean": "over clients"}
    widest = max(len(short(name, 24)) for name in summary["by_output"])
    for output, table in summary["by_output"].items():
        for average, words in names.items():
            s = table[average]
            lines.append(
                f"  {short(output, 24):{widest}}  {words:12}  RMSE {s['rmse']:.4g}, NLL {s['nll']:.4g}, "
                f"CRPS {s['crps']:.4g}, 95% coverage {s['coverage']:.3f}, width {s['width']:.4g}"
            )
    lines.append("  (over rows: every row counts alike; over clients: the mean of clients' scores)")
    return lines
