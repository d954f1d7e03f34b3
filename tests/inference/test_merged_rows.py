"""Many rows as few weighted ones: counts, means and scatter are kept, and so is the bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

import reference as ref
from pfedhgp import FederatedGP
from pfedhgp.data.rows import ClientRows, merge, numbered
from pfedhgp.gp.kernels import RBF, Matern12, Periodic
from pfedhgp.inference import merged_rows
from pfedhgp.inference.merged_rows import WIDTHS, Layer, merge_rows, movement, widest
from pfedhgp.inference.rows import white_rows
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.model.spec import Spec, build_spec, starting_kernels

START = Start(0.2, 0.05, 0.6, 0.3, 0.05)


def spec_of(inputs: int = 1, outputs: int = 1, noise: str = "output", **more: object) -> Spec:
    spec = build_spec(
        inputs=inputs,
        outputs=outputs,
        kernel=RBF(),
        local_kernel=RBF(),
        layers=("global", "deviation", "local"),
        latents=1,
        local_latents=1,
        noise=noise,
    )
    return replace(spec, **more)


def client_of(
    n: int, inputs: int = 1, outputs: int = 1, *, missing: float = 0.0, seed: int = 0
) -> ClientRows:
    rng = np.random.default_rng(seed)
    X = rng.random((n, inputs))
    Y = np.sin(6.0 * X[:, :1]) + 0.2 * rng.normal(size=(n, outputs))
    Y[rng.random(Y.shape) < missing] = np.nan
    return ClientRows("a", X, Y)


def merged(client: ClientRows, **more: object) -> ClientRows:
    spec = spec_of(client.X.shape[1], client.Y.shape[1], **more)
    return merge_rows(client, spec, START, np.ones(client.X.shape[1]))


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 60),
    inputs=st.integers(1, 3),
    outputs=st.integers(1, 3),
    missing=st.sampled_from([0.0, 0.4, 1.0]),
    apart=st.booleans(),
    counted=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_merged_rows_against_the_naive_twin(n, inputs, outputs, missing, apart, counted, seed):
    client = client_of(n, inputs, outputs, missing=missing, seed=seed)
    rng = np.random.default_rng(seed)
    counts = np.where(np.isfinite(client.Y), rng.integers(1, 4, (n, 1)), 0.0) if counted else None
    client = replace(client, counts=counts)
    cell = rng.integers(0, 5, n)
    found = merge(client, cell, apart=apart)
    expected = ref.merged_rows(client.X, client.Y, counts, cell, apart=apart)
    assert len(found.X) == len(expected)
    for i, (x, y, count) in enumerate(expected):
        np.testing.assert_allclose(found.X[i], x, rtol=1e-12)
        np.testing.assert_allclose(found.Y[i], y, rtol=1e-12)
        np.testing.assert_array_equal(found.counts[i], count)
    weights = np.isfinite(client.Y) if counts is None else counts
    filled, mean = np.nan_to_num(client.Y), np.nan_to_num(found.Y)
    np.testing.assert_array_equal(found.counts.sum(0), weights.sum(0))
    np.testing.assert_allclose((found.counts * mean).sum(0), (weights * filled).sum(0), atol=1e-12)
    second = (found.counts * mean**2).sum(0) + np.einsum("gqq->q", found.scatter)
    np.testing.assert_allclose(second, (weights * filled**2).sum(0), rtol=1e-12)


def test_numbers_follow_the_rows_order_in_each_column():
    rows = np.array([[3, -1], [0, 5], [3, -2], [0, 5], [-7, 9]])
    np.testing.assert_array_equal(numbered(rows), [3, 1, 2, 1, 0])
    assert numbered(np.zeros((4, 0), int)).tolist() == [0, 0, 0, 0]


def test_equal_inputs_are_merged_exactly():
    """A grid of 50 inputs, 400 rows at each: the inputs themselves, means and squares of their rows."""
    rng = np.random.default_rng(0)
    grid = np.sort(rng.random(50))
    x = np.repeat(grid, 400)[rng.permutation(20_000)]
    y = np.cos(9.0 * x) + 0.1 * rng.normal(size=len(x))
    found = merged(ClientRows("a", x[:, None], y[:, None]))
    np.testing.assert_array_equal(found.X[:, 0], grid)
    np.testing.assert_array_equal(found.counts, 400.0)
    for at, mean in zip(grid, found.Y[:, 0], strict=True):
        assert mean == pytest.approx(y[x == at].mean(), rel=1e-12)
    scatter = sum(((y[x == at] - y[x == at].mean()) ** 2).sum() for at in grid)
    assert found.scatter[0, 0, 0] == pytest.approx(scatter, rel=1e-12)


def test_few_rows_cycles_and_state_space_stay_as_they_are():
    few = client_of(merged_rows.FEW)
    assert merged(few) is few
    many = client_of(3 * merged_rows.FEW)
    assert merged(many, state_space=True) is many
    whole = replace(many, cycles=many.Y[None])
    assert merged(whole) is whole
    far = replace(many, X=np.where(many.X.max() == many.X, 1e9, many.X))
    assert merged(far) is far


@pytest.mark.parametrize("noise", ["output", "full"])
def test_many_rows_with_missing_cells(noise):
    """Each observed cell counts once; full noise keeps patterns of missing cells apart."""
    client = client_of(100_000, outputs=2, missing=0.3)
    found = merged(client, noise=noise)
    assert len(found.X) <= 4 * merged_rows.MOST
    np.testing.assert_array_equal(found.counts.sum(0), np.isfinite(client.Y).sum(0))
    again = merged(client, noise=noise)
    for name in ("X", "Y", "counts", "scatter", "scatter_seen"):
        np.testing.assert_array_equal(getattr(found, name), getattr(again, name))
    rows = white_rows(found, full_noise=noise == "full", length=len(found.X) + 5)
    np.testing.assert_array_equal(rows.mask[-5:], 0.0)
    if noise == "full":
        seen = found.counts[(found.counts > 0).all(1)]
        np.testing.assert_array_equal(seen[:, 0], seen[:, 1])


def test_cells_are_so_narrow_that_functions_hardly_move_in_them():
    """E[f(x) − f(x̄)]² for x anywhere in a cell, by draws from the kernel, within the share of the noise."""
    found = widest(movement([Layer(starting(0.05), 0.3)], 1), 0.05 * 0.05)
    x = np.linspace(0.0, found[0], 200)[:, None]
    K = 0.3 * ref.rbf(x, x, lengthscale=0.05)
    moved = np.trace(K) / 200 - K.mean()  # Σ (f − f̄)², the mean input taking up the mean
    assert 0.1 * 0.05 * 0.05 < moved <= 0.05 * 0.05


def starting(scale: float):
    return starting_kernels(RBF(), scale=scale, count=1, extent=np.ones(1))


def test_widths_of_several_kernels():
    wave = starting_kernels(Periodic(1.0, period=0.125), scale=0.3, count=1, extent=np.ones(1))
    moved = movement([Layer(wave, 1.0)], 1)
    assert np.all(np.diff(moved[0]) >= 0.0)  # a whole period is no narrow cell
    assert widest(moved, 0.01)[0] < 0.125 / 8
    rough = starting_kernels(Matern12(), scale=0.1, count=1, extent=np.ones(1))
    smooth = movement([Layer(starting(0.1), 1.0)], 1)
    assert widest(movement([Layer(rough, 1.0)], 1), 0.01)[0] < widest(smooth, 0.01)[0]
    assert widest(smooth, 0.0)[0] == WIDTHS[0]


def test_rows_far_apart_in_many_inputs_are_not_merged():
    client = client_of(20_000, inputs=5)
    assert merged(client) is client


def test_scales_that_no_inducing_inputs_follow_keep_no_rows_apart():
    client = client_of(20_000, inputs=2)
    start = replace(START, local=0.002, local_variance=0.04)
    found = merge_rows(client, spec_of(2), start, np.ones(2))
    assert len(found.X) * merged_rows.WORTH <= 20_000
    np.testing.assert_array_equal(found.counts.sum(), 20_000)


def test_a_fit_to_merged_rows_predicts_what_a_fit_to_all_rows_does(monkeypatch):
    rng = np.random.default_rng(3)
    data = {}
    for i in range(2):
        x = rng.uniform(0.0, 10.0, 9000)
        data[f"c{i}"] = (x, np.sin(x) + 0.3 * np.sin(5.0 * x + i) + 0.1 * rng.normal(size=9000))
    grid, model = np.linspace(0.5, 9.5, 40), FederatedGP(rounds=3, inducing=24, local_inducing=24)
    found = clone(model).fit(data).predict("c1", grid)
    monkeypatch.setattr(merged_rows, "FEW", 10**9)
    whole = clone(model).fit(data).predict("c1", grid)
    assert np.abs(found.mean - whole.mean).max() < 0.002
    np.testing.assert_allclose(found.sd, whole.sd, rtol=0.01)
