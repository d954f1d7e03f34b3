"""`pfedhgp simulate`: roles by share, and a table that says what the server made of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.errors import InputError
from pfedhgp.federation.envelope import Envelope
from pfedhgp.federation.flower.trial.outcome import outcome, table
from pfedhgp.federation.flower.trial.population import Behaviour, Population
from support.flower_processes import needs_flower

needs_flower()
pytestmark = pytest.mark.flower


def test_shares_of_sites_have_their_roles_and_the_seed_decides_whose():
    given = Population(200, dropouts=0.1, slow=0.05, liars=0.2, seed=3)
    roles = given.roles()
    assert [list(roles.values()).count(r) for r in ("dropout", "slow", "liar")] == [20, 10, 40]
    assert roles == replace(given, seed=3).roles() != replace(given, seed=4).roles()
    for wrong in ({"dropouts": 0.6, "slow": 0.6}, {"liars": -0.1}, {"attack": "unknown"}):
        with pytest.raises(InputError):
            replace(given, **wrong).check()


def test_what_each_role_does_with_an_answer():
    reply = Envelope("run", 3, "round", 2, "site", {"U": np.ones(3)})
    assert Behaviour("honest").changed(reply) is reply
    np.testing.assert_array_equal(Behaviour("liar").changed(reply).arrays["U"], 1000.0)
    np.testing.assert_array_equal(Behaviour("liar", "flipped").changed(reply).arrays["U"], -1.0)
    census = replace(reply, kind="census", round=0)
    assert Behaviour("liar").changed(census) is census
    gone = Behaviour("dropout", leaves=2)
    asked = [
        replace(reply, kind=k, round=r) for k, r in (("census", 0), ("round", 1), ("round", 2))
    ]
    assert [gone.is_gone(each) for each in asked] == [False, False, True]
    assert gone.is_gone(replace(reply, kind="deliver", round=1))
    assert (Behaviour("slow", delay=7.0).seconds(), gone.seconds()) == (7.0, 0.0)


def test_a_trial_in_memory_counts_who_should_be_counted(run, tmp_path):
    """Twelve sites: two leave, two are slow, three send NaN. Nobody else is missed, and time is virtual."""
    shares = ["--dropouts", "0.17", "--slow", "0.17", "--liars", "0.25", "--attack", "nan"]
    sizes = ["--sites", "12", "--rows", "32", "--inducing", "5", "--rounds", "4"]
    out = tmp_path / "TRIAL"
    result = run("simulate", *sizes, *shares, "--timeout", "100", "--out", out, "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["roles"] == {"honest": 5, "dropout": 2, "slow": 2, "liar": 3}
    assert json.loads((out / "simulation.json").read_text()) == found
    for each in found["by_exchange"]:
        training = each["kind"] in ("start", "round")
        assert each["missing"].get("not-finite", 0) == (3 if training else 0)
        assert each["liars_counted"] == (0 if training else 3)
        assert each["counted"] == 12 - sum(each["missing"].values())
        assert each["seconds"] >= 5.0  # a slow site takes half of --delay at least
    assert found["by_exchange"][-1]["missing"]["no-answer"] == 2
    assert found["without_model"] == 2
    waits = [e for e in found["by_exchange"] if e["seconds"] > 60.0]
    assert 1 <= len(waits) <= 2  # the whole --timeout, once for each that left
    assert all(e["missing"]["no-answer"] for e in waits)
    assert len(table(found).splitlines()) == 1 + found["exchanges"]
    again = run("simulate", *sizes, "--out", out)
    assert again.code == 2
    assert "is not empty" in again.err


def test_totals_are_those_of_the_log():
    entry = {"kind": "round", "round": 1, "seconds": 2.0, "bytes_up": 10, "bytes_down": 20}
    log = [
        {**entry, "exchange": 1, "counted": ["a", "b"], "missing": {"c": "no-answer"}},
        {**entry, "exchange": 2, "counted": ["a"], "missing": {"b": "stale", "c": "no-answer"}},
    ]
    found = outcome(log, {"a": "honest", "b": "liar", "c": "dropout"})
    assert (found["rounds"], found["bytes_up"], found["bytes_down"]) == (2, 20, 40)
    assert found["missing"] == {"no-answer": 2, "stale": 1}
    assert [each["liars_counted"] for each in found["by_exchange"]] == [1, 0]
