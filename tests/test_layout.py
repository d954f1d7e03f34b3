"""The layout of the package: imports point one way, and modules and functions stay small."""

from __future__ import annotations

import ast
import importlib
import inspect
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pfedhgp.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES, MOST_FUNCTION_LINES, MOST_PARAMETERS = 400, 80, 10


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """`lint-imports` on the package in a folder, with the contract of pyproject.toml."""
    tool = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [tool, "--config", ROOT / "pyproject.toml", "--no-cache"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": ""},
    )


@pytest.fixture
def source(tmp_path) -> Path:
    """A copy of src."""
    copy = tmp_path / "src"
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def test_imports_point_one_way(source):
    done = lint_imports(source)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("gp/linalg.py", "import pfedhgp.model.spec"),
        ("federation/server.py", "from pfedhgp.cli import terminal"),
        ("report/shares.py", "def late() -> None:\n    from pfedhgp.studies.common import store"),
        ("zones/groups.py", "import pfedhgp.diagnosis.evidence"),
    ],
)
def test_an_import_against_the_order_is_refused(source, module, line):
    """Inside a function too, and between two packages of one level."""
    path = source / "pfedhgp" / module
    path.write_text(f"{path.read_text('utf-8')}\n\n{line}\n", "utf-8")
    done = lint_imports(source)
    assert done.returncode != 0
    assert "pfedhgp." + module.removesuffix(".py").replace("/", ".") in done.stdout


def functions() -> Iterator[tuple[str, Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function of the package: where it is, its file and its syntax tree."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", path, node


def commands() -> set[tuple[str, str]]:
    """(file, name) of the functions that are commands: their parameters are a user's options."""
    found = set()
    for name in COMMANDS:
        module = importlib.import_module(f"pfedhgp.cli.{name.replace('-', '_')}")
        own = [c.callback for c in module.app.registered_commands] if name == "reproduce" else []
        for function in own or [inspect.unwrap(getattr(module, name.replace("-", "_")))]:
            found.add((inspect.getfile(function), function.__name__))
    return found


def test_modules_are_small():
    sizes = {
        str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines())
        for path in (ROOT / "src").rglob("*.py")
    }
    assert {name: size for name, size in sizes.items() if size > MOST_LINES} == {}


def test_functions_are_short():
    """Of a command, its body: the options before it are as many as users need."""
    known, long = commands(), {}
    for name, path, node in functions():
        first = node.lineno
        if (str(path), node.name) in known:
            documented = ast.get_docstring(node) is not None
            first = node.body[1 if documented else 0].lineno
        if (size := node.end_lineno - first + 1) > MOST_FUNCTION_LINES:
            long[name] = size
    assert long == {}


def test_functions_have_few_parameters():
    """But for commands and for constructors of public classes."""
    known, wide = commands(), {}
    for name, path, node in functions():
        if node.name == "__init__" or (str(path), node.name) in known:
            continue
        a = node.args
        names = [each.arg for each in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
        count = len(names) - (names[:1] in (["self"], ["cls"])) + bool(a.vararg) + bool(a.kwarg)
        if count > MOST_PARAMETERS:
            wide[name] = count
    assert wide == {}


WHOLE_PACKAGES = {
    "cli/test_bad_input.py": "what every command refuses",
    "federation/flower/test_bad_network.py": "sites and servers behind a network that fails",
    "federation/flower/test_commands.py": "what the federation's commands refuse",
    "federation/flower/test_faults.py": "faults in the middle of a run",
    "federation/flower/test_runbook.py": "the commands of docs/deploy.md",
    "federation/flower/test_server_and_sites.py": "whole runs",
    "federation/flower/test_zones.py": "zones of whole runs",
    "federation/flower/trial/test_simulate.py": "whole trials",
    "federation/policy/test_honest_runs.py": "what no policy may refuse",
    "federation/policy/test_hostile_server.py": "what every policy must refuse",
    "inference/markov/test_invariances.py": "whole federations, pooled and split",
    "zones/test_federated.py": "server and sites together",
}
"""Tests of several modules together, which are not called after one."""


def test_tests_are_called_after_a_module_and_lie_in_the_same_folder():
    """At the root of tests/ are those of the repository itself: docs, layout, saved files, the bench."""
    lost = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        place = path.relative_to(ROOT / "tests")
        modules = (ROOT / "src" / "pfedhgp" / place.parent).glob("*.py")
        named = any(place.stem.startswith(f"test_{module.stem}") for module in modules)
        if len(place.parts) > 1 and not named and place.as_posix() not in WHOLE_PACKAGES:
            lost.append(place.as_posix())
    assert lost == []


def test_no_test_imports_a_test():
    """What several tests need is in tests/support."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        for name in imported_names(node)
        if any(part.startswith("test_") for part in name.split("."))
    ]
    assert found == []


def imported_names(node: ast.AST) -> list[str]:
    """The dotted names that an import statement brings in; of any other statement, none."""
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module or ''}.{each.name}" for each in node.names]
    return [each.name for each in node.names] if isinstance(node, ast.Import) else []


def private(name: str) -> bool:
    public = ("_asdict", "_fields", "_make", "_replace")  # of every named tuple
    return name.startswith("_") and not name.startswith("__") and name not in public


def defined_names(tree: ast.AST) -> set[str]:
    """What a module defines: functions, classes, variables and attributes."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def private_uses(tree: ast.AST, ours: set[str]) -> list[str]:
    """Names with an underscore that a module takes from another; attributes only if they are `ours`."""
    own, found = defined_names(tree), []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pfedhgp"):
            found += [f"{node.lineno} {each.name}" for each in node.names if private(each.name)]
        elif isinstance(node, ast.Attribute) and private(node.attr):
            itself = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not itself and node.attr in ours - own:
                found.append(f"{node.lineno} {ast.unparse(node)}")
    return found


def test_modules_use_no_private_name_of_another():
    """Libraries' own are not ours to judge."""
    trees = {
        str(path.relative_to(ROOT)): ast.parse(path.read_text("utf-8"))
        for path in sorted((ROOT / "src").rglob("*.py"))
    }
    ours = set().union(*map(defined_names, trees.values()))
    found = {name: private_uses(tree, ours) for name, tree in trees.items()}
    assert {name: uses for name, uses in found.items() if uses} == {}


@pytest.mark.parametrize(
    "line", ["from pfedhgp.gp.kernels import _columns", "view._hidden", "super()._hidden()"]
)
def test_a_private_name_of_another_module_is_found(line):
    ours = {"_hidden", "_other"}
    assert len(private_uses(ast.parse(line), ours)) == 1
    assert private_uses(ast.parse("def _hidden(self): self._other; model._hidden"), ours) == []


def test_make_test_flower_looks_where_its_tests_are():
    """A test that needs the extra `flower` outside of these folders would run nowhere."""
    target = (
        (ROOT / "Makefile").read_text("utf-8").partition("\ntest-flower:")[2].partition("\n\n")[0]
    )
    folders = tuple(word for word in target.split() if word.startswith("tests/"))
    needing = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "\npytestmark = pytest.mark.flower" in path.read_text("utf-8")
    ]
    assert len(needing) > 10
    assert [name for name in needing if not name.startswith(folders)] == []
