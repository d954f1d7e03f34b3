"""What a study leaves in its folder: results.json, tables in Markdown, figures as SVG, and report.html."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pfedhgp.studies.common import provenance
from pfedhgp.studies.common.provenance import machine
from pfedhgp.studies.common.store import Store, write_whole
from pfedhgp.studies.common.summary import summarise
from pfedhgp.studies.synthetic import tables
from pfedhgp.studies.synthetic.models import MODELS, trainings_of
from pfedhgp.studies.synthetic.notes import synthetic_notes
from pfedhgp.studies.synthetic.simulator import SCENARIOS

__all__ = ["can_draw", "draw", "machine", "with_makers", "write_results", "write_synthetic"]
STYLE = (
    "body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1200px;padding:0 1em}"
    "table{border-collapse:collapse;font-size:11px}td,th{border:1px solid #ccc;padding:2px 6px;"
    "text-align:right;white-space:nowrap}td:nth-child(-n+2){text-align:left}svg{max-width:100%;height:auto}"
    ".wide{overflow-x:auto}pre{overflow-x:auto}"
)


def can_draw() -> bool:
    """Whether matplotlib is there: a bare machine with a GPU writes tables alone."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def write_synthetic(
    store: Store,
    config: Mapping[str, Any],
    *,
    scenarios: Sequence[str],
    models: Sequence[str],
    runs: int,
    figures: bool = True,
) -> dict[str, Any]:
    """Writes everything into the store's folder; returns what results.json holds.

    That is all that the folder has, whatever was asked for last: a part of a study does not hide the rest.
    """
    found = list(store.records.values())
    scenarios = _known(SCENARIOS, scenarios, {record["scenario"] for record in found})
    models = _known(MODELS, models, {record["model"] for record in found})
    runs = max([runs, *(record["run"] + 1 for record in found)])
    config = {**config, "scenarios": scenarios, "models": models, "runs": runs}
    results = summarise(found, scenarios=scenarios, models=models, count=runs)
    cells = {(s, m, r) for s in scenarios for m in trainings_of(models) for r in range(runs)}
    used = [record for key, record in store.records.items() if key in cells]
    results["config"] = with_makers(config, used)
    parts = {
        "Results": tables.main_table(results),
        "Differences to full on the same data": tables.behind_table(results),
        "Kernels that full-kernels chose, in how many runs": tables.kernels_table(results),
        "Exchanges and bytes to come within 0.2 nats of a method's own best": tables.near_table(
            results
        ),
    }
    pictures = draw(results, found) if figures else {}
    notes = synthetic_notes(results, config, models)
    write_results(store.folder, results, "The paper's numerical study", notes, parts, pictures)
    return results


def _known(order: Sequence[str], asked: Sequence[str], there: set[str]) -> list[str]:
    """What was asked for and what else is there, in the table's order."""
    return [name for name in order if name in there or name in asked]


def with_makers(config: Mapping[str, Any], used: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings, with who computed the records: `device` is theirs, whatever was asked for now."""
    made = provenance.sets(used)
    return {**config, "device": provenance.devices(made), "made": made}


def draw(results: dict[str, Any], runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The three figures by file name; the prediction is there once `full` has been fitted."""
    from pfedhgp.studies.common import figures

    pictures = {"robustness.svg": figures.robustness(results)}
    examples = sorted((run for run in runs if "example" in run), key=lambda run: run["scenario"])
    if examples:
        one = examples[0]
        title = f"{one['model']}, scenario {one['scenario']}, seed {one['seed']}, first client"
        pictures["prediction.svg"] = figures.prediction(one["example"], title)
    return {**pictures, "calibration.svg": figures.calibration(results)}


def write_results(
    folder: Path,
    results: Mapping[str, Any],
    title: str,
    notes: Sequence[str],
    parts: Mapping[str, tuple[list[str], list[list[str]]]],
    pictures: Mapping[str, str],
) -> None:
    """results.json, tables.md, one SVG a figure and report.html, each whole or not at all.

    A table without rows is left out.
    """
    parts = {name: table for name, table in parts.items() if table[1]}
    write_whole(folder / "results.json", json.dumps(results, indent=1, allow_nan=False) + "\n")
    notes = [*provenance.lines(results["config"].get("made", [])), *notes]
    text = [f"# {title}\n", *(f"{note}\n" for note in notes)]
    text += [f"## {name}\n\n{tables.markdown(*table)}" for name, table in parts.items()]
    write_whole(folder / "tables.md", "\n".join(text))
    for name, svg in pictures.items():
        write_whole(folder / name, svg)
    body = [f"<h1>{html.escape(title)}</h1>"]
    body += [f"<p>{html.escape(note)}</p>" for note in notes]
    for name, table in parts.items():
        body.append(f'<h2>{html.escape(name)}</h2><div class="wide">{tables.as_html(*table)}</div>')
    body += [f'<div class="wide">{svg[svg.index("<svg") :]}</div>' for svg in pictures.values()]
    settings = html.escape(json.dumps(results["config"], indent=1))
    body.append(f"<details><summary>Settings</summary><pre>{settings}</pre></details>")
    write_whole(
        folder / "report.html",
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(title)}'
        f"</title><style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n",
    )
