"""A run that was stopped and resumed ends with the very same numbers as one that was not."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.base.numerics import numerics, on_device
from pfedhgp.errors import InputError, ModelFileError, PFedHGPWarning
from pfedhgp.federation import checkpoint as checkpoints
from pfedhgp.federation import inprocess
from pfedhgp.federation.grouping import group_clients
from pfedhgp.federation.planning import make_plan
from pfedhgp.federation.server import Server
from pfedhgp.gp import kernels
from pfedhgp.inference.arrays import State
from pfedhgp.inference.registry import INFERENCES
from pfedhgp.settings.config import checked

RNG = np.random.default_rng(3)
GRID = np.linspace(0.0, 1.0, 14)[:, None]


def _sites(outputs: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Three clients, two of one group and one of another."""
    sites = {}
    for name, rows in (("a/b", 14), ("007", 14), ("short", 6)):
        wave = np.sin(6.0 * GRID[:rows] + 0.5 * len(name))
        sites[name] = (
            GRID[:rows],
            np.tile(wave, outputs) + 0.1 * RNG.normal(size=(rows, outputs)),
        )
    return sites


SITES = {outputs: _sites(outputs) for outputs in (1, 2)}
CASES = {
    "structured": (1, {"rounds": 4, "inducing": 6}),
    "mean-field": (1, {"inference": "mean-field", "rounds": 3, "inducing": 4, "local_inducing": 4}),
    "loadings, restarts and a sum of kernels": (
        2,
        {"rounds": 3, "restarts": 2, "kernel": kernels.RBF() + kernels.Periodic(period=0.5)},
    ),
}


class Stop(Exception):
    """What a crash is to a run."""


def _stopping(after: int):
    def callback(record):
        if record["exchange"] >= after:
            raise Stop

    return callback


def _leaves(model: FederatedGP) -> list[np.ndarray]:
    """Every number that the fit found: global block, q(v_g), and each client's part."""
    fitted = model.model_
    parts = (fitted.shared, dict(fitted.clients), fitted.population, dict(fitted.client_jitter))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(parts)]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case == "structured" else pytest.mark.slow) for case in CASES],
)
def test_a_resumed_run_is_bitwise_the_uninterrupted_one(case, tmp_path):
    outputs, params = CASES[case]
    whole = FederatedGP(**params).fit(SITES[outputs])
    exchanges = [record["exchange"] for record in whole.history_]
    for stop in exchanges[1:-1]:  # early, in the middle, and between restarts
        folder = tmp_path / str(stop)
        with pytest.raises(Stop):
            FederatedGP(**params, callbacks=[_stopping(stop)]).fit(
                SITES[outputs], checkpoint=folder
            )
        seen = []
        resumed = FederatedGP(**params, callbacks=[seen.append]).fit(
            SITES[outputs], checkpoint=folder, resume=True
        )
        assert 0 < len(seen) < len(exchanges), "the resumed run did not go on from the middle"
        for found, expected in zip(_leaves(resumed), _leaves(whole), strict=True):
            np.testing.assert_array_equal(found, expected)
        assert resumed.history_ == whole.history_
        assert resumed.messages_ == whole.messages_
        assert (resumed.bound_, resumed.exchanges_) == (whole.bound_, whole.exchanges_)


def _stopped(folder, *, rounds: int = 3, sites=None) -> None:
    with pytest.raises(Stop):
        FederatedGP(inducing=6, rounds=rounds, callbacks=[_stopping(3)]).fit(
            sites or SITES[1], checkpoint=folder
        )


def test_other_rows_settings_or_clients_are_refused(tmp_path):
    _stopped(tmp_path)
    changed = {name: (X, Y.copy()) for name, (X, Y) in SITES[1].items()}
    changed["short"][1][2] += 1e-9
    with pytest.raises(InputError, match="rows of client 'short'"):
        FederatedGP(inducing=6, rounds=3).fit(changed, checkpoint=tmp_path, resume=True)
    with pytest.raises(InputError, match="`inference` is not what the run began with"):
        FederatedGP(inducing=6, rounds=4).fit(SITES[1], checkpoint=tmp_path, resume=True)
    with pytest.raises(InputError, match="`kernel` is not what the run began with"):
        FederatedGP(inducing=6, rounds=3, kernel="matern52", local_kernel="rbf").fit(
            SITES[1], checkpoint=tmp_path, resume=True
        )
    fewer = {name: SITES[1][name] for name in ("007", "short")}
    with pytest.raises(ModelFileError, match="the clients are not those"):
        FederatedGP(inducing=6, rounds=3).fit(fewer, checkpoint=tmp_path, resume=True)


