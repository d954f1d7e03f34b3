"""What the diagnosis study writes: results.json, tables.md, figures and report.html."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from pfedhgp.data.cycle_files import CycleSet
from pfedhgp.studies.common.pages import Table, pyplot, to_svg, write_results
from pfedhgp.studies.common.provenance import machine
from pfedhgp.studies.common.store import Store
from pfedhgp.studies.tonnage import data as sources
from pfedhgp.studies.tonnage import study as tonnage
from pfedhgp.studies.tonnage.baselines import LABELS_ONLY
from pfedhgp.studies.tonnage.models import OURS, PAPER, WHITE

MARK = " (published)"
ONE_SPLIT = (
    "A file of the press's shape has one split, as in the paper: the first 40 normal cycles and the first 10 "
    "of each fault are for training. Every run has the same cycles, so that ± is not of splits: it is 0 "
    "wherever a model draws nothing at random."
)
NOT_SAID = "–"
OF_PROBABILITIES = ("log_loss", "ece")
METRICS = (("accuracy", "{:.4f}"), ("log_loss", "{:.3f}"), ("ece", "{:.3f}"), ("f1", "{:.4f}"))


def write_tonnage(store: Store, study: tonnage.Tonnage, *, runs: int) -> dict[str, Any]:
    """Writes everything into the store's folder; returns what results.json holds."""
    source = sources.source_of(study.data)
    results = tonnage.summarise(store, study, runs=runs)
    results["config"] = {
        "study": "tonnage",
        **asdict(study),
        "source": source.says,
        "runs": runs,
        "machine": machine(),
    }
    notes = [
        f"Data: {source.says}. Mean over {runs} runs, sd behind ±.",
        "pfedhgp: our default; covariances of cycles are judged by held-out runs of the training data. "
        "pfedhgp-white: the federated model alone, in which cycles differ by white noise. "
        "paper: its configuration (white residuals, channels on one axis, Algorithm 1).",
        f"Rows marked{MARK} are figures that the paper prints for the real press data, from the papers it "
        "cites; they were not run here, and not on these data.",
    ]
    if not any(record["model"] == PAPER for record in results["records"]):
        notes.append(
            "The row paper was not run (--models paper, or --full, runs it); of long cycles it takes many "
            "minutes a split."
        )
    silent = sorted(LABELS_ONLY & {record["model"] for record in results["records"]})
    if silent:
        notes.append(
            f"{', '.join(silent)} gives no probabilities: no log-loss, no ECE ({NOT_SAID})."
        )
    if source.kind == "file" and sources.splits_once(
        sources.load(source, study.seed), source, study.share
    ):
        notes.append(ONE_SPLIT)
    worth = worth_of_the_layer(results)
    if worth is not None:
        notes.append(worth)
    parts = {"Accuracy": _accuracy(results)}
    parts["F1 by class"] = _f1(results["tables"])
    for name, table in results["tables"].items():
        if name.startswith("confusion"):
            head = ["truth", *table["classes"]]
            rows = zip(table["classes"], table["counts"], strict=True)
            parts[name] = (head, [[truth, *map(str, counts)] for truth, counts in rows])
    parts["None of these"] = _none(results["tables"]["none of these"])
    data = sources.load(source, study.seed, subtlety=study.subtlety, small=study.small)
    pictures = {"waveforms.svg": waveforms(data)}
    for example in results["tables"]["why"][:1]:
        pictures["why.svg"] = why_picture(example)
    for part in ("share", "subtlety"):
        if results["curves"][part]:
            pictures[f"{part}.svg"] = curve(results["curves"][part], part)
    write_results(store.folder, results, f"Fault diagnosis: {study.data}", notes, parts, pictures)
    return results


def worth_of_the_layer(results: Mapping[str, Any]) -> str | None:
    """How much accuracy the layers of runs and cycles add; None unless the model ran with and without."""
    mean = {r["model"]: r["mean"] for r in results["records"] if r["metric"] == "accuracy"}
    if OURS not in mean or WHITE not in mean:
        return None
    return (
        f"The layers of runs and cycles are worth {mean[OURS] - mean[WHITE]:+.4f} of accuracy here: "
        f"{mean[OURS]:.4f} with them, {mean[WHITE]:.4f} without."
    )


def _f1(tables: Mapping[str, Any]) -> Table:
    """A row for each model, a column for each class, mean over runs."""
    found = {name.removeprefix("f1: "): t for name, t in tables.items() if name.startswith("f1: ")}
    names = list(next(iter(found.values()), ()))
    rows = [[model, *(f"{own[name]:.4f}" for name in names)] for model, own in found.items()]
    return ["model", *names], rows


