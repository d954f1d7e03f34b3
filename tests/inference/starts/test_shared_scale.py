"""The covariogram between clients: against a loop over pairs of rows, and on signals that are known."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import MessageError
from pfedhgp.federation.grouping import group_clients
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.server import Server
from pfedhgp.gp.kernels import RBF
from pfedhgp.inference.starts.shared_scale import (
    between_clients,
    binned,
    bins_for,
    is_short,
    shared_scale,
)
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model.spec import build_spec

BINS = 16


def added(replies):
    return {name: sum(reply[name] for reply in replies) for name in replies[0]}


def signals(*, common, own, clients=4, rows=240, outputs=2, seed=0):
    """y_i = b common(x) + b_i own_i(x) + noise, with loadings b of a common and b_i of an own function."""
    rng = np.random.default_rng(seed)
    shared = np.resize([1.0, -0.6], outputs)
    made = []
    for _ in range(clients):
        x = np.sort(rng.uniform(0.0, 1.0, rows))
        shift = rng.uniform(0.0, 7.0)
        y = np.outer(common(x), shared) + np.outer(own(x, shift), rng.normal(size=outputs))
        made.append((x, y + 0.05 * rng.normal(size=y.shape)))
    return made


def wave(waves):
    return lambda x, shift=0.0: 1.5 * np.sin(2.0 * np.pi * waves * x + shift)


def test_products_of_the_total_less_the_clients_own_are_the_pairs_of_different_clients():
    rng = np.random.default_rng(0)
    rows = [(np.repeat(rng.uniform(0, 1, n), 2), rng.normal(size=(2 * n, 2))) for n in (20, 28, 17)]
    rows[1][1][[6, 7], 0] = np.nan
    products, pairs = between_clients(added([binned(x, Y, BINS) for x, Y in rows]))
    naive, count = np.zeros(2 * BINS), np.zeros(2 * BINS)
    for q in range(2):
        for i, (x, Y) in enumerate(rows):
            for j, (z, W) in enumerate(rows):
                if i == j:
                    continue
                y, w = (v[:, q] - np.nanmean(v[:, q]) for v in (Y, W))
                y, w = y / np.nanstd(y), w / np.nanstd(w)
                for a in np.flatnonzero(np.isfinite(y)):
                    for b in np.flatnonzero(np.isfinite(w)):
                        lag = np.floor((z[b] + 0.5) * BINS) - np.floor((x[a] + 0.5) * BINS)
                        if lag >= 0:
                            naive[int(lag)] += y[a] * w[b]
                            count[int(lag)] += 1
    np.testing.assert_allclose(products, naive, atol=1e-9)
    np.testing.assert_array_equal(pairs, count)


@pytest.mark.parametrize(
    ("common", "own", "short"),
    [
        (wave(6.0), wave(0.4), True),
        (wave(0.4), wave(6.0), False),
        (np.zeros_like, wave(6.0), False),
    ],
    ids=["short shared", "long shared", "nothing shared"],
)
def test_the_shared_scale_is_told_from_the_clients_own(common, own, short):
    clients = signals(common=common, own=own, clients=6)
    bins = bins_for(240)
    found = shared_scale(added([binned(x, Y, bins) for x, Y in clients]))
    assert is_short(found, short=0.025, long=0.3) is short


def test_the_lengthscale_of_a_shared_function_is_recovered():
    rng = np.random.default_rng(3)
    knots = np.linspace(0, 1, 400)
    K = np.exp(-0.5 * ((knots[:, None] - knots) / 0.04) ** 2) + 1e-8 * np.eye(400)
    drawn = np.linalg.cholesky(K) @ rng.normal(size=400)
    clients = signals(common=lambda x: 1.5 * np.interp(x, knots, drawn), own=wave(0.4), rows=600)
    found = shared_scale(added([binned(x, Y, 128) for x, Y in clients]))
    assert found is not None
    assert 0.02 < found[0] < 0.06


def test_a_client_with_few_rows_says_nothing_however_fine_the_bins_that_it_is_asked_for():
    rng = np.random.default_rng(0)
    x, Y = rng.uniform(0, 1, 31), rng.normal(size=(31, 2))
    assert not any(array.any() for array in binned(x, Y, BINS).values())
    crowded = np.concatenate([np.full(200, 0.5), [0.1, 0.9]])
    sent = binned(crowded, rng.normal(size=(202, 1)), BINS)
    assert np.count_nonzero(sent["bin_rows"]) == 1  # the two that are alone in theirs are left out
    assert bins_for(63.0) == 0
    assert bins_for(64.0) == BINS
    assert bins_for(1e9) == 4096
    with pytest.raises(MessageError, match="1000000 bins"):
        binned(x, Y, 1_000_000)
    assert shared_scale(added([binned(x, Y, BINS)] * 2)) is None


def opened(clients, *, rows=240):
    """The server after the exchanges before training, and the names that clients sent in the last one."""
    spec = build_spec(
        inputs=1,
        outputs=clients[0][1].shape[1],
        kernel=RBF(),
        local_kernel=RBF(),
        layers=("global", "deviation", "local"),
        latents=None,
        local_latents=None,
        noise="auto",
    )
    plan = Plan(spec, Structured(), inducing=8, local_inducing=6)
    named = [ClientRows(f"{i}", x[:rows, None], Y[:rows]) for i, (x, Y) in enumerate(clients)]
    server, groups, sent = Server(plan), group_clients(plan, named, batch=True), set()
    while server.phase in ("census", "extent"):
        request = server.request()
        replies = [reply for group in groups for reply in group.answer(request)]
        sent = set(replies[0].arrays)
        server.gather(replies)
    server.request()
    return server, sent


@pytest.mark.parametrize("waves", [6.0, 0.4])
def test_training_with_loadings_starts_from_the_scale_that_is_shared(waves):
    other = 0.4 if waves == 6.0 else 6.0
    server, sent = opened(signals(common=wave(waves), own=wave(other)))
    assert {"bin_sum", "bin_rows", "own_products", "own_pairs"} < sent
    (opening,) = server.current.openings
    assert (opening.start.shared < opening.start.local) is (waves == 6.0)


def test_clients_are_not_asked_where_rows_are_few_or_there_are_no_loadings():
    clients = signals(common=wave(6.0), own=wave(0.4))
    for rows, asked in ((60, clients), (240, [(x, Y[:, :1]) for x, Y in clients])):
        server, sent = opened(asked, rows=rows)
        assert "bin_sum" not in sent
        assert server.current.openings[0].start.shared > server.current.openings[0].start.local
