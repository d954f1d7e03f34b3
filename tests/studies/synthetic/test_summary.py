"""From runs to the table: nearness, bold, and the figures of the paper as printed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pfedhgp.studies.common import pages
from pfedhgp.studies.synthetic import figures, report
from pfedhgp.studies.synthetic.printed import printed_records
from pfedhgp.studies.synthetic.summary import nearness, summarise


def run(model: str, r: int, nll: float, **more) -> dict:
    values = dict.fromkeys(("rmse", "crps", "coverr", "width", "ece"), 0.5)
    return {
        "scenario": "A",
        "model": model,
        "run": r,
        "metrics": {**values, "nll": nll, "coverage": 0.9 + 0.01 * r, "bytes": 2e6},
        "coverage": np.linspace(0.06, 0.94, 19).tolist(),
        "curve": [[3, 100, nll + 1.0], [4, 200, nll + 0.1], [5, 300, nll]],
        **more,
    }


def results() -> dict:
    runs = [run("full", r, -4.0 - 0.1 * r, chosen="rbf") for r in range(3)]
    runs += [run("oracle", r, -5.0) for r in range(3)] + [run("pfedgp", r, 3.0) for r in range(4)]
    names = ["full", "pfedgp", "oracle"]
    return summarise(runs, scenarios=["A"], models=names, count=3)


def test_one_record_for_each_scenario_model_and_metric():
    records = results()["records"]
    keys = [(r["scenario"], r["model"], r["metric"]) for r in records]
    assert len(keys) == len(set(keys))
    found = next(r for r in records if r["model"] == "full" and r["metric"] == "nll")
    assert found["mean"] == pytest.approx(-4.1)
    assert found["runs"] == 3
    assert (
        next(r["runs"] for r in records if r["model"] == "pfedgp") == 3
    )  # run 3 was not asked for


def test_nearness_is_the_first_exchange_within_a_fifth_of_a_nat():
    near = nearness([[[3, 10, 0.0], [4, 20, -1.0], [5, 30, -1.1]], [[3, 10, -2.0], [4, 20, -1.9]]])
    assert near == {"exchanges": 3.5, "bytes": 15.0, "runs": 2}


def test_differences_are_paired_run_by_run():
    """All models see the same data, so that what makes a run hard falls out of a difference."""
    found = results()["tables"]["behind full, run by run"]
    gaps = {row["model"]: row["nll"] for row in found}
    assert set(gaps) == {"pfedgp", "oracle"}
    assert gaps["oracle"]["mean"] == pytest.approx(-0.9)
    want = stats.t.interval(0.95, 2, loc=7.1, scale=stats.sem([7.0, 7.1, 7.2]))
    np.testing.assert_allclose(gaps["pfedgp"]["ci95"], want)
    head, rows = report.behind_table(results())
    assert rows[0][1:3] == ["pfedgp", "7.100 [6.852, 7.348]"]
    assert head[2] == "NLL − full's"
    assert dict(zip(head, rows[0], strict=True))["NLL − full's, least in any run"] == "7.000"


def test_kernels_chosen_are_counted_with_their_exchanges_one_after_another():
    found = [
        run("full-kernels", r, -4.0, chosen=name, **{"exchanges one after another": 30.0 + r})
        for r, name in enumerate(("rbf", "rbf+periodic", "rbf"))
    ]
    made = summarise(found, scenarios=["A"], models=["full-kernels"], count=3)
    head, rows = report.kernels_table(made)
    assert head == ["scenario", "rbf", "rbf+periodic", "exchanges one after another"]
    assert rows == [["A", "2", "1", "31.0"]]
    assert report.kernels_table(results())[1] == []  # no row of its own, no table


def test_curves_keep_the_last_value_of_runs_that_ended_early():
    late = [run("full", 0, -4.0), {**run("full", 1, -4.0), "curve": [[3, 1, 0.0]]}]
    found = summarise(late, scenarios=["A"], models=["full"], count=2)["curves"]["nll"][0]
    assert found["exchange"] == [3, 4, 5]
    np.testing.assert_allclose(found["nll"], [-1.5, -1.95, -2.0])


def test_bold_is_the_best_fitted_row_and_brackets_are_intervals():
    head, rows = report.main_table(results())
    cells = {row[1]: dict(zip(head, row, strict=True)) for row in rows}
    assert cells["full"]["NLL"].startswith("**-4.100 [")
    assert not cells["pfedgp"]["NLL"].startswith("**")
    assert not cells["oracle"]["NLL"].startswith("**")  # the limit does not compete
    assert not cells["full (printed)"]["NLL"].startswith("**")
    assert cells["full (printed)"]["NLL"] == "-2.275 [-2.405, -2.145]"
    assert cells["full"]["MB"] == "2.00"
    assert "s" not in head  # nothing was timed
    text = pages.as_html(head, rows)
    assert "<b>-4.100 [" in text
    assert "**" not in text
    assert pages.markdown(head, rows).count("\n") == len(rows) + 2


def test_coverage_is_best_where_it_is_nearest_to_nominal():
    runs = [run("full", 0, 0.0), run("pfedgp", 0, 0.0)]
    runs[0]["metrics"]["coverage"], runs[1]["metrics"]["coverage"] = 0.99, 0.93
    found = summarise(runs, scenarios=["A"], models=["full", "pfedgp"], count=1)
    head, rows = report.main_table(found)
    column = head.index("95% coverage")
    assert [row[column] for row in rows[:2]] == ["0.990", "**0.930**"]


def test_printed_figures_are_the_papers():
    records = printed_records(["A", "B", "C", "D"])
    assert len(records) == 4 * 6 * 6
    assert all(r["printed"] and r["model"].endswith("(printed)") for r in records)
    cells = {(r["scenario"], r["model"], r["metric"]): (r["mean"], *r["ci95"]) for r in records}
    assert cells["A", "full (printed)", "rmse"] == (0.223, 0.216, 0.230)
    assert cells["C", "global-only (printed)", "coverr"] == (0.987, 0.846, 1.127)
    assert cells["D", "pfedgp (printed)", "nll"] == (-1.131, -1.398, -0.863)
    assert cells["B", "no-local (printed)", "coverage"] == (0.941, 0.932, 0.949)
    assert all(low <= mean <= high for mean, low, high in cells.values())


def test_figures_are_drawn_alike_twice_and_cut_bars_are_annotated():
    models = ["full", "no-deviation", "no-local", "local-only", "global-only"]
    runs = [run(model, 0, -4.0) for model in models]
    for one, value in zip(runs, (0.2, 0.3, 0.35, 0.4, 50.25), strict=True):
        one["metrics"]["rmse"] = value
    found = summarise(runs, scenarios=["A"], models=models, count=1)
    first = figures.robustness(found)
    assert first == figures.robustness(found)
    assert first.count(">50.25<") == 1
    assert ">0.40<" not in first
    assert "<svg" in figures.calibration(found)


def test_the_prediction_figure_has_a_panel_for_each_output():
    rng = np.random.default_rng(0)
    example = {"x": [0.1, 0.4], "grid": np.linspace(0, 1, 5).tolist()}
    example |= {name: rng.random((5, 4)).tolist() for name in ("mean", "sd", "clean")}
    example["y"] = rng.random((2, 4)).tolist()
    drawn = figures.prediction(example, "scenario B, seed 7")
    assert drawn.count('id="axes_') == 4
    assert drawn.count(">input<") == 4
    assert "scenario B, seed 7" in drawn


def test_error_bars_are_inside_their_panel(monkeypatch):
    """Two runs have intervals of 12.7 standard errors."""
    monkeypatch.setattr(figures, "to_svg", lambda plt, figure: figure)
    runs = [run("full", r, -4.0 - r) for r in (0, 1)]
    drawn = figures.robustness(summarise(runs, scenarios=["A"], models=["full"], count=2))
    ends = [
        (panel.get_ylim(), bar.get_segments()[0][:, 1])
        for panel in drawn.axes
        for bar in panel.collections
    ]
    assert len(ends) == 4
    assert min(y.min() for _, y in ends) < -10
    assert all(low < y.min() and y.max() < high for (low, high), y in ends)
