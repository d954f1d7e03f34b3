"""Settings: from a file, from the command line, back to a file; and kernels in words."""

from __future__ import annotations

import re
import tomllib

import numpy as np
import pytest

from pfedhgp.base import choices
from pfedhgp.data.columns import InputColumn
from pfedhgp.errors import InputError
from pfedhgp.estimator import KERNELS
from pfedhgp.gp import kernel_text, kernels
from pfedhgp.inference.registry import INFERENCES
from pfedhgp.settings import config as configs

TIME, HEIGHT = InputColumn("time", "datetime"), InputColumn("height")
DAY = 86400.0


def test_settings_survive_toml():
    tree = {
        "data": {"files": ['a "b"\\c.csv'], "inputs": ["t\tü", "x"], "outputs": ["y"]},
        "model": {"kernel": "rbf + periodic(1 day)", "inducing": 12, "layers": ["global"]},
        "inference": {"rounds": 3, "tolerance": 1e-3, "batch": False},
        "run": {"out": "RUN", "seed": 7, "report": False},
    }
    settings = configs.check(tree)
    text = configs.to_toml(settings)
    assert configs.check(tomllib.loads(text)) == settings
    assert configs.check(tomllib.loads(configs.to_toml(configs.Config()))) == configs.Config()


def test_the_command_line_wins_over_the_file(run, tmp_path):
    (tmp_path / "in.toml").write_text(
        '[data]\nfiles = ["d.csv"]\ninputs = ["x"]\noutputs = ["y"]\n'
        '[inference]\nrounds = 4\nrestarts = 2\n[model]\nkernel = "matern52"\n[run]\nout = "RUN"\n'
    )
    (tmp_path / "sub").mkdir()
    written = tmp_path / "sub" / "out.toml"
    done = run(
        *("fit", "--config", tmp_path / "in.toml", "--rounds", 7, "--input", "a", "--input", "b"),
        *("--kernel", "rbf", "--no-report", "--write-config", written),
    )
    assert (done.code, done.out) == (0, "")
    tree = tomllib.loads(written.read_text())
    assert tree["inference"] == {
        **{"name": "structured", "rounds": 7, "tolerance": 0.02},
        **{"restarts": 2, "batch": True, "averaging": True},
    }
    assert tree["data"] == {"files": ["../d.csv"], "inputs": ["a", "b"], "outputs": ["y"]}
    assert tree["model"]["kernel"] == "rbf"
    assert tree["run"]["out"] == "../RUN"
    assert tree["run"]["report"] is False
    again = run("fit", "--config", tmp_path / "in.toml", "--write-config", written)
    assert "already exists" in again.complaint
    assert tomllib.loads(written.read_text()) == tree


def test_written_settings_name_the_inputs_that_are_dates(run, tmp_path):
    """For a federation's server, which has no file to see it in."""
    (tmp_path / "d.csv").write_text("t,x,y\n2026-01-01 00:00,1,2\n2026-01-02 00:00,2,3\n")
    words = ["fit", tmp_path / "d.csv", "--input", "x", "--input", "t", "--output", "y"]
    assert run(*words, "--write-config", tmp_path / "found.toml").code == 0
    found = configs.read(tmp_path / "found.toml")
    assert (found.datetimes, found.files) == (("t",), ("d.csv",))
    (tmp_path / "d.csv").write_text("no table")
    assert run(*words, "--write-config", tmp_path / "unread.toml").code == 0
    assert configs.read(tmp_path / "unread.toml").datetimes is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[inference]\nroundz = 3\n", ["`roundz`", "[inference]", "did you mean `rounds`"]),
        ("[modell]\n", ["`modell`", "did you mean `model`"]),
        (
            '[inference]\nrounds = "3"\n',
            ["`rounds` in [inference] must be a positive whole", "'3'"],
        ),
        ("[inference]\nrounds = 0\n", ["`rounds` in [inference] must be a positive whole", "0"]),
        ("[inference]\nrounds = true\n", ["`rounds` in [inference] must be a positive whole"]),
        ("[inference]\ntolerance = nan\n", ["`tolerance` in [inference] must be a finite number"]),
        ("[inference]\nname = 'mcmc'\n", ["`name` in [inference] must be one of structured, mean"]),
        ("[model]\ncycle_basis = 1\n", ["`cycle_basis` in [model]", "at least 2"]),
        ("[model]\nlayers = 'global'\n", ["`layers` in [model]", "list"]),
        (
            "[model]\nlayers = ['lokal']\n",
            ["`layers` in [model]", "some of global, deviation, local"],
        ),
        ('data = "d.csv"\n', ["[data] must be a table"]),
        ("[run]\nseed = = 3\n", ["not TOML", "line 2"]),
        ('[data]\ninputs = "x"\n', ["`inputs` in [data]", "list"]),
    ],
)
def test_what_is_wrong_in_a_file_is_named(text, said, run, tmp_path):
    (tmp_path / "c.toml").write_text(text)
    line = run("fit", "--config", tmp_path / "c.toml").complaint
    assert "c.toml" in line
    assert all(words in line for words in said), line


