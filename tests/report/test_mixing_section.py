"""The section about client loadings: its figures' numbers, and how a browser shows it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import pfedhgp.report as report
from pfedhgp import FederatedGP, Markov
from pfedhgp.model import prediction
from pfedhgp.report import mixing_section
from pfedhgp.report.gathered import gather
from pfedhgp.zones.loadings import Loadings, functions_at
from pfedhgp.zones.named_functions import named
from pfedhgp.zones.result import KeptZones
from support.browser import CHROMIUM, DESKTOP, PHONE, check_readable, look


def fitted(**settings: bool) -> FederatedGP:
    rng = np.random.default_rng(1)
    t = np.arange(40.0)
    both = rng.normal(size=(2, 40))
    data = {
        f"station {i}": (t[:, None], both[0] + (i % 2) * both[1] + 0.2 * rng.normal(size=40))
        for i in range(5)
    }
    return FederatedGP(
        kernel="matern12",
        local_kernel="matern12",
        local="state-space",
        layers=("global", "local"),
        client_loadings=True,
        latents=2,
        inducing=40,
        domain=((0.0, 39.0),),
        inference=Markov(rounds=4, evaluations=2, **settings),
    ).fit(data)


@pytest.fixture(scope="module")
def model() -> FederatedGP:
    return fitted()


@pytest.fixture(scope="module")
def page(model: FederatedGP) -> str:
    return report.render(model, zones=KeptZones(model.cluster(2, draws=2)))


def test_moments_are_those_of_predictions() -> None:
    """Turned by a client's loadings, they are its shared layer, if the loadings count as known."""
    model = fitted(averaging=False)
    X = np.linspace(0.0, 39.0, 13)[:, None]
    name = "station 1"
    c = np.asarray(model.model_.clients[name].block.global_loadings)
    mean, sd = mixing_section.moments(model.model_, X, c.T)
    layer = prediction.predict(model.model_, name, X).layers["global"]
    scaling = model.model_.scaling
    np.testing.assert_allclose(mean * scaling.spread + scaling.centre, layer.mean, rtol=1e-6)
    np.testing.assert_allclose(sd * scaling.spread, layer.sd, rtol=1e-5)
    np.testing.assert_allclose(
        mixing_section.moments(model.model_, X, np.eye(2))[0], functions_at(model.model_, X)
    )


def test_the_page_names_functions_and_draws_every_client(page: str) -> None:
    section = page[page.index('<section id="mixing">') :].split("</section>")[0]
    assert '<a href="#mixing">' in page
    assert [f"shared {r}" in section for r in (1, 2, 3)] == [True, True, False]
    shares = [float(s) for s in re.findall(r"shared \d: ([\d.]+)", section)]
    assert shares[0] >= shares[1]
    assert sum(shares[:2]) == pytest.approx(100.0, abs=0.2)
    assert "in the colour of its zone" in section
    assert "95% probability" in section


def test_the_page_says_who_differs_in_what(model: FederatedGP, page: str) -> None:
    """Stations 1 and 3 have the second function, the others have not; c and its sd from the model."""
    section = page[page.index('<section id="mixing">') :].split("</section>")[0]
    said = re.search(r"differ most in <b>shared (\d)</b>. (station \d) has most of it", section)
    assert said is not None
    known = Loadings.of(model.model_)
    names = named(known, model.model_.shared.block.kernels)
    k = int(said[1]) - 1
    own = known.numbers[:, 0] @ names.turn[:, k]
    assert known.names[int(np.argmax(own))] == said[2]
    sds = np.sqrt([names.turn[:, k] @ V @ names.turn[:, k] for V in known.covariances])
    for name, value, sd in zip(known.names, own, sds, strict=True):
        row = re.search(rf"<tr><th>{name}</th>(.*?)</tr>", section.split("<details>")[1])
        assert row is not None
        cells = re.findall(r"<td[^>]*>(.*?) ± (.*?)</td>", row[1])
        shown = [float(text.replace("−", "-")) for text in cells[k]]
        assert shown == pytest.approx([value, sd], rel=0.06)


def test_models_without_own_loadings_have_no_section() -> None:
    data = {n: (np.arange(8.0)[:, None], np.arange(8.0) % 3 + i) for i, n in enumerate("ab")}
    plain = FederatedGP(inducing=4, local_inducing=3, rounds=1, averaging=False).fit(data)
    assert mixing_section.section(gather(plain, [None] * 3, {}), None) is None


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
@pytest.mark.parametrize(("width", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_a_browser_shows_it(page: str, width: int, scheme: str, tmp_path: Path) -> None:
    seen, log = look(page, tmp_path, width, scheme)
    check_readable(seen, log, width=width, figures=page.count("<figure>"))
