"""A fit that compiles, or that will take long, says so before it begins; a small one says nothing."""

from __future__ import annotations

from io import StringIO

import numpy as np
import pytest

from pfedhgp import FederatedGP, Structured
from pfedhgp.base.progress import duration, progress
from pfedhgp.data.scaling import Scaling
from pfedhgp.federation import forecast
from pfedhgp.federation.forecast import cost
from pfedhgp.gp.kernels import RBF
from pfedhgp.model.spec import build_spec


class Stop(Exception):
    """Ends a fit when its forecast is there."""


class Listening:
    """Collects what is expected; a fit ends at the request `until`."""

    def __init__(self, until: str = "", show=None) -> None:
        self.until, self.show, self.heard, self.kinds = until, show, [], []

    def __call__(self, record) -> None:
        pass

    def phase(self, kind: str) -> None:
        if self.kinds and self.kinds[-1] == self.until:
            raise Stop
        self.kinds.append(kind)
        if self.show is not None:
            self.show.phase(kind)

    def expect(self, what: str, seconds: float) -> None:
        self.heard.append((what, seconds))
        if self.show is not None:
            self.show.expect(what, seconds)
        if self.until == "start" and self.kinds[-1] == "start" and what == "fitting":
            raise Stop


def sites(clients: int, rows: int, outputs: int = 1, wave: float = 6.0):
    x = np.linspace(0.0, 1.0, rows)[:, None]
    rng = np.random.default_rng(0)
    return {
        f"site {i}": (x, np.sin(wave * x + i) + 0.1 * rng.normal(size=(rows, outputs)))
        for i in range(clients)
    }


def said(data, **settings) -> str:
    """What progress shows until the start of training."""
    out = StringIO()
    with progress(rounds=10, stream=out) as show, pytest.raises(Stop):
        FederatedGP(callbacks=[Listening("start", show)], **settings).fit(data)
    return out.getvalue()


def test_a_long_fit_says_how_long_before_it_starts(monkeypatch):
    """Large clients are computed side by side; a fit without averages is shorter."""
    assert "this fit may take about " in said(sites(1500, 40))
    monkeypatch.setattr(forecast, "cores", lambda: 2)
    large = {"inducing": 100, "local_inducing": 200}
    weather = said(sites(35, 292, 2), rounds=10, **large)
    assert weather.splitlines()[-1] == "this fit may take about 2 min"
    settled = said(sites(35, 292, 2), **large)  # 15 rounds are usual, and 40 the limit
    assert settled.splitlines()[-1] == "this fit may take about 3 min"

    def seconds(cores: int, **settings) -> float:
        monkeypatch.setattr(forecast, "cores", lambda: cores)
        heard = Listening("start")
        with pytest.raises(Stop):
            FederatedGP(callbacks=[heard], **large, **settings).fit(sites(4, 292, 2))
        return dict(heard.heard)["fitting"]

    assert seconds(1) == pytest.approx(2.0 * seconds(2))
    plain = seconds(2, inference=Structured(averaging=None))
    assert 0.5 * seconds(2) < plain < 0.9 * seconds(2)


def test_the_forecast_scales_and_merges_rows_once(monkeypatch):
    counts = []
    real = Scaling.rows
    monkeypatch.setattr(Scaling, "rows", lambda *args: counts.append(1) or real(*args))
    with pytest.raises(Stop):
        FederatedGP(callbacks=[Listening("round")]).fit(sites(3, 12))
    assert len(counts) == 3


def test_full_noise_with_many_patterns_of_missing_cells_compiles():
    """What the host's own check says, before any row is scaled."""
    rng = np.random.default_rng(0)
    x = np.linspace(0.0, 1.0, 40)[:, None]
    Y = np.sin(6.0 * x) + 0.1 * rng.normal(size=(40, 5))
    Y[np.arange(20), np.arange(20) % 5] = np.nan
    Y[np.arange(10), (np.arange(10) + 1) % 5] = np.nan
    heard = Listening("start")
    with pytest.raises(Stop):
        FederatedGP(noise="full", callbacks=[heard]).fit({"a": (x, Y), "b": (x, Y)})
    assert heard.heard[0] == ("compiling", 10.0)


def test_a_small_fit_says_neither_that_it_is_long_nor_that_it_compiles():
    out, heard = StringIO(), Listening()
    with progress(rounds=2, stream=out) as heard.show:
        FederatedGP(rounds=2, callbacks=[heard]).fit(sites(2, 12))
    assert [what for what, _ in heard.heard] == ["fitting"]
    assert heard.heard[0][1] < 2.0
    assert "about" not in out.getvalue()


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({"inference": "mean-field"}, 20.0),
        ({"local": "state-space"}, 15.0),
        ({"inference": Structured(learn_inducing=True), "inducing": 4}, 10.0),
    ],
)
def test_what_compiles_says_so_before_it_begins(settings, seconds, monkeypatch):
    """The fit is stopped before the clients answer: nothing was compiled yet."""
    from pfedhgp.federation.clients import ClientGroup

    def refuse(group, request):
        raise Stop

    monkeypatch.setattr(ClientGroup, "_on_start", refuse)
    out, heard = StringIO(), Listening()
    with progress(rounds=2, stream=out) as heard.show, pytest.raises(Stop):
        FederatedGP(callbacks=[heard], **settings).fit(sites(2, 12))
    assert heard.heard[0] == ("compiling", seconds)
    assert f"compiling, about {seconds:.0f} s the first time\n" in out.getvalue()


def test_a_kernel_of_ones_own_compiles():
    class Mine(RBF):
        pass

    heard = Listening("start")
    with pytest.raises(Stop):
        FederatedGP(kernel=Mine(1.0), callbacks=[heard]).fit(sites(2, 12))
    assert heard.heard[0] == ("compiling", 10.0)


@pytest.mark.parametrize(
    ("rows", "outputs", "M", "M_i", "milliseconds"),
    [
        (20, 1, 8, 20, 0.058),
        (50, 1, 12, 50, 0.23),
        (100, 1, 100, 64, 0.87),
        (50, 4, 20, 50, 1.6),
        (292, 2, 48, 72, 7.1),
        (292, 2, 100, 200, 24.0),
        (4000, 1, 20, 100, 27.0),
    ],
)
def test_the_cost_of_an_evaluation_is_about_what_was_measured(rows, outputs, M, M_i, milliseconds):
    """Processor time of 2026-11-16; to a factor of two."""
    layers = ("global", "deviation", "local")
    kernels = {"kernel": RBF(1.0), "local_kernel": RBF(1.0)}
    latents = {"latents": None, "local_latents": None}
    spec = build_spec(
        inputs=1, outputs=outputs, layers=layers, noise="output", **kernels, **latents
    )
    assert 0.5 < 1e3 * cost(spec, rows, M, M_i) / milliseconds < 2.0


def test_durations_in_words():
    assert [duration(s) for s in (20.4, 89.0, 95.0, 3000.0, 8000.0)] == [
        "20 s", "89 s", "2 min", "50 min", "2 h",
    ]  # fmt: skip
