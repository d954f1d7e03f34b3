"""Numbers, names, durations and kernels in words; what crossed the wire."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.gp.kernels import RBF, Matern32, Periodic, RationalQuadratic
from pfedhgp.model import kernel_words, traffic
from pfedhgp.model.layers import layer_sizes, layers_of
from pfedhgp.model.words import InputAxis, byte_size, duration, number, percent, shown
from support.reported import MESSAGES, case_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (3.14159, "3.14"),
        (-0.012345, "−0.0123"),
        (1234.5, "1\u202f234"),
        (99.96, "100.0"),
        (2.5e7, "2.50e+07"),
        (1e-9, "1.00e−09"),
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "–"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (86_400.0, "1 day"),
        (2.25 * 86_400, "2.25 days"),
        (5400.0, "1.5 hours"),
        (20.0, "20 seconds"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_durations_of_few_digits():
    assert [duration(t / 7.0 * 48 * 3600, digits=2) for t in (1, 2, 4, 7)] == [
        *("6.9 hours", "14 hours", "1.1 days", "2 days")
    ]


def test_bytes_and_percent():
    assert byte_size(950) == "950\u202fB"
    assert byte_size(12_345) == "12.3\u202fkB"
    assert byte_size(3.2e6) == "3.20\u202fMB"
    assert percent(0.1234) == "12.3\u202f%"
    assert percent(None) == "–"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Dongsi", "Dongsi"),
        ("a\nb\x00c\u202e", "a b c"),
        ("x" * 300, "x" * 47 + "…"),
        ("", "(no name)"),
        ("\ud800", "(no name)"),
    ],
)
def test_names_from_data_fit_a_line(name, text):
    assert shown(name) == text


def test_a_date_is_a_date():
    axis = InputAxis("when", is_date=True)
    assert axis.point(86_400.0 * 365) == "1971-01-01 00:00 UTC"
    assert axis.length(7200.0) == "2 hours"
    assert axis.values([0.5])[0] == np.datetime64("1970-01-01T00:00:00.500000")
    assert InputAxis("n").point(2.5) == "2.500"


def test_kernels_are_told_in_the_datas_units():
    axes, extent = (InputAxis("t", is_date=True), InputAxis("h")), np.array([86_400.0 * 10, 4.0])
    text = kernel_words.describe(RBF(np.array([0.25, 0.5])), axes, extent)
    assert text == "RBF (lengthscale 2.5 days along t (UTC), 2.00 along h)"
    daily = RBF(0.2, dims=(0,)) + 3.0 * Periodic(1.5, period=0.1, dims=(0,))
    text = kernel_words.describe(daily, axes, extent)
    assert "25.0\u202f% RBF (lengthscale 2 days" in text
    assert "75.0\u202f% periodic (period 1 day" in text
    assert "relative lengthscale 1.50" in text
    both = Matern32(0.1, dims=(1,)) * RationalQuadratic(0.3, alpha=2.0, dims=(1,))
    assert kernel_words.describe(both, axes, extent) == (
        "Matérn 3/2 (lengthscale 0.400 along h) × rational quadratic (lengthscale 1.20 along h, α 2.00)"
    )


def test_layer_sizes_are_loadings_in_the_datas_units():
    case = case_of()
    model = case.model
    sizes = layer_sizes(model, "client 1")
    block = model.clients["client 1"].block
    tau = float(model.shared.block.loadings[0, 0])
    expected = [
        tau,
        np.sqrt(0.6) * tau,
        abs(float(block.loadings[0, 0])),
        float(block.noise.covariance(1)[0, 0]) ** 0.5,
    ]
    np.testing.assert_allclose(sizes[0], 5.0 * np.abs(expected))
    every = [layer_sizes(model, name) ** 2 for name in model.clients]
    np.testing.assert_allclose(layer_sizes(model) ** 2, np.mean(every, axis=0))


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, ("global", "deviation", "local")),
        ({"deviation": False}, ("global", "local")),
        ({"outputs": 2, "tied": False, "latents": 0, "deviation": False}, ("local",)),
        ({"outputs": 2, "tied": False, "local_latents": 0}, ("global", "deviation")),
    ],
)
def test_layers_are_those_that_the_model_has(changes, layers):
    assert layers_of(case_of(**changes).model) == layers


def test_traffic_adds_up_by_kind_and_by_name():
    found = traffic.traffic(MESSAGES)
    assert (found.up, found.down, found.clients) == (8 * (1 + 2 + 16 + 1), 8 * 12, 1)
    assert found.per_client == found.up + found.down
    kinds = {row["kind"]: (row["messages"], row["up"], row["down"]) for row in found.kinds}
    assert kinds == {"census": (2, 24, 0), "round": (2, 136, 96)}
    names = [(a["name"], a["way"], a["bytes"]) for a in found.arrays]
    assert names[0] == ("U", "up", 128)
    assert ("J", "down", 72) in names
    assert traffic.traffic([]).per_client == 0
