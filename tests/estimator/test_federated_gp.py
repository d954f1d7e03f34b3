"""`FederatedGP` as a user meets it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings

import jax
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from threadpoolctl import threadpool_info

from pfedhgp import RBF, FederatedGP, Matern32, Periodic
from pfedhgp.base.arrays_of import namespace
from pfedhgp.errors import (
    BudgetWarning,
    ExtrapolationWarning,
    InputError,
    NotFittedError,
    PFedHGPWarning,
)


def table(seed: int = 0, sites: int = 4, rows: int = 25) -> pd.DataFrame:
    """Sites that share a wave, each with an offset wave of its own, two outputs, a gap in one."""
    rng = np.random.default_rng(seed)
    parts = []
    for i in range(sites):
        t = np.sort(rng.uniform(0.0, 10.0, rows))
        common, own = np.sin(t), 0.4 * np.sin(0.6 * t + i)
        noise = 0.05 * rng.normal(size=(2, rows))
        part = pd.DataFrame({"site": f"s{i}", "t": t, "a": common + own + noise[0]})
        part["b"] = 2.0 * common - own + noise[1]
        parts.append(part)
    whole = pd.concat(parts, ignore_index=True)
    whole.loc[3:6, "b"] = np.nan
    return whole


@pytest.fixture(scope="module")
def scalar() -> FederatedGP:
    return FederatedGP(rounds=5).fit(table(), client="site", inputs="t", outputs="a")


@pytest.fixture(scope="module")
def settled() -> float:
    """The bound of `scalar` where it has settled."""
    model = FederatedGP(rounds=9, averaging=False)
    return model.fit(table(), client="site", inputs="t", outputs="a").bound_


@pytest.fixture(scope="module")
def pair() -> FederatedGP:
    return FederatedGP(rounds=5).fit(table(), client="site", inputs="t", outputs=["a", "b"])


def test_the_fit_predicts_what_it_has_not_seen(scalar):
    grid = np.linspace(0.5, 9.5, 40)
    truth = np.sin(grid) + 0.4 * np.sin(0.6 * grid + 2)
    p = scalar.predict("s2", grid)
    assert np.sqrt(np.mean((p.mean - truth) ** 2)) < 0.08
    lower, upper = p.interval(0.95)
    assert np.mean((lower < truth) & (truth < upper)) > 0.85


def test_missing_cells_are_filled_from_the_other_output(pair):
    whole = table()
    gap = whole.loc[3:6]
    truth = 2.0 * np.sin(gap.t) - 0.4 * np.sin(0.6 * gap.t)
    p = pair.predict("s0", gap[["t"]])
    assert np.max(np.abs(p.mean[:, 1] - truth)) < 0.35
    assert np.all(np.abs(p.mean[:, 1] - truth) < 4.0 * p.sd[:, 1])


def test_layers_add_up_to_the_mean(pair):
    p = pair.predict("s1", np.linspace(0, 10, 7))
    total = sum(layer.mean for layer in p.layers.values())
    np.testing.assert_allclose(total, p.mean, rtol=0, atol=1e-10)


def test_pandas_polars_and_arrays_give_the_same_model(scalar):
    whole = table()
    grid = np.linspace(0, 10, 9)
    expected = scalar.predict("s1", grid).mean
    by_polars = FederatedGP(rounds=5).fit(
        pl.DataFrame({name: whole[name].to_list() for name in whole}),
        client="site",
        inputs=["t"],
        outputs=["a"],
    )
    np.testing.assert_allclose(by_polars.predict("s1", grid).mean[:, 0], expected, rtol=1e-8)
    arrays = {name: (part.t.to_numpy(), part.a.to_numpy()) for name, part in whole.groupby("site")}
    by_arrays = FederatedGP(rounds=5).fit(arrays)
    np.testing.assert_allclose(by_arrays.predict("s1", grid).mean, expected, rtol=1e-8)
    as_table = by_arrays.predict("s1", pl.DataFrame({"x": grid}))
    np.testing.assert_array_equal(as_table.mean, by_arrays.predict("s1", grid).mean)


def same_answer(one: FederatedGP, other: FederatedGP) -> None:
    """Searches drift apart from the last bit on, so what they reached is compared: the bound, and
    predictions on the scale of their uncertainty. (Equal steps from equal values: test_clients_padding.py.)
    """
    assert one.bound_ == pytest.approx(other.bound_, rel=0.02)
    grid = np.linspace(0, 10, 9)
    for name in one.clients_:
        p, q = one.predict(name, grid), other.predict(name, grid)
        assert np.max(np.abs(p.mean - q.mean) / q.sd) < 0.2
        np.testing.assert_allclose(p.sd, q.sd, rtol=0.1)


def test_invariance_one_at_a_time_equals_batched(scalar):
    names = {"client": "site", "inputs": "t", "outputs": "a"}
    same_answer(FederatedGP(rounds=5, batch=False).fit(table(), **names), scalar)


def test_invariance_the_order_of_clients_does_not_matter(scalar):
    whole = table()
    turned = pd.concat([part for _, part in reversed(list(whole.groupby("site")))])
    other = FederatedGP(rounds=5).fit(turned, client="site", inputs="t", outputs="a")
    same_answer(other, scalar)


class Wave(RBF):
    """A user's kernel: JAX alone knows its gradient, so its clients' steps are compiled."""

    def of_squared(self, squared):
        return namespace(squared).exp(-0.7 * squared)


@pytest.mark.slow
def test_a_whole_fit_compiles_the_clients_step_once(compilations):
    """Rounds, the search before averaging, and whatever else calls it: equal shapes and equal types."""
    model = FederatedGP(kernel=Wave(), rounds=3, inducing=7, local_inducing=9, tolerance=0.0)
    model.fit(table(rows=13), client="site", inputs="t", outputs="a")
    assert compilations.count("jit(batched_step)") == 1


COMPILATIONS = """
import jax, numpy as np
from pfedhgp import FederatedGP

