"""A state as HTML, metrics and JSON: everything is there, and nothing from outside is markup."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser

import pytest

from pfedhgp.federation.watch import events as e
from pfedhgp.federation.watch import server_state, site_state
from pfedhgp.page import words
from pfedhgp.page.chart import bound_chart, ticks
from pfedhgp.page.metrics import metrics
from pfedhgp.page.render import SHOWN_SITES, page, sections
from pfedhgp.page.status import status

EVIL = '</td><script>alert(1)</script><img src=x onerror="alert(2)">"\\\n'


def server(*names, rounds=8):
    state = server_state.ServerState(started=1000.0)
    happened = [
        e.Listening("0.0.0.0:9092", names, rounds),
        e.Connected(names[:-1]),
        e.Asked(1, "round", 1, names),
        *[e.Answered(name, 1, "round", 7500, 3600, 1.0) for name in names[:-1]],
        e.Counted(1, "round", 1, names[:-1], {names[-1]: "no answer in time"}),
        *[e.Trained(number, 0, -100.0 / (1 + number)) for number in range(4)],
        e.Line(f"said {names[0]}", "warning"),
    ]
    for i, event in enumerate(happened):
        state = server_state.after(state, event, 1000.0 + i)
    return state


def site(name):
    state = site_state.SiteState(name, "fed.example.org:9092", "home", started=1000.0)
    at = "2026-01-02T03:04:05+00:00"
    happened = [
        e.Audited("received", 1, "census", 0, {}, "", at),
        e.Audited("sent", 1, "census", 96, {"rows": [1], "y_mean": [2]}, "", at),
        e.Audited("refused", 2, "round", 0, {}, "oversized", at),
    ]
    for event in happened:
        state = site_state.after(state, event, 1010.0)
    return state


class Elements(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, text):
        super().__init__()
        self.found, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += f" {data}"


@pytest.mark.parametrize("state", [server(EVIL, "b", "c"), site(EVIL)], ids=["server", "site"])
def test_names_and_lines_are_text_and_the_page_loads_only_its_own(state):
    parsed = Elements(page(state, 1100.0))
    assert "<script>alert(1)</script>" in parsed.text
    for tag, attributes in parsed.found:
        assert tag not in ("img", "iframe", "form", "style")
        assert not any(name.startswith("on") or name == "style" for name in attributes), attributes
        for name in ("src", "href"):
            allowed = ("style.css", "live.js", "status.json", "metrics", "data:,")
            assert attributes.get(name, "data:,") in allowed
    assert [a for tag, a in parsed.found if tag == "script"] == [{"src": "live.js", "defer": None}]


def test_a_server_page_says_what_is_going_on():
    names = tuple(f"site {i:03d}" for i in range(60))
    found = sections(server(*names), 1100.0)
    assert set(found) == {"title", "top", "main", "lines", "foot"}
    text = {name: " ".join(Elements(part).text.split()) for name, part in found.items()}
    assert found["title"] == "Round 4 of at most 8 · pFedHGP server"
    assert "59 of 60 sites connected" in text["top"]
    assert "bound −25.0 nats" in text["top"]
    rows = re.findall(r"<tr.*?</tr>", found["main"], flags=re.S)
    assert "site 059" in rows[1]  # trouble comes first
    assert "no answer in time" in rows[1]
    assert f"{60 - SHOWN_SITES} more without trouble" in text["main"]
    assert all(name in text["main"] for name in names)
    assert "442 kB" in text["main"]  # 59 answers of 7,500 bytes
    assert found["main"].count("<polyline") == 1


def test_a_site_page_says_what_left():
    found = sections(site("north"), 1015.0)
    text = " ".join(Elements("".join(found.values())).text.split())
    assert found["title"] == "Waiting for the next message · pFedHGP site north"
    assert "left this site 96 B of arrays, in 1 message " in text
    assert "rows, y_mean" in text
    assert "four times as large as expected" in text
    assert "03:04:05" in text


SAMPLE = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')
"""A line of Prometheus' text format, as its documentation has it."""