def _accuracy(results: Mapping[str, Any]) -> Table:
    cells = {(r["model"], r["metric"]): r for r in results["records"]}
    rows = []
    for model in dict.fromkeys(model for model, _ in cells):
        row = [model]
        for metric, form in METRICS:
            if model in LABELS_ONLY and metric in OF_PROBABILITIES:
                row.append(NOT_SAID)
                continue
            record = cells[model, metric]
            sd = "" if record["sd"] is None else f" ± {form.format(record['sd'])}"
            row.append(form.format(record["mean"]) + sd)
        record = cells[model, "seconds"]
        rows.append([*row, f"{record['mean']:.1f}", str(record["runs"])])
    for each in results["tables"]["published"]:
        shown = f"{each['accuracy']:.4f}"
        shown += "" if each["sd"] is None else f" ± {each['sd']:.4f}"
        rows.append([f"{each['method']}{MARK}", shown, "", "", "", "", f"{each['training']:.2%}"])
    head = ["model", "accuracy", "log-loss", "ECE", "F1", "s", "runs (published: training)"]
    return head, rows


def _none(found: list[dict[str, Any]]) -> Table:
    head = [
        "class left out",
        "flagged",
        "of",
        "false alarms",
        "of known",
        "runs with one",
        "of runs",
    ]
    head = [*head, "covariance"]
    rows = []
    for each in found:
        flagged = [f"{each['flagged']:.2%}", str(each["stranger_cycles"])]
        alarms = [f"{each['false_alarms']:.2%}", str(each["known_cycles"])]
        runs = [f"{each['false_alarms_a_run']:.2%}", str(each["known_runs"])]
        rows.append([each["left_out"], *flagged, *alarms, *runs, each["chosen"]])
    return head, rows


def waveforms(data: CycleSet) -> str:
    """Class means with bands of one sd, channel by channel (at most six)."""
    plt = pyplot()
    shown = min(6, data.cycles.shape[1])
    figure, panels = plt.subplots(
        -(-shown // 2),
        2,
        figsize=(11, 2.6 * -(-shown // 2)),
        squeeze=False,
        constrained_layout=True,
    )
    labels = np.asarray(data.label)
    for q, panel in enumerate(panels.flat):
        if q >= shown:
            panel.set_visible(False)
            continue
        for name in dict.fromkeys(data.label or ()):
            own = data.cycles[labels == name, q]
            mean, sd = np.nanmean(own, axis=0), np.nanstd(own, axis=0)
            (line,) = panel.plot(data.grid, mean, lw=1.0, label=name)
            panel.fill_between(
                data.grid, mean - sd, mean + sd, color=line.get_color(), alpha=0.2, lw=0
            )
        panel.set_title(data.channels[q], fontsize=10)
    panels.flat[0].legend(fontsize=7)
    return to_svg(plt, figure)


def why_picture(example: Mapping[str, Any]) -> str:
    """Log-likelihood differences along the axis, channel by channel (the six strongest), and their sum."""
    plt = pyplot()
    nats = np.asarray(example["nats"])
    shown = np.argsort(-np.abs(nats).sum(axis=1))[:6]
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(9, 5), sharex=True, constrained_layout=True)
    for q in shown:
        alone = example["alone"][q]
        said = "missing" if alone is None else f"alone {alone:+.1f}"
        label = f"{example['channels'][q]} ({said})"
        top.plot(example["places"], nats[q], lw=1.0, label=label)
    top.axhline(0.0, color="black", lw=0.6)
    top.set_ylabel("nats")
    top.legend(fontsize=7)
    top.set_title(
        f"closest call: {example['chosen']} rather than {example['other']}, "
        f"{example['total']:+.1f} nats (truth: {example['truth']})",
        fontsize=10,
    )
    bottom.plot(example["places"], np.cumsum(nats.sum(axis=0)), color="black", lw=1.0)
    bottom.axhline(0.0, color="black", lw=0.6)
    bottom.set_ylabel("nats so far")
    return to_svg(plt, figure)


def curve(points: list[dict[str, Any]], part: str) -> str:
    """Accuracy over the share of training data, or over subtlety."""
    plt = pyplot()
    figure, panel = plt.subplots(figsize=(7, 4), constrained_layout=True)
    for model in dict.fromkeys(p["model"] for p in points):
        mine = sorted((p for p in points if p["model"] == model), key=lambda p: p[part])
        panel.plot([p[part] for p in mine], [p["accuracy"] for p in mine], "o-", ms=3, label=model)
    places = sorted({p[part] for p in points})
    panel.set_xscale("log")
    panel.set_xticks(
        places, [f"{v:.4g}" if part == "subtlety" else f"{100 * v:.4g}%" for v in places]
    )
    panel.minorticks_off()
    panel.set_xlabel("share of cycles for training" if part == "share" else "subtlety")
    panel.set_ylabel("accuracy")
    panel.legend(fontsize=8)
    return to_svg(plt, figure)
