"""What the structured solver's server makes of its clients' sums, against plain NumPy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from pfedhgp.inference.structured.server import usual_noise


def test_usual_noise_is_the_clients_mean_held_back_by_four():
    class Sums:
        clients = jnp.asarray(6.0)
        noise = 6.0 * jnp.diag(jnp.array([0.2, 0.003]))

    expected = np.exp((6 * np.log([0.2, 0.003]) + 4 * np.log(0.01)) / 10)
    np.testing.assert_allclose(usual_noise(Sums()), expected, rtol=1e-12)
