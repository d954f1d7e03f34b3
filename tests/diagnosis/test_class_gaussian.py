"""A Gaussian on few functions and noise, against its dense matrix."""

from __future__ import annotations

import numpy as np
import pytest

import pfedhgp.diagnosis.class_gaussian
import reference as ref
from pfedhgp.diagnosis.class_gaussian import ClassGaussian, towards_others
from support import reference_diagnosis as naive
from support.reference_diagnosis import dense

N, Q = 30, 2


def gaussian(seed: int, *, rank: int = 4, columns: int = 5, spanned: bool = True) -> ClassGaussian:
    rng = np.random.default_rng(seed)
    raw = rng.normal(size=(Q, Q))
    span = np.linalg.qr(rng.normal(size=(N, rank)))[0] if spanned else None
    rows = rank * Q if spanned else N * Q
    core = 3.0 * rng.normal(size=(rows, columns))
    return ClassGaussian(rng.normal(size=(N, Q)), core, 0.2 * raw @ raw.T + 0.05 * np.eye(Q), span)


def cycles_with_gaps(one: ClassGaussian, seed: int = 0) -> np.ndarray:
    cycles = one.mean + np.random.default_rng(seed).normal(size=(4, N, Q))
    cycles[2, 3:9, 0] = np.nan
    cycles[3, :, 1] = np.nan
    return cycles


@pytest.mark.parametrize("columns", [0, 3, 20])
@pytest.mark.parametrize("spanned", [True, False])
def test_densities_are_those_of_the_dense_matrix(columns, spanned):
    """Narrow and wide factors, complete cycles, gaps and a missing channel; noise correlated."""
    one = gaussian(columns, columns=columns, spanned=spanned)
    cycles, cov = cycles_with_gaps(one), dense(one)
    log_density, distance = one.score(cycles)
    for c, cycle in enumerate(cycles):
        y, seen = cycle.ravel(), np.flatnonzero(np.isfinite(cycle.ravel()))
        gap, inner = (y - one.mean.ravel())[seen], cov[np.ix_(seen, seen)]
        assert log_density[c] == pytest.approx(ref.log_gaussian(gap, 0.0, inner), rel=1e-9)
        assert distance[c] == pytest.approx(gap @ np.linalg.solve(inner, gap), rel=1e-9)


@pytest.mark.parametrize("spanned", [True, False])
def test_a_channel_given_the_others_by_precision_and_by_difference(spanned):
    """Within the span: as if its coordinates were the cycle."""
    one = gaussian(1, columns=70, spanned=spanned)
    cycles = cycles_with_gaps(one)[:2]
    found, freedom = one.given_the_rest(cycles)
    inside = cycles if one.span is None else np.matmul(one.span.T, cycles - one.mean)
    plain = (
        one if one.span is None else ClassGaussian(np.zeros(inside.shape[1:]), one.core, one.noise)
    )
    channels = range(inside.shape[2])
    rest = [[p for p in channels if p != q] for q in channels]
    others = [plain.without([q]).score(inside[:, :, rest[q]])[1] for q in channels]
    difference = plain.score(inside)[1][:, None] - np.stack(others, axis=1)
    np.testing.assert_allclose(found, difference, rtol=1e-8)
    assert np.all(freedom == inside.shape[1])


def test_the_part_within_the_span_is_that_of_the_projected_gaussian():
    one = gaussian(6)
    cycles = cycles_with_gaps(one)
    found, freedom = one.within_span(cycles)
    P = np.kron(one.span, np.eye(Q))
    cov = P.T @ dense(one) @ P
    for c in (0, 1):
        gap = P.T @ (cycles[c] - one.mean).ravel()
        assert found[c] == pytest.approx(gap @ np.linalg.solve(cov, gap), rel=1e-9)
        assert freedom[c] == one.span.shape[1] * Q
    np.testing.assert_allclose(found[2:], one.score(cycles[2:])[1])  # cells are missing: all of it
    assert freedom[2:].tolist() == [2 * N - 6, N]


def test_the_part_towards_other_classes_is_the_dense_one():
    one, others = gaussian(2), [gaussian(3).mean, gaussian(4).mean]
    cycles = cycles_with_gaps(one)
    found, count = towards_others(one, others, cycles)
    for c, cycle in enumerate(cycles):
        flat = [mean.ravel() for mean in others]
        expected = naive.distance_towards(cycle.ravel(), one.mean.ravel(), flat, dense(one))
        assert found[c] == pytest.approx(expected[0], rel=1e-8)
        assert count[c] == expected[1]


def test_classes_that_do_not_differ_on_the_cells_seen_give_no_direction():
    one = gaussian(5)
    other = one.mean.copy()
    other[:, 1] += 1.0
    cycles = cycles_with_gaps(one)  # the last cycle lacks the channel that differs
    assert towards_others(one, [other], cycles)[1].tolist() == [1, 1, 1, 0]
    assert towards_others(one, [], cycles)[1].tolist() == [0, 0, 0, 0]


def test_a_cycle_of_the_class_is_chi_squared_towards_the_others():
    one, others = gaussian(6), [gaussian(7).mean, gaussian(8).mean, gaussian(9).mean]
    rng = np.random.default_rng(0)
    root = np.linalg.cholesky(dense(one))
    cycles = one.mean + (rng.normal(size=(4000, N * Q)) @ root.T).reshape(-1, N, Q)
    found, _ = towards_others(one, others, cycles)
    assert found.mean() == pytest.approx(3.0, abs=0.15)
    assert found.var() == pytest.approx(6.0, abs=0.9)


@pytest.mark.parametrize("columns", [3, 20])
def test_terms_along_the_axis_are_conditional_densities_whatever_the_blocks(columns, monkeypatch):
    one = gaussian(10, columns=columns)
    cycle = cycles_with_gaps(one)[2]
    seen = np.flatnonzero(np.isfinite(cycle.ravel()))
    cov = dense(one)[np.ix_(seen, seen)]
    expected = naive.terms_along(cycle.ravel()[seen], one.mean.ravel()[seen], cov)
    for block in (1, 14, 400):
        monkeypatch.setattr(pfedhgp.diagnosis.class_gaussian, "BLOCK", block)
        np.testing.assert_allclose(one.by_cell(cycle).ravel()[seen], expected, rtol=1e-7)
