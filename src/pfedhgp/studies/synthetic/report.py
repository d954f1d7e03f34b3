"""What the numerical study writes: its tables, its figures and what the report says about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pfedhgp.studies.common.pages import with_makers, write_results
from pfedhgp.studies.common.store import Store
from pfedhgp.studies.synthetic import tables
from pfedhgp.studies.synthetic.models import MODELS, trainings_of
from pfedhgp.studies.synthetic.notes import synthetic_notes
from pfedhgp.studies.synthetic.simulator import SCENARIOS
from pfedhgp.studies.synthetic.summary import summarise


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


def _known(order: Sequence[str], wanted: Sequence[str], there: set[str]) -> list[str]:
    """What is wanted and what else is there, in the order of the table."""
    return [name for name in order if name in there or name in wanted]


def draw(results: dict[str, Any], runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The three figures by file name; the prediction is there once `full` has been fitted."""
    from pfedhgp.studies.synthetic import figures

    pictures = {"robustness.svg": figures.robustness(results)}
    examples = sorted((run for run in runs if "example" in run), key=lambda run: run["scenario"])
    if examples:
        one = examples[0]
        title = f"{one['model']}, scenario {one['scenario']}, seed {one['seed']}, first client"
        pictures["prediction.svg"] = figures.prediction(one["example"], title)
    return {**pictures, "calibration.svg": figures.calibration(results)}
