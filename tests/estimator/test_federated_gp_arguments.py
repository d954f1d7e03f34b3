"""Every argument of the public calls, given what it must not be: refused by name, in one line."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from pfedhgp import RBF, FederatedGP, Matern32, Periodic, RationalQuadratic
from pfedhgp.errors import ExtrapolationWarning, InputError, PFedHGPWarning
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.planning import make_plan
from pfedhgp.gp.kernels import Kernel, Product, Scaled, Sum
from pfedhgp.inference.meanfield.training import MeanField
from pfedhgp.inference.registry import inference_named
from pfedhgp.inference.structured.averaging import Averaging
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.settings.config import checked
from pfedhgp.settings.table import MODEL_SETTINGS

T = np.linspace(0.0, 1.0, 8)
SITES = {"a": (T, np.sin(6 * T)), "b": (T, np.cos(6 * T))}
TABLE = pd.DataFrame({"site": ["a"] * 8 + ["b"] * 8, "t": [*T, *T], "y": [*T, *-T]})
SMALL = {"rounds": 1, "inducing": 4, "local_inducing": 3, "averaging": False}


class Alien(Kernel):
    def __call__(self, X, Z, *, stacked=None):
        return jnp.exp(-jnp.sum((X[:, None] - Z[None]) ** 2, axis=-1))


NAN, INF = float("nan"), float("inf")
NO_FLAG = ["no", 1, 0, None, NAN, [], np.array([True, False])]
NO_NAME = ["cubic", "", 3, True, None, NAN, [], b"rbf", np.array(["rbf", "rbf"])]
NO_COUNT = [0, -3, 2.0, NAN, INF, True, np.True_, "3", "", [], [3], np.array([3, 4]), 1 + 0j]
WRONG = {
    "kernel": [*NO_NAME, RBF, Alien(), RBF([1.0, 2.0]), RBF(dims=(2,)), RationalQuadratic(alpha=[1.0])],
    "local_kernel": [v for v in NO_NAME if v is not None] + [Matern32([[1.0]]), 4.0 * Alien()],
    "deviation_kernel": [v for v in NO_NAME if v is not None] + [4.0 * Alien()],
    "layers": [*NO_NAME, ("global", "lokal"), ("global", "global"), ("deviation",), (), {"global": 1}],
    "latents": NO_COUNT,
    "local_latents": NO_COUNT,
    "client_loadings": [*NO_FLAG],
    "noise": [*NO_NAME, "white"],
    "local": [*NO_NAME, "kalman"],
    "inducing": [*NO_COUNT, None],
    "local_inducing": [*NO_COUNT, None],
    "learn_inducing": [v for v in NO_FLAG if v is not None],
    "largest_inducing": [*NO_COUNT, 1],
    "largest_local_inducing": [*NO_COUNT, 1, None],
    "domain": [
        *("auto", "", 3, True, NAN, [], [[]], [(0.0, NAN)], [(0.0, INF)], [(1.0, 0.0)], [(0.0, 0.0)]),
        *([("0", "1")], [(False, True)], [0.0, 1.0, 2.0], [(0.0, 1.0)] * 2, [(0.0,), (1.0, 2.0)]),
        *([(0.2, 0.7)], {"t": (0.0, 1.0)}, [(0j, 1 + 0j)]),
    ],
    "inference": ["mcmc", *NO_NAME[1:], Structured, RBF()],
    "rounds": NO_COUNT,
    "averaging": NO_FLAG,
    "tolerance": [NAN, INF, -0.1, "0.1", True, None, [], [0.1], 1 + 0j, 10**400],
    "cycles": [*NO_NAME, "shared"],
    "cycle_sharing": NO_NAME,
    "cycle_basis": [*NO_COUNT, 1, None],
    "restarts": [*NO_COUNT, None],
    "batch": NO_FLAG,
    "device": [*NO_NAME, "tpu"],
    "seed": ["a", "", -1, 1.5, NAN, True, None, [], [1]],
    "callbacks": [print, "print", 3, None, [3], [None], {"a": print}, True],
    "masks": NO_FLAG,
    "robust": [*NO_NAME, "krum"],
    "privacy": [v for v in NO_NAME if v is not None] + ["global"],
    "epsilon": [NAN, INF, 0.0, -0.1, "0.1", True, [], [0.1], 1 + 0j],
    "delta": [NAN, INF, 0.0, 1.0, -0.1, "0.1", True, None, [], [0.1]],
    "output_bounds": ["auto", "", 3, True, NAN, [], [(0.0, NAN)], [(1.0, 0.0)], [("0", "1")]],
    "tolerated": [*NO_COUNT[1:], -1],
    "ledger": [3, True, NAN, [], b"a"],
    "privacy_unit": [*NO_NAME, "site"],
    "rows_per_client": [*NO_COUNT[1:], 0],
}  # fmt: skip
CONSTRUCTOR = [(name, value) for name, values in WRONG.items() for value in values]


def says(caught, name: str) -> None:
    text = str(caught.value)
    assert f"`{name}`" in text
    assert "\n" not in text
    assert len(text) < 250


def label(value) -> str:
    return value if isinstance(value, str) and value else type(value).__name__


def test_every_parameter_has_a_check_and_wrong_values():
    names = list(inspect.signature(FederatedGP).parameters)
    assert [each.name for each in MODEL_SETTINGS] == names
    assert set(WRONG) == set(names)


@pytest.mark.parametrize(("name", "value"), CONSTRUCTOR, ids=label)
def test_wrong_parameters_are_refused_by_fit(name, value):
    model = FederatedGP(**{**SMALL, name: value})
    with pytest.raises(InputError) as caught:
        model.fit(SITES)
    says(caught, name)
    assert not hasattr(model, "model_")


NO_COLUMN = [3, True, NAN, "", [], b"t"]
FIT = {
    "client": [*NO_COLUMN, ["site"]],
    "inputs": [*NO_COLUMN, [3], [""], ["t", "t"], {}],
    "outputs": [*NO_COLUMN, [None], ["y", "y"]],
    "cycle": [*NO_COLUMN, ["t"]],
    "checkpoint": [3, True, "", [], NAN, "a\0b"],
    "resume": NO_FLAG,
}


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in FIT.items() for v in values], ids=label
)
def test_wrong_arguments_of_fit_are_refused(name, value):
    given = {"client": "site", "inputs": "t", "outputs": "y", name: value}
    with pytest.raises(InputError) as caught:
        FederatedGP(**SMALL).fit(TABLE, **given)
    says(caught, name)


DATA = [
    None, 3, "table", [], [3], {}, {"a": None}, {"a": (T,)}, {"a": "ab"}, {"a": ([], [])},
    {"a": ([[1.0], [1.0, 2.0]], [1.0, 2.0])}, {"a": ([1.0, 2.0], [[1.0], [1.0, 2.0]])},
    {"a": (["1", "2"], [1.0, 2.0])}, {"a": ([1.0, 2.0], ["1", "2"])},
    {"a": (T, np.full((2, 1, 8), "x"))}, {"a": (T, np.zeros((2, 1, 7)))}, {"a": (T, np.zeros((1, 1, 1, 8)))},
    {"a": (np.zeros((8, 0)), T)}, {"a": (T, np.zeros((8, 0)))}, TABLE,
]  # fmt: skip


@pytest.mark.parametrize("data", DATA, ids=label)
def test_wrong_data_are_refused(data):
    with pytest.raises(InputError) as caught:
        FederatedGP(**SMALL).fit(data)
    assert "\n" not in str(caught.value)


def test_resume_needs_a_checkpoint(tmp_path):
    with pytest.raises(InputError, match="`resume` needs `checkpoint`"):
        FederatedGP(**SMALL).fit(SITES, resume=True)
    with pytest.raises(InputError, match="no checkpoint to go on from"):
        FederatedGP(**SMALL).fit(SITES, checkpoint=tmp_path / "none", resume=True)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="`checkpoint`"):
        FederatedGP(**SMALL).fit(SITES, checkpoint=tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.fixture(scope="module")
def fitted() -> FederatedGP:
    return FederatedGP(**SMALL).fit(SITES)


NO_CLIENT = [None, NAN, "", True, 1.5, [], ["a"], ("a", "b"), {}, b"a", T]
NO_X = [None, "x", "", 3.0, {}, [["a"]], [[1.0], [1.0, 2.0]], [[NAN]], [[INF]], [[1.0, 2.0]], [[[1.0]]],
        [1j], ["1"], TABLE[["y"]], np.zeros((2, 0))]  # fmt: skip


@pytest.mark.parametrize("value", NO_CLIENT, ids=label)
def test_wrong_clients_are_refused(fitted, value):
    with pytest.raises(InputError) as caught:
        fitted.predict(value, [[0.5]])
    says(caught, "client")
    with pytest.raises(InputError) as caught:
        fitted.adopt(value, T, T)
    says(caught, "client")


@pytest.mark.parametrize("value", NO_X, ids=label)
def test_wrong_inputs_are_refused(fitted, value):
    with pytest.raises(InputError) as caught:
        fitted.predict("a", value)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError):
        fitted.adopt("c", value, T)
    assert fitted.clients_ == ("a", "b")


NO_Y = [None, "y", 3.0, {}, T[:3], [["a"]] * 8, T * NAN, [*T[:7], INF], np.zeros((8, 2)), [[1.0], [1.0, 2.0]],
        np.zeros((2, 1, 5)), np.full((1, 1, 8), "x"), np.zeros((2, 2, 8))]  # fmt: skip


@pytest.mark.parametrize("value", NO_Y, ids=label)
def test_wrong_outputs_of_a_new_client_are_refused(fitted, value):
    with pytest.raises(InputError, match="client 'c'"):
        fitted.adopt("c", T, value)
    assert fitted.clients_ == ("a", "b")


def test_no_rows_to_predict_are_no_rows(fitted):
    p = fitted.predict("a", np.zeros((0, 1)))
    assert p.mean.shape == p.sd.shape == (0,)


NO_PATH = [None, "", 3, True, [], b"run", NAN]


@pytest.mark.parametrize("value", NO_PATH, ids=label)
def test_wrong_paths_are_refused(fitted, value):
    with pytest.raises(InputError) as caught:
        fitted.save(value)
    says(caught, "path")
    with pytest.raises(InputError) as caught:
        FederatedGP.load(value)
    says(caught, "path")


@pytest.mark.parametrize("value", NO_FLAG, ids=label)
def test_overwrite_is_true_or_false(fitted, value, tmp_path):
    with pytest.raises(InputError) as caught:
        fitted.save(tmp_path / "run", overwrite=value)
    says(caught, "overwrite")
    assert not (tmp_path / "run").exists()


def test_load_refuses_what_is_not_a_model(tmp_path):
    (tmp_path / "file").write_text("no model")
    for path in (tmp_path, tmp_path / "none", tmp_path / "file", Path("a\0b")):
        with pytest.raises(InputError) as caught:
            FederatedGP.load(path)
        assert "\n" not in str(caught.value)


PREDICTION = [
    ("level", lambda p, v: p.interval(v), [0.0, 1.0, -1, NAN, "a", None, True, []]),
    ("count", lambda p, v: p.sample(v, seed=0), [-1, 1.5, "a", None, True, []]),
    ("seed", lambda p, v: p.sample(1, seed=v), [-1, 1.5, "a", None, True, []]),
    ("noise", lambda p, v: p.sample(1, seed=0, noise=v), NO_FLAG),
    ("noise", lambda p, v: p.covariance(noise=v), NO_FLAG),
    ("kind", lambda p, v: p.covariance(v), ["rows", "", None, 3, [], T]),
    ("first", lambda p, v: p.cross_covariance(v, "local"), ["total", "", None, 3, [], T]),
    ("second", lambda p, v: p.cross_covariance("local", v), ["total", "", None, 3, [], T]),
]


@pytest.mark.parametrize(("name", "call", "values"), PREDICTION, ids=[p[0] for p in PREDICTION])
def test_wrong_arguments_of_a_prediction_are_refused(fitted, name, call, values):
    p = fitted.predict("a", [[0.5]])
    for value in values:
        with pytest.raises(InputError) as caught:
            call(p, value)
        says(caught, name)


NO_SCALE = [0.0, -1.0, NAN, INF, "1", "", True, [], [1.0, -1.0], [True, False], ["1"], 1j, {}, RBF(),
            [[1.0], [1.0, 2.0]], np.array([1.0, NAN]), jnp.asarray(-1.0)]  # fmt: skip
NO_DIMS = [(), "0", 0, (0.5,), (-1,), (True,), (0, 0), ("0",), [[0]], {0}, NAN]
KERNELS = [
    ("lengthscale", lambda v: RBF(v), NO_SCALE),
    ("lengthscale", lambda v: Matern32(lengthscale=v), NO_SCALE),
    ("lengthscale", lambda v: Periodic(v), [*NO_SCALE, None]),
    ("period", lambda v: Periodic(period=v), NO_SCALE),
    ("alpha", lambda v: RationalQuadratic(alpha=v), [*NO_SCALE, None]),
    ("dims", lambda v: RBF(dims=v), NO_DIMS),
    ("variance", lambda v: Scaled(RBF(), v), [*NO_SCALE, None]),
    ("variance", lambda v: v * RBF(), [v for v in NO_SCALE if not isinstance(v, Kernel)]),
    ("kernel", lambda v: Scaled(v, 1.0), [None, 3.0, "rbf", RBF, []]),
    ("kernels", lambda v: Sum(v, np.ones(1)), [None, (), 3.0, "rbf", (RBF(), 3.0), RBF()]),
    ("kernels", lambda v: Product(v), [None, (), 3.0, "rbf", (RBF(), "rbf"), RBF()]),
    ("ratios", lambda v: Sum((RBF(), RBF()), v), [*NO_SCALE, None, np.ones(2), 1.0]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "values"), KERNELS, ids=[k[0] for k in KERNELS])
def test_wrong_parameters_of_kernels_are_refused(name, make, values):
    for value in values:
        with pytest.raises(InputError) as caught:
            make(value)
        says(caught, name)


def test_numbers_of_numpy_are_numbers():
    found = checked(
        FederatedGP(
            rounds=np.int64(3),
            tolerance=np.float32(0.5),
            averaging=np.bool_(False),
            layers=np.array(["global", "local"]),
            domain=np.array([0, 1]),
            local_latents=np.int32(2),
        )
    )
    assert (found.rounds, found.tolerance, found.local_latents) == (3, 0.5, 2)
    assert type(found.rounds) is int
    assert type(found.tolerance) is float
    assert found.averaging is False
    assert found.layers == ("global", "local")
    assert found.domain == ((0.0, 1.0),)


# What was ignored ------------------------------------------------------------------------------


def test_learn_inducing_overrides_settings_and_names():
    def settle(inference, learn):
        return inference_named(inference, rounds=None, learn_inducing=learn).learn_inducing

    for inference, usual in (("structured", False), ("mean-field", True)):
        assert settle(inference, None) is usual
        assert settle(inference, True) is True
        assert settle(inference, False) is False
    assert settle(Structured(learn_inducing=True), None) is True
    assert settle(Structured(), True) is True
    assert settle(MeanField(), False) is False


SETTINGS = [
    (Structured, "rounds", NO_COUNT), (Structured, "evaluations", NO_COUNT),
    (Structured, "first_evaluations", NO_COUNT), (Structured, "frozen_rounds", [-1, 1.5, True, "a"]),
    (Structured, "radius", [0.0, -1.0, NAN, INF, "a", True]), (Structured, "largest_radius", [0.0, NAN, "a"]),
    (Structured, "learn_inducing", NO_FLAG), (Structured, "averaging", [True, 3, "no"]),
    (Structured, "jitter", [0.0, -1e-8, NAN, INF, "a", True]), (Structured, "chunk", NO_COUNT),
    (Structured, "patience", [-1, 1.5, True]),
    (MeanField, "rounds", NO_COUNT), (MeanField, "local_steps", NO_COUNT),
    (MeanField, "local_rate", [0.0, -1.0, NAN, INF, "a", True]), (MeanField, "server_rate", [0.0, NAN]),
    (MeanField, "server_optimizer", NO_NAME), (MeanField, "learn_inducing", NO_FLAG),
    (MeanField, "jitter", [0.0, NAN, "a"]), (MeanField, "chunk", NO_COUNT),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "name", "values"), SETTINGS, ids=label)
def test_wrong_settings_of_an_inference_are_refused(settings, name, values):
    for value in values:
        with pytest.raises(InputError) as caught:
            settings(**{name: value})
        says(caught, name)


IDLE = [
    ({"kernel": 4.0 * RBF()}, "the variance 4 of `kernel`"),
    ({"local_kernel": 0.5 * Matern32()}, "the variance 0.5 of `local_kernel`"),
    ({"layers": "local", "latents": 1, "inducing": 4}, "`latents` .*`inducing` .*no global layer"),
    ({"layers": "global", "local_inducing": 3, "local_kernel": "rbf"}, "`local_kernel` .*no local layer"),
    ({"cycle_basis": 9, "cycle_sharing": "client"}, "`cycle_sharing` .*no cycle layer"),
    ({"inference": "mean-field", "tolerance": 0.1}, "`tolerance` .*does not know the bound"),
    ({"inducing": 9, "largest_inducing": 30}, "`largest_inducing` .`inducing` is given"),
    ({"local_inducing": 9, "largest_local_inducing": 30}, "`largest_local_inducing` "),
]  # fmt: skip


def plan_of(model: FederatedGP) -> Plan:
    """For one input and one output."""
    return make_plan(checked(model), 1, 1)


@pytest.mark.parametrize(("settings", "words"), IDLE, ids=[words for _, words in IDLE])
def test_what_is_not_used_is_said(settings, words):
    with pytest.warns(PFedHGPWarning, match=words):
        plan_of(FederatedGP(**settings))


def test_what_is_used_is_not_complained_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kernel in (
            RBF(),
            RBF() + Periodic(),
            0.65 * RBF(2.0) + 0.35 * Periodic(),
            RBF() * RBF(),
        ):
            plan_of(FederatedGP(kernel=kernel, latents=1, local_inducing=3))
        plan_of(FederatedGP(tolerance=0.1, largest_inducing=30))
        plan_of(FederatedGP(inference="mean-field", largest_inducing=30))


def test_adopt_honours_local_inducing_and_the_inference(fitted):
    model = FederatedGP(**{**SMALL, "local_inducing": 5}).fit(SITES)
    model.adopt("c", T, T**2)
    assert model.model_.clients["c"].block.inputs.shape == (5, 1)
    seen = []

    def adopt(model, rows, **given):
        seen.append(given)
        raise InputError("enough")

    settings = Structured(evaluations=7, averaging=Averaging(cells=9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pfedhgp.inference.structured.adoption.adopt", adopt)
        for averaging, expected in ((True, Averaging(cells=9)), (False, None)):
            model.set_params(inference=settings, averaging=averaging, learn_inducing=True)
            with pytest.raises(InputError, match="enough"):
                model.adopt("d", T, T)
            assert seen[-1]["settings"].evaluations == 7
            assert seen[-1]["settings"].averaging == expected
            assert seen[-1]["settings"].learn_inducing is True
            assert seen[-1]["local_inducing"] == 5


def test_adopting_far_outside_the_data_warns(fitted, monkeypatch):
    def adopt(model, rows, **given):
        raise InputError("enough")

    monkeypatch.setattr("pfedhgp.inference.structured.adoption.adopt", adopt)
    far = T + 100.0 * np.ptp(T)
    with (
        pytest.warns(ExtrapolationWarning, match=f"{len(T)} of {len(T)} rows .*no global inducing"),
        pytest.raises(InputError, match="enough"),
    ):
        fitted.adopt("far", far, T)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match="enough"):
            fitted.adopt("near", T, T)


def test_every_parameter_survives_a_file(tmp_path):
    given = {
        **SMALL,
        "domain": [(0.0, 1.0)],
        "inference": Structured(evaluations=7, averaging=Averaging(cells=9)),
        "averaging": True,
        "layers": ("global", "local"),
        "tolerance": np.float64(0.1),
        "seed": np.int64(4),
    }
    model = FederatedGP(**given).fit(SITES)
    model.save(tmp_path / "run")
    again = FederatedGP.load(tmp_path / "run")
    before, after = vars(checked(model)), vars(checked(again))
    for name in set(before) - {"kernel", "local_kernel"}:
        assert after[name] == before[name], name
    assert isinstance(after["kernel"], RBF)
