"""Help: every command listed as it calls itself, every argument explained, every default the true one."""

from __future__ import annotations

import importlib
import inspect
import re
import sys

import pytest
import typer

from pfedhgp.cli import commands
from pfedhgp.cli.main import app, main
from pfedhgp.settings.config import SETTINGS, in_options

STUDIES = ("synthetic", "stability", "tonnage", "airquality")
ALL = [[name] for name in commands.COMMANDS] + [["reproduce", name] for name in STUDIES]


def help_of(*words: str, capsys) -> str:
    """With single spaces: where lines end is a matter of width."""
    assert main([*words, "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return " ".join(out.split())


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_commands_are_listed_by_the_first_line_of_their_own(name, capsys):
    module = importlib.import_module(f"pfedhgp.cli.{name.replace('-', '_')}")
    own = (
        module.app.info.help
        if name == "reproduce"
        else inspect.getdoc(getattr(module, name.replace("-", "_")))
    )
    first = " ".join(own.split("\n\n")[0].split())
    assert commands.COMMANDS[name] == first
    assert f"{name} {first}" in help_of(capsys=capsys)


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_argument_and_option_is_explained(words, capsys):
    shown = help_of(*words, capsys=capsys)
    assert shown.startswith(f"Usage: pfedhgp {' '.join(words)} ")
    if words == ["reproduce"]:
        return
    found = typer.main.get_command(app)
    for word in words:
        found = found.get_command(None, word)
    hints = inspect.get_annotations(inspect.unwrap(found.callback), eval_str=True)
    params = [param for param in found.params if not param.hidden]
    assert params
    for param in params:
        (info,) = hints[param.name].__metadata__
        name = info.metavar if param.param_type_name == "argument" else param.opts[0]
        text = "".join(info.help.split())
        # Without spaces: a line may also end at a hyphen.
        assert re.search(rf"{re.escape(name)}.{{0,60}}?{re.escape(text)}", "".join(shown.split()))
    listed = any(param.param_type_name == "argument" for param in params)
    assert ("Arguments: " in shown) == listed


def test_an_argument_says_what_it_is(capsys):
    assert "Arguments: RUN A folder that fit wrote. DATA... Where to predict" in help_of(
        "predict", capsys=capsys
    )
    assert "DATA... CSV (gz too), Parquet or Feather" in help_of("fit", capsys=capsys)


@pytest.mark.parametrize("command", ["fit", "federate"])
def test_every_setting_has_an_option_and_help_names_its_true_default(command, capsys):
    """But for datetimes and classes, which files show, and for what has to be given."""
    shown = help_of(command, capsys=capsys)
    found = typer.main.get_command(app).get_command(None, command)
    told = {param.name: param.show_default for param in found.params}
    checked = 0
    for each in SETTINGS:
        if each.required or each.name in ("datetimes", "classes"):
            continue
        text, value = told[each.name], each.default
        assert f"[default: {text}]" in shown.replace("- ", "-")  # lines break after a hyphen
        if value is None:
            assert text == each.unset
        elif isinstance(value, bool):
            option = next(param for param in found.params if param.name == each.name)
            assert [text] == (option.opts if value else option.secondary_opts)
        else:
            assert text == (",".join(value) if isinstance(value, tuple) else str(value))
        checked += 1
    assert checked == 46


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "local='state-space' needs inference='structured' and cannot be combined with a cycle",
            "--local state-space needs --inference structured and cannot be combined with a cycle",
        ),
        ("a cycle layer needs `cycle=`: the column", "a cycle layer needs --cycle: the column"),
        ("so `local_latents` is 1", "so --local-latents is 1"),
        ("`inputs` names 2 columns", "--input names 2 columns"),
        ("`inputs` in [data] is missing", "`inputs` in [data] is missing"),
        ("see `pfedhgp fit --help`", "see `pfedhgp fit --help`"),
    ],
)
def test_messages_of_the_library_name_options(said, shown):
    assert in_options(said) == shown


def test_a_group_without_a_command_shows_its_help(capsys):
    assert main(["reproduce"]) == 2
    out, err = capsys.readouterr()
    assert "Usage: pfedhgp reproduce" in out
    assert out.count("\n") > 5
    assert err == ""


# Without the extra, the federation's commands say what to install, and the rest works.
OF_FEDERATIONS = {
    "server": ["--config", "c", "--sites", "s", "--out", "o"],
    "client": ["--data", "d", "--name", "n", "--server", "h:1", "--home", "o"],
    "certs": ["--site", "a", "--out", "o"],
    "federate": ["d.csv", "--input", "x", "--output", "y", "--out", "o"],
}


@pytest.mark.parametrize("name", OF_FEDERATIONS)
def test_a_missing_extra_is_one_line(name, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)  # as if it were not there
    monkeypatch.setattr("pfedhgp.cli.commands.find_spec", lambda name: None)
    complaint = run(name, *OF_FEDERATIONS[name]).complaint
    assert complaint.endswith(
        "needs Flower: python3 -m pip install '.[flower]' in a checkout of pfedhgp"
    )
