"""What the numerical study writes: tables with the best in bold, figures, and notes about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pfedhgp.studies.common.pages import Table, with_makers, write_results
from pfedhgp.studies.common.records import with_interval
from pfedhgp.studies.common.store import Store
from pfedhgp.studies.synthetic import figures as drawn
from pfedhgp.studies.synthetic.models import MODELS, PARTS, trainings_of
from pfedhgp.studies.synthetic.notes import synthetic_notes
from pfedhgp.studies.synthetic.printed import competes
from pfedhgp.studies.synthetic.simulator import SCENARIOS
from pfedhgp.studies.synthetic.summary import BEHIND, ONE_AFTER_ANOTHER, summarise

COLUMNS = (
    ("rmse", "RMSE", "{:.3f}"),
    ("nll", "NLL", "{:.3f}"),
    ("crps", "CRPS", "{:.4f}"),
    ("coverr", "CovErr", "{:.3f}"),
    ("width", "95% width", "{:.3f}"),
    ("coverage", "95% coverage", "{:.3f}"),
    ("ece", "ECE", "{:.3f}"),
    ("exchanges", "exchanges", "{:.1f}"),
    ("bytes", "MB", "{:.2f}"),
    ("seconds", "s", "{:.1f}"),
)
COMPARED = ("rmse", "nll", "crps", "coverr", "width", "coverage", "ece")
NOMINAL = 0.95

Results = dict[str, Any]


def write_synthetic(
    store: Store,
    *,
    scenarios: Sequence[str],
    models: Sequence[str],
    runs: int,
    figures: bool = True,
) -> dict[str, Any]:
    """Writes everything into the store's folder; returns what results.json holds.

    Results contain everything in the folder: running a part of a study later does not hide the rest.
    """
    found = list(store.records.values())
    scenarios = _known(SCENARIOS, scenarios, {record["scenario"] for record in found})
    models = _known(MODELS, models, {record["model"] for record in found})
    runs = max([runs, *(record["run"] + 1 for record in found)])
    config = {"study": "synthetic", "scenarios": scenarios, "models": models, "runs": runs}
    config |= store.config
    results = summarise(found, scenarios=scenarios, models=models, count=runs)
    cells = {(s, m, r) for s in scenarios for m in trainings_of(models) for r in range(runs)}
    used = [record for key, record in store.records.items() if key in cells]
    results["config"] = with_makers(config, used)
    parts = {
        "Results": main_table(results),
        "Differences to full on the same data": behind_table(results),
        "Kernels that full-kernels chose, in how many runs": kernels_table(results),
        "Exchanges and bytes to come within 0.2 nats of a method's own best": near_table(results),
    }
    pictures = draw(results, found) if figures else {}
    notes = synthetic_notes(results, config, models)
    write_results(store.folder, results, "The paper's numerical study", notes, parts, pictures)
    return results


def _known(order: Sequence[str], wanted: Sequence[str], there: set[str]) -> list[str]:
    """Names that are wanted or there, in the order of the table."""
    return [name for name in order if name in there or name in wanted]


def draw(results: dict[str, Any], runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The three figures by file name; the prediction is there once `full` has been fitted."""
    pictures = {"robustness.svg": drawn.robustness(results)}
    examples = sorted((run for run in runs if "example" in run), key=lambda run: run["scenario"])
    if examples:
        one = examples[0]
        title = f"{one['model']}, scenario {one['scenario']}, seed {one['seed']}, first client"
        pictures["prediction.svg"] = drawn.prediction(one["example"], title)
    return {**pictures, "calibration.svg": drawn.calibration(results)}


def main_table(results: Results) -> Table:
    """One row per scenario and model; bold (**) is the best of the fitted models, not oracle or printed."""
    cells = {(r["scenario"], r["model"], r["metric"]): r for r in results["records"]}
    order = list(dict.fromkeys((r["scenario"], r["model"]) for r in results["records"]))
    order.sort(key=lambda pair: pair[0])  # stable: a scenario's own rows, then those printed
    measured = {metric for _, _, metric in cells}
    columns = [column for column in COLUMNS if column[0] in measured]  # on a GPU no run has seconds
    head = ["scenario", "model", *(title for _, title, _ in columns), "runs"]
    rows = []
    for scenario, model in order:
        row = [scenario, model]
        for metric, _, form in columns:
            row.append(_cell(cells, scenario, model, metric, form))
        counts = [r["runs"] for (s, m, _), r in cells.items() if (s, m) == (scenario, model)]
        rows.append([*row, str(counts[0])])
    return head, rows


def _cell(cells: dict, scenario: str, model: str, metric: str, form: str) -> str:
    record = cells.get((scenario, model, metric))
    if record is None:
        return ""
    if metric not in COMPARED:
        return form.format((1e-6 if metric == "bytes" else 1.0) * record["mean"])
    text = with_interval(record, form)
    if not competes(model):
        return text
    rivals = [
        r["mean"]
        for (s, m, name), r in cells.items()
        if (s, name) == (scenario, metric) and competes(m)
    ]
    best = min(rivals, key=lambda value: _loss(metric, value))
    return f"**{text}**" if form.format(best) == form.format(record["mean"]) else text


def _loss(metric: str, value: float) -> float:
    return abs(value - NOMINAL) if metric == "coverage" else value


def near_table(results: Results) -> Table:
    """Exchanges and bytes until the NLL is within 0.2 nats of the method's own best."""
    name = next(name for name in results["tables"] if name.startswith("within"))
    head = ["scenario", "model", "exchanges", "MB", "runs"]
    rows = []
    for row in results["tables"][name]:
        cells = [f"{row['exchanges']:.1f}", f"{1e-6 * row['bytes']:.2f}", str(row["runs"])]
        rows.append([row["scenario"], row["model"], *cells])
    return head, rows


def behind_table(results: Results) -> Table:
    """Differences to `full` on the same data; the oracle's are negative: what is left to gain."""
    head = ["scenario", "model", *(f"{title} − full's" for title in ("NLL", "CRPS", "CovErr"))]
    head.append("NLL − full's, least in any run")
    forms = {"nll": "{:.3f}", "crps": "{:.4f}", "coverr": "{:.4f}"}
    return head, [
        [
            row["scenario"],
            row["model"],
            *(with_interval(row[metric], form) for metric, form in forms.items()),
            forms["nll"].format(row["nll"]["least"]),
        ]
        for row in results["tables"][BEHIND]
    ]


def kernels_table(results: Results) -> Table:
    """How often the bound chose which kernel, and the exchanges of the trainings one after another."""
    votes = {(r["scenario"], r["kernel"]): r["runs"] for r in results["tables"]["kernels chosen"]}
    names = [name for name in PARTS if any(kernel == name for _, kernel in votes)]
    head = ["scenario", *names, ONE_AFTER_ANOTHER]
    return head, [
        [
            row["scenario"],
            *(str(votes.get((row["scenario"], name), 0)) for name in names),
            f"{row['exchanges']:.1f}",
        ]
        for row in results["tables"][ONE_AFTER_ANOTHER]
    ]
