"""What a reader must know first, and what happened to the model since the fit."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from pfedhgp import report
from pfedhgp.model.kept_sums import KeptSums
from pfedhgp.report import since
from support.reported import HISTORY, case_of, estimator_of, rows_of

LIMIT = [*HISTORY[:-1], {**HISTORY[-1], "ended": "limit"}]
CONVERGED = [*HISTORY[:-1], {**HISTORY[-1], "ended": "converged"}]
UPDATE = {
    "what": "update",
    "rows": {"client 0": 3, "client 2": 1},
    "new_clients": [],
    "gone_clients": [],
    "stale": False,
    "p": 0.5,
    "scores": [{}],
}
FORGET = {**UPDATE, "what": "forget", "rows": {"client 1": 1}, "scores": [], "p": 1.0}


@pytest.fixture(scope="module")
def case():
    return case_of()


def alarm_of(model, **shown) -> str:
    page = report.render(model, **shown)
    found = re.search(r'<div class="alarm".*?</div>', page, flags=re.DOTALL)
    if found is None:
        return ""
    assert page.index("<h1") < found.start() < page.index('class="tiles"')
    return " ".join(re.sub("<[^>]*>", "", found[0]).split())


def test_a_fit_that_has_not_settled_says_so_at_the_top_and_what_to_do(case):
    told = alarm_of(estimator_of(case, history=LIMIT))
    assert "Training has not settled. It stopped at the limit of 2 rounds, still gaining 32" in told
    assert "What to do: Fit again with a higher limit, such as --rounds 40" in told


def test_numbers_have_no_exponents(case):
    history = [{**h, "bound": 10 * h["bound"]} for h in LIMIT]
    assert "still gaining 320 nats a round" in alarm_of(estimator_of(case, history=history))


@pytest.mark.parametrize("history", [CONVERGED, HISTORY, []])
def test_a_fit_that_has_settled_or_is_not_known_has_no_alarm(case, history):
    assert alarm_of(estimator_of(case, history=history)) == ""


class Reached:
    def __init__(self, reach):
        self.reach = np.asarray(reach)


@pytest.mark.parametrize(
    ("reach", "said"), [([1.0, 0.5], False), ([1.0, 0.0], True), ([1.0, 1.0], False)]
)
def test_what_averages_leave_out_is_said_and_what_they_shorten_is_not(case, reach, said):
    from pfedhgp.report.alarms import alarms
    from pfedhgp.report.gathered import gather

    found = gather(estimator_of(case, history=CONVERGED), (None,) * 3, {})
    own = replace(found.model.clients["client 1"], tangents=Reached(reach))
    clients = {**found.model.clients, "client 1": own}
    told = alarms(replace(found, model=replace(found.model, clients=clients)))
    assert [a.title for a in told] == ["Some uncertainty is left out."] * said
    if said:
        assert "leave out 1 direction at 1 of 3 clients (client 1), whose" in told[0].text


def test_stale_parameters_are_an_alarm_until_training_follows(case):
    stale = {**UPDATE, "stale": True, "p": 0.001}
    model = estimator_of(case)
    assert "(chance 0.001). What to do: Train again" in alarm_of(
        model, metrics={"updates": [stale]}
    )
    again = {**UPDATE, "what": "retrain", "scores": []}
    for lines in ([stale, again], [stale, UPDATE], [FORGET]):
        assert alarm_of(model, metrics={"updates": lines}) == ""


# ---------------------------------------------------------------------------------- since the fit


def test_one_line_or_a_list_of_what_was_done():
    found = since.section({"updates": [UPDATE]})
    assert found["only"] == "Update: 4 rows of 2 clients; the rows were as expected (chance 0.5)"
    new = {**UPDATE, "rows": {"d": 5}, "new_clients": ["d"], "scores": []}
    gone = {**FORGET, "gone_clients": ["client 1"]}
    found = since.section({"updates": [UPDATE, new, gone]})
    assert (
        found["whole"] == "9 rows of 3 clients came, in 2 updates; 1 row of client 1 was forgotten."
    )
    assert found["lines"] == [
        "Forgotten: 1 row of client 1, gone as a client: client 1",
        "Update: 5 rows of d, new: d",
        "Update: 4 rows of 2 clients; the rows were as expected (chance 0.5)",
    ]
    assert since.section({}) is None


def test_a_year_of_daily_updates_is_summed_up():
    found = since.section({"updates": [UPDATE] * 365})
    assert found["whole"] == "1\u202f460 rows of 2 clients came, in 365 updates."
    assert (len(found["lines"]), found["earlier"]) == (since.LATEST, 365 - since.LATEST)


def kept_rows(count: int) -> KeptSums:
    nothing = np.zeros(1)
    hashes = np.arange(count, dtype=np.uint64)
    return KeptSums(nothing[None], nothing[None], nothing, nothing, hashes, hashes)


@pytest.mark.parametrize("outputs", [1, 2])
def test_cells_count_rows_that_came_and_not_those_that_went(outputs):
    """Each output was observed in two of three rows; of rows that came nobody knows, if none are given."""
    case = case_of(outputs=outputs, tied=False, latents=1, local_latents=1, noise="output")
    model = replace(case.model, sums={f"client {i}": kept_rows(9) for i in range(3)})
    entry = {"rows": 8, "held_out": 2, "cells": 4 * outputs}
    metrics = {"data": {f"client {i}": entry for i in range(2)}, "updates": [UPDATE]}
    found, exact = since.cells(model, metrics, {})
    if outputs == 1:
        assert (found, exact) == ({"client 0": 9, "client 1": 4, "client 2": 9}, True)
    else:
        assert (found, exact) == ({"client 0": 12, "client 1": 8, "client 2": 18}, False)
    rows = {r.name: replace(r, X=r.X[:9], Y=r.Y[:9]) for r in rows_of(case)}
    found, exact = since.cells(model, metrics, rows)
    assert exact
    assert found["client 0"] == np.isfinite(rows["client 0"].Y).sum()


def test_the_page_says_what_happened_and_which_numbers_are_older(case):
    data = {f"client {i}": {"rows": 12, "cells": 12} for i in range(3)}
    model = estimator_of(case, sums={f"client {i}": kept_rows(15) for i in range(3)})
    page = report.render(model, metrics={"data": data, "updates": [UPDATE]})
    assert 'href="#since"' in page
    text = " ".join(re.sub("<[^>]*>", " ", page).split())
    assert "Since the fit: 4 rows of 2 clients came, in 1 update." in text
    assert "Observed cells in the model 42" in text
    assert 'id="since"' not in report.render(model, metrics={"data": data})
