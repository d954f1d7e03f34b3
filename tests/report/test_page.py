"""The page as a whole: what it says, what it must not hold, and that it is written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from dataclasses import replace

import numpy as np
import pytest

from pfedhgp import report
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError, NotFittedError
from pfedhgp.estimator import FederatedGP
from pfedhgp.report import gathered
from pfedhgp.report.words import number
from support.reported import METRICS, case_of, estimator_of, rows_of

EVIL = '<img src=x onerror="alert(1)">&amp; ${7*7} {{7*7}}'


@pytest.fixture(scope="module")
def case():
    return case_of()


@pytest.fixture(scope="module")
def full(case):
    rows = rows_of(case)
    return report.render(estimator_of(case), rows=rows, held_out=rows, metrics=METRICS)


@pytest.fixture(scope="module")
def bare(case):
    return report.render(estimator_of(case))


def text_of(page: str) -> str:
    """What a reader sees, without figures and styles."""
    page = re.sub(r"<(svg|style|head)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_the_summary_has_four_numbers(full, bare):
    for page, keys in (
        (full, ["error", "coverage", "shared", "traffic"]),
        (bare, ["uncertainty", "noise", "shared", "traffic"]),
    ):
        assert re.findall(r'<div class="tile"><i>(\w+)</i>', page) == keys
    assert "<i>error</i><b>0.310</b><span>RMSE of y0 on held-out rows, mean over clients" in full
    assert "<i>coverage</i><b>93.0\u202f%</b>" in full


def test_it_says_what_was_fitted(case, full):
    text = text_of(full)
    for words in (
        "global, deviation, local",
        "Kernel of global and deviation RBF (lengthscale",
        "Local kernel of client 0 Matérn 3/2 (lengthscale",
        "φ, scale of the deviations 0.600",
        "Inducing inputs, global 6",
        "Rounds and exchanges 2 and 4",
        "Time to fit 12.5 seconds",
        "random, 20.0 % of each client, seed 7",
        "pooled GP",
    ):
        assert words in text
    length = float(np.asarray(case.model.shared.block.kernels.lengthscale)[0, 0]) * 4.0
    assert f"lengthscale {length:.3g}" in text


def test_what_crossed_is_listed_by_name(full):
    wire = full[full.index('id="wire"') :]
    for name in ("rows", "y_sum", "J", "h", "U", "evidence"):
        assert f"<code>{name}</code>" in wire


def test_every_client_has_a_section_and_only_the_first_is_open(full):
    clients = full[full.index('id="clients"') : full.index('id="shares"')]
    assert clients.count("<details") == 3
    assert clients.count("<details open>") == 1
    assert clients.index("<details open>") < clients.index("client 0")


def test_every_figure_has_a_caption_and_a_text_alternative(full):
    figures = re.findall(r"<figure>.*?</figure>", full, flags=re.DOTALL)
    assert len(figures) == 9
    for figure in figures:
        assert re.search(r"<figcaption>\s*\S", figure)
        for svg in re.findall(r"<svg[^>]*>", figure):
            assert re.search(r'role="img" aria-label="[^"]+"', svg)


def test_ids_are_unique(full):
    ids = re.findall(r'\bid="([^"]*)"', full)
    assert len(ids) == len(set(ids)) > 100
    used = set(re.findall(r'href="#([^"]*)"', full)) | set(re.findall(r"url\(#([^)]*)\)", full))
    assert used <= set(ids)


def test_nothing_is_loaded_from_anywhere(full):
    outside = re.findall(r'(?:src|href|url)\s*[=(]\s*["\']?\s*(?:https?:|//|file:)[^"\')]*', full)
    assert outside == []
    assert full.count("<script") == 1
    assert "@import" not in full
    assert "default-src 'none'" in full


def test_the_only_script_is_the_one_that_sorts(full):
    """The page's policy has its hash: a browser runs no other."""
    (script,) = re.findall(r"<script>(.*?)</script>", full, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in full[: full.index("<title>")]
    assert "@script" not in full
    for word in ("fetch", "XMLHttp", "import", "eval", "innerHTML", "http"):
        assert word not in script


def test_cells_of_the_clients_table_have_numbers_to_sort_by(full):
    table = re.search(r'<table class="sortable">.*?</table>', full, flags=re.DOTALL)[0]
    rmse = [float(v) for v in re.findall(r'<td data-v="([^"]*)">', table)][::2]
    assert rmse == [METRICS["clients"][f"client {i}"]["rmse"] for i in range(3)]


# ------------------------------------------------------------------------------------- what it hides


def test_without_rows_it_holds_no_data_points(case, bare):
    assert "It holds no data points" in bare
    assert not re.search(r'id="[^"]*-(rows|held-out)"', bare)
    assert "observed cell" not in bare
    for rows in rows_of(case):
        for value in rows.Y[:, 0]:
            assert f"{value:.4f}" not in bare


def test_with_rows_it_says_so(full):
    assert "It holds no data points" not in full
    assert len(re.findall(r'id="[^"]*-rows"', full)) == 6  # three clients, two widths each


def test_names_are_never_markup(case):
    model = estimator_of(
        case,
        clients={EVIL: case.model.clients["client 0"], "b\n\x00c": case.model.clients["client 1"]},
        input_names=(EVIL,),
        output_names=(EVIL,),
        messages=[{"round": 0, "kind": EVIL, "from": "server", "to": EVIL, "arrays": {EVIL: [1]}}],
    )
    by_output = {EVIL: {**METRICS["overall"], "clients": {EVIL: METRICS["clients"]["client 0"]}}}
    metrics = {**METRICS, "outputs": by_output, "baselines": {EVIL: METRICS["overall"]}}
    page = report.render(model, metrics={**metrics, "holdout": {"kind": EVIL, "fraction": 0.5}})
    assert "<img" not in page
    assert "&lt;img src=x onerror=" in page
    assert "{{7*7}}" in page  # a name is no template, either
    assert "\x00" not in page


def test_the_file_names_no_folder(case, tmp_path):
    target = tmp_path / "secret-folder" / "report.html"
    target.parent.mkdir()
    report.write(target, estimator_of(case))
    text = target.read_text("utf-8")
    assert "secret-folder" not in text
    assert os.getcwd() not in text


# --------------------------------------------------------------------------------------- what it says


def test_the_caveat_names_the_signs_that_hold(case):
    assert "only 3 clients" in text_of(report.render(estimator_of(case)))
    rows = rows_of(case)
    rows[0] = ClientRows(rows[0].name, np.tile(rows[0].X, (20, 1)), np.tile(rows[0].Y, (20, 1)))
    assert "unbalanced" in text_of(report.render(estimator_of(case), rows=rows))


def test_balance_is_known_from_the_fits_own_counts_when_no_rows_are_given(case):
    counts = {f"client {i}": {"rows": n, "cells": n} for i, n in enumerate((200, 9, 14))}
    text = text_of(report.render(estimator_of(case), metrics={"data": counts}))
    assert "the largest has 200 observed cells, the smallest 9" in text
    gone = {**counts, "a client that was forgotten": {"cells": 1}}
    again = text_of(report.render(estimator_of(case), metrics={"data": gone}))
    assert "the largest has 200 observed cells, the smallest 9" in again
    assert "It holds no data points" in text


def test_scores_are_by_output_and_say_what_they_are_averaged_over(full):
    errors = full[full.index('id="errors"') : full.index('id="clients"')]
    lines = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in errors.split("<tr>")[1:]]
    assert lines[0][:4] == ["model", "averaged over", "rows", "RMSE"]
    assert lines[1][:4] == ["this model", "rows", "20", "0.350"]
    assert lines[2][:3] == ["this model", "clients", "20"]
    assert lines[2][3] == "<b>0.310</b>"  # the best of the averages over clients
    assert lines[3][:4] == ["pooled GP", "clients", "20", "0.900"]
    assert "every held-out row has the same weight" in text_of(errors)
    assert "Over clients: every client has the same weight" in text_of(errors)


