"""Past forecasts: CRPS and coverage by lead time, of the model and of two simple methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from markupsafe import Markup

from pfedhgp.model.words import duration, number, percent
from pfedhgp.plot.charts import METHODS
from pfedhgp.report import charts

SHOWN = {"crps": number, "coverage": percent}


def section(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Figures and lines of a back-test; None without one."""
    if not found:
        return None
    scores = found["scores"]
    methods = [name for name in METHODS if name in scores]
    as_text = duration if found.get("dates") else number
    lines = [
        {
            "to": as_text(each["to"]),
            "cells": [
                {key: _text(scores[name][k][key], text) for key, text in SHOWN.items()}
                for name in methods
            ],
        }
        for k, each in enumerate(scores["model"])
    ]
    return {
        "methods": [METHODS[name] for name in methods],
        "lines": lines,
        "horizon": as_text(found["horizon"]),
        "origins": found["origins"],
        "figures": [
            Markup(charts.past_forecasts(found, score, name=f"past-{score}"))
            for score in ("crps", "coverage")
        ],
    }


def _text(value: float | None, text: Callable[[float], str]) -> str:
    """A dash where no reading was in the range."""
    return "–" if value is None else text(value)