compiled, events = [], "/jax/core/compile/backend_compile_duration"
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: compiled.append(event) if event == events else None
)

def federation(*sizes, outputs):
    rng = np.random.default_rng(len(sizes))
    data = {}
    for i, n in enumerate(sizes):
        x = np.sort(rng.uniform(0.0, 10.0, n))
        Y = np.sin(x[:, None] + np.arange(outputs) + 0.3 * i) + 0.1 * rng.normal(size=(n, outputs))
        data[f"site {i}"] = (x, Y)
    return data

for outputs in (1, 2):
    for sizes in ((15, 25, 40, 40, 50, 60), (14, 27, 38, 41, 47, 64)):
        data = federation(*sizes, outputs=outputs)
        model = FederatedGP(rounds=2).fit(data)
        model.predict("site 1", np.linspace(0.0, 10.0, 30))
        model.adopt("another", *data["site 0"])
        print(len(compiled))
"""


def test_a_fit_of_ragged_clients_compiles_nothing():
    """In a process of its own: others have compiled things that would not be counted again here."""
    done = subprocess.run([sys.executable, "-c", COMPILATIONS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0"] * 4


def test_the_same_seed_gives_the_same_numbers(scalar):
    again = FederatedGP(rounds=5).fit(table(), client="site", inputs="t", outputs="a")
    assert again.bound_ == scalar.bound_


def test_clients_of_unequal_size_down_to_one_row():
    whole = table()
    cut = pd.concat([whole[whole.site != "s3"], whole[whole.site == "s3"].head(1)])
    few = {"averaging": False, "rounds": 4, "inducing": 8, "local_inducing": 8}
    with pytest.warns(BudgetWarning, match="'s3' has 1 distinct input"):
        model = FederatedGP(**few).fit(cut, client="site", inputs="t", outputs="a")
    p = model.predict("s3", [[5.0]])
    crowd = model.predict("s1", [[5.0]])
    assert np.isfinite(p.mean).all()
    assert p.sd[0] > crowd.sd[0]


def test_an_unknown_client_gets_the_population_and_a_warning(scalar):
    with pytest.warns(PFedHGPWarning, match="population"):
        p = scalar.predict("nobody", [[5.0]])
    assert not p.known
    np.testing.assert_allclose(p.mean, p.layers["global"].mean)
    assert p.sd[0] > scalar.predict("s0", [[5.0]]).sd[0]


def test_far_outside_the_data_warns(scalar):
    with pytest.warns(ExtrapolationWarning, match="1 of 2 rows"):
        scalar.predict("s0", [[5.0], [25.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scalar.predict("s0", [[0.0], [10.0]])


def test_adopt_fits_a_new_client_and_leaves_the_others_alone(scalar):
    rng = np.random.default_rng(9)
    t = np.sort(rng.uniform(0, 10, 12))
    grid = np.linspace(1, 9, 15)
    before = scalar.predict("s0", grid).mean
    scalar.adopt("late", t, np.sin(t) + 0.4 * np.sin(0.6 * t + 5) + 0.05 * rng.normal(size=12))
    truth = np.sin(grid) + 0.4 * np.sin(0.6 * grid + 5)
    p = scalar.predict("late", grid)
    assert np.sqrt(np.mean((p.mean - truth) ** 2)) < 0.12
    np.testing.assert_array_equal(scalar.predict("s0", grid).mean, before)
    with pytest.raises(
        InputError, match="already: give its new rows to `update`, or call `forget` first"
    ):
        scalar.adopt("late", t, t)


def test_a_saved_model_predicts_the_same_and_can_adopt(tmp_path, pair):
    pair.save(tmp_path / "run")
    loaded = FederatedGP.load(tmp_path / "run")
    grid = np.linspace(0, 10, 6)
    np.testing.assert_array_equal(
        loaded.predict("s1", grid).covariance("joint"), pair.predict("s1", grid).covariance("joint")
    )
    assert loaded.clients_ == pair.clients_
    assert loaded.bound_ == pair.bound_
    t = np.linspace(0, 10, 8)
    loaded.adopt("later", t, np.stack([np.sin(t), 2 * np.sin(t)], axis=1))
    assert "later" in loaded.clients_
    assert "later" not in pair.clients_


def test_sklearn_clone_get_and_set_params():
    model = FederatedGP(
        averaging=False, kernel=RBF(2.0) + Periodic(period=3.0), rounds=3, layers=("global",)
    )
    twin = clone(model)
    assert twin is not model
    assert twin.get_params()["rounds"] == 3
    assert twin.set_params(rounds=7).rounds == 7
    with pytest.raises(InputError, match="no parameter `depth`"):
        twin.set_params(depth=2)
    with pytest.raises(NotFittedError, match="fit"):
        twin.predict("a", [[0.0]])
    assert "rounds=3" in repr(model)


ABLATIONS = [("global", "local"), ("global", "deviation"), ("global",), ("local",)]


@pytest.mark.parametrize("layers", ABLATIONS, ids="+".join)
@pytest.mark.parametrize("outputs", ["a", ["a", "b"]], ids=["scalar", "pair"])
def test_ablations_are_specs(layers, outputs, settled, pair):
    few = {"averaging": False, "rounds": 3, "inducing": 8, "local_inducing": 8}
    names = {"client": "site", "inputs": "t", "outputs": outputs}
    model = FederatedGP(layers=layers, **few).fit(table(), **names)
    p = model.predict("s1", [[5.0]])
    for name, layer in p.layers.items():
        if name not in layers:
            assert not layer.sd.any()
    assert np.isfinite(p.sd).all()
    assert model.bound_ < (settled if outputs == "a" else pair.bound_)


def test_two_inputs_full_noise_and_other_kernels():
    rng = np.random.default_rng(1)
    data = {}
    for i in range(3):
        X = rng.uniform(0, 4, (40, 2))
        f = np.sin(X[:, 0]) * np.cos(X[:, 1]) + 0.2 * i
        shared = 0.1 * rng.normal(size=40)
        data[f"c{i}"] = (X, np.stack([f + shared, -f + shared], axis=1))
    model = FederatedGP(  # without a local layer, which could take the noise that outputs share
        kernel=Matern32() * RBF(),
        layers=("global", "deviation"),
        averaging=False,
        noise="full",
        rounds=5,
        inducing=24,
    ).fit(data, inputs=["u", "v"])
    X = rng.uniform(0.5, 3.5, (30, 2))
    truth = np.sin(X[:, 0]) * np.cos(X[:, 1]) + 0.2
    assert np.sqrt(np.mean((model.predict("c1", X).mean[:, 0] - truth) ** 2)) < 0.2
    noise = model.predict("c1", X).covariance() - model.predict("c1", X).covariance(noise=False)
    assert noise[0, 0, 1] > 0.2 * np.sqrt(noise[0, 0, 0] * noise[0, 1, 1])


def test_replicates_equal_their_rows_one_by_one():
    """Cycles on one grid, given as cycles or as plain rows, are the same model with the same bound."""
    rng = np.random.default_rng(3)
    grid = np.linspace(0, 1, 12)
    cycles = {
        f"k{i}": np.sin(6 * grid + i)[None, None] + 0.1 * rng.normal(size=(5, 1, 12))
        for i in range(2)
    }
    settings = {
        "averaging": False,
        "rounds": 4,
        "inducing": 10,
        "local_inducing": 8,
        "domain": [(0.0, 1.0)],
    }
    as_cycles = FederatedGP(**settings).fit({k: (grid, c) for k, c in cycles.items()})
    rows = {k: (np.tile(grid, 5), c[:, 0].reshape(-1)) for k, c in cycles.items()}
    frame = pd.concat(
        [
            pd.DataFrame({"k": k, "x": x, "y": y, "cycle": np.repeat(np.arange(5), 12)})
            for k, (x, y) in rows.items()
        ]
    )
    by_table = FederatedGP(**settings).fit(
        frame, client="k", inputs="x", outputs="y", cycle="cycle"
    )
    assert by_table.bound_ == pytest.approx(as_cycles.bound_, abs=1e-6)


def test_budgets_that_are_given_are_honoured_and_shrink_to_the_rows_with_one_warning():
    whole = table()
    model = FederatedGP(averaging=False, rounds=1, inducing=9, local_inducing=7).fit(
        whole, client="site", inputs="t", outputs="a"
    )
    assert model.model_.shared.block.inputs.shape == (9, 1)
    assert model.model_.clients["s0"].block.inputs.shape == (7, 1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", BudgetWarning)
        shrunk = FederatedGP(averaging=False, rounds=1, inducing=30, local_inducing=60).fit(
            table(sites=2, rows=10), client="site", inputs="t", outputs="a"
        )
    assert len(shrunk.model_.shared.block.inputs) == 20
    assert sorted(str(w.message) for w in said if w.category is BudgetWarning) == [
        "20 rows in all: 20 global inducing inputs instead of 30",
        "client 's0' has 10 distinct inputs: 10 local inducing inputs instead of 60",
        "client 's1' has 10 distinct inputs: 10 local inducing inputs instead of 60",
    ]


def test_callbacks_see_rounds_and_may_stop(caplog):
    seen = []

    def watch(record):
        seen.append(record["round"])
        return record["round"] == 2

    with caplog.at_level(logging.INFO, logger="pfedhgp"):
        model = FederatedGP(averaging=False, rounds=9, callbacks=[watch]).fit(
            table(), client="site", inputs="t", outputs="a"
        )
    assert seen == [0, 1, 2, 3]
    assert len(model.history_) == 4
    assert any("round 3: bound" in text for text in caplog.messages)


def test_restarts_keep_the_best_bound():
    few = {"averaging": False, "rounds": 2, "restarts": 3, "inducing": 8, "local_inducing": 6}
    model = FederatedGP(**few).fit(table(sites=2), client="site", inputs="t", outputs="a")
    ends = {}
    for record in model.history_:
        ends[record["attempt"]] = record["bound"]
    assert len(ends) == 3
    assert model.bound_ == max(ends.values())


BAD = [
    ({"kernel": "cubic"}, "`kernel` 'cubic': 'cubic' is not a kernel"),
    ({"layers": ("global", "lokal")}, "`layers` must be"),
    ({"layers": ("deviation", "local")}, "global layer, which is missing"),
    ({"noise": "pink"}, "`noise` must be"),
    ({"latents": 0}, "`latents` must be"),
    ({"inducing": -3}, "`inducing` must be"),
    ({"local_inducing": "many"}, "`local_inducing` must be"),
    ({"inference": "mcmc"}, "`inference` must be"),
    ({"rounds": 0}, "`rounds` must be"),
    ({"restarts": 0}, "`restarts` must be"),
    ({"device": "tpu9"}, "`device` must be"),
    ({"domain": [(3.0, 1.0)]}, "lower < upper"),
    ({"domain": [(4.0, 6.0)]}, "`domain`: client .* outside it"),
    ({"inference": "mean-field", "restarts": 2}, "needs a bound"),
    ({"kernel": RBF(dims=(2,))}, "uses input 2, but there is only input 0"),
    ({"kernel": RBF([1.0, 2.0])}, r"lengthscale must be one number, it has shape \(2,\)"),
    ({"domain": [(0.0, 9.0), (0.0, 9.0)]}, r"one pair \(lower, upper\), got 2"),
]


@pytest.mark.parametrize(("settings", "words"), BAD, ids=[words for _, words in BAD])
def test_wrong_arguments_are_named(settings, words):
    with pytest.raises(InputError, match=words):
        FederatedGP(**settings).fit(table(), client="site", inputs="t", outputs="a")


X5, Y5 = np.arange(5.0), np.ones(5)
WRONG = [
    ({}, {}, "no clients"),
    ({"a": X5}, {}, "expected a pair"),
    ({"a": (X5, Y5[:4])}, {}, "5 rows of inputs but 4"),
    ({"a": ([0.0, np.nan], [1.0, 2.0])}, {}, "NaN value in row 1"),
    ({"a": ([0.0, 1.0], [1.0, np.inf])}, {}, "infinite value in row 1"),
    ({"a": (["p", "q"], [1.0, 2.0])}, {}, "must be numbers"),
    ({"a": (X5, Y5 * np.nan)}, {}, "no client has an observed output"),
    ({"a": ([1.0], [2.0])}, {}, "one row in all"),
    ({"a": (X5, Y5), "b": (np.ones((3, 2)), Y5[:3])}, {}, "'b' has 2 inputs"),
    (pd.DataFrame({"s": ["a"], "x": [1.0]}), {}, "needs `client=`"),
    (
        pd.DataFrame({"s": ["a"], "x": [1.0], "y": [1.0]}),
        {"client": "s", "inputs": "z", "outputs": "y"},
        "no column 'z'; the table has s, x, y",
    ),
    (
        pd.DataFrame({"s": ["a"], "x": ["1"], "y": [1.0]}),
        {"client": "s", "inputs": "x", "outputs": "y"},
        "column 'x' must be numbers",
    ),
    (
        pd.DataFrame({"s": ["a", None], "x": [1.0, 2.0], "y": [1.0, 2.0]}),
        {"client": "s", "inputs": "x", "outputs": "y"},
        "no client's name in row 1",
    ),
    ({1: (X5, Y5), "1": (X5, Y5)}, {}, "two clients are called '1'"),
    (
        {"a": (np.array(["2024-01-01", "NaT"], "datetime64[s]"), [1.0, 2.0])},
        {},
        "client 'a': inputs: missing in row 1",
    ),
    (
        pd.DataFrame({"s": ["a"], "t": [pd.Timestamp("2024-01-01")], "y": [1.0]}),
        {"client": "s", "inputs": "t", "outputs": "y"},
        "one row in all",
    ),
    (
        pd.DataFrame({"s": [b"a"], "x": [1.0], "y": [1.0]}),
        {"client": "s", "inputs": "x", "outputs": "y"},
        "column 's': row 0 holds bytes",
    ),
    ({b"a": (X5, Y5)}, {}, "clients' names .*, got a value of type bytes"),
    ({"": (X5, Y5)}, {}, "clients' names"),
    ({"a": (X5, Y5)}, {"client": "s"}, "`client` names a column of a table"),
    (7, {}, "`data` must be"),
]


@pytest.mark.parametrize(("data", "names", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_wrong_data_is_refused_in_one_line(data, names, words):
    with pytest.raises(InputError, match=words) as caught:
        FederatedGP().fit(data, **names)
    assert "\n" not in str(caught.value)


TINY = {"averaging": False, "rounds": 2, "inducing": 5, "local_inducing": 5}


def test_constant_outputs_and_huge_values_are_accepted():
    t = np.linspace(0, 1, 10)
    flat = FederatedGP(**TINY).fit({"a": (t, np.full(10, 3.0)), "b": (t, np.full(10, 3.0))})
    p = flat.predict("a", t)
    np.testing.assert_allclose(p.mean, 3.0, atol=1e-3)
    assert np.isfinite(p.sd).all()
    huge = FederatedGP(**TINY).fit(
        {"a": (1e9 + t, 1e12 * np.sin(6 * t)), "b": (1e9 + t, 1e12 * np.cos(6 * t))}
    )
    assert np.isfinite(huge.predict("a", 1e9 + t).sd).all()


def test_the_hosts_settings_are_left_alone():
    """In a process of its own: float32 stays JAX's default, and BLAS threads are put back."""
    code = """
import numpy as np, jax, scipy.linalg
from threadpoolctl import threadpool_info
from pfedhgp import FederatedGP
threads = [p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"]
t = np.linspace(0, 1, 8)
settings = dict(averaging=False, rounds=2, tolerance=1e9, inducing=4, local_inducing=4)  # it has settled
model = FederatedGP(**settings).fit({"a": (t, t), "b": (t, t ** 2)})
p = model.predict("a", t)
assert p.mean.dtype == np.float64
assert jax.numpy.ones(2).dtype == np.float32
assert threads == [p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"]
print("left alone")
"""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        env={**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "left alone", done.stderr


def test_blas_is_capped_while_we_work():
    seen = []

    def look(record):
        seen.extend(p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas")

    t = np.linspace(0, 1, 10)
    FederatedGP(callbacks=[look], **TINY).fit({"a": (t, t), "b": (t, -t)})
    assert seen
    assert set(seen) == {1}


def test_gpu_is_refused_where_there_is_none():
    if any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("this machine has a GPU")
    with pytest.raises(InputError, match="no gpu was found"):
        FederatedGP(device="gpu").fit({"a": (X5, X5), "b": (X5, -X5)})
