"""Fits with differential privacy: what is needed, what leaves a client, and that it helps."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest

from pfedhgp import RBF, FederatedGP, Matern12, Matern32
from pfedhgp.cli.main import main
from pfedhgp.errors import InputError
from pfedhgp.federation import private_fit
from pfedhgp.federation.private_fit import promise_of, public_basis, public_scaling
from pfedhgp.privacy.ledger import FILE, Ledger
from support.private_sites import GRID, made_up

PRIVATE = {
    "privacy": "local",
    "epsilon": 2.0,
    "domain": (0.0, 10.0),
    "output_bounds": (-3.0, 3.0),
    "kernel": RBF(lengthscale=2.0),
}


def sites(clients: int = 6, rows: int = 300, seed: int = 0):
    made = made_up(clients, rows, seed)
    data = {f"site {i}": (10 * X, Y) for i, (X, Y) in enumerate(zip(made.X, made.Y, strict=True))}
    return made, data


def test_it_learns_the_shared_function_and_predicts_better_than_it_would_without_the_others():
    made, data = sites(12, 400)
    model = FederatedGP(**PRIVATE).fit(data)
    layer = model.predict("site 0", 10 * GRID[:, None]).layers["global"]
    assert np.sqrt(np.mean((layer.mean[:, 0] - made.shared) ** 2)) < 0.5 * np.std(made.shared)
    together, alone, inside = [], [], []
    for i, own in enumerate(made.own[:4]):
        p = model.predict(f"site {i}", 10 * GRID[:, None])
        together.append(np.mean((p.mean[:, 0] - own) ** 2))
        inside.append(np.mean(np.abs(p.mean[:, 0] - own) < 1.96 * p.sd[:, 0]))
        one = FederatedGP(layers=("local",), domain=(0.0, 10.0))
        one.fit({"a": data[f"site {i}"]})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            alone.append(np.mean((one.predict("a", 10 * GRID[:, None]).mean[:, 0] - own) ** 2))
    assert np.mean(together) < 0.7 * np.mean(alone)
    assert np.mean(inside) > 0.85


def test_one_release_a_client_is_all_that_leaves(tmp_path):
    _, data = sites()
    model = FederatedGP(**PRIVATE).fit(data)
    assert [entry["kind"] for entry in model.messages_] == ["release"] * 6
    assert {entry["to"] for entry in model.messages_} == {"server"}
    M = len(model.model_.shared.block.inputs)
    assert model.messages_[0]["arrays"] == {"gram": [1, M * (M + 1) // 2], "linear": [1, M]}
    spent = model.model_.settings["privacy_spent"]
    assert spent["epsilon"] == 2.0
    model.save(tmp_path / "RUN")
    again = FederatedGP.load(tmp_path / "RUN")
    assert again.privacy == "local"
    a, b = (m.predict("site 2", [[3.0], [7.0]]) for m in (model, again))
    np.testing.assert_array_equal(a.mean, b.mean)
    with pytest.raises(InputError, match="grouping clients has no private form"):
        again.cluster(2)
    again.adopt("new", *data["site 1"])
    assert np.all(np.isfinite(again.predict("new", [[3.0]]).sd))


def test_with_a_ledger_the_same_fit_again_is_the_same_and_costs_nothing(tmp_path):
    _, data = sites(3)
    folder = str(tmp_path / "ledger")
    first, again = (FederatedGP(**PRIVATE, ledger=folder).fit(data) for _ in range(2))
    a, b = (np.asarray(m.model_.shared.mean) for m in (first, again))
    assert a.tobytes() == b.tobytes()
    homes = [Ledger(path.parent) for path in (tmp_path / "ledger").rglob(FILE)]
    assert [len(home.entries()) for home in homes] == [1, 1, 1]
    changed = {**data, "site 0": (data["site 0"][0], data["site 0"][1] + 0.1)}
    with pytest.raises(InputError, match="budget"):
        FederatedGP(**PRIVATE, ledger=folder).fit(changed)
    more = FederatedGP(**{**PRIVATE, "epsilon": 4.0}, ledger=folder).fit(changed)
    assert more.model_.settings["privacy_spent"]["epsilon"] == 4.0
    assert all(home.epsilon(1e-6) <= 4.0 + 2.1e-4 for home in homes)


def test_rows_enter_the_shared_function_by_the_release_alone(tmp_path, monkeypatch):
    """After the release the rows are replaced by others: the shared function stays the same to the bit."""
    monkeypatch.setattr(private_fit, "request_of", lambda parts: "a" * 64)
    folder = str(tmp_path)
    first, second = (
        FederatedGP(**PRIVATE, ledger=folder).fit(sites(3, seed=seed)[1]) for seed in (0, 9)
    )
    for name in ("mean", "covariance"):
        a, b = (np.asarray(getattr(m.model_.shared, name)) for m in (first, second))
        assert a.tobytes() == b.tobytes()
    a, b = (m.predict("site 0", [[2.0]]).mean for m in (first, second))
    assert not np.array_equal(a, b)  # own layers are fitted to the rows that are there now


@pytest.mark.slow
def test_several_outputs_two_inputs_and_missing_cells():
    rng = np.random.default_rng(0)
    data = {}
    for i in range(4):
        X = rng.uniform(size=(250, 2))
        f = np.sin(4 * X[:, 0]) + X[:, 1]
        Y = np.stack([f, 1 - f], 1) + 0.2 * rng.normal(size=(250, 2))
        Y[rng.uniform(size=Y.shape) < 0.2] = math.nan
        data[f"c{i}"] = (X, Y)
    model = FederatedGP(
        privacy="local",
        epsilon=4.0,
        domain=[(0, 1), (0, 1)],
        output_bounds=[(-2, 3), (-2, 3)],
        kernel=RBF(lengthscale=0.5),
    ).fit(data)
    X = rng.uniform(0.2, 0.8, size=(40, 2))
    truth = np.sin(4 * X[:, 0]) + X[:, 1]
    layer = model.predict("c1", X).layers["global"].mean
    assert np.corrcoef(layer[:, 0], truth)[0, 1] > 0.8
    assert np.corrcoef(layer[:, 1], 1 - truth)[0, 1] > 0.8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": None}, "epsilon"),
        ({"domain": None}, "domain"),
        ({"output_bounds": None}, "output_bounds"),
        ({"output_bounds": [(0, 1), (0, 1)]}, "2 ranges"),
        ({"client_loadings": True}, "client_loadings"),
        ({"inference": "mean-field"}, "inference"),
        ({"local": "state-space", "local_kernel": "matern32"}, "local"),
        ({"kernel": "matern32"}, "rbf"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"kernel": RBF(lengthscale=0.001)}, "basis functions"),
    ],
)
def test_what_a_private_fit_needs_is_said_in_one_line(change, words):
    _, data = sites(2, 20)
    with pytest.raises(InputError, match=words) as refused:
        FederatedGP(**{**PRIVATE, **change}).fit(data)
    assert "\n" not in str(refused.value)


def test_scales_and_basis_come_from_public_settings_alone():
    settings = FederatedGP(**PRIVATE)
    promise = promise_of(
        FederatedGP(**{**PRIVATE, "domain": [(0, 10)], "output_bounds": [(-3, 3)]}), 1, 1
    )
    scaling = public_scaling(promise)
    assert (scaling.lower, scaling.upper) == (0.0, 10.0)
    assert scaling.outputs(np.array([3.0])) == 2.0
    assert public_basis(settings.kernel, scaling).lengthscales == 0.2
    assert public_basis("rbf", scaling).lengthscales == 0.15


def test_the_command_line_fits_in_private_and_shows_the_ledger(tmp_path, capsys):
    _, data = sites(3, 120)
    lines = ["site,x,y"]
    for name, (X, Y) in data.items():
        lines += [f"{name},{x:.6f},{y:.6f}" for x, y in zip(X[:, 0], Y[:, 0], strict=True)]
    table = tmp_path / "rows.csv"
    table.write_text("\n".join(lines) + "\n")
    fit = ["fit", str(table), "--client", "site", "--input", "x", "--output", "y"]
    private = ["--privacy", "local", "--domain", "0..10", "--output-bounds=-3..3"]
    run = tmp_path / "RUN"
    assert main([*fit, *private, "--out", str(run)]) == 2
    assert "epsilon" in capsys.readouterr().err
    ledger = tmp_path / "ledger"
    done = [*fit, *private, "--epsilon", "3", "--ledger", str(ledger), "--out", str(run)]
    assert main(done) == 0
    page = (run / "report.html").read_text("utf-8")
    assert "one noisy release of its rows (differential privacy, ε = 3" in page
    assert "whoever runs the server can reconstruct" not in page
    capsys.readouterr()
    assert main(["ledger", str(ledger), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["ledgers"]) == 3
    assert all(3.0 <= each["epsilon"] <= 3.0 + 2.1e-4 for each in shown["ledgers"])
    assert main(["ledger", str(tmp_path)]) == 0
    assert "ε = 3" in capsys.readouterr().out
    assert main(["ledger", str(run / "clients")]) == 2
    assert "nothing was released" in capsys.readouterr().err


def rough_sites(clients: int, seed: int):
    """A smooth shared function and one that is faster than the basis, alike at all; days are missing."""
    rng = np.random.default_rng(seed)
    hours = np.linspace(0.0, 10.0, 400, endpoint=False)
    gaps = np.abs(hours[:, None] - hours)
    smooth = np.linalg.cholesky(np.exp(-0.5 * (gaps / 2.0) ** 2) + 1e-8 * np.eye(400))
    rough = np.linalg.cholesky(0.25 * np.exp(-gaps / 0.4) + 1e-8 * np.eye(400))
    shared = (smooth + rough) @ rng.normal(size=400)
    kept, held = {}, {}
    for i in range(clients):
        y = shared + 0.3 * (smooth @ rng.normal(size=400)) + 0.1 * rng.normal(size=400)
        out = np.isin(np.floor(2 * hours), rng.choice(20, size=4, replace=False))
        kept[f"s{i}"] = (hours[~out], y[~out])
        held[f"s{i}"] = (hours[out], y[out])
    return kept, held


def test_local_layers_do_not_swing_out_where_a_rough_series_has_no_rows():
    """What is faster than the public basis: a smooth local kernel is sure of it in gaps, and wrong."""
    found: dict[str | None, np.ndarray] = {}
    for local in ("rbf", None):
        gaps, sds = [], []
        for seed in range(2):
            kept, held = rough_sites(5, seed)
            settings = {**PRIVATE, "epsilon": 4.0, "kernel": RBF(lengthscale=1.5)}
            model = FederatedGP(**settings, local_kernel=local).fit(kept)
            for name, (t, y) in held.items():
                p = model.predict(name, t[:, None])
                gaps.append(y - p.mean)
                sds.append(p.sd)
        gap, sd = np.concatenate(gaps), np.concatenate(sds)
        found[local] = np.array([np.mean(gap**2), np.mean(np.abs(gap) < 1.96 * sd)])
    assert found[None][0] < 0.9 * found["rbf"][0]
    assert found[None][1] > found["rbf"][1] + 0.02
    assert found[None][1] > 0.88


def test_the_local_kernel_is_the_one_that_was_asked_for():
    _, data = sites(3, 60)
    assert isinstance(FederatedGP(**PRIVATE).fit(data).model_.local_kernel, Matern32)
    model = FederatedGP(**PRIVATE, local_kernel="matern12").fit(data)
    assert isinstance(model.model_.local_kernel, Matern12)
    with pytest.raises(InputError, match="give one `local_kernel`"):
        FederatedGP(**PRIVATE, local_kernel="auto").fit(data)
