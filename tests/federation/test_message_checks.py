"""What a message must look like is what it looks like in real runs, for every kind of model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.errors import MessageError
from pfedhgp.federation import message_checks
from pfedhgp.federation.envelope import Envelope, Refused
from pfedhgp.federation.message_checks import (
    HEADER,
    Sent,
    check_arrays,
    check_request,
    largest_request,
)
from pfedhgp.federation.opening import inference_of
from pfedhgp.federation.schema import DELIVER
from pfedhgp.gp.kernels import RBF, Matern12, Periodic
from pfedhgp.inference import messages
from pfedhgp.inference.markov.settings import Markov
from pfedhgp.inference.meanfield.training import MeanField
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model.cycle_layer import CycleChoice
from support.recorded_runs import clients, cycles, plan, recorded

DOMAIN = (np.zeros(1), np.full(1, 5.0))
SERIES = {
    "kernel": Matern12(),
    "local_kernel": Matern12(),
    "local": "state-space",
    "layers": ("global", "local"),
    "latents": 2,
    "client_loadings": True,
    "noise": "level",
}
QUICK = {"rounds": 1, "averaging": None, "evaluations": 2, "first_evaluations": 2}

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
    "client loadings": lambda: (
        Structured(rounds=2, averaging=None, frozen_rounds=0),
        clients(2, outputs=2),
        {"domain": DOMAIN, "spec": {"client_loadings": True, "latents": 2}},
    ),
    "markov": lambda: (
        Markov(rounds=3),
        clients(2, outputs=2),
        {"domain": DOMAIN, "spec": SERIES, "inducing": 12},
    ),
    "bins": lambda: (Structured(**QUICK), clients(2, outputs=2, rows=80), {}),
    "period": lambda: (Structured(**QUICK), clients(2), {"kernel": RBF() + Periodic()}),
    "auto": lambda: (
        Structured(**QUICK, learn_inducing="auto"),
        clients(2, rows=40, waves=8.0),
        {"inducing": 2, "local_inducing": 2},
    ),
    "held": lambda: (
        Structured(**QUICK, learn_shared=False, learn_inducing=True),
        clients(2),
        {"domain": DOMAIN},
    ),
    "mean-field": lambda: (MeanField(rounds=2, local_steps=2), clients(2, outputs=2), {}),
    "cycles": lambda: (
        Structured(rounds=1, averaging=None),
        cycles(2, outputs=2),
        {"cycles": CycleChoice("stationary", "client", 5)},
    ),
    "incomplete cycles": lambda: (
        Structured(**QUICK),
        cycles(2, outputs=2, missing=True),
        {"cycles": CycleChoice("stationary", "shared", 5)},
    ),
}
FAST = ("structured", "markov")
SENT = {
    "bins": {("extent", "down"): {"bins"}, ("extent", "up"): {"bin_sum", "own_pairs"}},
    "period": {("extent", "up"): {"waves"}, ("start", "down"): {"periods"}},
    "auto": {("start", "down"): {"learn"}, ("round", "up"): {"d_inputs"}},
}
"""Arrays that a case is there for."""


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[] if c in FAST else pytest.mark.slow) for c in CASES]
)
def test_every_message_of_a_run_is_as_the_schema_says(case):
    """Exactly its arrays, of its shapes and within its ranges: nothing more, nothing less."""
    inference, rows, more = CASES[case]()
    chosen = plan(inference, outputs=rows[0].Y.shape[1], **more)
    _, _, down, up = recorded(inference, rows, **more)
    asked, seen = {}, {}
    for message in down:
        expected = message_checks.of_request(chosen, message.kind, message.arrays)
        check_arrays(message.arrays, expected)
        most = largest_request(chosen, message.kind)
        assert message_checks.size_of(expected) * message_checks.SLACK <= most
        asked[message.kind, message.round] = message.arrays
        seen[message.kind, "down"] = set(message.arrays)
    decided = replace(
        chosen, inference=inference_of(chosen, any("learn" in m.arrays for m in down))
    )
    for message in up:
        request = asked[message.kind, message.round]
        check_arrays(message.arrays, message_checks.of_reply(decided, message.kind, request))
        seen[message.kind, "up"] = set(message.arrays)
    for where, names in SENT.get(case, {}).items():
        assert names <= seen[where]
    _check_rounds(chosen, down)


def _check_rounds(chosen, down):
    """Through restarts and to the delivery: every round follows from its exchange, and no other one does."""
    past, asked = None, list({(m.kind, m.round, m.block): m for m in down}.values())
    again = sum(message.kind == "cycles" for message in asked) > 1
    for number, message in enumerate(asked, 1):
        envelope = _envelope(number, message)
        check_request(envelope, chosen, past)
        # How often a cycle layer was asked for, the first start does not say.
        open_ended = message.kind == "start" and past is None and again
        for wrong in () if open_ended else (message.round + 1, message.round + 77):
            with pytest.raises(Refused):
                check_request(replace(envelope, round=wrong), chosen, past)
        with pytest.raises(Refused):
            check_request(replace(envelope, block="0" * 64), chosen, past)
        past = past if message.kind in message_checks.SETUP else (number, message.round)
    assert asked[-1].kind == "finish"
    answered = message_checks.finish_is_answered(chosen)
    finish = asked[-1].arrays
    given = message_checks.of_request(chosen, DELIVER, finish)
    population = {name: np.ones(sent.shape) for name, sent in given.items() if name not in finish}
    assert len(population) == {"structured": 6, "markov": 7, "mean-field": 5}[chosen.inference.name]
    last = replace(asked[-1], arrays={**finish, **population}, block="")
    given = replace(_envelope(len(asked) + answered, last), kind=DELIVER)
    check_request(given, chosen, past)
    with pytest.raises(Refused):
        check_request(replace(given, exchange=given.exchange + 1), chosen, past)


def _envelope(number, message):
    about = {"kind": message.kind, "round": message.round, "sender": "server"}
    return Envelope(
        run="0" * 32, exchange=number, arrays=message.arrays, block=message.block, **about
    )


def test_the_cap_on_a_request_is_four_times_the_largest_of_its_kind():
    """By hand, for 8 inducing inputs over one input: 8 bytes a number, and room for a header an array."""
    chosen = plan(Structured(rounds=1, averaging=None))
    extent = 3 * (8 + HEADER)  # centre, spread and bins
    assert largest_request(chosen, "census") == 4 * HEADER
    assert largest_request(chosen, "extent") == 4 * (HEADER + extent)
    block = 8 * (1 + 8 + 1 + 1) + 4 * HEADER  # lengthscale, inputs, loading, phi
    totals = 8 * (64 + 8 + 4 * 7 + 4) + 8 * HEADER  # J, h, seven numbers a trait and four flags
    either = block + totals + 8 + HEADER  # and which start was chosen
    most = largest_request(chosen, "round")
    assert most - largest_request(chosen, "start") == 4 * either, "a late site is told the start"


def test_more_inducing_inputs_than_the_plan_allows_are_refused():
    chosen = plan(Structured(rounds=1, averaging=None))  # 8 inducing inputs
    arrays = {"inputs": np.zeros((9, 1))}
    with pytest.raises(MessageError, match="`inputs` must have at most 8 rows"):
        message_checks.of_request(chosen, "round", arrays)
    request = Envelope(
        run="0" * 32, exchange=1, kind="round", round=1, sender="server", arrays=arrays
    )
    with pytest.raises(Refused, match="not one of ours"):
        check_request(request, chosen)


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        ({"J": None}, "malformed", "it lacks ['J'], and has 0 unknown"),
        ({"more": np.zeros(1)}, "malformed", "it lacks no array, and has 1 unknown"),
        ({"h": np.zeros(9)}, "malformed", "`h` is (9,) of float64 and not (8,) of float64"),
        ({"h": np.zeros(8, np.float32)}, "malformed", "`h` is (8,) of float32 and not (8,)"),
        ({"h": np.full(8, np.inf)}, "not-finite", "`h`"),
        ({"evaluations": np.asarray(-1.0)}, "out-of-range", "`evaluations` must be: whole, ≥ 0"),
        ({"derivatives": np.asarray(2.0)}, "out-of-range", "`derivatives` must be: 0 or 1"),
        ({"traits_at": np.zeros((2, 4))}, "out-of-range", "`traits_at` must be: τ² > 0"),
    ],
)
def test_a_refusal_says_what_is_wrong(change, code, why):
    """By the names of the schema, and no value."""
    chosen = plan(Structured(rounds=1, averaging=None))
    named = {"inputs": np.zeros((8, 1))}
    expected = message_checks.of_request(chosen, "round", named)
    good = {name: np.ones(sent.shape) for name, sent in expected.items()}
    check_arrays(good, expected)
    arrays = {name: array for name, array in (good | change).items() if array is not None}
    with pytest.raises(Refused) as refused:
        check_arrays(arrays, expected)
    assert refused.value.code == code
    assert why in refused.value.why


@pytest.mark.parametrize(
    ("limits", "good", "bad"),
    [
        (messages.FINITE, [-1.5, 0.0], []),
        (messages.NOT_NEGATIVE, [0.0, 0.5], [-1e-300]),
        (messages.POSITIVE, [1e-300], [0.0, -1.0]),
        (messages.COUNT, [0.0, 7.0], [-1.0, 0.5]),
        (messages.FLAG, [0.0, 1.0], [0.5, 2.0, -1.0]),
        (messages.ONE, [1.0], [0.0, 2.0]),
        (messages.POWERS, [0.0, 2.0], [-1e-9]),
        (messages.VARIANCES, [1e-9], [0.0, -1.0]),
    ],
    ids=lambda each: each.words or "finite" if isinstance(each, messages.Range) else "",
)
def test_numbers_outside_their_range_are_refused(limits, good, bad):
    diagonal = limits in (messages.POWERS, messages.VARIANCES)
    for value in (*good, *bad):
        array = np.array([[3.0, -9.0], [-9.0, value]]) if diagonal else np.asarray(value)
        expected = {"a": Sent(array.shape, limits)}
        if value in good:
            check_arrays({"a": array}, expected)
            continue
        with pytest.raises(Refused) as refused:
            check_arrays({"a": array}, expected)
        assert refused.value.code == "out-of-range"


@pytest.mark.parametrize("kind", ["cycles", "extent", "zones", "hello", "gossip"])
def test_what_these_terms_do_not_have_is_not_asked(kind):
    chosen = plan(Structured(rounds=1, averaging=None), domain=DOMAIN)
    about = {"run": "0" * 32, "exchange": 2, "round": 0, "sender": "server"}
    with pytest.raises(Refused, match="not one of ours"):
        check_request(Envelope(kind=kind, **about), chosen)
    census = Envelope(kind="start", arrays={f"missed/{kind}/lower": np.zeros(1)}, **about)
    with pytest.raises(Refused) as refused:
        check_request(census, chosen)
    assert refused.value.why == "of earlier requests it may have none"