def test_scores_of_several_outputs_are_apart():
    case = case_of(outputs=2, tied=False, latents=1, local_latents=2, noise="output")
    from pfedhgp.estimator.evaluation import summarise
    from pfedhgp.gp.metrics import Scored

    model, scored = estimator_of(case), {}
    for r in rows_of(case):
        p = model.predict(r.name, r.X)
        scored[r.name] = Scored(y=r.Y, mean=p.mean, cov=p.covariance())
    metrics = {"holdout": None, **summarise(scored, ["y0", "y1"])}
    page = report.render(model, metrics=metrics)
    errors = page[page.index('id="errors"') : page.index('id="clients"')]
    lines = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in errors.split("<tr>")[1:]]
    assert [line[:2] for line in lines[1:]] == [
        [name, over] for name in ("y0", "y1", "all outputs") for over in ("rows", "clients")
    ]
    assert lines[1][3] == number(metrics["outputs"]["y0"]["pooled"]["rmse"])
    assert lines[4][3] == number(metrics["outputs"]["y1"]["client_mean"]["rmse"])
    assert lines[5][3:5] == lines[5][7:8] * 2 == ["–", "–"]  # no RMSE, CRPS or width of all outputs
    table = page[page.index('id="clients"') : page.index('id="shares"')]
    for client in model.clients_:
        for output in ("y0", "y1"):
            score = metrics["outputs"][output]["clients"][client]
            row = re.search(rf"<tr><th>{client}</th><td[^>]*>{output}</td>(.*?)</tr>", table)[1]
            assert re.findall(r"<td[^>]*>(.*?)</td>", row)[2:5] == [
                number(score[metric]) for metric in ("rmse", "nll", "crps")
            ]
    assert re.search(r"Local kernels of latent 1: Mat\S+ 3/2 .*?; of latent 2: Mat", text_of(table))
    fitted = text_of(page[page.index('id="model"') :])
    assert "Local kernel of client 0, latent 1" in fitted
    assert "Local kernel of client 0, latent 2" in fitted


