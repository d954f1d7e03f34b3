"""The scripts in examples/gallery run in their small versions, and find what their data were made with."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import runpy
import warnings
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

from pfedhgp.data import demo_town
from support.documents import ROOT

FOLDER = ROOT / "examples" / "gallery"


@pytest.fixture
def run(monkeypatch):
    """Runs a script: its names, what it printed, and how many figures it drew."""
    monkeypatch.setenv("PFEDHGP_SMALL", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))  # for the commands that it starts
    monkeypatch.setenv("PFEDHGP_CACHE", "")

    def call(name: str) -> tuple[dict, str, int]:
        said = io.StringIO()
        with (
            mpl.rc_context({"backend": "agg"}),
            warnings.catch_warnings(),
            contextlib.redirect_stdout(said),
        ):
            warnings.simplefilter("ignore")  # fits are short
            plt.close("all")  # those of other tests
            names = runpy.run_path(str(FOLDER / name), run_name="__main__")
            count = len(plt.get_fignums())
            plt.close("all")
        return names, said.getvalue(), count

    return call


def test_there_are_no_others():
    here = [f"{name.removeprefix('test_')}.py" for name in globals() if name.startswith("test_")]
    scripts = {path.name for path in FOLDER.glob("*.py")}
    assert scripts <= set(here)
    assert len(scripts) == 6
    index = (FOLDER / "README.md").read_text("utf-8")
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    for name in scripts:
        assert f"]({name})" in index
        assert f"gallery/{name.removesuffix('.py')}.md" in navigation


def test_air_quality(run):
    names, _, figures = run("air_quality.py")
    errors = {name: t["overall"]["client_mean"]["rmse"] for name, t in names["table"].items()}
    assert errors["federated"] < 0.5 * errors["one for all"]  # stations differ
    assert len(names["ahead"].times) == 72
    assert np.isfinite([each["crps"] for each in names["past"]["scores"]["model"]]).all()
    assert figures == 6


def test_machine_cycles(run):
    names, said, figures = run("machine_cycles.py")
    right = np.mean([a == b for a, b in zip(names["found"].labels, names["truth"], strict=True)])
    assert right > 0.6  # by chance: a third
    assert names["reasons"].total == pytest.approx(np.nansum(names["reasons"].along))
    assert re.search(r"\d+ of 12 cycles of fault 2 are none of these", said)
    assert figures == 4


def test_zones(run):
    names, said, figures = run("zones.py")
    zones = names["zones"]
    assert said.count("group ") == zones.groups == 3
    assert set(zones.labels) == {name for _, name in demo_town.stations(6)}
    reveals = [line["R²"] for line in names["lines"]]
    assert reveals[0] < reveals[1]  # a longer sketch tells more
    assert figures == 3


def test_three_folders(run):
    """Without Flower, or in the small version: one process, and it says so."""
    names, said, figures = run("three_folders.py")
    assert "one process" in said
    assert names["gap"] == 0.0
    assert names["model"].clients_ == ("ana", "ben", "cleo")
    assert {each["kind"] for each in names["sent"]} >= {"census", "start", "round"}
    assert figures == 2


@pytest.mark.slow
def test_privacy(run):
    names, _, figures = run("privacy.py")
    found = {p: f["rows found (by chance: histogram)"] for p, f in names["found"].items()}
    assert found["none"]["found"]["value"] > found["sums"]["found"]["value"]
    error, private = names["error"], names["private"]
    assert error(private[1.0])[0] > error(names["plain"])[0]  # the noise is random: no more is sure
    assert figures == 2


@pytest.mark.slow
def test_own_kernels(run):
    names, said, figures = run("own_kernels.py")
    errors = dict(names["table"].select("kernel", "error of the last day").iter_rows())
    assert errors["smooth + daily"] < 0.5 * errors["smooth"]
    assert "period" in said
    kernel, grid = names["Swing"](2.0), np.linspace(-3, 3, 40)[:, None]
    K = np.asarray(kernel(grid, grid))
    r = np.abs(grid - grid.T) / 2.0
    np.testing.assert_allclose(K, np.cos(2 * r) * np.exp(-0.5 * r**2), atol=1e-9)
    assert np.linalg.eigvalsh(K).min() > -1e-9
    assert figures == 2


# --------------------------------------------------------------------------------- the site's pages


@pytest.fixture
def hook(tmp_path, require):
    require("mkdocs")
    path = ROOT / "docs" / "hooks" / "gallery.py"
    spec = importlib.util.spec_from_file_location("gallery_hook", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_page_without_tools_has_text_and_code_and_says_so(hook):
    page = hook.bare(FOLDER / "zones.py")
    assert page.startswith("# Zones: which stations behave alike?\n")
    assert "has no results" in page.split("```", 1)[0]
    assert "zones = model.cluster(3" in page
    assert "# %%" not in page
    assert page.count("```") == 2 * (FOLDER / "zones.py").read_text().count("# %%\n")


def test_what_cells_print_and_draw_is_shown(hook):
    png = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + (288).to_bytes(4, "big")
    import base64

    image = {"image/png": base64.b64encode(png).decode(), "text/plain": "<Figure>"}
    axes, value = {"text/plain": "<Axes: >"}, {"text/plain": "(3, 4)"}
    table = {"text/html": '<table border="1"><tr><td>&quot;a&quot;</td><td>1</td></tr></table>'}

    def cell(*data):
        outputs = [{"output_type": "display_data", "data": each} for each in data]
        return {"cell_type": "code", "source": ["f()"], "outputs": outputs}

    pictures: dict[str, bytes] = {}
    drawn = list(hook._shown(cell(axes, image), "zones", pictures))
    assert drawn == [
        "```python\nf()\n```",
        "![A figure, drawn by the code above](zones-1.png){ .drawn width=164 }",
    ]
    assert pictures == {"zones-1.png": png}
    assert list(hook._shown(cell(value), "zones", {}))[1] == '<pre class="printed">(3, 4)</pre>'
    (_, shown) = hook._shown(cell(table), "zones", {})
    assert shown == '<div class="result"><table><tr><td>a</td><td>1</td></tr></table></div>'
    said = {"output_type": "stream", "name": "stdout", "text": ["a < b\n"]}
    told = {"cell_type": "code", "source": [], "outputs": [said]}
    assert list(hook._shown(told, "zones", {})) == ['<pre class="printed">a &lt; b</pre>']


@pytest.mark.slow
def test_a_failing_script_fails_the_build(hook, tmp_path, monkeypatch):
    for tool in hook.TOOLS:
        if importlib.util.find_spec(tool) is None:
            pytest.skip(f"{tool} is not installed: it comes with the extra `docs`")
    from mkdocs.exceptions import PluginError

    script = Path(tmp_path, "wrong.py")
    script.write_text("# %%\nraise ValueError('no such station')\n")
    monkeypatch.setattr(hook, "ROOT", tmp_path)
    with pytest.raises(PluginError, match=r"(?s)wrong\.py failed.*no such station"):
        hook.executed(script)
