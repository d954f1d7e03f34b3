"""A site checks the delivered model on rows that it holds out, and raises an alarm if it is better alone."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.base.numerics import numerics
from pfedhgp.data.rows import ClientRows
from pfedhgp.federation.flower.own_check import (
    check_delivery,
    check_own_rows,
    compare,
    splits,
)
from pfedhgp.federation.flower.site_model import site_model
from pfedhgp.federation.schema import ALARM, DELIVER
from pfedhgp.inference.structured.bound import GlobalEvidence
from pfedhgp.inference.structured.posterior import evidence_of
from support.hostile_sites import HONEST, LIAR, Laboratory


def checks(run):
    found = {}
    with numerics():
        for name in HONEST:
            agreed, group, request = run.delivered[name]
            model = site_model(agreed, group, request)
            found[name] = check_delivery(agreed.plan, agreed.rows, group, request, model)
    return found


def test_an_honest_federation_serves_its_sites(tmp_path):
    found = checks(Laboratory(tmp_path, HONEST).run())
    assert [check.alarm for check in found.values()] == [False] * 3
    assert all(check.rows == 24 for check in found.values())  # two fifths of 60
    assert max(check.ratio for check in found.values()) < 1.1
    assert "an alarm" not in found[HONEST[0]].line


def test_false_totals_raise_an_alarm(tmp_path):
    """A server that delivers twenty times the opposite of what the sites said, and is very sure of it."""
    run, found = Laboratory(tmp_path, HONEST).run(), []
    with numerics():
        for name in HONEST:
            agreed, group, request = run.delivered[name]
            model = site_model(agreed, group, request)
            J, h = evidence_of(model.shared)
            lie = GlobalEvidence(300.0 * J[None], -6000.0 * h[None])
            found.append(check_own_rows(agreed.plan, model, agreed.rows, lie))
    assert [check.alarm for check in found] == [True] * 3
    assert min(check.ratio for check in found) > 1.2
    assert "an alarm is sent" in found[0].line


def test_rows_of_the_check_are_held_out():
    x = np.linspace(0.0, 1.0, 700)[::-1, None]
    parts = splits(ClientRows("a", x, np.sin(x)))
    assert len(parts) == 2
    for kept, held in parts:
        assert not set(kept.X.reshape(-1)) & set(held.X.reshape(-1))
        assert len(kept.X) + len(held.X) == 234  # every third of 700
        assert len(held.X) in (46, 47)
        np.testing.assert_array_equal(held.Y, np.sin(held.X))
    assert not set(parts[0][1].X.reshape(-1)) & set(parts[1][1].X.reshape(-1))


@pytest.mark.parametrize(
    ("together", "alarm"), [(0.5, False), (1.05, False), (3.0, True)], ids=["less", "even", "more"]
)
def test_an_alarm_needs_an_error_that_is_larger_beyond_chance(together, alarm):
    alone = np.random.default_rng(0).normal(size=40) ** 2
    found = compare(together**2 * alone, alone, rows=40)
    assert found.ratio == pytest.approx(together)
    assert found.alarm is alarm
    one = alone.copy()
    one[3] += 40.0  # a single row decides nothing
    assert not compare(one, alone, rows=40).alarm


def test_the_server_names_who_raised_an_alarm(tmp_path, caplog):
    def change(name, request, reply):
        if name != LIAR or request.kind != DELIVER:
            return reply
        return replace(reply, arrays={ALARM: np.ones(1)})

    caplog.set_level(logging.WARNING, "pfedhgp")
    run = Laboratory(tmp_path, (*HONEST, LIAR), change).run()
    assert [m for m in caplog.messages if m.startswith("alarm of")] == [
        f"alarm of {LIAR}: alone, it predicts its held-out rows better than with the shared model"
    ]
    assert set(run.engine.roster.delivered) == {*HONEST, LIAR}
