"""One screen about a fitted model: its numbers are the model's, and names cannot break the page."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from rich.console import Console

from pfedhgp import FederatedGP, Structured
from pfedhgp.errors import ConvergenceWarning
from pfedhgp.estimator import summary
from pfedhgp.federation.planning import until_settled
from pfedhgp.model.departures import Departure
from pfedhgp.model.traffic import traffic
from pfedhgp.model.words import byte_size, number
from pfedhgp.settings.config import checked

X = np.linspace(0.0, 2000.0, 30)


def sites(loud: float = 1.0) -> dict:
    rng = np.random.default_rng(0)
    found = {
        f"site {i}": (X, 50 * np.sin(X / 300) + 9 * i + 2 * rng.normal(size=30)) for i in range(3)
    }
    found["<b>&loud"] = (X[:20], 50 * np.sin(X[:20] / 300) + loud * 2 * rng.normal(size=20))
    return found


@pytest.fixture(scope="module")
def model() -> FederatedGP:
    return FederatedGP().fit(sites(loud=12.0), inputs="metres", outputs="load")


def test_its_numbers_are_the_models(model):
    found = model.summary()
    assert found.title == "FederatedGP (structured): load by metres"
    assert found["clients"] == "4, 110 rows (20 to 30)"
    assert repr(model.kernel_.lengthscale) in found["kernel"]
    sd = model.noise_.sd
    assert found["noise"] == f"sd {number(sd.min())} to {number(sd.max())} over clients"
    assert found["φ"].startswith(f"{number(float(model.phi_))}, variance of deviations")
    assert found["bound"].startswith(f"{model.bound_:.2f}, after ")
    assert found["bound"].endswith(f" and {model.exchanges_} exchanges")
    assert found.settled is True
    assert found["training"].startswith("converged after ")
    times = sd[-1, 0] / np.median(sd[:, 0])
    assert times > 3
    assert f"<b>&loud (noise {number(times)} times the median)" in found["stand out"]
    assert f"{byte_size(traffic(model.messages_).up)} by clients" in found["sent"]
    shares = [float(word.split()[-1]) for word in found["layers"].split("\u202f%")[:-1]]
    assert sum(shares) == pytest.approx(100.0, abs=0.2)
    assert shares[0] > 80.0  # the global wave


def test_clients_that_surely_depart_by_little_do_not_stand_out(model, monkeypatch):
    def departing(phi: float, log_odds: float = 50.0) -> Departure:
        return Departure(phi, 0.9 * phi, 1.1 * phi, 1.0, 0.9, 1.1, log_odds)

    found = {
        "surest": departing(0.00122, 500.0),
        "far": departing(0.3),
        "farthest": departing(2.0, 9.0),
        "unsure": departing(5.0, 0.1),
    }
    monkeypatch.setattr(summary.departures, "departures", lambda _: found)
    said = model.summary()["stand out"]
    assert said.startswith("farthest (φ 2.00), far (φ 0.300), <b>&loud (noise ")


def test_text_terminal_and_notebook(model):
    found = model.summary()
    text = str(found)
    assert text == repr(found)
    assert text.splitlines()[0] == found.title
    assert all(len(line) < 110 for line in text.splitlines())
    assert len(text.splitlines()) <= 24
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(found)
    shown = console.export_text()
    assert "<b>&loud" in shown  # no markup of rich's either
    assert found["clients"] in shown
    page = found._repr_html_()
    assert "&lt;b&gt;&amp;loud" in page
    assert "<b>" not in page
    assert page.count("<tr") == len(found) == len(list(found))


def test_a_loaded_model_has_the_same(model, tmp_path):
    model.save(tmp_path / "M")
    assert str(FederatedGP.load(tmp_path / "M").summary()) == str(model.summary())


def test_what_has_not_settled_is_said_with_what_to_do():
    with pytest.warns(ConvergenceWarning, match=r"limit of 2 rounds.*`rounds`=40") as caught:
        short = FederatedGP(rounds=2).fit(sites())
    assert caught[0].filename == __file__
    assert short.summary().settled is False
    assert "not settled: fit with a higher limit" in short.summary()["training"]


def test_by_default_a_fit_settles_and_callbacks_may_stop_it():
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model = FederatedGP().fit(sites())
        FederatedGP(callbacks=[lambda record: record["round"] == 2]).fit(sites())
    assert model.history_[-1]["ended"] == "converged"
    assert model.rounds is None


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        ({}, 40),
        ({"rounds": 7}, 7),
        ({"privacy": "sums"}, None),  # each round answers more questions about the rows
        ({"masks": True}, None),
        ({"inference": Structured()}, None),
        ({"inference": "mean-field"}, None),
    ],
)
def test_who_trains_until_settled(settings, rounds):
    assert until_settled(checked(FederatedGP(**settings))).rounds == rounds


def test_mean_field_and_several_inputs_and_outputs():
    rng = np.random.default_rng(1)
    data = {n: (rng.uniform(size=(14, 2)), rng.normal(size=(14, 2))) for n in "ab"}
    plain = FederatedGP(rounds=2, inference="mean-field", inducing=6, local_inducing=5).fit(data)
    found = plain.summary()
    assert found.settled is None
    assert "not known" in found["bound"]
    assert found.title == "FederatedGP (mean-field): y0, y1 by x0, x1"
