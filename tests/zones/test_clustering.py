"""Zones on a made-up federation of two kinds of client, and the parts they are made of."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.cli.main import main
from pfedhgp.data.holdout import Holdout, ledger, split
from pfedhgp.data.readers import Observations
from pfedhgp.errors import InputError, PFedHGPWarning
from pfedhgp.zones import groups as zone_groups
from pfedhgp.zones import sketches as zone_sketches
from pfedhgp.zones.comparison import Comparison, SketchLog
from pfedhgp.zones.operators import operator, operator_distances
from pfedhgp.zones.sketches import OwnFunction, neighbours
from support.grouped import zones_of
from support.reference_zones import best_linear_guess, own_covariance, papers_operator

KIND = {"a": 0, "b": 1, "c": 0, "d": 1}


def made() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    t = np.linspace(0.0, 6.0, 30)
    waves = (np.sin(3 * t), np.cos(5 * t))
    return {
        name: (t[:, None], np.sin(t) + waves[kind] + 0.05 * rng.normal(size=30))
        for name, kind in KIND.items()
    }


def fit(data: dict) -> FederatedGP:
    return FederatedGP(inducing=8, local_inducing=10, rounds=2, averaging=False).fit(data)


@pytest.fixture(scope="module")
def model() -> FederatedGP:
    return fit(made())


def test_what_a_console_shows_is_the_groups():
    found = zones_of(["a", "b", "c"], [0, 1, 0])
    assert repr(found) == "Zones(3 clients in 2 groups: a, c; b)"


def fresh(model: FederatedGP) -> FederatedGP:
    """The same fit before anything was sent for zones."""
    again = FederatedGP(**model.get_params())
    again.model_ = replace(
        model.model_, messages=[e for e in model.messages_ if e["kind"] != "zones"]
    )
    return again


def test_two_kinds_are_found_and_told_apart_by_eigengap(model: FederatedGP) -> None:
    for method in zone_groups.METHODS:
        zones = model.cluster(2, method=method, grid=60, draws=3)
        assert zones.members() == [["a", "c"], ["b", "d"]]
        assert zones.stability == {"halves": 1.0, "bootstraps": 1.0}
    for choose in zone_groups.CHOICES:
        assert model.cluster(choose=choose, grid=60, draws=0).groups == 2


def test_labels_do_not_depend_on_the_clients_order(model: FederatedGP) -> None:
    turned = fit(dict(reversed(made().items())))
    one, two = model.cluster(2, grid=60, draws=0), turned.cluster(2, grid=60, draws=0)
    assert one.labels == two.labels
    np.testing.assert_allclose(one.distances, two.distances, rtol=1e-3, atol=1e-4)


def test_the_log_lists_the_sketches_and_nothing_else(model: FederatedGP) -> None:
    before = len(model.messages_)
    zones = model.cluster(2, grid=60, size=20, draws=5)
    added = model.messages_[before:]
    assert [entry["from"] for entry in added] == ["server", "a", "b", "c", "d"]
    assert added[1]["arrays"] == {"sketch": [20], "variance": [], "coverage": []}
    assert added[0]["public"]["seed"] == 0
    assert zones.numbers == 22


@pytest.mark.parametrize("size", [1, 3, 8, 40])
def test_the_guess_is_the_best_linear_one_by_dense_matrices(model: FederatedGP, size: int) -> None:
    fitted, (X, y) = model.model_, made()["b"]
    grid = zone_sketches.public_grid(fitted, 40)
    own = zone_sketches.own_function(fitted, "b", grid)
    omega = zone_sketches.projection(40, size, (0, 0))
    attack = zone_sketches.Attack.on(fitted, "b", grid, (X, y[:, None]))
    x, g = (fitted.scaling.inputs(v)[:, 0] for v in (X, grid))
    spread = float(np.asarray(fitted.scaling.spread).reshape(-1)[0])
    shared = model.predict("b", X).layers["global"].mean
    noise = float(np.asarray(fitted.clients["b"].block.noise.covariance(1))[0, 0])
    mean, left = best_linear_guess(
        own_covariance(fitted, "b", x, x),
        own_covariance(fitted, "b", g, x),
        noise * np.eye(len(x)),
        (y - shared) / spread,
        omega,
        zone_sketches.STEP,
    )
    np.testing.assert_allclose(own.mean[:, 0], mean, atol=1e-6)
    sent = zone_sketches.rounded(own.mean[:, 0] @ omega)
    np.testing.assert_allclose(attack.guess(omega, sent)[:, 0], shared + spread * left, atol=1e-5)
    assert attack.r2(omega, sent) == pytest.approx(
        1.0 - np.sum((y - shared - spread * left) ** 2) / np.sum((y - y.mean()) ** 2), abs=1e-6
    )


def test_larger_sketches_reproduce_more_and_a_whole_one_more_than_the_fit(
    model: FederatedGP,
) -> None:
    """The fit shrinks what the rows say; who knows by how much undoes that."""
    data = made()
    found = [
        fresh(model).cluster(2, grid=40, size=size, draws=0, data=data).r2
        for size in (2, 6, 12, 40)
    ]
    for name, (X, y) in data.items():
        values = [r2[name] for r2 in found]
        assert values == sorted(values)
        fit = 1.0 - np.mean((y - model.predict(name, X).mean) ** 2) / y.var()
        assert found[0][name] < fit - 0.05
        assert fit < found[-1][name] < 1.0


def test_a_whole_sketch_reproduces_all_of_the_fitted_function(model: FederatedGP) -> None:
    whole = fresh(model).cluster(2, grid=40, size=40, draws=0)
    part = fresh(model).cluster(2, grid=40, size=3, draws=0)
    assert whole.r2_of == "fitted function"
    assert min(whole.r2.values()) > 1.0 - 1e-6
    # The shared layer alone has .92 to .95, since clients have their own φ_i.
    assert all(part.r2[name] < whole.r2[name] - 0.04 for name in KIND)


def test_a_second_seed_is_warned_of_and_counts_in_r2(model: FederatedGP) -> None:
    twice = fresh(model)
    first = twice.cluster(2, grid=40, size=4, draws=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        less = twice.cluster(2, grid=40, size=3, draws=0)  # part of what was sent
    assert less.r2 == pytest.approx(first.r2, abs=1e-9)
    with pytest.warns(PFedHGPWarning, match="sketches with seed 0: two sketches reveal more"):
        second = twice.cluster(2, grid=40, size=4, seed=7, draws=0)
    assert second.earlier == (0,)
    alone = fresh(model).cluster(2, grid=40, size=4, seed=7, draws=0)
    assert alone.earlier == ()
    assert all(second.r2[name] > max(alone.r2[name], first.r2[name]) for name in KIND)


def test_rows_that_are_all_alike_have_no_r2(model: FederatedGP) -> None:
    rows = {name: (X[:1], y[:1]) if name == "a" else (X, y) for name, (X, y) in made().items()}
    found = model.cluster(2, grid=60, data=rows).r2
    assert set(found) == set(made()) - {"a"}
    assert np.isfinite(list(found.values())).all()


def test_a_whole_sketch_keeps_distances_up_to_rounding(model: FederatedGP) -> None:
    grid = zone_sketches.public_grid(model.model_, 40)
    own = [zone_sketches.own_function(model.model_, name, grid) for name in sorted(KIND)]
    found = fresh(model).cluster(2, grid=grid, size=40, draws=0)
    for i, one in enumerate(own):
        for j, two in enumerate(own):
            expected = (
                np.mean((one.mean - two.mean) ** 2) + one.variance.mean() + two.variance.mean()
            )
            if i == j:
                assert found.distances[i, j] == 0.0
                continue
            # each number is off by half a step at most: |√d̂² − √d²| ≤ step for the means
            apart = expected - one.variance.mean() - two.variance.mean()
            assert np.sqrt(found.between[i, j]) == pytest.approx(np.sqrt(apart), abs=1e-3)
            assert found.distances[i, j] - found.between[i, j] == pytest.approx(
                expected - apart, rel=1e-9
            )


def test_own_function_is_the_two_layers_of_a_prediction(model: FederatedGP) -> None:
    grid = np.linspace(0.0, 6.0, 9)[:, None]
    own = zone_sketches.own_function(model.model_, "b", grid)
    p = model.predict("b", grid)
    spread = np.asarray(model.model_.scaling.spread)
    together = p.layers["deviation"].mean + p.layers["local"].mean
    np.testing.assert_allclose((own.mean * spread)[:, 0], together, rtol=1e-8, atol=1e-10)
    assert np.all(own.variance > 0)
    assert np.all(own.variance <= own.prior + 1e-9)


def test_operators_and_their_distances_are_the_papers(model: FederatedGP) -> None:
    inputs = {name: X[: 30 - 4 * i] for i, (name, (X, _)) in enumerate(made().items())}
    expected = {name: papers_operator(model.model_, name, X) for name, X in inputs.items()}
    for name, X in inputs.items():
        np.testing.assert_allclose(
            operator(model.model_, name, X), expected[name], rtol=1e-6, atol=1e-9
        )
    apart = [[np.linalg.norm(A - B) ** 2 for B in expected.values()] for A in expected.values()]
    assert np.min(np.array(apart)[~np.eye(4, dtype=bool)]) > 1e-6
    np.testing.assert_allclose(operator_distances(model.model_, inputs), apart, rtol=1e-5)
    zones = model.cluster(2, distance="operator", data=made())
    assert zones.method == "spectral"
    assert model.cluster(2, distance="operator", method="average", data=made()).method == "average"


def test_operators_do_not_see_what_a_function_looks_like(model: FederatedGP) -> None:
    """The same times and parameters, other targets: functions differ as before, and ρ is nought."""
    alike = fresh(model)
    fitted = alike.model_
    block = fitted.clients["a"].block
    alike.model_ = replace(
        fitted,
        clients={name: replace(each, block=block) for name, each in fitted.clients.items()},
        client_jitter=dict.fromkeys(fitted.clients, fitted.jitter_of("a")),
    )
    by_function = alike.cluster(2, grid=40, draws=0)
    assert by_function.members() == [["a", "c"], ["b", "d"]]
    with pytest.warns(PFedHGPWarning, match="only 1 of 2 groups were found"):
        found = alike.cluster(2, method="agglomerative", distance="operator", data=made())
    assert np.all(found.distances == 0.0)


def test_two_clients_are_one_group_unless_a_number_is_given(model: FederatedGP) -> None:
    two = fresh(model)
    two.model_ = replace(two.model_, clients={n: two.model_.clients[n] for n in "ab"})
    with pytest.warns(PFedHGPWarning, match="cannot be chosen from the distance between two"):
        found = two.cluster(grid=60, draws=0)
    assert (found.groups, found.scores) == (1, {})
    assert two.cluster(2, grid=60, draws=0).members() == [["a"], ["b"]]


@pytest.mark.parametrize("sure_of_rows", [0.95, 0.3])
def test_sparse_clients_join_the_group_whose_function_they_share(sure_of_rows: float) -> None:
    """Where e was seen it is as b, as far as its rows say; elsewhere it is at its prior mean, nearer to a.

    With 0.3 its own posterior is nearer to a there, too: 0.3 b is compared with 0.3 of the others.
    """
    t = np.linspace(0.0, 6.0, 80)
    waves = (0.3 * np.sin(7 * t), 2.0 * np.cos(5 * t))
    sure, near = np.full((80, 1), 0.05), neighbours(t[:, None])
    own = {
        name: OwnFunction(waves[kind][:, None], sure, np.ones((80, 1)), near)
        for name, kind in KIND.items()
    }
    seen = np.zeros((80, 1))
    seen[::10] = sure_of_rows
    own["e"] = OwnFunction(seen * waves[1][:, None], 1.0 - seen, np.ones((80, 1)), near)
    names, log = tuple(own), SketchLog(tuple(own))
    whole = np.array([np.mean((own["e"].mean - own[name].mean) ** 2) for name in "ab"])
    assert whole[0] < whole[1]
    for seed in range(5):
        found = Comparison(own, names, size=30, seed=seed, grid="", log=log if seed == 0 else None)
        assert [names[i] for i in found.sparse] == ["e"]
        assert found.label(2, "agglomerative").tolist() == [0, 1, 0, 1, 1]
    sent = [entry for entry in log.entries if entry["from"] == "a"]
    under = [entry["public"].get("under") for entry in log.entries if entry["from"] == "server"]
    assert under == [None, "e"]
    assert [entry["arrays"]["sketch"] for entry in sent] == [[one.size] for one in found.sent]
    assert np.flatnonzero(own["e"].peaks).tolist() == list(range(0, 80, 10))
    assert found.sent[1].size == 8
    told = [entry["arrays"] for entry in log.entries if entry["from"] == "e"]
    assert told == [
        {"sketch": [30], "variance": [], "coverage": []},
        {"coverage": [80]},
        {"sketch": [8]},
    ]
    nothing = {**own, "e": replace(own["e"], variance=own["e"].prior)}
    assert Comparison(nothing, names, size=30, seed=0, grid="").sparse.size == 0
    # three groups and one client with many rows too few: all on equal terms, and no group is empty
    few = {name: own[name] for name in "abe"} | {"f": replace(own["e"], mean=3.0 - own["e"].mean)}
    equal = Comparison(few, tuple(few), size=30, seed=0, grid="", least=3)
    assert equal.sparse.size == 0
    assert set(equal.label(3, "agglomerative")) == {0, 1, 2}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"groups": 9}, "from 1 to 4"),
        ({"groups": 2, "method": "dbscan"}, "agglomerative"),
        ({"groups": 2, "distance": "rows"}, "function, operator"),
        ({"groups": 2, "size": 1000, "grid": 60}, "from 1 to 60"),
        ({"groups": 2, "distance": "operator"}, "data"),
        ({"choose": "elbow", "grid": 60}, "eigengap"),
        ({"groups": 2, "seed": -1}, "seed"),
        ({"groups": 2, "draws": -1}, "draws"),
        ({"groups": 2.5}, "groups"),
    ],
)
def test_bad_arguments_are_named(model: FederatedGP, settings: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        model.cluster(**settings)


def test_the_command_writes_groups_figures_and_a_map(
    model: FederatedGP, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh(model).save(tmp_path / "run")
    places = tmp_path / "places.csv"
    places.write_text(
        "client,latitude,longitude\n" + "".join(f"{n},40.{i},116.{i}\n" for i, n in enumerate(KIND))
    )
    command = ["cluster", str(tmp_path / "run"), "--groups", "2", "--places", str(places)]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "group 1: a, c" in said
    assert "R²" in said
    written = tmp_path / "run" / "zones"
    found = json.loads((written / "zones.json").read_text())
    assert found["members"] == [["a", "c"], ["b", "d"]]
    assert (written / "zones.html").read_text().count("<figure>") == 3  # tree, distances, map
    log = [json.loads(line) for line in (written / "messages.jsonl").read_text().splitlines()]
    assert log == found["messages"]
    assert [entry["from"] for entry in log] == ["server", *sorted(KIND)]
    assert main(command) == 2
    assert "--overwrite" in capsys.readouterr().err
    places.write_text("\ufeffclient,latitude,longitude\na,40,116\n", "utf-8")
    assert main([*command, "--overwrite"]) == 2
    told = capsys.readouterr().err
    assert "places.csv: no row for client 'b'" in told
    assert "comparing" not in told
    places.write_text("client,latitude,longitude\na,north,116\n")
    assert main([*command, "--overwrite"]) == 2
    assert "line 2" in capsys.readouterr().err
    places.write_text("name,lat,lon\na,40,116\n")
    assert main([*command, "--overwrite"]) == 2
    line = "line 1: no column 'client'; the header must have client, latitude, longitude, it has name, lat"
    assert line in capsys.readouterr().err
    assert json.loads((written / "zones.json").read_text()) == found
    assert FederatedGP.load(tmp_path / "run").clients_ == tuple(KIND)
    again = ["cluster", str(tmp_path / "run"), "--groups", "2", "--seed", "3"]
    assert main([*again, "--out", str(tmp_path / "other")]) == 0
    told = capsys.readouterr()
    assert "with seed 0: two sketches reveal more" in told.err
    assert "from this and earlier sketches" in told.out
    log = [json.loads(line) for line in (written / "messages.jsonl").read_text().splitlines()]
    assert [entry["public"]["seed"] for entry in log if entry["from"] == "server"] == [0, 3]
    assert main([*again[:4], "--distance", "operator", "--out", str(tmp_path / "third")]) == 2
    assert "give the rows with --data" in capsys.readouterr().err
    model.save(tmp_path / "run", overwrite=True)
    assert not written.exists()


def test_r2_is_of_the_rows_that_were_fitted_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--data has all rows, held-out ones too; shapes of the fit are those of the other tests."""
    rng = np.random.default_rng(5)
    t = np.arange(40.0)
    every = [
        Observations(name, t[:, None], np.sin(t + kind)[:, None] + 0.3 * rng.normal(size=(40, 1)))
        for name, kind in KIND.items()
    ]
    training, test = split(every, Holdout("random", 0.25, 3))
    rows = {each.name: (each.X, each.Y) for each in training}
    model = fit(rows)
    model.model_ = replace(
        model.model_,
        metrics={
            "holdout": Holdout("random", 0.25, 3).to_json(),
            "data": ledger(every, training, test),
        },
    )
    model.save(tmp_path / "run")
    columns = "client," + ",".join([*model.model_.input_names, *model.model_.output_names])
    lines = [f"{e.name},{x},{float(y)!r}" for e in every for x, y in zip(t, e.Y[:, 0], strict=True)]
    data = tmp_path / "data.csv"
    data.write_text("\n".join([columns, *lines]) + "\n")
    command = ["cluster", str(tmp_path / "run"), "--groups", "2", "--size", "5", "--data"]
    assert main([*command, str(data), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["r2_of"] == "rows"
    expected = fresh(model).cluster(2, size=5, data=rows).r2
    assert found["r2"] == pytest.approx(expected, abs=1e-9)
    whole = fresh(model).cluster(2, size=5, data={e.name: (e.X, e.Y) for e in every}).r2
    assert np.mean(list(whole.values())) < np.mean(list(expected.values())) - 0.02
    data.write_text("\n".join([columns, *lines[1:]]) + "\n")
    assert main([*command, str(data), "--overwrite"]) == 2
    assert "the rows of client 'a' are not those of the fit" in capsys.readouterr().err
