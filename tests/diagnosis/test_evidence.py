"""Class evidence against the dense Gaussian, on any grid, with gaps and missing channels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import reference as ref
from pfedhgp import FederatedGP
from pfedhgp.diagnosis.class_gaussian import ClassGaussian
from pfedhgp.diagnosis.evidence import evidence
from pfedhgp.diagnosis.gaussians_of_model import class_gaussian_of, low_rank
from pfedhgp.errors import InputError
from pfedhgp.gp.kernels import RBF
from pfedhgp.model.at_inputs import AtInputs
from pfedhgp.model.fitted import FittedModel
from support.press import GRID, SETTINGS, press
from support.reference_diagnosis import dense

# Few inducing inputs, so that the residual R is there, and averaging, so that the tilt is.
COARSE = {**SETTINGS, "inducing": 6, "local_inducing": 5, "averaging": True}


@pytest.fixture(scope="module")
def fitted() -> FederatedGP:
    return FederatedGP(cycles="stationary", **COARSE).fit(press())


def dense_evidence(model: FederatedGP, grid, cycles) -> np.ndarray:
    """One cycle and one class at a time, with the covariance that `predict` gives."""
    out = np.zeros((len(cycles), len(model.clients_)))
    for k, name in enumerate(model.clients_):
        p = model.predict(name, grid)
        cov, mean = p.covariance("joint"), p.mean.ravel()
        for c, cycle in enumerate(np.moveaxis(cycles, 1, 2)):
            y = cycle.ravel()
            seen = np.flatnonzero(np.isfinite(y))
            out[c, k] = ref.log_gaussian(y[seen], mean[seen], cov[np.ix_(seen, seen)])
    return out


def gappy(cycles: np.ndarray) -> np.ndarray:
    """Some samples gone, and a whole channel."""
    out = cycles.copy()
    out[0, 0, 2:5] = np.nan
    out[1, 1, :] = np.nan
    return out


@pytest.mark.parametrize("other_grid", [False, True])
def test_evidence_is_the_dense_one(fitted, other_grid):
    grid = np.linspace(0.03, 0.98, 40)[:, None] if other_grid else GRID
    rng = np.random.default_rng(3)
    cycles = gappy(3.0 + rng.normal(size=(5, 2, len(grid))))
    found = evidence(fitted.model_, grid, np.moveaxis(cycles, 1, 2))
    expected = dense_evidence(fitted, grid, cycles)
    np.testing.assert_allclose(found.log_density, expected, rtol=1e-8)
    assert found.cells[0].tolist() == [len(grid) - 3, len(grid)]
    assert found.cells[1].tolist() == [len(grid), 0]


@pytest.mark.parametrize("rank", [0, 5, 200])
def test_both_branches_of_the_density_agree_with_the_dense_gaussian(rank):
    """Woodbury where the factor is narrow, a dense factor where it is not; noise correlated."""
    rng = np.random.default_rng(rank)
    half, raw = rng.normal(size=(160, rank)), rng.normal(size=(2, 2))
    gaussian = ClassGaussian(rng.normal(size=(80, 2)), half, 0.1 * raw @ raw.T + 0.01 * np.eye(2))
    cycles = np.random.default_rng(0).normal(size=(2, 80, 2)) + gaussian.mean
    cycles[1, :, 0] = np.nan
    log_density, distance = gaussian.score(cycles)
    for c, cycle in enumerate(cycles):
        y = cycle.ravel()
        seen = np.flatnonzero(np.isfinite(y))
        cov = dense(gaussian)[np.ix_(seen, seen)]
        gap = (y - gaussian.mean.ravel())[seen]
        assert log_density[c] == pytest.approx(ref.log_gaussian(gap, 0.0, cov), rel=1e-8)
        assert distance[c] == pytest.approx(gap @ np.linalg.solve(cov, gap), rel=1e-8)


def test_terms_along_the_axis_sum_to_the_evidence_and_are_conditional_densities(fitted):
    gaussian = class_gaussian_of(fitted.model_, "press 1", GRID)
    cycle = gaussian.mean + np.random.default_rng(1).normal(size=gaussian.mean.shape)
    cycle[3, 0] = np.nan
    terms = gaussian.by_cell(cycle)
    assert np.isnan(terms[3, 0])
    assert np.nansum(terms) == pytest.approx(gaussian.score(cycle[None])[0][0], rel=1e-10)
    early = cycle.copy()
    early[6:] = np.nan  # what comes later does not change what was said before
    np.testing.assert_allclose(gaussian.by_cell(early)[:6], terms[:6], rtol=1e-9)


def test_channels_left_out_are_channels_missing(fitted):
    gaussian = class_gaussian_of(fitted.model_, "press 0", GRID)
    cycle = gaussian.mean + 0.3
    gone = cycle.copy()
    gone[:, 1] = np.nan
    one = gaussian.without([1]).score(cycle[None][:, :, :1])
    np.testing.assert_allclose(one, gaussian.score(gone[None]), rtol=1e-9)


def test_a_channel_given_the_rest_is_the_conditional_gaussian(fitted):
    gaussian = class_gaussian_of(fitted.model_, "press 0", GRID)
    cycles = gaussian.mean + 0.5 * np.random.default_rng(2).normal(size=(3, *gaussian.mean.shape))
    cycles[2, :, 1] = np.nan
    assert gaussian.span is None  # of a short cycle all is within
    found, freedom = gaussian.given_the_rest(cycles)
    assert freedom[0].tolist() == [12, 12]
    cov = dense(gaussian)
    one, two = np.arange(0, 24, 2), np.arange(1, 24, 2)
    gap = (cycles - gaussian.mean).reshape(3, -1)
    gain = cov[np.ix_(two, one)] @ np.linalg.inv(cov[np.ix_(one, one)])
    left = gap[:2, two] - gap[:2, one] @ gain.T
    inner = cov[np.ix_(two, two)] - gain @ cov[np.ix_(one, two)]
    expected = np.sum(left * np.linalg.solve(inner, left.T).T, axis=1)
    np.testing.assert_allclose(found[:2, 1], expected, rtol=1e-7)
    assert np.isnan(found[2, 1])


def with_smooth_kernels(model: FittedModel) -> FittedModel:
    """The same weights on RBF features: another model, and a smooth one."""

    def smooth(holder):
        block = holder.block
        return replace(holder, block=replace(block, kernels=RBF(block.kernels.lengthscale)))

    clients = {name: smooth(client) for name, client in model.clients.items()}
    return replace(model, shared=smooth(model.shared), clients=clients)


def test_long_smooth_cycles_are_scored_in_a_span_of_few_functions(fitted):
    model = with_smooth_kernels(fitted.model_)
    grid = np.linspace(0.0, 1.0, 200)[:, None]
    gaussian = class_gaussian_of(model, "press 1", grid)
    assert gaussian.span is not None
    assert gaussian.span.shape[1] < 80
    view = AtInputs.of(model, "press 1", grid, None)
    cov = view.with_noise(view.covariance("total", "total", "joint"), "joint")
    np.testing.assert_allclose(dense(gaussian), cov, atol=1e-8)
    np.testing.assert_allclose(gaussian.mean, view.marginals()[0]["total"], atol=1e-9)
    cycle = gaussian.mean + 0.3 * np.random.default_rng(0).normal(size=gaussian.mean.shape)
    expected = ref.log_gaussian(cycle.ravel(), gaussian.mean.ravel(), cov)
    assert gaussian.score(cycle[None])[0][0] == pytest.approx(expected, rel=1e-8)


def test_a_low_rank_factor_leaves_out_no_more_than_it_says():
    x = np.linspace(0, 1, 60)
    matrix = np.exp(-0.5 * (x[:, None] - x) ** 2 / 0.2**2)
    for tolerance in (1e-3, 1e-8):
        F = low_rank(matrix, tolerance)
        assert F.shape[1] < 25
        rest = matrix - F @ F.T
        assert np.trace(rest) <= tolerance + 1e-12
        assert np.linalg.eigvalsh(rest)[0] > -1e-12


def test_refusals(fitted):
    cycles = np.zeros((2, len(GRID), 2))
    with pytest.raises(InputError, match="no class 'nobody' in the model; it has press 0, press 1"):
        evidence(fitted.model_, GRID, cycles, ["nobody"])
    cycles[1] = np.nan
    with pytest.raises(InputError, match="cycle 1 has no values: all its samples are missing"):
        evidence(fitted.model_, GRID, cycles)