def test_words_without_jax_are_those_of_the_classes():
    assert tuple(KERNELS) == choices.KERNELS == tuple(kernel_text.PARAMETERS)
    assert tuple(INFERENCES) == choices.INFERENCES
    for name, inference in INFERENCES.items():
        assert inference.name == name


# ------------------------------------------------------------------------------------------ kernels


def _same(found: kernels.Kernel, expected: kernels.Kernel) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 5.0 * DAY, size=(5, 2))
    np.testing.assert_allclose(found(X, X), expected(X, X), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rbf(2h)", kernels.RBF(7200.0)),
        ("Matern52( lengthscale = 0.5 days )", kernels.Matern52(DAY / 2)),
        ("periodic(1 day, 0.7)", kernels.Periodic(0.7, period=DAY)),
        (
            "rbf(1d) + periodic(7d, input=time)",
            kernels.RBF(DAY) + kernels.Periodic(period=7 * DAY, dims=(0,)),
        ),
        (
            "matern12(1e5) * (rbf(1e4) + rbf(2e4, input=height, input=time))",
            kernels.Matern12(1e5) * (kernels.RBF(1e4) + kernels.RBF(2e4, dims=(1, 0))),
        ),
        (
            "rbf(3e4) + matern32(4e4)*periodic(5e4)",
            kernels.RBF(3e4) + kernels.Matern32(4e4) * kernels.Periodic(period=5e4),
        ),
        ("rational-quadratic(1e4, alpha=2)", kernels.RationalQuadratic(1e4, alpha=2.0)),
        ('rbf(5, input="height")', kernels.RBF(5.0, dims=(1,))),
    ],
)
def test_kernels_in_words(text, expected):
    _same(kernel_text.build(kernel_text.parse(text), [TIME, HEIGHT]), expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a kernel is missing"),
        ("rbf +", "a kernel is missing"),
        ("rbf rbf", "left over"),
        ("(rbf", "not closed"),
        ("rbf(1", "not closed"),
        ("gauss", "'gauss' is not a kernel"),
        ("rbf(1, 2)", "no more parameters"),
        ("rbf(period=1)", "takes lengthscale"),
        ("rbf(1 mile)", "not a unit here; units are s, min, h, d, w, y, or second(s), minute(s)"),
        ("rbf(0)", "positive number"),
        ("periodic(1d, 2h)", "no unit"),
        ("rbf; rm", "';' is not understood"),
        ("rbf(lengthscale 1)", "needs a value"),
        ("rbf(input=1)", "name of an input"),
    ],
)
def test_other_words_are_refused(text, said):
    with pytest.raises(InputError, match="--local-kernel") as caught:
        kernel_text.parse(text, "--local-kernel")
    assert said in str(caught.value)


def test_units_belong_to_datetimes_and_inputs_exist():
    for text, said in (("rbf(1d)", "'height'"), ("rbf(input=depth)", "no input 'depth'")):
        with pytest.raises(InputError, match=said):
            kernel_text.check_inputs(kernel_text.parse(text), [TIME, HEIGHT], "--kernel")
    kernel_text.check_inputs(kernel_text.parse("rbf(1d, input=time)"), [TIME, HEIGHT], "--kernel")


def test_the_file_has_every_setting_and_shows_those_not_set():
    """Unset ones are comments; uncommented, each example is a setting that is understood."""
    text = configs.to_toml(configs.Config())
    for each in configs.SETTINGS:
        part = text[text.index(f"[{each.section}]") :].split("\n\n")[0]
        unset = each.default is None
        assert bool(each.unset) == (each.example is not None) == unset, each.name
        start = "# " if unset else ""
        assert f"\n{start}{each.toml_key} = " in part, each.name
    loud = tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.M))
    assert {t: set(keys) for t, keys in loud.items()} == {
        t: set(keys) for t, keys in configs.Config().tree().items()
    }
    assert configs.check(loud).latents == 2


@pytest.mark.parametrize("given", ["-3", "0", "2.5", "many"])
def test_a_wrong_budget_says_both_ways(given, run, tmp_path):
    words = ("fit", "d.csv", "--input", "x", "--output", "y", "--out", tmp_path / "RUN")
    assert f"--inducing must be auto or a positive whole number, got {given}" in run(
        *words, "--inducing", given
    ).complaint.replace("'", "")
