"""A rehearsal in small: lies are caught, the honest fit stays, and what is not caught is shown as such."""

from __future__ import annotations

import json

import pytest

from pfedhgp.attacks.rehearsal import rehearse
from pfedhgp.cli.main import main


@pytest.fixture(scope="module")
def outcomes():
    attacks = ("-5 h", "J negative", "plausible lie")
    found = rehearse(attacks=attacks, shares=(0.2,), sites=10, rows=30, rounds=4, seed=3)
    return {each.attack: each for each in found}


def test_lies_are_caught_and_cost_little(outcomes):
    for attack in ("-5 h", "J negative"):
        assert outcomes[attack].caught == 1.0
        assert outcomes[attack].honest_excluded == 0.0
        assert outcomes[attack].ratio <= 1.3


def test_the_plausible_lie_is_not_caught(outcomes):
    assert outcomes["plausible lie"].caught == 0.0


def test_the_command(capsys):
    options = [
        "--attack",
        "-5 h",
        "--share",
        "0.2",
        "--sites",
        "5",
        "--rows",
        "10",
        "--rounds",
        "1",
    ]
    assert main(["rehearse", *options, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["outcomes"]
    assert found["attack"] == "-5 h"
    assert main(["rehearse", "--attack", "unknown"]) == 2
    assert "--attack unknown: known are" in capsys.readouterr().err
