"""The table of settings: what is written there once is seen everywhere."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sklearn.base import clone

import pfedhgp
from pfedhgp import FederatedGP
from pfedhgp.errors import InputError
from pfedhgp.settings import config as configs
from pfedhgp.settings.config import SETTINGS, Config, check_use
from pfedhgp.settings.setting import SECTIONS
from pfedhgp.settings.table import MODEL_SETTINGS

ENTRY = """    patience: int = setting(
        default=7,
        kind=kinds.whole(3),
        help="Rounds to wait.",
    )
    restarts: int = setting("""
LOOK = """
import inspect, json, sys, tomllib
from pathlib import Path
from pfedhgp import FederatedGP
from pfedhgp.cli.main import main
from pfedhgp.federation.agreement import Agreement
from pfedhgp.settings import config

here = Path(sys.argv[1])
columns = ["--input", "x", "--output", "y"]
codes = [main(["fit", "--help"]), main(["federate", "--help"])]
codes.append(main(["fit", *columns, "--patience", "9", "--write-config", str(here / "c.toml"), "-q"]))
codes.append(main(["fit", *columns, "--patience", "2"]))
(here / "bad.toml").write_text("[inference]\\npatience = 'long'\\n")
codes.append(main(["fit", "--config", str(here / "bad.toml")]))
try:
    FederatedGP(patience=1).fit({"a": ([0.0, 1.0], [0.0, 1.0])})
except ValueError as error:
    refused = str(error)
terms = json.loads(Agreement.of(config.read(here / "c.toml")).to_json())
found = {
    "codes": codes,
    "default": inspect.signature(FederatedGP).parameters["patience"].default,
    "docstring": FederatedGP.__doc__,
    "written": tomllib.loads((here / "c.toml").read_text())["inference"]["patience"],
    "params": FederatedGP(patience=5).get_params()["patience"],
    "terms": terms["settings"]["inference"]["patience"],
    "refused": refused,
}
(here / "found.json").write_text(json.dumps(found))
"""


def test_one_entry_is_an_argument_an_option_a_key_and_a_term(tmp_path):
    """In a copy of the package: one entry more, and nothing else."""
    copy = tmp_path / "src" / "pfedhgp"
    shutil.copytree(
        Path(pfedhgp.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__")
    )
    table = copy / "settings" / "table.py"
    text = table.read_text()
    assert text.count("    restarts: int = setting(") == 1
    table.write_text(text.replace("    restarts: int = setting(", ENTRY))
    done = subprocess.run(
        [sys.executable, "-c", LOOK, tmp_path],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["codes"] == [0, 0, 0, 2, 2]
    helps = " ".join(done.stdout.split())
    assert helps.count("--patience INTEGER Rounds to wait. [default: 7]") == 2
    assert "        patience: Rounds to wait." in found["docstring"]
    assert found["default"] == 7
    assert (found["written"], found["params"], found["terms"]) == (9, 5, 9)
    wanted = "must be a whole number of at least 3"
    assert f"--patience {wanted}, got 2" in done.stderr
    assert f"bad.toml: `patience` in [inference] {wanted}, got 'long'" in done.stderr
    assert found["refused"] == f"`patience` {wanted}, got 1"


def test_types_of_arguments_are_seen_without_running_anything(tmp_path):
    """What mypy says of calls of `FederatedGP`, whose constructor is written nowhere but in the table."""
    api = pytest.importorskip("mypy.api")
    (tmp_path / "calls.py").write_text(
        "from pfedhgp import FederatedGP\n"
        'FederatedGP(rounds=3, local_kernel="rbf")\n'
        'FederatedGP(rounds="3")\n'
        "FederatedGP(depth=2)\n"
        'FederatedGP("rbf")\n'
        "reveal_type(FederatedGP().tolerance)\n"
    )
    source = str(Path(pfedhgp.__file__).parents[1])
    config = tmp_path / "mypy.ini"
    config.write_text(
        f"[mypy]\nmypy_path = {source}\nfollow_imports = skip\n"
        "[mypy-pfedhgp,pfedhgp.settings.*,pfedhgp.estimator.*]\nfollow_imports = silent\n"
    )
    said, _, _ = api.run(
        ["--config-file", str(config), "--cache-dir", os.devnull, str(tmp_path / "calls.py")]
    )
    lines = {int(line.split(":")[1]): line for line in said.splitlines() if "calls.py:" in line}
    assert set(lines) == {3, 4, 5, 6}, said
    assert '"rounds" to "FederatedGP" has incompatible type "str"' in lines[3]
    assert 'Unexpected keyword argument "depth"' in lines[4]
    assert "Too many positional arguments" in lines[5]
    assert "float" in lines[6]


def test_the_constructor_takes_each_setting_by_name_and_keeps_it_as_it_is():
    parameters = inspect.signature(FederatedGP).parameters
    assert list(parameters) == [each.name for each in MODEL_SETTINGS]
    for each in MODEL_SETTINGS:
        assert parameters[each.name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[each.name].default is each.default
        assert f"\n        {each.name}: {each.help.split()[0]}" in FederatedGP.__doc__
    odd = object()
    model = FederatedGP(kernel=odd, rounds="many")
    assert model.kernel is odd
    assert clone(FederatedGP(rounds=3, layers=("global",))).get_params()["rounds"] == 3


def test_every_setting_is_complete():
    for each in SETTINGS:
        assert each.section in SECTIONS
        assert each.help.endswith("."), each.name
        assert each.options or each.name in ("datetimes", "classes"), each.name
        if each.default is not None:
            value = list(each.default) if isinstance(each.default, tuple) else each.default
            assert each.checked_text(value, "") == each.default
        else:
            assert each.checked_text(each.example, "") == each.example
    assert len({each.name for each in SETTINGS}) == len(SETTINGS)
    assert {each.name for each in MODEL_SETTINGS if not each.section} == {"callbacks"}


@pytest.mark.parametrize("value", ["white", "stationary", "free", "auto", "white-shared"])
def test_forms_of_cycles_are_the_same_everywhere(value, run, tmp_path):
    file = tmp_path / "c.toml"
    assert run("fit", "--cycles", value, "--write-config", file, "-q").code == 0
    assert configs.read(file).cycles == value
    again = tmp_path / "again.toml"
    assert run("fit", "--config", file, "--write-config", again, "-q").code == 0
    assert f'cycles = "{value}"' in again.read_text()


def test_the_most_inducing_inputs_have_options(run, tmp_path):
    """Warnings say to raise them."""
    file = tmp_path / "c.toml"
    words = ("--largest-inducing", 30, "--largest-local-inducing", 20)
    assert run("fit", *words, "--write-config", file, "-q").code == 0
    found = configs.read(file)
    assert (found.largest_inducing, found.largest_local_inducing) == (30, 20)
    assert configs.in_options("raise `largest_local_inducing`") == "raise --largest-local-inducing"


def test_a_value_is_checked_once_and_named_where_it_comes_from(run, tmp_path):
    """An option wins over the file, whose value is still looked at."""
    file = tmp_path / "c.toml"
    file.write_text("[inference]\nrounds = 0\n")
    said = run("fit", "--config", file, "--rounds", 3).complaint
    assert "c.toml: `rounds` in [inference]" in said
    file.write_text("[inference]\nrounds = 5\n")
    assert configs.read(file, rounds=3).rounds == 3
    assert configs.read(file, rounds=None).rounds == 5
    with pytest.raises(InputError, match="`rounds` must be a positive whole number"):
        configs.read(file, rounds=0)


def test_what_belongs_to_a_flag_is_refused_without_it():
    with pytest.raises(InputError, match="--block is for --diagnose: give both, or leave it out"):
        check_use(Config(block="shift"), federated=False)
    check_use(Config(block="shift", diagnose=True), federated=False)
    with pytest.raises(InputError, match="--label is for --diagnose"):
        check_use(Config(label="state"), federated=True)
    check_use(Config(label="state", diagnose=True), federated=True)
    with pytest.raises(InputError, match=r"--ledger: "):
        check_use(Config(ledger="here"), federated=True)
