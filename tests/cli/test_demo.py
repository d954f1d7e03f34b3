"""`pfedhgp demo`, small and from end to end: what it prints, writes and refuses."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil

import numpy as np
import pytest

from pfedhgp.cli import demo
from pfedhgp.cli.main import main
from pfedhgp.data import demo_town as town
from pfedhgp.errors import InputError
from pfedhgp.estimator import FederatedGP
from pfedhgp.zones.result import KeptZones
from support.browser import CHROMIUM, DESKTOP, PHONE, SCHEMES, check_readable, look, picture_of
from support.grouped import zones_of
from support.parts import require_part
from support.reported import Svg, case_of, estimator_of

SMALL = demo.Size(
    rounds=2,
    inducing=12,
    local_inducing=6,
    block_days=1.0,
    town=town.Town(days=8, stations=3, newcomer_days=4.0, outage_days=1.0),
)
SCORES = {"rmse": 3.0, "crps": 2.0, "nll": 2.5, "coverage": 0.93, "width": 14.0, "ece": 0.02}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """(folder, standard output, standard error) of a small demo."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PFEDHGP_CACHE", "")  # the test process keeps its own JAX settings
        patch.setenv("COLUMNS", "100")
        patch.setattr(demo, "SIZE", SMALL)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["demo", "--out", str(folder)])
    assert code == 0, err.getvalue()
    return folder, out.getvalue(), err.getvalue()


@pytest.mark.parametrize(
    ("started", "on_path", "shown"),
    [
        ("/usr/bin/pfedhgp", True, "pfedhgp"),
        (".venv/bin/pfedhgp", False, ".venv/bin/pfedhgp"),
        ("my env/bin/pfedhgp", False, "'my env/bin/pfedhgp'"),
        ("src/pfedhgp/__main__.py", False, "/some/python -m pfedhgp"),
    ],
)
def test_the_next_command_is_one_that_can_be_typed_here(
    monkeypatch, tmp_path, started, on_path, shown
):
    (tmp_path / "pfedhgp").write_text("#!/bin/sh\n")
    (tmp_path / "pfedhgp").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path if on_path else tmp_path / "nothing"))
    monkeypatch.setattr("sys.argv", [started, "demo"])
    monkeypatch.setattr("sys.executable", "/some/python")
    assert demo.program() == shown


@pytest.mark.slow
def test_it_prints_a_table_a_reading_and_the_path(ran):
    folder, out, err = ran
    for name in ("federated", "per-station GP", "pooled GP"):
        assert re.search(rf"{name}( +[\d.]+){{3}} +[\d.]+% +[\d.]+ +[\d.]+", out)
    assert "On days that a station missed" in out
    *_, report, readings, _, command = out.rstrip().splitlines()
    assert report == f"The report: {folder / 'report.html'}"
    assert readings == f"The readings: {folder / 'stations.csv'}"
    assert command.strip() == demo.NEXT.format(
        program=demo.program(), table=folder / "stations.csv"
    )
    assert re.search(r"Done in \d+ s \(\d+ s of processor time\)", out)
    assert "Zones found (the town was made with 3):" in out
    said = " ".join(out.split())
    assert re.search(r"each station sent a sketch: 24 numbers .* R² 0\.\d\d on average", said)
    assert "left its station" not in out
    for station, zone in (("Station Road", "centre"), ("Willow Lane", "suburbs")):
        assert re.search(rf"\d +{station}: {zone}$", out, flags=re.M)
    assert "mean over stations" in out
    assert "3 made-up stations" in err
    assert err.count("round 2 of at most 2, bound") == 3
    warned = [line for line in err.splitlines() if "warning" in line]
    assert all("the limit of 2 rounds" in line for line in warned)  # and of nothing else


@pytest.mark.slow
def test_the_folder_is_a_run_that_loads(ran):
    folder, _, _ = ran
    assert sorted(os.listdir(folder)) == ["RUN", "report.html", "stations.csv"]
    model = FederatedGP.load(folder / "RUN")
    assert model.model_.settings["demo"] == {"seed": 0}
    assert len(model.clients_) == 3
    metrics = json.loads((folder / "RUN" / "metrics.json").read_text())
    assert set(metrics["baselines"]) == {"per-station GP", "pooled GP"}
    assert metrics["holdout"] == {"kind": "blocks", "fraction": 0.2, "seed": 0, "block_days": 1.0}


@pytest.mark.slow
def test_scores_are_of_held_out_readings_in_the_datas_units(ran):
    folder, out, _ = ran
    model = FederatedGP.load(folder / "RUN")
    rows = town.simulate(
        seed=0, town=town.Town(days=8, stations=3, newcomer_days=4.0, outage_days=1.0)
    )
    test = town.hold_out_blocks(rows, fraction=0.2, block_days=1.0, seed=0).test
    errors = []
    for client in test:
        if len(client.X):
            gap = client.Y - model.predict(client.name, client.X).mean
            errors.append(np.sqrt(np.mean(gap**2)))
    overall = model.model_.metrics["overall"]["client_mean"]
    assert overall["rmse"] == pytest.approx(np.mean(errors), rel=1e-9)
    assert overall["rows"] == sum(len(client.X) for client in test)
    assert f"{overall['rmse']:.2f}" in out


