"""privacy="distributed" under masks is the same as in fixed point, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from support.masked_sites import needs_cryptography

needs_cryptography()
from pfedhgp import RBF, FederatedGP  # noqa: E402
from pfedhgp.federation.agreement import Agreement  # noqa: E402
from pfedhgp.settings import config as configs  # noqa: E402
from support.private_sites import made_up  # noqa: E402

pytestmark = pytest.mark.flower


def test_masks_change_nothing_in_the_totals(tmp_path):
    made = made_up(4, 100, 0)
    data = {f"s{i}": rows for i, rows in enumerate(zip(made.X, made.Y, strict=True))}
    found = [
        FederatedGP(
            privacy="distributed",
            epsilon=2.0,
            domain=(0.0, 1.0),
            output_bounds=(-3.0, 3.0),
            kernel=RBF(lengthscale=0.2),
            masks=masks,
            ledger=str(tmp_path),
        ).fit(data)
        for masks in (False, True)
    ]
    for name in ("mean", "covariance"):
        a, b = (np.asarray(getattr(m.model_.shared, name)) for m in found)
        assert a.tobytes() == b.tobytes()


def test_a_server_of_distributed_privacy_agrees_where_masks_are_on():
    tree = {
        "data": {"inputs": ["x"], "outputs": ["y"]},
        "model": {"domain": ["0..1"]},
        "run": {"privacy": "distributed", "epsilon": 1.0, "output_bounds": ["-3..3"]},
        "federation": {"masks": True},
    }
    assert Agreement.of(configs.check(tree)).promise.epsilon == 1.0
