"""Past forecasts in the report: what a back-test found, by lead time."""

from __future__ import annotations

import re

import pytest

from pfedhgp.model.words import percent
from pfedhgp.report import forecast_section

FOUND = {
    "origins": 3,
    "horizon": 172800.0,
    "dates": True,
    "input": "time",
    "scores": {
        "model": [
            {"to": 86400.0, "crps": 0.5, "rmse": 1.0, "coverage": 0.9},
            {"to": 172800.0, "crps": 0.75, "rmse": 1.5, "coverage": 0.95},
        ],
        "climatology": [
            {"to": 86400.0, "crps": 1.0, "rmse": 2.0, "coverage": 1.0},
            {"to": 172800.0, "crps": 1.0, "rmse": 2.0, "coverage": None},
        ],
    },
}


def test_every_method_and_lead_time_has_a_cell():
    found = forecast_section.section(FOUND)
    assert found["methods"] == ["this model", "climatology"]
    assert [line["to"] for line in found["lines"]] == ["1 day", "2 days"]
    cells = [cell for line in found["lines"] for cell in line["cells"]]
    assert [float(cell["crps"]) for cell in cells] == [0.5, 1, 0.75, 1]
    assert [cell["coverage"] for cell in cells] == [*map(percent, (0.9, 1.0, 0.95)), "–"]
    assert (found["horizon"], found["origins"]) == ("2 days", 3)


def test_figures_have_a_line_for_each_method():
    crps, coverage = forecast_section.section(FOUND)["figures"]
    for svg in (crps, coverage):
        assert len(re.findall(r'id="[^"]*(?:model|climatology)"', svg)) == 2
        assert "days ahead" in svg
    assert "nominal" in coverage
    assert "nominal" not in crps


@pytest.mark.parametrize("nothing", [None, {}])
def test_without_a_back_test_there_is_no_section(nothing):
    assert forecast_section.section(nothing) is None
