"""The lists of arrays by name and shape are those of real runs, for every kind of model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from federation.test_messages import clients, plan, recorded
from pfedhgp.data.tables import whole_cycles_of
from pfedhgp.federation.flower import guard
from pfedhgp.federation.flower.envelope import DELIVER, Envelope, Refused
from pfedhgp.inference.meanfield.training import MeanField
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model.cycle_layer import CycleChoice

DOMAIN = (np.zeros(1), np.full(1, 5.0))


def _cycles():
    rng = np.random.default_rng(1)
    grid = np.linspace(0.0, 5.0, 9)[:, None]
    return [
        whole_cycles_of(f"client {i}", grid, rng.normal(size=(4, 9, 2)) + np.sin(grid))
        for i in range(2)
    ]


CASES = {
    "structured": lambda: (
        Structured(rounds=2, averaging=None, frozen_rounds=0),
        clients(2),
        {"restarts": 2},
    ),
    "loadings": lambda: (
        Structured(rounds=2, averaging=None, frozen_rounds=0, learn_inducing=True),
        clients(2, outputs=2),
        {"domain": DOMAIN},
    ),
    "mean-field": lambda: (MeanField(rounds=2, local_steps=2), clients(2, outputs=2), {}),
    "cycles": lambda: (
        Structured(rounds=1, averaging=None),
        _cycles(),
        {"cycles": CycleChoice("stationary", "client", 5)},
    ),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[] if c == "structured" else pytest.mark.slow) for c in CASES],
)
def test_every_message_of_a_run_is_as_expected(case):
    inference, rows, more = CASES[case]()
    chosen = plan(inference, outputs=rows[0].Y.shape[1], **more)
    _, _, down, up = recorded(inference, rows, **more)
    asked = {}
    for message in down:
        shapes = guard.request_shapes(chosen, message.kind, message.arrays)
        guard.check_arrays(message.arrays, shapes)
        assert guard.size_of(shapes) * guard.SLACK <= guard.most_bytes(chosen, message.kind)
        asked[message.kind, message.round] = message.arrays
    for message in up:
        request = asked[message.kind, message.round]
        guard.check_arrays(message.arrays, guard.reply_shapes(chosen, message.kind, request))
    _check_rounds(chosen, down)


def _check_rounds(chosen, down):
    """Through restarts and to the delivery: every round follows from its exchange, and no other one does."""
    past, asked = None, list({(m.kind, m.round, m.block): m for m in down}.values())
    for number, message in enumerate(asked, 1):
        envelope = _envelope(number, message)
        guard.check_request(envelope, chosen, past)
        for wrong in (message.round + 1, message.round + 77):
            with pytest.raises(Refused):
                guard.check_request(replace(envelope, round=wrong), chosen, past)
        with pytest.raises(Refused):
            guard.check_request(replace(envelope, block="0" * 64), chosen, past)
        past = past if message.kind in guard.SETUP else (number, message.round)
    assert asked[-1].kind == "finish"
    answered = bool(guard.reply_shapes(chosen, "finish", {}))
    population = {name: np.zeros(shape) for name, shape in guard._population(chosen).items()}
    last = replace(asked[-1], arrays={**asked[-1].arrays, **population}, block="")
    given = replace(_envelope(len(asked) + answered, last), kind=DELIVER)
    guard.check_request(given, chosen, past)
    with pytest.raises(Refused):
        guard.check_request(replace(given, exchange=given.exchange + 1), chosen, past)


def _envelope(number, message):
    about = {"kind": message.kind, "round": message.round, "sender": "server"}
    return Envelope(
        run="0" * 32, exchange=number, arrays=message.arrays, block=message.block, **about
    )


def test_the_cap_on_a_request_is_four_times_the_largest_of_its_kind():
    """By hand, for 8 inducing inputs over one input: 8 bytes a number, and room for a header an array."""
    chosen = plan(Structured(rounds=1, averaging=None))
    extent = 3 * (8 + guard.HEADER)  # centre, spread and bins
    assert guard.most_bytes(chosen, "census") == 4 * guard.HEADER
    assert guard.most_bytes(chosen, "extent") == 4 * (guard.HEADER + extent)
    block = 8 * (1 + 8 + 1 + 1) + 4 * guard.HEADER  # lengthscale, inputs, loading, phi
    totals = 8 * (64 + 8 + 1 + 4) + 7 * guard.HEADER  # J, h, noise and four flags
    either = block + totals + 8 + guard.HEADER  # and which start was chosen
    most = guard.most_bytes(chosen, "round")
    assert most - guard.most_bytes(chosen, "start") == 4 * either, "a late site is told the start"


def test_more_inducing_inputs_than_the_plan_allows_are_refused():
    chosen = plan(Structured(rounds=1, averaging=None))  # 8 inducing inputs
    arrays = {"inputs": np.zeros((9, 1))}
    with pytest.raises(Refused, match="not one of ours"):
        guard.request_shapes(chosen, "round", arrays)
    request = Envelope(
        run="0" * 32, exchange=1, kind="round", round=1, sender="server", arrays=arrays
    )
    with pytest.raises(Refused):
        guard.check_request(request, chosen)
