"""The tables of the numerical study: the best in bold, 95% intervals in brackets."""

from __future__ import annotations

from typing import Any

from pfedhgp.studies.common.pages import Table
from pfedhgp.studies.synthetic.models import PARTS
from pfedhgp.studies.synthetic.printed import MARK
from pfedhgp.studies.synthetic.summary import BEHIND, ONE_AFTER_ANOTHER

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
    scale = 1e-6 if metric == "bytes" else 1.0
    text = form.format(scale * record["mean"])
    low, high = record["ci95"]
    if metric in COMPARED and low is not None:
        text += f" [{form.format(low)}, {form.format(high)}]"
    if metric not in COMPARED or not competes(model):
        return text
    rivals = [
        r["mean"]
        for (s, m, name), r in cells.items()
        if (s, name) == (scenario, metric) and competes(m)
    ]
    best = min(rivals, key=lambda value: _loss(metric, value))
    return f"**{text}**" if form.format(best) == form.format(record["mean"]) else text


def competes(model: str) -> bool:
    """Whether a row is a method that was fitted here: neither the limit nor a printed figure."""
    return model != "oracle" and not model.endswith(MARK)


def _loss(metric: str, value: float) -> float:
    return abs(value - NOMINAL) if metric == "coverage" else value


def near_table(results: Results) -> Table:
    """Exchanges and bytes until the NLL is within 0.2 nats of the method's own best."""
    name = next(name for name in results["tables"] if name.startswith("within"))
    head = ["scenario", "model", "exchanges", "MB", "runs"]
    rows = [
        [
            row["scenario"],
            row["model"],
            f"{row['exchanges']:.1f}",
            f"{1e-6 * row['bytes']:.2f}",
            str(row["runs"]),
        ]
        for row in results["tables"][name]
    ]
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
            *(_gap(row[metric], form) for metric, form in forms.items()),
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


def _gap(found: dict[str, Any], form: str) -> str:
    low, high = found["ci95"]
    text = form.format(found["mean"])
    return text if low is None else f"{text} [{form.format(low)}, {form.format(high)}]"
