"""What crosses the wire: the whole list, checked; nothing that is a client's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.data.rows import ClientRows
from pfedhgp.data.tables import whole_cycles_of
from pfedhgp.errors import MessageError
from pfedhgp.federation import compiling, grouping
from pfedhgp.federation.grouping import group_clients
from pfedhgp.federation.messages import Message, hash_arrays
from pfedhgp.federation.server import Server
from pfedhgp.inference.meanfield.training import MeanField
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model.cycle_layer import CycleChoice
from support.recorded_runs import clients, plan, recorded

BLOCK = {"kernel", "inputs", "loadings", "phi"}
ROUND = BLOCK | {"J", "h", "jitter", "kernels_free", "evaluations", "derivatives"}
ROUND |= {"traits", "traits_at"}
DOWN = {
    "census": set(),
    "extent": {"centre", "spread"},
    "start": ROUND
    | {"lower", "upper", "centre", "spread", "scales", "attempt"}
    | {f"other {k}.{name}" for k in (1, 2) for name in ROUND | {"scales"}},
    "round": ROUND,
    "finish": BLOCK | {"mean", "covariance", "jitter", "attempt"},
}
STATISTICS = {
    *("evidence", "U", "y", "shared_residual", "residual"),
    *("deviation_power", "deviation_square", "local_square", "noise", "clients", "traits"),
}
DERIVATIVES = {"d_evidence", "d_h", "d_J", "curvature"}
UP = {
    "census": {
        "rows",
        "x_sum",
        "x_within",
        "x_means",
        "y_clients",
        "y_mean",
        "y_cross",
        "observations",
        "y_pairs",
    },
    "extent": {"histogram", "lag_sum", "lag_pairs"},
    "start": STATISTICS | {f"other {k}.{name}" for k in (1, 2) for name in STATISTICS},
}


def test_every_message_of_a_structured_run_is_on_the_list():
    """Derivatives in θ_g are sent only for the rounds after which the server moves it."""
    server, _, down, up = recorded(Structured(rounds=3, averaging=None, frozen_rounds=1), clients())
    kinds = ["census", "extent", "start", "round", "round", "round"]
    assert [m.kind for m in down[::3]] == [*kinds, "finish"]
    assert all(set(m.arrays) == DOWN[m.kind] for m in down)
    expected = [*UP.values(), *2 * [STATISTICS | DERIVATIVES], STATISTICS]
    assert [set(m.arrays) for m in up[::3]] == expected
    assert len(up) == 3 * len(kinds)
    assert server.exchanges == len(kinds)


WITHIN = {"freedom", "rows", "gram", "T", "scatter", "log_counts"}
LAYER = {"cycle_inputs", "cycle_factor", "cycle_noise", "cycle_form", "cycle_worth"}


def test_a_cycle_layer_adds_one_exchange_of_sums():
    """Sums over cycles of the size of the basis, in two halves; the layer comes back with the start."""
    rng = np.random.default_rng(1)
    grid = np.linspace(0.0, 5.0, 9)[:, None]
    rows = [
        whole_cycles_of(f"client {i}", grid, rng.normal(size=(4 + i, 9, 1)) + np.sin(grid))
        for i in range(3)
    ]
    choice = CycleChoice("stationary", "client", 5)
    server, _, down, up = recorded(Structured(rounds=1, averaging=None), rows, cycles=choice)
    kinds = ["census", "extent", "cycles", "start", "round"]
    assert [m.kind for m in down[::3]] == [*kinds, "finish"]
    frame = {"lower", "upper", "centre", "spread"}
    assert set(down[6].arrays) == frame | LAYER
    assert set(down[9].arrays) == DOWN["start"] | LAYER
    assert set(down[12].arrays) - {"chosen"} == DOWN["round"]
    replies = [m for m in up if m.kind == "cycles"]
    sent = {f"{part}.{name}" for part in ("first", "rest") for name in WITHIN}
    assert [set(m.arrays) for m in replies] == 3 * [sent | {"cycles", "incomplete"}]
    assert len({m.nbytes for m in replies}) == 1  # however many cycles there are
    assert server.exchanges == len(kinds)


def test_a_known_domain_spares_the_extent_exchange():
    domain = (np.zeros(1), np.full(1, 5.0))
    server, _, down, up = recorded(Structured(rounds=1, averaging=None), clients(), domain=domain)
    assert "extent" not in {m.kind for m in down}
    assert set(up[0].arrays) == UP["census"] | {"lag_sum", "lag_pairs"}
    assert server.exchanges == 3


def test_mean_field_sends_gradients_and_nothing_else_while_training():
    server, _, down, up = recorded(MeanField(rounds=2, local_steps=3), clients())
    training = [m for m in up if m.kind in ("start", "round")]
    assert len(training) == 3 * 2
    for message in training:
        sent = {f"free.{name}" for name in message.arrays}
        asked = {n for n in down[-4].arrays if n.startswith("free.")}
        assert sent == asked
    assert set(up[-1].arrays) == {"deviation_square", "local_square", "noise", "clients"}
    assert all(record["bound"] is None for record in server.history)


def test_no_message_holds_a_row_or_a_clients_own_block():
    """Every row, target, inducing input and loading is looked for, bit for bit, in all that was sent."""
    rows = clients(outputs=2)
    _, groups, _, up = recorded(Structured(rounds=2, averaging=None), rows)
    sent = np.concatenate([a.reshape(-1) for m in up for a in m.arrays.values()])
    private = [v for r in rows for v in (r.X, r.Y)]
    for group in groups:
        block, scaling = group.parties[0].blocks, group.scaling
        private += [block.loadings, block.deviation, block.kernels.lengthscale]
        private += [scaling.inputs(r.X) for r in group.clients]
        private += [scaling.outputs(r.Y) for r in group.clients]
    for values in private:
        assert not np.isin(np.asarray(values).reshape(-1), sent).any()


def test_the_hash_follows_names_shapes_and_values():
    one = {"a": np.arange(4.0), "b": np.zeros(())}
    assert hash_arrays(one) == hash_arrays(dict(reversed(one.items())))
    assert hash_arrays(one) != hash_arrays({**one, "a": np.arange(4.0).reshape(2, 2)})
    assert hash_arrays(one) != hash_arrays({**one, "a": np.arange(4.0) + 1e-15})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "gossip"}, "unknown kind"),
        ({"schema": 99}, "schema 99"),
        ({"arrays": {"a": np.zeros(2, np.float32)}}, "not an array of float64"),
    ],
)
def test_malformed_messages_are_refused(change, words):
    good = {"kind": "round", "round": 1, "sender": "a", "arrays": {}}
    with pytest.raises(MessageError, match=words):
        Message(**{**good, **change})


def test_replies_to_another_request_and_nan_are_refused():
    chosen = plan(Structured(rounds=1, averaging=None))
    server = Server(chosen)
    group = group_clients(chosen, clients(), batch=True)[0]
    replies = group.answer(server.request())
    first = replies[0]
    stale = Message(first.kind, 7, first.sender, first.arrays, first.block)
    with pytest.raises(MessageError, match="another request"):
        server.gather([stale])
    other = Message(first.kind, first.round, first.sender, first.arrays, "0" * 64)
    with pytest.raises(MessageError, match="another request"):
        server.gather([other])
    broken = {**first.arrays, "x_sum": np.array([np.nan])}
    with pytest.raises(
        MessageError, match=r"of round 0 is not finite .client 'client 0', matrix 'x_sum'"
    ):
        server.gather([Message(first.kind, 0, first.sender, broken, first.block)])
    with pytest.raises(MessageError, match="no client answered"):
        server.gather([])


def test_long_clients_with_many_weights_are_batches_of_their_own():
    """Rows × outputs × global weights decide, so that a batch does not outgrow the memory."""
    rows = [
        ClientRows(f"c{i}", np.linspace(0, 1, 400)[:, None], np.zeros((400, 1))) for i in range(4)
    ]
    few = replace(plan(Structured(rounds=1)), inducing=8)
    many = replace(few, inducing=2**25 // 400 // 2)
    assert [len(c.names) for c in group_clients(few, rows, batch=True)] == [4]
    assert [len(c.names) for c in group_clients(many, rows, batch=True)] == [2, 2]
    assert [len(c.names) for c in group_clients(few, rows, batch=True, largest=3)] == [2, 2]


def test_compiled_clients_are_padded_to_a_ladder_in_few_groups(monkeypatch):
    """Ragged clients are one group of a ladder's size; one that is far longer has its own."""

    def sized(n: int) -> ClientRows:
        return ClientRows(f"c{n}", np.linspace(0, 1, n)[:, None], np.zeros((n, 1)))

    def groups(sizes: list[int], **settings) -> list[tuple[int, int]]:
        chosen = replace(plan(Structured(rounds=1, **settings)), inducing=8)
        found = group_clients(chosen, [sized(n) for n in sizes], batch=True)
        return [(each.padded_rows, len(each.names)) for each in found]

    ragged = [15, 25, 40, 41, 50, 60]
    assert len(groups(ragged)) > 1, "on a CPU nothing is compiled for these"
    assert groups(ragged, learn_inducing=True) == [(64, 6)]
    for module in (grouping, compiling):
        monkeypatch.setattr(module, "on_host", lambda: False)
    assert groups(ragged) == [(64, 6)]
    assert groups([1]) == groups([16]) == [(16, 1)]
    assert groups([17]) == groups([32]) == [(32, 1)]
    assert groups(list(range(1, 200))) == [(256, 199)]
    many = [10] * 100 + [5000]
    assert groups(many) == [(8192, 1), (16, 100)]
    monkeypatch.setattr(grouping, "device_memory", lambda: 2.0**24)
    assert [count for _, count in groups([50] * 100)] == [34, 33, 33]