@pytest.mark.parametrize("state", [server(EVIL, "b", "c"), site(EVIL)], ids=["server", "site"])
def test_metrics_are_what_prometheus_reads(state):
    helped, typed, seen = set(), {}, {}
    for line in metrics(state, 1100.0).splitlines():
        if line.startswith("# HELP "):
            helped.add(line.split()[2])
        elif line.startswith("# TYPE "):
            typed[line.split()[2]] = line.split()[3]
        else:
            found = SAMPLE.fullmatch(line)
            assert found, line
            assert found[1] in helped & set(typed)
            assert (typed[found[1]] == "counter") == found[1].endswith("_total")
            assert (found[1], found[2]) not in seen
            seen[found[1], found[2]] = float(found[3])
    if isinstance(state, server_state.ServerState):
        assert seen["pfedhgp_round", None] == 3.0
        assert seen["pfedhgp_bound_nats", None] == -25.0
        assert seen["pfedhgp_message_bytes_total", 'kind="round",direction="up"'] == 15_000.0
        assert seen["pfedhgp_site_connected", 'site="c"'] == 0.0
        assert seen["pfedhgp_sites", 'status="missing"'] == 1.0
    else:
        assert seen["pfedhgp_message_bytes_total", 'kind="census",direction="sent"'] == 96.0
        assert seen["pfedhgp_refused_total", None] == 1.0


def test_status_is_json_with_what_the_page_shows():
    found = json.loads(json.dumps(status(server("a", "b"), 1100.0), allow_nan=False))
    assert found["sites"]["b"]["status"] == "missing"
    assert found["bounds"][-1] == [3, -25.0]
    assert found["lines"][-1]["text"] == "said a"
    own = json.loads(json.dumps(status(site("north"), 1100.0), allow_nan=False))
    assert own["sent"]["census"]["bytes"] == 96


def test_the_chart_is_to_scale():
    points = [(0, -10.0), (5, 0.0), (10, 10.0)]
    found = re.search(r'points="([^"]*)"', bound_chart(points, 20))
    (x0, y0), (x1, y1), (x2, y2) = ([float(v) for v in p.split(",")] for p in found[1].split())
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert y0 > y2
    assert bound_chart([(0, 1.0)], 5) == bound_chart([(0, 1.0), (1, math.nan)], 5) == ""
    assert "polyline" in bound_chart([(3, 1.0), (4, 1.0)], 4)  # flat
    assert ticks(0.0, 20.0, 6) == [0.0, 5.0, 10.0, 15.0, 20.0]
    assert ticks(-3.0, 3.0, 4) == [-2.0, 0.0, 2.0]


def test_numbers_as_people_read_them():
    sizes = [0, 999, 1000, 92_700, 660_000, 3.2e6, 5e9]
    assert [words.size(n) for n in sizes] == [
        *("0 B", "999 B", "1.0 kB", "92.7 kB", "660 kB", "3.2 MB", "5.0 GB"),
    ]
    times = [None, 0.4, 99, 100, 600, 7500, 86_400 * 3]
    assert [words.duration(t) for t in times] == [
        *("–", "0 s", "99 s", "1 min 40 s", "10 min", "2 h 5 min", "3 days"),
    ]


def test_until_a_site_connects_the_page_waits_for_sites():
    """The first question is asked before anybody is there to answer it."""
    state = server_state.ServerState(started=1000.0)
    for event in (e.Listening("0.0.0.0:9092", ("a", "b"), 8), e.Asked(1, "census", 0, ("a", "b"))):
        state = server_state.after(state, event, 1001.0)
    assert sections(state, 1002.0)["title"].startswith("Waiting for sites")
    state = server_state.after(state, e.Connected(("a",)), 1003.0)
    assert sections(state, 1004.0)["title"].startswith("Preparing: census")


def test_in_a_private_run_the_page_says_which_exchange_it_is():
    state = server_state.ServerState(started=1000.0)
    asked = e.Asked(2, "release", 2, ("a", "b"))
    for event in (e.Listening("h:9092", ("a", "b"), 8), e.Connected(("a", "b")), asked):
        state = server_state.after(state, event, 1001.0)
    assert sections(state, 1002.0)["title"].startswith("Private sums: exchange 2")
