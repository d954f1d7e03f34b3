"""Rows that look wrong: calibrated where nothing is wrong, found where something is."""

from __future__ import annotations

import json
import warnings
from copy import deepcopy

import numpy as np
import polars as pl
import pytest

from pfedhgp import FederatedGP
from pfedhgp.errors import PFedHGPWarning
from pfedhgp.living import watching
from pfedhgp.living.anomalies import Anomalies

STEP = 0.05


@pytest.fixture(scope="module")
def model() -> FederatedGP:
    rng, x = np.random.default_rng(0), np.arange(0.0, 8.0, STEP)
    data = {f"site {i}": (x, np.sin(x) + 0.2 * i + 0.1 * rng.normal(size=len(x))) for i in range(3)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FederatedGP(rounds=4, inducing=12, local_inducing=12, domain=[(0.0, 8.0)]).fit(data)


@pytest.fixture(scope="module")
def fine(model) -> tuple[np.ndarray, np.ndarray]:
    """Rows that the model draws itself, between those of the fit: (n, 1) and (draws, n, 1)."""
    x = np.arange(0.5 * STEP, 4.0, STEP)[:, None]
    return x, model.predict("site 0", x).sample(60, seed=3)


def test_rows_that_are_fine_are_flagged_at_most_as_often_as_was_said(model, fine):
    x, draws = fine
    found = [model.anomalies("site 0", (x, y)) for y in draws[:40]]
    row = np.concatenate([each.row for each in found])
    assert np.mean(row < 0.05) == pytest.approx(0.05, abs=0.015)
    assert np.mean(np.concatenate([each.flagged(0.05) for each in found])) < 0.05
    assert np.mean(np.concatenate([each.stretch < 0.05 for each in found])) < 0.05


@pytest.mark.parametrize("fault", ["spike", "shift", "drift", "stuck"])
def test_faults_are_found_where_they_are(model, fine, fault):
    x, draws = fine
    hit = 0
    for y in draws[:5]:
        wrong, part = np.array(y), slice(40, 41 if fault == "spike" else 60)
        if fault == "spike":
            wrong[part] += 0.8
        elif fault == "shift":
            wrong[part] += 0.3
        elif fault == "drift":
            wrong[part] += np.linspace(0.0, 0.6, 20)
        else:
            wrong[part] = wrong[40]
        found = model.anomalies("site 0", (x, wrong))
        quiet = not found.flagged()[:16].any()  # no stretch reaches from there to the fault
        hit += found.flagged()[part].any() and quiet
        if fault == "spike":
            assert found.row[40] < 1e-3
    assert hit >= 4


def test_beside_rows_that_are_fine_heavy_tails_give_no_more_alarms(model, fine):
    x, draws = fine
    heavy = np.random.default_rng(4).standard_t(2, size=draws.shape) * 0.1
    wide = [draws[k] + heavy[k] for k in range(40)]
    plain = [model.anomalies("site 0", (x, y)).row < 0.05 for y in wide[:20]]
    assert np.mean(plain) > 0.08
    known = Anomalies(
        *(np.concatenate([getattr(model.anomalies("site 0", (x, y)), part) for y in wide[20:]])
          for part in ("row", "stretch", "kind"))
    )  # fmt: skip
    ranked = [model.anomalies("site 0", (x, y)).among(known) for y in wide[:20]]
    row, stretch = (
        np.concatenate([getattr(each, part) for each in ranked]) for part in ("row", "stretch")
    )
    assert np.mean(row < 0.05) == pytest.approx(0.05, abs=0.025)
    assert np.mean(stretch < 0.05) < 0.075  # rows of one stretch are ties: fewer, not more
    once = model.anomalies("site 0", (x, wide[0]), fine=(x, wide[1]))
    assert once.row.min() >= 1.0 / 81.0


def test_order_and_missing_cells_do_not_matter(model, fine):
    x, draws = fine
    y = np.array(draws[0])
    y[[3, 10]] = np.nan
    found = model.anomalies("site 0", (x, y))
    assert np.isnan(found.row[[3, 10]]).all()
    order = np.random.default_rng(1).permutation(len(x))
    again = model.anomalies("site 0", (x[order], y[order]))
    np.testing.assert_allclose(again.row, found.row[order], rtol=1e-9)
    np.testing.assert_array_equal(again.kind, found.kind[order])
    below = np.sum(2 * np.fmin(found.row, found.stretch) < 0.01)
    assert repr(found) == f"Anomalies({len(x)} rows, {below} with a chance below 1%)"


def test_rows_that_the_model_has_and_clients_that_it_has_not_are_told(model, fine):
    x, draws = fine
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.anomalies("site 0", (x, draws[0]))
    now = deepcopy(model).update({"site 0": (x[:5], draws[0][:5])})
    with pytest.warns(
        PFedHGPWarning, match="'site 0': 5 of 80 rows are in the model already"
    ) as told:
        now.anomalies("site 0", (x, draws[0]))
    assert told[0].filename == __file__
    with pytest.warns(PFedHGPWarning, match=r"no client 'new' in the model: .* by the population"):
        model.anomalies("new", (x, draws[0]))


def test_a_growing_file_is_read_line_by_line(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_bytes(b"x,y\n1,2\n3,")
    steps = iter([b"x,y\n1,2\n3,4\n5,6\n", b"x,y\n7,8\n"])
    monkeypatch.setattr(watching.time, "sleep", lambda _: path.write_bytes(next(steps)))
    found = watching.batches(path, once=False)
    assert next(found) == watching.Batch(b"x,y\n", (b"1,2\n",), first_line=2, rows_before=0)
    second = next(found)
    assert second == watching.Batch(b"x,y\n", (b"3,4\n", b"5,6\n"), first_line=3, rows_before=1)
    assert second.content == b"x,y\n\n3,4\n5,6\n"  # each line has its number
    assert next(found).content == b"x,y\n7,8\n"  # replaced by a shorter file


def test_the_command(model, fine, tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model.save("RUN")
    x, draws = fine
    y = np.array(draws[0])
    y[30] += 2.0
    pl.DataFrame({"client": ["site 0"] * len(x), "x": x[:, 0], "y": y}).write_csv("new.csv")
    done = run("watch", "RUN", "new.csv", "--once", "--json", "--level", "0.0001")
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert str(x[30, 0])[:5] in [each["x"][:5] for each in lines if each["what"] == "row"]
    assert "far from what was expected" in run("watch", "RUN", "new.csv", "--once").out
    assert "no such file" in run("watch", "RUN", "none.csv", "--once").complaint


@pytest.fixture(scope="module")
def slow_waves() -> FederatedGP:
    """Rows in steps of 0.6, in which the function moves much further than the noise."""
    rng, x = np.random.default_rng(2), np.arange(0.0, 60.0, 0.6)
    data = {f"site {i}": (x, np.sin(x) + 0.02 * rng.normal(size=len(x))) for i in range(2)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FederatedGP(kernel="rbf(1.5)", rounds=4, inducing=60, local_inducing=20)
        return model.fit(data)


def test_rows_closer_together_than_those_of_the_fit_do_not_look_stuck(slow_waves):
    assert slow_waves.model_.sums["site 0"].tails is not None
    rng, x = np.random.default_rng(3), np.arange(20.0, 40.0, 0.1) + 0.03
    found = slow_waves.anomalies("site 0", (x, np.sin(x) + 0.02 * rng.normal(size=len(x))))
    assert not (found.kind[found.flagged(0.05)] == "stuck").any()
    assert found.flagged().mean() <= 0.02


def test_rows_in_the_steps_of_the_fit_look_stuck_if_they_are(slow_waves):
    x = np.arange(60.6, 72.6, 0.6)
    found = slow_waves.anomalies("site 0", (x, np.full(len(x), np.sin(60.6))))
    assert (found.kind[found.flagged()] == "stuck").any()
