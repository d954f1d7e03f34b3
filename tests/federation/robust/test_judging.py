"""One dishonest site of four: it is named, the run ends, and the others' models are as without it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.data.rows import ClientRows
from pfedhgp.federation.envelope import Refused
from pfedhgp.federation.robust import model_test
from support.hostile_sites import HONEST, LIAR, Laboratory, lying, rows, terms, times


@pytest.fixture(scope="module")
def without_it(tmp_path_factory):
    return Laboratory(tmp_path_factory.mktemp("three"), HONEST).run().error()


def indefinite(arrays):
    """U with one large negative number on its diagonal; a triangle is sent row by row."""
    changed = {}
    for name, array in arrays.items():
        if name.rpartition(".")[2] == "U":
            changed[name] = array.copy()
            changed[name][0] = -10.0 * np.abs(array).max()
    return changed


def set_to(value, *names):
    return lambda arrays: {
        name: np.full_like(array, value)
        for name, array in arrays.items()
        if name.rpartition(".")[2] in names
    }


ATTACKS = {
    "everything x 1000": (times(1000.0), ()),
    "U and y x 1000": (times(1000.0, "U", "y"), ()),
    "y negated": (times(-1.0, "y"), ()),
    "everything negated": (times(-1.0), ()),
    "-U": (times(-1.0, "U"), ()),
    "indefinite U": (indefinite, ()),
    "1e300": (times(1e300, "U"), ()),
    "noise = -1": (set_to(-1.0, "noise"), ()),
    "derivatives x 1e9": (times(1e9, "d_J", "d_h", "d_evidence", "curvature"), ()),
    "rows = -1e9": (set_to(-1e9, "rows"), ("census",)),
    "y_pairs = 1e9": (set_to(1e9, "y_pairs"), ("census",)),
    "y_mean = 1e6": (set_to(1e6, "y_mean"), ("census",)),
    "lag sums x 1e6": (times(1e6, "lag_sum"), ("extent",)),
}
NAMED = {"y negated": "excluded", "derivatives x 1e9": "excluded", "y_mean = 1e6": "excluded"}
RANGES = {"everything negated", "noise = -1", "rows = -1e9"}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_liar_is_named_and_changes_nothing(tmp_path, without_it, attack):
    alter, kinds = ATTACKS[attack]
    run = Laboratory(tmp_path, (*HONEST, LIAR), lying(alter, *kinds)).run()
    blamed = run.blamed()
    assert set(blamed) == {LIAR}
    expected = "out-of-range" if attack in RANGES else NAMED.get(attack, "inadmissible")
    assert expected in blamed[LIAR]
    assert run.error() <= 1.1 * without_it
    if expected == "excluded":
        entry = next(each for each in run.log if "excluded" in each)
        assert LIAR not in entry["counted"]
        assert entry["excluded"][LIAR]
        assert run.engine.server.summary()["left_out"][0]["name"] == LIAR


def test_another_function_is_excluded_with_a_p_value(tmp_path, without_it):
    """Excluded by α/T, it does not come back with a p-value that honest sites rarely have."""
    data = rows()
    x = data[LIAR].X
    data[LIAR] = ClientRows(LIAR, x, 1.5 * np.cos(3.0 * x) - 1.0)
    run = Laboratory(tmp_path, (*HONEST, LIAR), data=data).run()
    found = [entry["p_values"][LIAR] for entry in run.log if "excluded" in entry]
    assert set(run.blamed()) == {LIAR}
    assert found[0] < 1e-3 / 4
    assert max(found) < model_test.BACK
    assert run.error() <= 1.1 * without_it


def test_old_arrays_under_a_new_header(tmp_path, without_it):
    """Those of the start, sent again in every round: they fit, or are left out, and harm nobody."""
    kept = {}

    def change(name, request, reply):
        if name != LIAR or request.kind not in ("start", "round"):
            return reply
        if request.kind == "start":
            kept.update({n: a for n, a in reply.arrays.items() if not n.startswith("other ")})
        shared = {
            n: kept[n] for n in reply.arrays if n in kept and kept[n].shape == reply.arrays[n].shape
        }
        return replace(reply, arrays={**reply.arrays, **shared})

    run = Laboratory(tmp_path, (*HONEST, LIAR), change).run()
    assert run.error() <= 1.1 * without_it


def test_what_is_too_large_is_refused_unread(tmp_path):
    def change(name, request, reply):
        if name != LIAR or request.kind != "round":
            return reply
        return replace(reply, arrays={**reply.arrays, "more": np.zeros(1_000_000)})

    run = Laboratory(tmp_path, (*HONEST, LIAR), change).run()
    assert run.blamed() == {LIAR: {"oversized"}}


def test_a_site_comes_back_when_it_passes_again(tmp_path):
    """It lies in two rounds. Its honest sums are counted again, as if it had been away."""

    def change(name, request, reply):
        if name != LIAR or request.kind != "round" or request.round not in (2, 3):
            return reply
        return replace(reply, arrays={**reply.arrays, **times(-1.0, "y")(dict(reply.arrays))})

    run = Laboratory(tmp_path, (*HONEST, LIAR), change).run()
    rounds = [entry for entry in run.log if entry["kind"] == "round"]
    out = [entry["round"] for entry in rounds if LIAR in entry.get("excluded", {})]
    assert out == [2, 3]
    assert LIAR in rounds[-1]["counted"]


def test_off_sums_whatever_can_come_from_rows(tmp_path, without_it):
    agreed = terms(federation={"robust": "off"})
    run = Laboratory(tmp_path, (*HONEST, LIAR), lying(times(-1.0, "y")), agreed=agreed).run()
    assert run.blamed() == {}
    assert run.error() > 2.0 * without_it


def test_honest_sites_are_never_blamed(tmp_path):
    for seed in range(1, 4):
        run = Laboratory(tmp_path / str(seed), (*HONEST, LIAR), data=rows(seed)).run()
        assert run.blamed() == {}


def test_refused_has_a_reason_for_the_servers_own_log():
    assert str(Refused("inadmissible", "`U` has a negative eigenvalue")).startswith("no rows can")
