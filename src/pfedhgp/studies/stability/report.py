"""The table and the figure of the stability study."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pfedhgp.studies.common.pages import pyplot, to_svg, with_makers, write_results
from pfedhgp.studies.common.records import with_interval
from pfedhgp.studies.common.store import Store
from pfedhgp.studies.stability.study import Stability, runs_of, summarise

NOTES = (
    "Scenario A of the numerical study; six clients of equal size and phi = 1.2 unless varied. Correlation "
    "and CRPS of the fitted global layer with the true one, mean over runs with 95% confidence "
    "intervals, cut at what is possible.",
    "Rule: 1/sqrt(1 + phi/T), T the effective number of clients (sum n)^2/(sum n^2). Read the global layer "
    "as what all share where it is at least .9, that is with about four clients for each unit of phi.",
)
BAND = (
    "The last but one column is of the global layer's own 95% band, {found}. That band has in it that the "
    "mean of T deviations may pass for something common; the band of the sum has no need to."
)
LEAST = 0.9
"""Coverage of a 95% band below which a point is named."""
TITLES = {
    "clients": "number of clients",
    "balance": "rows of large and small clients",
    "phi": "heterogeneity phi",
}


def write_stability(store: Store, study: Stability, *, runs: int) -> dict[str, Any]:
    """Writes results.json, the table, the figure and report.html; returns what results.json holds."""
    runs = runs_of(store, study, runs)
    records = summarise(store, study, runs)
    head, rows = table(records, study)
    config = {"study": "stability", "runs": runs, **asdict(study)}
    used = [
        store.records[sweep, value, run] for sweep, value in study.points() for run in range(runs)
    ]
    results = {
        "records": records,
        "curves": {},
        "tables": {"recovery": [dict(zip(head, row, strict=True)) for row in rows]},
        "config": with_makers(config, used),
    }
    pictures = {"stability.svg": figure(records, study)}
    parts = {"Recovery of the global layer": (head, rows)}
    notes = [*NOTES, note_on_the_band(records, study)]
    write_results(store.folder, results, "How stable is the split?", notes, parts, pictures)
    return results


def note_on_the_band(records: list[dict[str, Any]], study: Stability) -> str:
    """What the layer's own band covered here; points where it held less than .9 are named."""
    covered = [r for r in records if r["metric"] == "coverage"]
    means = [r["mean"] for r in covered]
    found = f"which covered between {min(means):.2f} and {max(means):.2f} of f_g here"
    if max(means) < 0.95:
        return BAND.format(found=f"{found}: too narrow")
    low = [
        f"{r['mean']:.2f} at {r['scenario']} {study.label(r['scenario'], float(r['model']))}"
        for r in covered
        if r["mean"] < LEAST
    ]
    named = f", less than {LEAST:g} at {len(low)} of {len(means)} points ({', '.join(low)})"
    return BAND.format(found=found + (named if low else ""))


def table(records: list[dict[str, Any]], study: Stability) -> tuple[list[str], list[list[str]]]:
    """One row per point."""
    cells = {(r["scenario"], r["model"], r["metric"]): r for r in records}
    head = ["sweep", "value", "correlation", "rule", "CRPS"]
    head += ["coverage of the layer's own 95% band", "runs"]
    rows = []
    for sweep, value in study.points():
        point = f"{value:g}"
        found = [cells[sweep, point, name] for name in ("correlation", "crps", "coverage")]
        rule = cells[sweep, f"{point} (rule)", "correlation"]["mean"]
        first, *others = [with_interval(record, "{:.3f}") for record in found]
        row = [sweep, study.label(sweep, value), first, f"{rule:.3f}", *others]
        rows.append([*row, str(found[0]["runs"])])
    return head, rows


def figure(records: list[dict[str, Any]], study: Stability) -> str:
    """Correlation (with the rule) and CRPS over each of the three ranges."""
    plt = pyplot()
    cells = {(r["scenario"], r["model"], r["metric"]): r for r in records}
    picture, panels = plt.subplots(
        2, 3, figsize=(11, 6), sharex="col", sharey="row", constrained_layout=True
    )
    for column, (sweep, title) in enumerate(TITLES.items()):
        values = [value for name, value in study.points() if name == sweep]
        for row, metric in enumerate(("correlation", "crps")):
            panel = panels[row, column]
            found = [cells[sweep, f"{value:g}", metric] for value in values]
            means = [r["mean"] for r in found]
            panel.plot(values, means, "o-", color="#0072B2", label="fitted")
            if found[0]["ci95"][0] is not None:
                low, high = zip(*(r["ci95"] for r in found), strict=True)
                panel.fill_between(values, low, high, color="#0072B2", alpha=0.2, lw=0)
            if metric == "correlation":
                rule = [cells[sweep, f"{value:g} (rule)", metric]["mean"] for value in values]
                panel.plot(values, rule, "k--", lw=0.9, label="1/sqrt(1 + phi/T)")
            panel.set_xscale("log")
            panel.set_xticks(values, [study.label(sweep, value) for value in values])
            panel.minorticks_off()
        panels[1, column].set_xlabel(title)
    panels[0, 0].set_ylabel("correlation with the true f_g")
    panels[1, 0].set_ylabel("CRPS")
    panels[0, 0].legend(fontsize=7)
    return to_svg(plt, picture)
