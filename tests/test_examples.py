"""The scripts in examples/ run, and print what they should: against the truth that they made up."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[1] / "examples"

pytestmark = pytest.mark.slow


def run(name: str) -> tuple[dict, str]:
    """The script's names, and what it printed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        names = runpy.run_path(str(FOLDER / name), run_name="__main__")
    return names, said.getvalue()


def test_there_are_no_others():
    here = [f"{name.removeprefix('test_')}.py" for name in globals() if name.startswith("test_")]
    assert {p.name for p in FOLDER.glob("*.py")} == set(here) - {"there_are_no_others.py"}


def test_sites_in_a_table():
    names, said = run("sites_in_a_table.py")
    shown = names["shown"]
    layers = shown["global"] + shown["deviation"] + shown["local"]
    np.testing.assert_allclose(layers, shown["load"], rtol=1e-9)
    hours = np.array([6.0, 12.0, 18.0])
    truth = 40 + 10 * np.sin(hours / 3) + 6 * np.cos(hours / 6)
    np.testing.assert_allclose(shown["load"], truth, atol=1.5)
    assert ((shown["from"] < truth) & (truth < shown["to"])).all()
    assert [line.split()[1] for line in said.splitlines()[1:]] == [
        f"{v:.1f}" for v in shown["load"]
    ]


def test_adopt_a_site():
    names, said = run("adopt_a_site.py")
    found = re.findall(r"known (\w+), error ([\d.]+), typical sd ([\d.]+)", said)
    (stranger, error, sd), (adopted, less, narrower) = found
    assert (stranger, adopted) == ("False", "True")
    assert float(less) < 0.4 * float(error)
    assert float(narrower) < 0.7 * float(sd)
    p = names["adopted"]
    assert np.mean(np.abs(p.mean - names["truth"]) < 2 * p.sd) > 0.9
    assert float(less) == pytest.approx(
        np.sqrt(np.mean((names["adopted"].mean - names["truth"]) ** 2)), abs=0.05
    )


def test_fill_gaps():
    names, said = run("fill_gaps.py")
    filled, outage = names["filled"], names["outage"]
    assert filled["imputed"].to_list() == outage.tolist()
    truth = names["truth"]["station 2"]
    assert np.isfinite(filled["reading"].to_numpy()).all()
    error = np.sqrt(np.mean((filled["reading"].to_numpy() - truth)[outage] ** 2))
    assert error < 2.0 < np.std(truth[outage])
    assert f"{outage.sum()} readings filled: error {error:.1f}" in said
    inside = (filled["from"].to_numpy() <= truth) & (truth <= filled["to"].to_numpy())
    assert inside[outage].mean() >= 0.8
