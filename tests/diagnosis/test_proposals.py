"""Candidate new classes: strangers in as many groups as there are, runs kept together, and in words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.diagnosis import proposals
from pfedhgp.diagnosis.added_class import with_class
from pfedhgp.diagnosis.proposals import Flagged, propose
from pfedhgp.diagnosis.typical import matched
from pfedhgp.errors import InputError
from support.run_cycles import GRID, NAMES, labels_of, runs, trained

STRANGE = (6.0, -7.0)


@pytest.fixture(scope="module")
def model():
    return trained(*runs(count=10))


def flagged(model, cycles, block=None) -> Flagged:
    which = np.flatnonzero(labels_of(model, cycles).none)
    names = None if block is None else tuple(str(block[c]) for c in which)
    return Flagged((GRID,) * len(which), tuple(cycles[c].T for c in which), names)


def strangers():
    cycles, block = runs(5, dents=STRANGE)
    together = np.concatenate(list(cycles.values()))
    names = [f"{name} {run}" for name in block for run in block[name]]
    return together, names, np.repeat([0, 1], len(together) // 2)


def test_two_kinds_of_strangers_are_two_proposals(model):
    cycles, names, truth = strangers()
    given = flagged(model, cycles, names)
    assert len(given.cycles) == len(cycles)
    found = propose(model, given, NAMES)
    assert [(each.name, each.runs, len(each.cycles)) for each in found] == [
        ("new 1", 6, 30),
        ("new 2", 6, 30),
    ]
    for each in found:
        assert len(set(truth[list(each.cycles)].tolist())) == 1


def test_without_runs_cycles_of_a_run_may_be_a_group_but_kinds_are_not_mixed(model):
    cycles, _, truth = strangers()
    found = propose(model, flagged(model, cycles), NAMES)
    assert 2 <= len(found) <= 4
    assert sum(len(each.cycles) for each in found) == len(cycles)
    for each in found:
        assert len(set(truth[list(each.cycles)].tolist())) == 1
        assert each.runs == len(each.cycles)


def test_a_proposal_says_where_it_differs(model):
    cycles, names, truth = strangers()
    for each in propose(model, flagged(model, cycles, names), NAMES):
        high = truth[each.cycles[0]] == 0
        assert each.nearest == ("class 1" if high else "class 0")
        first = each.stretches[0]
        assert 0.2 < first["start"] <= first["end"] < 0.8
        assert (first["difference"] > 0) == high
        assert first["nats"] > 0
        assert each.why.chosen == each.name
        assert each.central in each.cycles
        told = each.to_json([f"c{c}" for c in range(len(cycles))])
        assert told["central"] == f"c{each.central}"
        assert len(told["cycles"]) == 30


def test_a_channel_that_is_far_off_comes_first_among_stretches(model):
    """It would count by its logarithm alone if it were set aside."""
    cycles, names, _ = strangers()
    far = cycles[:30].copy()
    far[:, 2] += 40.0 * np.sin(9.0 * GRID[:, 0])
    (found,) = propose(model, flagged(model, far, names[:30]), NAMES)
    assert [each["channel"] for each in found.stretches] == ["r"] * 6
    assert found.stretches[0]["nats"] > 1000.0
    assert found.why.wild == {}


def test_the_order_of_cycles_does_not_matter(model):
    cycles, names, _ = strangers()
    order = np.random.default_rng(0).permutation(len(cycles))
    one = propose(model, flagged(model, cycles, names), NAMES)
    two = propose(model, flagged(model, cycles[order], [names[c] for c in order]), NAMES)
    groups = [{frozenset(each.cycles) for each in found} for found in (one, two)]
    assert groups[0] == {frozenset(int(order[c]) for c in each) for each in groups[1]}


def test_cycles_that_lack_samples_or_are_on_another_grid_join_the_others(model):
    cycles, names, truth = strangers()
    gaps = cycles.copy()
    gaps[::7, 1, :4] = np.nan
    given = flagged(model, gaps, names)
    finer = np.linspace(0.0, 1.0, 19)[:, None]
    other = np.stack([np.interp(finer[:, 0], GRID[:, 0], row) for row in cycles[0]], axis=1)
    given = Flagged((*given.grids, finer), (*given.cycles, other), (*given.runs, "elsewhere"))
    found = propose(model, given, NAMES)
    assert 2 <= len(found) <= 4
    for each in found:
        kinds = {int(truth[c]) if c < len(truth) else 0 for c in each.cycles}
        assert len(kinds) == 1


def test_named_and_added_the_strangers_are_known(model):
    cycles, names, truth = strangers()
    found = propose(model, flagged(model, cycles, names), NAMES)
    for each in found:
        mine = list(each.cycles)
        kind = f"kind {truth[mine[0]]}"
        model = with_class(model, kind, cycles[mine], [names[c] for c in mine])
    new, _ = runs(6, dents=STRANGE)
    for k, Y in enumerate(new.values()):
        assert labels_of(model, Y).labels.count(f"kind {k}") >= 29  # of 30


def test_no_cycle_one_cycle_too_many_and_an_older_model(model, monkeypatch):
    cycles, names, _ = strangers()
    assert propose(model, Flagged((), (), None), NAMES) == ()
    (only,) = propose(model, Flagged((GRID,), (cycles[0].T,), None), NAMES)
    assert only.cycles == (0,)
    older = replace(model, typical=None)
    assert len(propose(older, flagged(older, cycles, names), NAMES)) == 2
    monkeypatch.setattr(proposals, "MOST", 5)
    with pytest.raises(InputError, match="12 cycles or runs are none of these, and at most 5"):
        propose(model, flagged(model, cycles, names), NAMES)


def test_a_name_that_a_class_has_is_not_proposed(model):
    cycles, names, _ = strangers()
    known = with_class(model, "new 1", cycles[:30], names[:30])
    found = propose(known, flagged(known, cycles[30:], names[30:]), NAMES)
    assert [each.name for each in found][:2] == ["new 1'", "new 2"]


def test_typical_distances_are_matched_by_quantiles():
    rng = np.random.default_rng(0)
    square = 3.0 * rng.chisquare(12.0, 20_000)
    mean, freedom = matched(square, np.ones(len(square)), 100.0)
    assert mean == pytest.approx(36.0, rel=0.02)
    assert freedom == pytest.approx(12.0, rel=0.06)
    square[:50] = 1e9  # a few that are far off
    again = matched(square, np.ones(len(square)), 100.0)
    assert again == pytest.approx((mean, freedom), rel=0.05)
    assert matched(np.ones(3), np.ones(3), 40.0)[1] == pytest.approx(40.0)