def test_rows_of_which_nothing_is_known_are_apart(case):
    page = report.render(estimator_of(case), others=rows_of(case))
    assert "Squares are other rows" in page
    assert re.search(r'id="[^"]*-others"', page)
    assert not re.search(r'id="[^"]*-(rows|held-out)"', page)
    assert "It holds no data points" not in page


def test_a_model_without_deviation_has_no_caveat_about_it():
    page = report.render(estimator_of(case_of(deviation=False)))
    assert "How far to trust this" not in page
    assert ">Deviation layer<" not in page


def test_a_local_model_has_neither_overview_nor_global_kernel():
    case = case_of(outputs=2, tied=False, latents=0, deviation=False)
    page = report.render(estimator_of(case))
    assert "Kernel of global" not in page
    assert 'aria-label="All clients' not in page
    assert "Local kernel" in page


def test_many_clients_are_a_selection_and_a_whole_table(case):
    clients = {f"site {i:02d}": case.model.clients["client 1"] for i in range(20)}
    errors = {name: {"rmse": float(i)} for i, name in enumerate(clients)}
    page = report.render(
        estimator_of(case, clients=clients, client_jitter={}),
        metrics={"outputs": {"y0": {"pooled": {"rows": 9, "rmse": 1.0}, "clients": errors}}},
    )
    text = text_of(page)
    assert (
        "12 of 20 clients have figures of all layers below: sorted by error, the best, the worst, and "
        "others at even distances between them." in text
    )
    assert "All have a small figure, and the table has all of them" in text
    assert "of all clients along x0, from the smallest error to the largest" in text
    section = page[page.index('id="clients"') : page.index('id="shares"')]
    assert section.count("<details") == 12
    assert all(f"<th>{name}</th>" in section for name in clients)


@pytest.mark.slow
def test_a_choice_by_a_joint_error_says_so():
    case = case_of(outputs=2, tied=False, latents=1, local_latents=1, noise="output")
    clients = {f"site {i:02d}": case.model.clients["client 1"] for i in range(14)}
    errors = {name: {"rmse": float(i)} for i, name in enumerate(clients)}
    own = {"pooled": {"rows": 9, "rmse": 1.0}, "clients": errors}
    model = estimator_of(case, clients=clients, client_jitter={})
    text = text_of(report.render(model, metrics={"outputs": {"y0": own, "y1": own}}))
    joint = "The error is one for all outputs: RMSE over that of all clients together, averaged"
    assert joint in text
    text = text_of(report.render(model))
    assert "every 1.2th in the order in which they came, with the first and the last" in text
    assert joint not in text