@pytest.mark.slow
def test_the_report_shows_dates_rows_and_baselines(ran):
    page = (ran[0] / "report.html").read_text("utf-8")
    assert "time (UTC)" in page
    assert re.search(r">\d+ Oct 2024<", page)
    assert re.search(r'id="[^"]*-rows"', page)
    assert re.search(r'id="[^"]*-held-out"', page)
    assert "pooled GP" in page
    assert '<section id="zones">' in page
    assert "the true zones are known" in page
    assert "period 24 hours" in page or "period 1 day" in page


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_a_browser_shows_the_demos_own_report(ran, width, scheme, tmp_path):
    """All of it, baselines and zones too, from top to bottom."""
    require_part("Chromium", found=CHROMIUM is not None)
    page = (ran[0] / "report.html").read_text("utf-8")
    for name in ("errors", "clients", "shares", "convergence", "zones"):
        assert f'<section id="{name}">' in page
    assert "Errors of this model and of the baselines" in page
    figures = page.count("<figure")
    assert figures == 1 + 1 + 2 + 3 + 1 + 1 + 2
    seen, log = look(page, tmp_path, width, scheme)
    check_readable(seen, log, width=width, figures=figures)
    assert len(picture_of(page, tmp_path, width, scheme, seen["tall"], "demo")) > 100_000


def places(page: str) -> dict[tuple[str, str], np.ndarray]:
    """Where rows and held-out rows were drawn, by figure."""
    found = {}
    for text in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        for name, kind in re.findall(r'id="(client-[\d-]+\d)-(rows|held-out)"', text):
            found[name, kind] = Svg(text, name).places(kind)
    return found


@pytest.mark.slow
def test_the_readings_are_a_table_that_can_be_fitted_to_and_reported(ran, run, tmp_path):
    """The split is the demo's, found again from its own table; the command to try next is understood."""
    folder, _, _ = ran
    given = ("--data", folder / "stations.csv", "--out", tmp_path / "again.html")
    done = run("report", folder / "RUN", *given)
    assert (done.code, done.err) == (0, "")
    again, first = (
        places(path.read_text("utf-8"))
        for path in (tmp_path / "again.html", folder / "report.html")
    )
    assert again.keys() == first.keys()
    assert sum(len(drawn) for (_, kind), drawn in first.items() if kind == "held-out") > 0
    for key, drawn in first.items():
        np.testing.assert_array_equal(again[key], drawn)
    _, *words = shlex.split(demo.NEXT.format(program="pfedhgp", table=folder / "stations.csv"))
    words[words.index("--out") + 1] = str(tmp_path / "RUN")
    assert run(*words, "--write-config", tmp_path / "fit.toml").code == 0


@pytest.mark.slow
def test_its_own_folder_may_be_used_again_while_the_readings_are_its_own(
    ran, tmp_path, monkeypatch
):
    monkeypatch.setattr(demo, "SIZE", SMALL)
    demo.check_folder(ran[0], overwrite=False)
    mine = tmp_path / "mine"
    shutil.copytree(ran[0], mine)
    (mine / "stations.csv").write_text("station,time,no2\n")
    with pytest.raises(InputError, match=r"stations\.csv was changed"):
        demo.check_folder(mine, overwrite=False)
    demo.check_folder(mine, overwrite=True)


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    for extra in ([], ["--overwrite"]):
        assert main(["demo", "--out", str(tmp_path), *extra]) == 2
        err = capsys.readouterr().err
        assert err.startswith("pfedhgp: error: ")
        assert err.count("\n") == 1
        assert str(tmp_path) in err
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_another_model_is_replaced_only_when_told_so(tmp_path, capsys):
    target = tmp_path / "run"
    estimator_of(case_of()).save(target / "RUN")
    before = (target / "RUN" / "spec.json").read_bytes()
    assert main(["demo", "--out", str(target)]) == 2
    assert "is not a complete demo" in capsys.readouterr().err
    assert (target / "RUN" / "spec.json").read_bytes() == before
    demo.check_folder(target, overwrite=True)  # does not raise


def test_a_file_in_the_way_is_refused(tmp_path, capsys):
    target = tmp_path / "file"
    target.write_text("mine")
    assert main(["demo", "--out", str(target)]) == 2
    assert "is a file" in capsys.readouterr().err
    assert target.read_text() == "mine"


def test_help_lists_the_demo(capsys):
    assert main(["--help"]) == 0
    assert re.search(r"\bdemo\b", capsys.readouterr().out)
    assert main(["demo", "--help"]) == 0
    assert "--overwrite" in capsys.readouterr().out


def test_zones_in_words_follow_what_was_found():
    names = [name for own in town.ZONES.values() for name in own]
    true = [i for i, own in enumerate(town.ZONES.values()) for _ in own]
    truth = {name: list(town.ZONES)[i] for name, i in zip(names, true, strict=True)}
    found = KeptZones(zones_of(names, true), truth=truth)
    said = "\n".join(demo.zones_in_words(found))
    assert "the town was made with 3" in said
    assert "Fox Hill, High Moor, Reservoir: hills\n" in said
    assert "These are the town's own zones (agreement, ARI, 1.00)." in said
    assert said.endswith("can reconstruct them from it with R² 0.56 on average, 0.61 at most.")
    wrong = KeptZones(zones_of(names, [2, *true[1:]]), truth=truth)
    said = "\n".join(demo.zones_in_words(wrong))
    assert "Cathedral, Fox Hill, High Moor, Reservoir: centre and hills" in said
    assert "These are not quite the town's own zones" in said


def test_the_reading_follows_the_numbers():
    def scores(ours: float, alone: float, pooled: float) -> dict[str, dict[str, float]]:
        names = (demo.FEDERATED, demo.ALONE, demo.POOLED)
        return {n: {**SCORES, "rmse": r} for n, r in zip(names, (ours, alone, pooled), strict=True)}

    assert "40% less than the better of the two" in demo.scores_in_words(scores(3.0, 5.0, 9.0))
    assert "70% less than the better of the two" in demo.scores_in_words(scores(3.0, 12.0, 10.0))
    lost = demo.scores_in_words(scores(5.0, 4.0, 9.0))
    assert "no gain over the per-station GP" in lost
    assert "less than" not in lost
    assert "93% of the readings" in lost
