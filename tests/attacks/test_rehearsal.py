"""A rehearsal in small: lies are caught, the honest fit stays, and what is not caught is shown as such."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.attacks.rehearsal import Outcome, over_towns, rehearse
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


def test_towns_are_pooled_by_squared_errors():
    one = Outcome("-5 h", 0.1, 1.0, 0.0, rmse=3.0, ratio=3.0, coverage=0.9, honest_coverage=0.9)
    two = replace(one, caught=0.0, rmse=4.0, ratio=2.0, coverage=0.7)
    (found,) = over_towns([one, two])
    assert found.rmse == pytest.approx(np.sqrt(12.5))
    assert found.ratio == pytest.approx(np.sqrt(25.0 / 5.0))
    assert (found.caught, found.coverage) == (0.5, pytest.approx(0.8))
    assert over_towns([one, replace(two, share=0.2)]) == [one, replace(two, share=0.2)]


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
        "--seeds",
        "2",
    ]
    level = logging.getLogger("pfedhgp").level
    assert main(["rehearse", *options, "--json"]) == 0
    assert logging.getLogger("pfedhgp").level == level  # of other commands and tests of the process
    (found,) = json.loads(capsys.readouterr().out)["outcomes"]
    assert found["attack"] == "-5 h"
    assert main(["rehearse", "--attack", "unknown"]) == 2
    assert "--attack unknown: known are" in capsys.readouterr().err


def test_the_command_with_ones_own_table(tmp_path, capsys):
    """Six sites of one function far from 0: a scaled −5 h is caught, and costs less than without the test."""
    lines = ["site,x,y"]
    for i in range(6):
        rng = np.random.default_rng([9, i])
        x = np.sort(rng.uniform(0.0, 30.0, 40))
        y = 100.0 + 5.0 * np.sin(0.4 * x) + np.cos(x + i) + 0.5 * rng.normal(size=40)
        lines += [f"s{i},{a:.6f},{b:.6f}" for a, b in zip(x, y, strict=True)]
    table = tmp_path / "own.csv"
    table.write_text("\n".join(lines) + "\n")
    columns = ["--client", "site", "--input", "x", "--output", "y"]
    few = ["--attack", "-5 h", "--share", "0.2", "--rounds", "3", "--json"]
    found = []
    for robust in ("test", "off"):
        assert main(["rehearse", str(table), *columns, *few, "--robust", robust]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["sites"] == 6
        found += told["outcomes"]
    assert (found[0]["caught"], found[0]["honest_excluded"]) == (1.0, 0.0)
    assert found[0]["rmse"] < 1.0 < found[1]["rmse"]  # y has a standard deviation of about 3.6
    assert main(["rehearse", str(table), "--client", "site"]) == 2
    assert "DATA needs --input and --output" in capsys.readouterr().err
    assert main(["rehearse", "--client", "site"]) == 2
    assert "need DATA" in capsys.readouterr().err