def test_each_of_the_first_outputs_has_an_overview():
    case = case_of(outputs=6, tied=False, latents=1, local_latents=1, noise="output", sizes=(9, 8))
    page = report.render(estimator_of(case))
    header = page[page.index('<header id="summary">') : page.index("</header>")]
    assert header.count("<figure>") == 4
    assert header.index("<figure>") < header.index("<details") < header.rindex("<figure>")


def test_several_outputs_and_inputs():
    case = case_of(outputs=3, tied=False, latents=2, local_latents=1, noise="output", d=2)
    page = report.render(estimator_of(case), rows=rows_of(case))
    text = text_of(page)
    assert "Loadings say how" in text
    assert "a slice along one input with the others at the medians of all rows" in text
    section = page[page.index('id="clients"') : page.index('id="shares"')]
    assert section.count("<figure>") == 3 * 6
    middle = np.median(np.concatenate([rows.X[:, 1] for rows in rows_of(case)]))
    assert f"at x1 = {middle:.2f}" in text
    # correlations of the model-implied covariance, on the diagonal of which is one
    assert re.search(r">1\.00<", page[page.index('id="outputs"') :])


def test_slices_along_different_inputs_may_differ_in_length(monkeypatch):
    case = case_of(
        outputs=2, tied=False, latents=1, local_latents=1, noise="output", d=2, sizes=(9, 8)
    )
    lengths = iter([30, 50])
    monkeypatch.setattr(gathered, "grid_size", lambda finest: next(lengths))
    model = estimator_of(case)
    page = report.render(model)
    along = [np.full((30, 2), 12.0), np.full((50, 2), 12.0)]
    along[0][:, 0], along[1][:, 1] = np.linspace(10, 14, 30), np.linspace(10, 14, 50)
    (tile,) = re.findall(r"<i>uncertainty</i><ul>(.*?)</ul>", page)
    whole = [
        np.median(
            [_rms([model.predict(name, X).sd[:, q] for X in along]) for name in model.clients_]
        )
        for q in (0, 1)
    ]
    assert re.findall(r"<b>(.*?)</b>", tile) == [number(sd) for sd in whole]


def _rms(parts) -> float:
    return float(np.sqrt(np.mean(np.concatenate(parts) ** 2)))


def test_more_slices_than_fit_are_counted():
    case = case_of(
        outputs=3, tied=False, latents=1, local_latents=1, noise="output", d=3, sizes=(9,)
    )
    text = text_of(report.render(estimator_of(case)))
    assert "1 more slices are not drawn" in text


def test_no_history_no_messages_no_bound_are_said(case):
    text = text_of(report.render(estimator_of(case, history=[], messages=[])))
    assert "has no record of its training" in text
    assert "has no message log" in text
    history = [{**h, "bound": None} for h in estimator_of(case).history_]
    assert "does not send its bound" in text_of(report.render(estimator_of(case, history=history)))


# ---------------------------------------------------------------------------------------- writing it


def test_the_same_model_gives_the_same_file(case, full):
    rows = rows_of(case)
    assert report.render(estimator_of(case), rows=rows, held_out=rows, metrics=METRICS) == full


def test_it_replaces_an_old_report(case, tmp_path):
    target = tmp_path / "report.html"
    target.write_text("old")
    assert report.write(target, estimator_of(case)) == target
    assert target.read_text("utf-8").startswith("<!doctype html>")
    assert os.listdir(tmp_path) == ["report.html"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_report(case, tmp_path, monkeypatch, error):
    target = tmp_path / "report.html"
    target.write_text("old")

    def fail(handle):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(error)):
        report.write(target, estimator_of(case))
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_folder_or_no_folder_is_refused(case, tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        report.write(tmp_path, estimator_of(case))
    with pytest.raises(InputError, match="no such folder"):
        report.write(tmp_path / "a" / "b.html", estimator_of(case))


def test_a_model_that_is_not_fitted_is_refused(tmp_path):
    with pytest.raises(NotFittedError):
        report.write(tmp_path / "r.html", FederatedGP())


def test_hosts_settings_of_matplotlib_come_back(case):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    report.render(estimator_of(replace(case)))
    assert dict(mpl.rcParams) == before
