"""The numbers at the top: by output, and a part that never exceeds the whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.model import traffic
from pfedhgp.report import tiles
from pfedhgp.report.gathered import gather
from support.reported import METRICS, case_of, estimator_of

TWO = {"outputs": 2, "tied": False, "latents": 1, "local_latents": 1, "noise": "output"}


@pytest.fixture(scope="module")
def two():
    return estimator_of(case_of(**TWO))


def gathered(model, metrics=None):
    return gather(model, (None,) * 3, metrics or {})


def of(model, metrics=None):
    found = gathered(model, metrics)
    shared = np.linspace(0.5, 0.7, found.model.outputs)
    return {t["key"]: t for t in tiles.tiles(found, shared, traffic.traffic([]))}


@pytest.mark.parametrize("times", [1.0, 100.0])
def test_noise_is_a_part_of_the_uncertainty(two, times):
    """One site a hundred times as noisy raises both alike, and not much: they are medians over clients."""
    found = gathered(two)
    first = found.chosen[0]
    loud = [
        replace(s, prediction=replace(s.prediction, sd=times * s.prediction.sd))
        for s in found.slices[first]
    ]
    whole, noise = tiles.typical(replace(found, slices={**found.slices, first: loud}))
    assert np.all(noise < whole)
    quiet, _ = tiles.typical(found)
    assert np.all(whole < 2 * quiet)


def test_with_noise_alone_the_part_is_the_whole(two):
    found = gathered(two)
    silent = {
        name: [replace(s, prediction=_without_function(s.prediction)) for s in own]
        for name, own in found.slices.items()
    }
    whole, noise = tiles.typical(replace(found, slices=silent))
    np.testing.assert_allclose(whole, noise, rtol=1e-12)


def _without_function(p):
    class Noise:
        sd = p.sd

        def covariance(self, kind, *, noise):
            return np.zeros((*p.sd.shape, p.sd.shape[1]))

    return Noise()


def test_each_output_has_a_line(two):
    found = of(two)
    for key in ("uncertainty", "noise", "shared"):
        assert [name for name, _ in found[key]["lines"]] == ["y0", "y1"]
    assert [value for _, value in found["shared"]["lines"]] == ["50.0\u202f%", "70.0\u202f%"]
    assert "value" in found["traffic"]


def test_scores_have_a_line_for_each_output_too(two):
    one = METRICS["outputs"]["y0"]
    other = {"client_mean": {**one["client_mean"], "rmse": 31.0, "coverage": 0.5}}
    found = of(two, {"outputs": {"y0": one, "y1": other}})
    assert found["error"]["lines"] == [("y0", "0.310"), ("y1", "31.0")]
    assert found["coverage"]["lines"] == [("y0", "93.0\u202f%"), ("y1", "50.0\u202f%")]


def test_of_many_outputs_the_first_have_a_line_and_the_rest_are_counted():
    model = estimator_of(case_of(**{**TWO, "outputs": 6, "sizes": (9,)}))
    found = of(model)
    assert len(found["noise"]["lines"]) == tiles.MOST
    assert found["noise"]["more"] == 2
