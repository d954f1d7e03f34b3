"""A diagnosis over sites: the result of one site that has everything, whatever lies where; bad input."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from pfedhgp.data.rows import ClientRows
from pfedhgp.diagnosis import beside
from pfedhgp.diagnosis.candidates import Candidate, candidates_for, judged, kept, losses
from pfedhgp.diagnosis.decision import diagnose
from pfedhgp.diagnosis.federated import messages as sent
from pfedhgp.diagnosis.federated import server as server_module
from pfedhgp.diagnosis.federated.party import Party, answers
from pfedhgp.diagnosis.federated.server import DiagnosisServer
from pfedhgp.diagnosis.federated.terms import Terms
from pfedhgp.diagnosis.held_out_runs import held_out
from pfedhgp.diagnosis.strangers import margin, ratios_of_runs
from pfedhgp.diagnosis.thresholds import limits_of_runs
from pfedhgp.diagnosis.training import Training, for_strangers
from pfedhgp.diagnosis.typical import typical_of
from pfedhgp.errors import InputError, PFedHGPWarning
from pfedhgp.federation.checkpoint import decode, encode
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.diagnosing import delivered_arrays, from_delivery, text_of, train_with
from pfedhgp.federation.envelope import Refused
from pfedhgp.federation.message_checks import check_arrays, of_request
from pfedhgp.federation.server import Server
from support.runs_at_sites import CLASSES, FEW, WAYS, parties, plan_of, simulated, trained

TERMS = Terms(CLASSES, channels=("force", "speed"), folds=4, candidates=FEW)


def decisions(training: Training, data):
    found = training.classifier
    cycles = np.moveaxis(data[1], 1, 2)
    return diagnose(found.evidence(data[0], cycles, novelty=True), calibration=found.calibration)


def assert_same(one: Training, two: Training, new) -> None:
    """Parameters to 1e-9, and equal decisions about new cycles."""
    a, b = one.classifier, two.classifier
    assert (a.classes, a.used, a.reference) == (b.classes, b.used, b.reference)
    for name, array in a.to_arrays().items():
        np.testing.assert_allclose(b.to_arrays()[name], array, rtol=1e-9, atol=1e-9)
    assert [e.candidate for e in a.judged] == [e.candidate for e in b.judged]
    for x, y in zip(a.judged, b.judged, strict=True):
        assert (x.temperature, x.even) == (y.temperature, y.even)
        assert (x.weight, x.loss) == pytest.approx((y.weight, y.loss), abs=1e-9)
    assert (a.calibration.thresholds is None) == (b.calibration.thresholds is None)
    if a.calibration.thresholds is not None:
        np.testing.assert_allclose(a.calibration.thresholds, b.calibration.thresholds, rtol=1e-9)
    assert (a.typical is None) == (b.typical is None)
    if a.typical is not None:
        assert vars(a.typical) == pytest.approx(vars(b.typical), rel=1e-9)
    assert one.facts["runs"] == two.facts["runs"]
    for part in ("held_out", "lda"):
        assert one.facts[part] == pytest.approx(two.facts[part], abs=1e-9)
    first, second = decisions(one, new), decisions(two, new)
    assert first.labels == second.labels
    np.testing.assert_allclose(first.probability, second.probability, atol=1e-9)


@pytest.mark.parametrize(
    ("terms", "options"),
    [
        (replace(TERMS, candidates=(*FEW, Candidate("cell", 0.3, own=True))), {}),
        (TERMS, {"samples": 100, "channels": 1}),
        (replace(TERMS, blocks=False), {}),
    ],
    ids=["own covariances", "long cycles", "no runs named"],
)
def test_sites_find_what_one_site_with_everything_finds(terms, options):
    data, strange = simulated(**options), simulated(2, **options)
    strange[1][::5] += 3.0 * np.sin(30.0 * data[0][:, 0])  # of no known class
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without names of runs, neighbours are alike
        pooled = trained(terms, data, WAYS["one site"])
        for deal in (WAYS["by run"], WAYS["a site for each class"], WAYS["uneven"]):
            assert_same(pooled, trained(terms, data, deal), strange)
    found = decisions(pooled, strange)
    assert found.none[::5].all()
    known = np.delete(np.arange(len(found.none)), np.s_[::5])
    right = [found.labels[c] == strange[2][c] for c in known]
    assert np.mean(right) > 0.85


def test_a_run_of_the_wrong_class_is_found_by_sums():
    """The share that is dealt out evenly is fitted to losses that were summed over sites."""
    data = simulated(runs=8)
    at = [c for c, pair in enumerate(zip(*data[2:], strict=True)) if pair == ("normal", 3)]
    for c in at:
        data[2][c], data[3][c] = "worn", 8
    pooled = trained(TERMS, data, WAYS["one site"])
    assert pooled.classifier.judged[0].even > 0.0
    for deal in (WAYS["by run"], WAYS["a site for each class"]):
        assert_same(pooled, trained(TERMS, data, deal), simulated(2))


def test_neither_the_order_of_sites_nor_that_of_cycles_matters():
    data = simulated()
    one = parties(TERMS, data, WAYS["by run"])
    other = np.random.default_rng(0).permutation(len(data[1]))
    mixed = (data[0], data[1][other], *([part[c] for c in other] for part in data[2:]))
    two = dict(sorted(parties(TERMS, mixed, WAYS["by run"]).items(), reverse=True))
    assert list(one) != list(two)
    found = [train_with(plan_of(TERMS), each) for each in (one, two)]
    assert_same(*found, simulated(1))


def test_it_is_the_judgement_of_one_process_with_the_same_folds():
    """Sums, candidates and scores to 1e-9; thresholds, which come from bins, to their width."""
    data = simulated(runs=4, samples=6, channels=1, classes=CLASSES[:2])
    terms = replace(TERMS, classes=CLASSES[:2], candidates=None)
    sites = parties(terms, data, WAYS["by run"])
    asked = {}
    found = train_with(
        plan_of(terms, 1),
        sites,
        lambda m, to: asked.update({m.kind: m.arrays} if to != "server" else {}),
    )
    (pooled,) = parties(terms, data, WAYS["one site"]).values()
    cycles = pooled.place(asked[sent.SUMS])
    total = cycles.sums()
    for name, array in total.pooled().as_arrays().items():
        own = found.classifier.sums.pooled().as_arrays()[name]
        np.testing.assert_allclose(own, array, rtol=1e-9, atol=1e-9)
    tried = candidates_for(total, total.means.shape[1])
    held = held_out(cycles, list(dict.fromkeys(each.shape for each in tried)))
    density = {c: held[c.shape].density(heavy=c.heavy) for c in tried}
    sums = {c: losses(each, cycles.labels, cycles.weights) for c, each in density.items()}
    expected = {e.candidate: e for e in kept(judged(sums, float(cycles.weights.sum())))}
    common = [each for each in found.classifier.judged if each.candidate in expected]
    assert len(common) >= 30  # of 36: those that are equally good may be cut off in another order
    for each in common:
        own = expected[each.candidate]
        assert each.weight == pytest.approx(own.weight, rel=1e-6)
        assert (each.temperature, each.even) == (own.temperature, own.even)
    lda = beside.lda_beside(cycles)
    assert found.facts["lda"] == pytest.approx(lda.to_json(), abs=1e-9)
    rate = terms.false_alarms / 2.0
    shapes = for_strangers(found.classifier.judged)
    margins = {s: margin(cycles, held[s], rate) for s in shapes}
    assert len(set(found.classifier.references)) == 2
    parts = np.split(np.asarray(found.classifier.calibration.thresholds), 2)
    for place, reference, near in zip((-1, -2), found.classifier.references, parts, strict=True):
        assert margins[reference] > 0.9 * sorted(margins.values())[place]
        ratio, lengths = ratios_of_runs(cycles, held[reference], None)
        counts = np.asarray([held[reference].directions[0], lengths.sum(), 0.0, *lengths])
        exact = np.asarray(limits_of_runs(ratio, counts, rate))
        there = np.isfinite(exact)
        np.testing.assert_array_equal(there, np.isfinite(near))
        N = counts[there]
        as_ratio = [1.0 + limits[there] / np.sqrt(0.5 * N) for limits in (exact, near)]
        np.testing.assert_allclose(as_ratio[1], as_ratio[0], rtol=0.015)
    pooled_typical = typical_of(cycles, held[found.classifier.reference])
    near_it = found.classifier.typical
    assert near_it.cycle == pytest.approx(pooled_typical.cycle, rel=0.1)
    assert near_it.run == pytest.approx(pooled_typical.run, rel=0.1)


def test_folds_that_do_not_fit_one_message_are_asked_for_one_after_another(monkeypatch):
    data, kinds = simulated(), []
    whole = trained(TERMS, data, WAYS["by run"])
    monkeypatch.setattr(server_module, "LARGEST_MESSAGE", 1)
    parts = trained(
        TERMS,
        data,
        WAYS["by run"],
        lambda message, to: kinds.append(message.kind) if to == "A" else None,
    )
    assert [kinds.count(kind) for kind in (sent.SUMS, sent.JUDGE, sent.LIMITS)] == [4, 4, 1]
    assert_same(whole, parts, simulated(1))


def test_samples_may_be_missing():
    data = simulated()
    data[1][3, 0, 2:5] = np.nan
    data[1][10, 1] = np.nan
    pooled = trained(TERMS, data, WAYS["one site"])
    assert_same(pooled, trained(TERMS, data, WAYS["uneven"]), simulated(1))
    found = decisions(pooled, simulated(1))
    assert np.mean([a == b for a, b in zip(found.labels, simulated(1)[2], strict=True)]) > 0.85


def test_no_message_grows_with_the_number_of_cycles():
    sizes = []
    for length in (3, 9):
        log: list[tuple] = []
        data = simulated(length=length)
        trained(
            TERMS, data, WAYS["by run"], lambda m, to, log=log: log.append((m.kind, to, m.nbytes))
        )
        sizes.append(log)
    assert sizes[0] == sizes[1]
    assert {kind for kind, _, _ in sizes[0]} <= set(sent.KINDS)


# ------------------------------------------------------------------------------------- bad input


def test_a_class_with_one_run_in_all_borrows_how_runs_differ():
    grid, cycles, names, runs = simulated()
    some = [c for c, name in enumerate(names) if name != "bent" or runs[c] == 0]
    data = (grid, cycles[some], [names[c] for c in some], [runs[c] for c in some])
    with pytest.warns(PFedHGPWarning, match="'bent' has one run: .* from the other classes"):
        found = trained(TERMS, data, WAYS["by run"])
    assert decisions(found, simulated(1)).labels.count("bent") > 15


def test_one_run_in_every_class_makes_cycles_the_runs():
    data = simulated(runs=1, length=12)
    with pytest.warns(
        PFedHGPWarning, match="every class has one run: .* each cycle counts as a run"
    ):
        found = trained(TERMS, data, WAYS["a site for each class"])
    assert found.facts["runs"] == 36


def test_two_runs_in_all_are_not_judged():
    data = simulated(runs=1, length=1)
    twice = (data[0], np.repeat(data[1], [2, 1, 1], axis=0), ["normal", *data[2]], [1, *data[3]])
    with pytest.warns(PFedHGPWarning, match="too few runs to judge"):
        found = trained(TERMS, twice, WAYS["by run"])
    assert found.classifier.calibration.thresholds is None
    with pytest.raises(InputError, match="every class has one cycle"):
        trained(TERMS, data, WAYS["by run"])


def test_a_class_that_no_site_has_is_named():
    terms = replace(TERMS, classes=(*CLASSES, "cracked"))
    with pytest.raises(InputError, match="class 'cracked' has no cycle at any site"):
        trained(terms, simulated(), WAYS["by run"])
    with pytest.raises(
        InputError, match="a class 'bent' that is not one of the agreed ones: normal"
    ):
        trained(replace(TERMS, classes=("normal", "worn")), simulated(), WAYS["by run"])


def test_a_site_on_another_grid_is_named():
    sites = parties(TERMS, simulated(), WAYS["by run"])
    moved = replace(sites["C"].own, grid=sites["C"].own.grid + 1e-6)
    with pytest.raises(InputError, match="site 'C' has its samples at other places"):
        train_with(plan_of(TERMS), {**sites, "C": Party(TERMS, moved)})
    shorter = parties(TERMS, simulated(samples=9), WAYS["by run"])["B"]
    with pytest.raises(InputError, match="site 'B' has cycles of 9 samples, a site before it 10"):
        train_with(plan_of(TERMS), {**sites, "B": shorter})


def test_a_site_with_other_channels_is_refused():
    sites = parties(TERMS, simulated(), WAYS["by run"])
    wide = parties(TERMS, simulated(channels=3), WAYS["by run"])["B"]
    with pytest.raises(InputError, match="site 'B' has 3 channels, and 2 were agreed"):
        train_with(plan_of(TERMS), {**sites, "B": wide})


def test_a_constant_channel_is_left_out_and_named():
    data = simulated()
    data[1][:, 1] = 7.0
    with pytest.warns(PFedHGPWarning, match="channel 'speed' is constant"):
        found = trained(TERMS, data, WAYS["by run"])
    assert found.classifier.used == (0,)


# ------------------------------------------------------------------------- checkpoints, absences


def group_of(plan, name: str, party: Party) -> ClientGroup:
    rows = ClientRows(name, party.own.grid, np.nanmean(party.own.cycles, axis=0).T)
    return ClientGroup(plan, [rows], diagnosis=[Party(party.terms, party.own)])


def test_a_run_that_stops_after_every_exchange_ends_the_same():
    """Server and sites are made anew from their checkpoints each time."""
    data, plan = simulated(), plan_of(TERMS)
    sites = parties(TERMS, data, WAYS["by run"])
    whole = train_with(plan, parties(TERMS, data, WAYS["by run"]))
    server, groups = Server(plan), {n: group_of(plan, n, p) for n, p in sites.items()}
    kinds = []
    while server.phase != "start":
        request = server.request()
        kinds.append(request.kind)
        server.gather([reply for group in groups.values() for reply in group.answer(request)])
        states = [decode(encode(each.state())) for each in (server, *groups.values())]
        server, groups = Server(plan), {n: group_of(plan, n, p) for n, p in sites.items()}
        for party, state in zip((server, *groups.values()), states, strict=True):
            party.restore(state)
    assert kinds[2:] == [k for k in sent.KINDS if k in kinds]
    assert sent.JUDGE in kinds
    assert_same(whole, server.run.diagnosis, simulated(1))


def test_a_site_that_was_away_adds_nothing_to_what_it_missed():
    """It missed the judgement; the average and the thresholds are those of the others' runs."""
    sites = parties(TERMS, simulated(), WAYS["by run"])
    server = DiagnosisServer(TERMS)
    while server.step is not None:
        kind, there = server.step, dict(sites)
        if kind == sent.JUDGE:
            there.pop("B")
        found = answers(list(there.values()), kind, server.request())
        if kind in (sent.AVERAGE, sent.STRANGERS, sent.LIMITS):
            assert all(not np.any(array) for array in found[1].values())
        for name, reply in zip(there, found, strict=True):
            server.see(name, reply)
        server.take({n: sum(each[n] for each in found) for n in found[0]})
    assert server.training.facts["runs"] == 18
    assert server.training.facts["held_out"]["accuracy"] > 0.9
    found = decisions(server.training, simulated(1))
    assert np.mean([a == b for a, b in zip(found.labels, simulated(1)[2], strict=True)]) > 0.85


# -------------------------------------------------------------------------------------- messages


def test_a_request_with_wrong_sizes_is_refused():
    server = DiagnosisServer(TERMS)
    sites, plan = parties(TERMS, simulated(), WAYS["one site"]), plan_of(TERMS)
    while server.step != sent.JUDGE:
        reply = {sent.RUNS: "runs", sent.CURVES: "curves", sent.SPREAD: "spread", sent.SUMS: "sums"}
        found = getattr(sites["A"], reply[server.step])(server.request())
        server.see("A", found)
        server.take(found)
    good = server.request()
    check_arrays(good, of_request(plan, sent.JUDGE, good))
    for name, wrong in (
        ("means", good["means"][:, :, 1:]),
        ("runs", -good["runs"]),
        ("between", good["between"][:, :, 1:]),
        ("unit", 0.0 * good["unit"]),
    ):
        bad = {**good, name: wrong}
        with pytest.raises(Refused):
            check_arrays(bad, of_request(plan, sent.JUDGE, bad))


def test_the_delivery_brings_the_same_classifier():
    found = trained(TERMS, simulated(), WAYS["by run"])
    again = from_delivery(delivered_arrays(found, 2), text_of(found))
    assert_same(found, again, simulated(1))
