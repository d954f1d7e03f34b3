"""What the report says beside its tables follows from the runs: findings are those of the records."""

from __future__ import annotations

import pytest

from pfedhgp.studies.stability.report import note_on_the_band
from pfedhgp.studies.stability.study import Stability
from pfedhgp.studies.synthetic.models import MODELS
from pfedhgp.studies.synthetic.notes import synthetic_notes
from pfedhgp.studies.synthetic.printed import printed_records

PAPERS = {"clients": 6, "rows": 50, "rounds": None}


def found(*, oracle: float = 0.26, reach: float = 0.01, last: float = 4.5) -> dict:
    limit = {"scenario": "A", "model": "oracle", "metric": "rmse", "mean": oracle, "runs": 3}
    limit["ci95"] = [oracle - reach, oracle + reach]
    curve = {"scenario": "A", "model": "pfedgp", "exchange": [3, 4], "nll": [4.25, last], "runs": 3}
    return {"records": [limit, *printed_records(["A"])], "curves": {"nll": [curve]}}


def said(results: dict, config: dict = PAPERS, models: tuple[str, ...] = MODELS) -> str:
    return "\n".join(synthetic_notes(results, config, models))


def test_the_printed_table_is_judged_by_the_oracle_of_these_runs():
    assert "(0.223 against 0.260 in A), with intervals that do not touch" in said(found())
    for nothing in (found(oracle=0.20), found(reach=0.04)):
        assert "no method can be expected" not in said(nothing)
    small = said(found(), {**PAPERS, "rows": 12})
    assert "no method can be expected" not in small
    assert "do not compare with these" in small


def test_what_the_last_round_does_to_pfedgp_is_measured():
    assert "they score better, by 0.25 nats on average (3 runs)" in said(found())
    better = said(found(last=4.15))
    assert "score better" not in better
    assert "It lowers the NLL of the point before it by 0.10 nats" in better
    none = {**found(), "curves": {"nll": []}}
    assert "score better" not in said(none)


@pytest.mark.parametrize(("rounds", "ours", "theirs"), [(None, 10, 20), (3, 3, 3), (1, 1, 2)])
def test_counts_of_rounds_are_those_of_the_run(rounds, ours, theirs):
    text = said(found(), {**PAPERS, "rounds": rounds})
    assert f"of which there are at most {ours};" in text
    assert f"pfedgp and algorithm1: one for the census, one for each of {theirs} rounds" in text


def test_rows_that_are_not_there_have_no_notes():
    text = said(found(), models=("oracle",))
    assert "oracle: the exact" in text
    for other in ("full:", "full and its ablations", "pfedgp", "algorithm1", "full-kernels"):
        assert other not in text


def at(*covered: float) -> str:
    points = zip(Stability().points(), covered, strict=False)
    return note_on_the_band(
        [
            {"scenario": sweep, "model": f"{value:g}", "metric": "coverage", "mean": mean}
            for (sweep, value), mean in points
        ],
        Stability(),
    )


def test_the_layers_band_is_called_too_narrow_where_it_was():
    assert "covered between 0.15 and 0.37 of f_g here: too narrow" in at(0.37, 0.15)
    assert "too narrow" not in at(0.37, 0.96)


def test_points_where_the_layers_band_covered_less_than_it_should_are_named():
    text = at(0.96, 0.89, 0.95, 0.95, 0.95, 0.9, 0.95, 0.82)
    named = "less than 0.9 at 2 of 8 points (0.89 at clients 3, 0.82 at balance 95:5)."
    assert named in text
    assert "less than" not in at(0.96, 0.9)


def test_how_many_runs_were_scored_after_each_round_is_said():
    def near(*counts: int) -> str:
        rows = [{"scenario": "A", "model": "full", "runs": count} for count in counts]
        return said({**found(), "tables": {"within 0.2 nats of its own best": rows}})

    assert "Within 0.2 nats (the first 5 runs): a run is scored" in near(5, 5)
    assert "Within 0.2 nats (the first run): " in near(1)
    assert "Within 0.2 nats" not in near()


def test_the_candidates_budgets_are_named():
    assert "RBF is full's own, with inducing=24; the other two have inducing=32." in said(found())