def test_a_damaged_checkpoint_and_no_checkpoint_are_refused(tmp_path):
    with pytest.raises(InputError, match="no checkpoint"):
        FederatedGP(inducing=6, rounds=3).fit(SITES[1], checkpoint=tmp_path / "none", resume=True)
    _stopped(tmp_path)
    for folder in tmp_path.iterdir():
        _flip_a_bit(folder / "server.safetensors")
    with pytest.raises(ModelFileError, match=r"000002/server\.safetensors: corrupted"):
        FederatedGP(inducing=6, rounds=3).fit(SITES[1], checkpoint=tmp_path, resume=True)


def _flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("part", ["server.safetensors", "index.json", "messages.jsonl"])
def test_three_are_kept_and_the_newest_sound_one_is_used(tmp_path, part):
    whole = FederatedGP(inducing=6, rounds=4).fit(SITES[1])
    with pytest.raises(Stop):
        FederatedGP(inducing=6, rounds=4, callbacks=[_stopping(6)]).fit(
            SITES[1], checkpoint=tmp_path
        )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000003", "000004", "000005"]
    for name in ("000005", "000004"):
        _flip_a_bit(tmp_path / name / part)
    with pytest.warns(PFedHGPWarning, match=r"00000[45]/.*: skipped; going on from 000003"):
        resumed = FederatedGP(inducing=6, rounds=4).fit(SITES[1], checkpoint=tmp_path, resume=True)
    for found, expected in zip(_leaves(resumed), _leaves(whole), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert resumed.history_ == whole.history_


def test_a_run_that_starts_again_forgets_the_old_checkpoints(tmp_path):
    (tmp_path / "000099").mkdir()
    _stopped(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000001", "000002"]


def test_parts_are_apart_and_hold_neither_rows_nor_names_in_paths(tmp_path):
    marked = {name: (X, Y + 0.0) for name, (X, Y) in SITES[1].items()}
    _stopped(tmp_path, sites=marked)
    newest = max(tmp_path.iterdir())
    files = sorted(p.relative_to(newest).as_posix() for p in newest.rglob("*") if p.is_file())
    assert len([f for f in files if f.startswith("clients/")]) == 2
    assert not any("007" in f or "short" in f for f in files)
    raw = b"".join((newest / f).read_bytes() for f in files)
    for _, Y in marked.values():
        assert not any(value.tobytes() in raw for value in Y.reshape(-1))
    server = checkpoints.decode((newest / "server.safetensors").read_bytes())
    index = json.loads((newest / "index.json").read_text())
    assert set(index["files"]) == set(files) - {"index.json"}
    assert not any(name.startswith(("own", "blocks")) for name in server.arrays)


def test_a_write_that_fails_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    import pfedhgp.base.atomic_files as atomic

    real, calls = atomic._write_one, []

    def full(path, content):
        calls.append(path)
        if len(calls) > 8:  # in the midst of a later checkpoint
            raise OSError(28, "No space left on device")
        return real(path, content)

    monkeypatch.setattr(atomic, "_write_one", full)
    with pytest.raises(OSError, match="No space left"):
        FederatedGP(inducing=6, rounds=3).fit(SITES[1], checkpoint=tmp_path)
    monkeypatch.undo()
    (left,) = tmp_path.iterdir()
    assert left.name.isdigit()
    seen = []
    FederatedGP(inducing=6, rounds=3, callbacks=[seen.append]).fit(
        SITES[1], checkpoint=tmp_path, resume=True
    )
    assert seen


@pytest.mark.parametrize("name", INFERENCES)
def test_no_attribute_of_a_party_is_forgotten(name):
    """Fails when a party learns to remember something that its state does not hold."""
    budgets = {"inducing": 4, "local_inducing": 4} if name == "mean-field" else {"inducing": 6}
    if name == "markov":
        budgets |= {"kernel": "matern12", "local_kernel": "matern12", "local": "state-space"}
        budgets |= {"layers": ("global", "local"), "client_loadings": True, "noise": "level"}
    model = FederatedGP(inference=name, rounds=2, **budgets)
    rows = _rows(SITES[1])
    plan = make_plan(checked(model), rows[0].X.shape[1], rows[0].Y.shape[1])
    server, groups = Server(plan), group_clients(plan, rows, batch=True)
    # The estimator's surroundings, or all that the other tests compiled would be compiled once more.
    with numerics(), on_device("cpu"), pytest.raises(Stop):
        inprocess.run(server, groups, callbacks=[_stopping(2)])
    # What is made anew from settings and rows, and what the next exchange sets before it is used.
    settings = {"settings", "spec", "options", "like", "rows", "cells", "start", "floor", "drawn"}
    used_up = {"total", "sums", "gradient", "info", "reference"}
    party_server, party_clients = server.current.leader.party, groups[0].parties[0]
    kept_server = {"now" if name == "mean-field" else "round"}
    kept_server |= {"totals"} if name == "markov" else set()
    kept_clients = {"states"} if name == "mean-field" else {"cell_sums"}  # these within `own`
    if name == "markov":
        assert {"own_J", "own_h"} <= _names(party_clients.state())
        kept_clients |= {"starts", "own_evidence"}  # the latter as these two
    if name == "mean-field":  # its blocks are starting values, its bounds and nats are never set
        kept_server |= {"bounds"}
        kept_clients |= {"blocks"}
    # And of those around them: `starts` and `heard` bring back what the clients learnt from requests.
    settings |= {"plan", "clients", "padded_rows", "names", "centre", "few_rows", "affords"}
    settings |= {"most_kept", "rows_on_host"}  # by the number of clients; from the rows
    used_up |= {"asked", "posteriors", "kept"}
    parts_of_the_run = {"run", "current", "counted", "prepared", "running", "number"}
    run, known = server.run, server.run.prepared
    parties = (
        (party_server, party_server.state(), kept_server),
        (party_clients, party_clients.state(), kept_clients),
        (
            groups[0],
            groups[0].state(),
            {"parties", "starts", "scaling", "scaled", "layers", "_halves", "_merged", "others"}
            | {"diagnosis"},  # tests/federation/test_diagnosing.py
        ),
        *((part, server.state(), parts_of_the_run) for part in (server, run, server.current)),
        *((part, server.state(), {"sums", "counted", "most"}) for part in (run.counted, known)),
    )
    not_yet = {"before", "best", "local_nats", "cycles", "crowd", "periods", "own", "own_block"}
    not_yet |= {"curvature", "diagnosis", "told"}  # small clients keep none
    for party, state, more in parties:
        for attribute in set(vars(party)) - settings - used_up:
            if attribute in not_yet and getattr(party, attribute) is None:
                continue
            held = _names(state) | more
            assert attribute in held, f"{type(party).__name__}.{attribute} is not kept"
    assert {"census", "turn", "trainer"} <= _names(server.state())


def _names(state: State) -> set[str]:
    return {name.split(".")[0] for name in (*state.arrays, *state.plain)}


def _rows(sites):
    from pfedhgp.data.tables import clients_from

    return clients_from(sites).clients


def test_states_survive_the_file_format():
    state = State(
        {
            "scalar": np.asarray(0.1),
            "empty": np.zeros((0, 3)),
            "turned": np.arange(6.0).reshape(2, 3).T,
            "count": np.asarray(7, np.int32),
        },
        {"jitter": 1e-8, "name": 'ü"\n', "none": None},
    )
    back = checkpoints.decode(checkpoints.encode(state))
    assert back.plain == state.plain
    assert back.arrays.keys() == state.arrays.keys()
    for name, array in state.arrays.items():
        np.testing.assert_array_equal(back.arrays[name], array)
        assert back.arrays[name].dtype == array.dtype
