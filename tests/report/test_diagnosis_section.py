"""Classified cycles in a RUN folder and in the report: what is kept, what is shown, what is left out."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from pfedhgp import report
from pfedhgp.diagnosis import files
from pfedhgp.diagnosis.decision import NONE, Calibration, Diagnosis, Why
from pfedhgp.errors import InputError
from pfedhgp.report.diagnosis_section import section
from pfedhgp.report.words import InputAxis
from support.reported import case_of, estimator_of

CLASSES = ("normal", "worn")
GRID = np.arange(24.0)[:, None]


def diagnosis() -> Diagnosis:
    """Five cycles; number 3 is the closest call, and the last is none of these."""
    density = np.array([[9.0, 1.0], [1.0, 8.0], [7.0, 2.0], [4.0, 4.5], [1.0, 5.0]])
    best = density.argmax(axis=1)
    none = np.array([False, False, False, False, True])
    labels = tuple(NONE if n else CLASSES[k] for n, k in zip(none, best, strict=True))
    known = Calibration(thresholds=(3.0, 3.0, 3.0, 3.0))
    zeros = np.zeros(5)
    return Diagnosis(CLASSES, labels, best, density, density, zeros, none, known)


def explain(cycle: int, one: str, two: str) -> Why:
    along = np.zeros((24, 2))
    along[10:12, 1] = 2.0  # samples 10 and 11 of the right channel
    along[2, 0] = -0.5
    return Why(one, two, GRID, ("left", "right"), along, np.array([-0.5, np.nan]), 3.5)


@pytest.fixture(scope="module")
def content():
    scores = {"accuracy": 0.8, "log_loss": 0.5, "ece": 0.1, "confusion": []}
    names = [f"stroke {c}" for c in range(5)]
    return files.report_content(diagnosis(), names, model="abc", explain=explain, scores=scores)


def text_of(page: str) -> str:
    page = re.sub(r"<svg\b.*?</svg>", " ", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_the_closest_calls_come_first_one_of_each_class():
    assert files.close_calls(diagnosis(), 3) == [3, 2, 4]


def test_what_is_kept_has_counts_and_the_stretch_that_decided(content):
    assert content["counts"] == {"normal": 2, "worn": 2, NONE: 1}
    first = content["calls"][0]
    assert (first["cycle"], first["chosen"], first["other"]) == ("stroke 3", "worn", "normal")
    top = first["stretches"][0]
    assert (top["channel"], top["start"], top["end"], top["nats"]) == ("right", 10.0, 11.0, 4.0)
    assert np.sum(first["nats"]) == pytest.approx(3.5)
    assert first["alone"] == [-0.5, None]
    assert content["scores"] == {"accuracy": 0.8, "log_loss": 0.5, "ece": 0.1}


def test_it_is_read_back_for_its_own_model_only(content, tmp_path):
    assert files.read(tmp_path, "abc") is None
    files.write(tmp_path, content)
    assert files.read(tmp_path, "abc") == json.loads(json.dumps(content))
    assert files.read(tmp_path, "another") is None
    (tmp_path / files.FILE).write_text('{"format": "else"}')
    with pytest.raises(InputError, match="was not written by `pfedhgp classify`"):
        files.read(tmp_path, "abc")


def test_the_section_says_which_channel_and_which_stretch(content):
    page = section(content, axis=InputAxis("angle"))
    text = text_of(page)
    for words in (
        "5 cycles, each assigned to the client under which it is most probable, or to none of these",
        "accuracy 80.0 %",
        "none of these 1",
        "Cycle stroke 3 worn rather than normal, 3.50 nats",
        "right 10.00 11.00 4.00",
        "right nothing (missing)",
    ):
        assert words in text, words
    assert page.count("<svg") == 2 * len(content["calls"])  # desktops and phones
    assert 'aria-label="Why worn rather than normal, along angle"' in page


def test_names_from_data_are_escaped(content):
    evil = {**content, "counts": {"<script>": 1}, "calls": []}
    assert "<script>" not in section(evil, axis=InputAxis("x"))


def test_the_page_has_the_section_only_where_cycles_were_classified(content):
    model = estimator_of(case_of())
    assert 'id="diagnosis"' not in report.render(model)
    page = report.render(model, classified=content)
    assert page.index('id="shares"') < page.index('id="diagnosis"') < page.index('id="model"')
    assert '<a href="#diagnosis">Cycles</a>' in page
