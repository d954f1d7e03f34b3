"""What a fit says about itself: the line before it begins, and the summary at its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedhgp.base.checks import short
from pfedhgp.base.signals import raise_pending_signal
from pfedhgp.cli.terminal import counted
from pfedhgp.data.ingest import Ingested
from pfedhgp.data.rows import Named

if TYPE_CHECKING:
    from pfedhgp.estimator import FederatedGP


def _held_out(data: Ingested) -> int:
    return sum(len(part.X) for part in data.test)


def scoring(data: Ingested) -> str:
    clients = len(data.test)
    return f"scoring {counted(_held_out(data), 'held-out row')} of {counted(clients, 'client')}"


def scores_of(
    model: FederatedGP,
    test: Sequence[Named],
    outputs: Sequence[str],
    show_step: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Scores of held-out rows, in the data's own units."""
    from pfedhgp.estimator.evaluation import summarise
    from pfedhgp.gp.metrics import Scored

    scored = {}
    for done, client in enumerate(test):
        raise_pending_signal()
        show_step(done, len(test))
        p = model.predict(client.name, client.X)
        scored[client.name] = Scored(y=client.Y, mean=p.mean, cov=p.covariance())
    return summarise(scored, outputs)


def about(data: Ingested, files: int) -> str:
    held = _held_out(data)
    test = f", {held} of them held out" if held else ""
    kinds = ", ".join(
        f"{c.name} (datetime)" if c.kind == "datetime" else c.name for c in data.columns.inputs
    )
    outputs = ", ".join(data.columns.outputs)
    return (
        f"{counted(len(data.training), 'client')}, {counted(data.rows, 'row')}{test}, from "
        f"{counted(files, 'file')}: {outputs} by {kinds}"
    )


def summary_of(
    model: FederatedGP, run: Path, data: Ingested, report: Path | None, seconds: float
) -> dict[str, Any]:
    from pfedhgp.inference.ending import in_words
    from pfedhgp.inference.starts import contest
    from pfedhgp.model import departures

    metrics = model.model_.metrics
    return {
        "run": str(run),
        "clients": len(model.clients_),
        "rows": data.rows,
        "held_out": _held_out(data),
        "missing": data.missing,
        "inputs": list(data.columns.input_names),
        "dropped": list(data.dropped),
        "outputs": list(data.columns.outputs),
        "rounds": sum(1 for record in model.history_ if record["kind"] == "round"),
        "exchanges": model.exchanges_,
        "bound": model.bound_,
        "ended": in_words(model.history_),
        "chosen": contest.subject(model.model_.settings.get("choice", ())),
        "choice": contest.in_words(model.model_.settings.get("choice", ())),
        "seconds": seconds,
        "departures": departures.in_words(model.departures()),
        "holdout": metrics["holdout"],
        "overall": metrics.get("overall"),
        "by_output": {
            name: {average: table[average] for average in ("pooled", "client_mean")}
            for name, table in metrics.get("outputs", {}).items()
        },
        "report": None if report is None else str(report),
    }


def print_summary(summary: dict[str, Any]) -> None:
    """The summary for people."""
    bound = "unknown" if summary["bound"] is None else f"{summary['bound']:.2f}"
    print(
        f"fitted {counted(summary['clients'], 'client')} in {summary['seconds']:.0f} s: "
        f"{counted(summary['rounds'], 'round')}, {counted(summary['exchanges'], 'exchange')}, bound {bound}"
    )
    if summary["ended"] is not None:
        print(f"training {summary['ended']}")
    if summary.get("choice") is not None:
        print(f"{summary['chosen']} {summary['choice']}")
    if summary.get("departures") is not None:
        print(f"departures: {summary['departures']}")
    if summary["overall"] is not None:
        for line in score_lines(summary):
            print(line)
    print(f"model   {summary['run']}")
    if summary["report"] is not None:
        print(f"report  {summary['report']}")
    sys.stdout.flush()


def score_lines(summary: dict[str, Any]) -> list[str]:
    """A line for each output and average; what the averages are is said in words."""
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
