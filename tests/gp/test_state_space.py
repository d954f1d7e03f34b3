"""The Kalman filter's solves against dense Cholesky factors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfedhgp.errors import InputError
from pfedhgp.gp import state_space as ss
from pfedhgp.gp.kernels import RBF, Matern12, Matern32, Periodic
from support import reference_states as twin
from support.state_kernels import KERNELS


def made(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Times with a tie, noise that differs, rows not seen, and three columns."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(size=30))
    times[7] = times[6]
    return (
        times,
        rng.uniform(0.01, 0.3, 30),
        (rng.uniform(size=30) < 0.8) * 1.0,
        rng.normal(size=(30, 3)),
    )


@pytest.mark.parametrize("name", KERNELS)
def test_whitening_is_that_of_a_dense_factor_in_one_piece_and_in_two(name: str) -> None:
    kernel, dense = KERNELS[name]
    times, noise, seen, A = made()
    model, scale = ss.StateModel.of(kernel), jnp.asarray(1.4)
    keep = seen > 0
    expected, log_det = twin.whitened(1.96 * dense(times[keep], times[keep]), noise[keep], A[keep])
    for cuts in ([slice(0, 30)], [slice(0, 11), slice(11, 30)]):
        carry, rows, total = ss.start(model, 3, jnp.asarray(times[0])), [], 0.0
        for cut in cuts:
            series = ss.Series(*(jnp.asarray(v[cut]) for v in (times, noise, seen)))
            white, part, carry = ss.whiten(model, scale, series, jnp.asarray(A[cut]), carry)
            rows.append(np.asarray(white))
            total += float(part)
        found = np.concatenate(rows)
        np.testing.assert_allclose(found[keep], expected, rtol=1e-8, atol=1e-9)
        assert np.all(found[~keep] == 0.0)
        assert total == pytest.approx(log_det, rel=1e-10)


@pytest.mark.parametrize("name", KERNELS)
def test_smoothing_is_the_dense_posterior_at_seen_and_unseen_times(name: str) -> None:
    kernel, dense = KERNELS[name]
    times, noise, seen, A = made(1)
    model, keep = ss.StateModel.of(kernel), seen > 0
    series = ss.Series(*(jnp.asarray(v) for v in (times, noise, seen)))
    states, covariances = ss.smooth(model, jnp.asarray(0.7), series, jnp.asarray(A))
    h = np.asarray(model.observe)
    mean, cov = twin.posterior(
        dense(times, times),
        0.7 * dense(times, times[keep]),
        0.49 * dense(times[keep], times[keep]),
        noise[keep],
        A[keep],
    )
    np.testing.assert_allclose(np.einsum("s,nsk->nk", h, states), mean, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(
        np.einsum("s,nst,t->n", h, covariances, h), np.diag(cov), rtol=1e-8, atol=1e-9
    )


@pytest.mark.parametrize("name", KERNELS)
def test_smoothed_states_carry_the_posterior_mean_to_any_time(name: str) -> None:
    kernel, dense = KERNELS[name]
    times, noise, _, A = made(2)
    times = np.unique(times)
    noise, A = noise[: len(times)], A[: len(times), :1]
    model = ss.StateModel.of(kernel)
    series = ss.Series(*(jnp.asarray(v) for v in (times, noise, np.ones(len(times)))))
    states, _ = ss.smooth(model, jnp.asarray(1.0), series, jnp.asarray(A))
    at = np.concatenate([[-0.4, times[0], times[4], times[-1], 1.3], np.linspace(0.01, 0.99, 40)])
    found = ss.interpolate(model, jnp.asarray(times), states[:, :, 0], jnp.asarray(at))
    mean, _ = twin.posterior(dense(at, at), dense(at, times), dense(times, times), noise, A)
    np.testing.assert_allclose(found @ np.asarray(model.observe), mean[:, 0], rtol=1e-6, atol=1e-7)


def test_gradients_of_the_likelihood_are_those_of_finite_differences() -> None:
    times, noise, seen, A = made(3)

    def value(log_scale: jax.Array, log_length: jax.Array) -> jax.Array:
        model = ss.StateModel.of(Matern32(jnp.exp(log_length)))
        series = ss.Series(*(jnp.asarray(v) for v in (times, noise, seen)))
        carry = ss.start(model, 3, series.times[0])
        white, log_det, _ = ss.whiten(model, jnp.exp(log_scale), series, jnp.asarray(A), carry)
        return -0.5 * (jnp.sum(white**2) + 3.0 * log_det)

    point = (jnp.asarray(0.2), jnp.asarray(-1.0))
    found = jax.grad(value, argnums=(0, 1))(*point)
    for i in range(2):
        moved = [[p + (s if i == j else 0.0) for j, p in enumerate(point)] for s in (1e-5, -1e-5)]
        slope = (value(*moved[0]) - value(*moved[1])) / 2e-5
        assert float(found[i]) == pytest.approx(float(slope), rel=1e-6)


@pytest.mark.parametrize("kernel", [RBF(1.0), Periodic(1.0), Matern32(1.0) * Matern12(1.0)])
def test_other_kernels_are_refused_by_name(kernel: object) -> None:
    with pytest.raises(InputError, match=type(kernel).__name__):
        ss.StateModel.of(kernel)  # type: ignore[arg-type]
