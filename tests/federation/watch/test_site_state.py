"""What a site's page says has left is what its audit log has, line by line."""

from __future__ import annotations

import json

from pfedhgp.base.numerics import numerics
from pfedhgp.federation.flower.audit import LOG, AuditLog
from pfedhgp.federation.flower.exchange import Engine
from pfedhgp.federation.flower.state import Roster
from pfedhgp.federation.flower.waiting import Patience
from pfedhgp.federation.server import Server
from pfedhgp.federation.watch import events as e
from pfedhgp.federation.watch.site_state import SiteState, after, audited, read
from support.reference_federation import Clock, LocalLink, agreement, rows_of, site_of


def test_a_site_page_counts_its_audit_log(tmp_path):
    home = tmp_path / "home"
    site = site_of(home, rows_of(["north"])[0])
    found = []
    site.audit.on_append = lambda entry: found.append(audited(entry))
    terms, clock = agreement(), Clock()
    roster = Roster(("north",), terms.to_json())
    engine = Engine(Server(terms.plan), roster, LocalLink({"north": site}), Patience(), clock=clock)
    with numerics():
        assert engine.run() == {}
    state = SiteState("north", "there:9092", str(home), started=0.0)
    live = state
    phases = []
    for event in found:
        live = after(live, event, 5.0)
        phases.append(live.phase)
    lines = [json.loads(line) for line in (home / LOG).read_text().splitlines()]
    assert len(lines) == len(found)
    sent = [line for line in lines if line["direction"] == "sent"]
    assert live.bytes_sent == sum(line["bytes"] for line in sent) > 0
    assert live.messages_sent == len(sent)
    assert live.bytes_received == sum(
        line["bytes"] for line in lines if line["direction"] == "received"
    )
    for line in sent:
        assert set(line["arrays"]) <= set(live.sent[line["kind"]].arrays)
    assert phases[:2] == ["working", "waiting"]
    assert phases[-1] == "has the model"
    assert read(state, home / LOG).sent == live.sent  # the same from the file, after a restart


def test_refusals_and_a_broken_log_are_told(tmp_path):
    log = AuditLog(tmp_path)
    log.append("received", exchange=3, kind="round")
    log.append("refused", exchange=3, kind="round", code="oversized")
    log.append("break", code="a line is missing at the end")
    with open(tmp_path / LOG, "a") as file:
        file.write("not a line\n")
    state = read(SiteState("a", "b:1", "home", 0.0), tmp_path / LOG)
    assert (state.refused, state.broken) == (1, True)
    assert "four times as large" in state.refusals[0].text
    state = after(state, e.Contact(False, "refused"), 1.0)
    assert (state.phase, state.why) == ("connecting", "refused")
    assert after(state, e.Contact(True), 2.0).phase == "waiting"
    working = after(state, e.Audited("received", 4, "round", 8, {}), 2.0)
    assert after(working, e.Contact(True), 3.0).phase == "working"
    assert after(state, e.Ended("no key"), 2.0).phase == "stopped"
