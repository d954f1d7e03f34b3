"""The runbook's commands with real processes, and its live page in a browser: it follows the run alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from support.browser import CHROMIUM, DESKTOP, PHONE
from support.documents import ROOT, blocks
from support.flower_processes import needs_flower
from support.live_browser import browser
from support.parts import require_part
from support.reference_federation import rows_of

needs_flower()
import httpx  # noqa: E402

from pfedhgp.federation.flower.processes import free_port  # noqa: E402

pytestmark = pytest.mark.flower
NAMES = ("B", "south <b>bold</b>", "east & 'co'")


def test_pages_follow_a_run_without_a_reload(deployment, run, monkeypatch):
    require_part("chromium", found=CHROMIUM is not None)
    here = deployment(rows_of(NAMES), inference={"rounds": 8})
    ports = free_port(), free_port()
    there = {
        "127.0.0.1:8080": f"127.0.0.1:{ports[0]}",
        "127.0.0.1:8081": f"127.0.0.1:{ports[1]}",
        "fed.example.org:9092": f"127.0.0.1:{here.port}",
        "my.csv": str(here.data(0)),
        "ca.crt": "certs/ca.crt",
        "b.key": str(here.keys["B"]),
        "home": str(here.home(0)),
    }
    program = [sys.executable, "-m", "pfedhgp.cli.main"]
    command = runbook("server", "--page", there)
    more = ["--listen", f"127.0.0.1:{here.port}", "--timeout", "600"]
    server = here.start("server", [*program, *command, *more])
    here.wait_for(lambda: "?token=" in here.out("server"), "the page")
    (address,) = re.findall(r"^page +(http://\S+)$", here.out("server"), flags=re.M)
    bare, _, token = address.partition("?token=")
    assert httpx.get(bare, timeout=60.0).status_code == 403
    with browser(here.folder) as tab:
        tab.look(width=DESKTOP, dark=False)
        tab.open(address)
        loads = tab.loads
        assert tab.run("location.href") == bare  # the token is in a cookie now
        tab.wait_for(lambda: "Waiting for sites" in tab.text(), "the server")
        more = ["--page-token", "page.token", "--i-know"]  # few rows
        clients = [
            here.start("client-0", [*program, *runbook("client", "--page", there), *more]),
            here.client(1, *here.credentials(1), "--log-json"),
            here.client(2, *here.credentials(2)),
        ]
        title = "document.title"
        tab.wait_for(lambda: str(tab.run(title)).startswith("Round "), "rounds", patience=300.0)
        with stopped(clients[2]):  # the run waits for it, however long a picture takes
            _check_looks(tab, here.folder)
            _check_site(here, ports[1])
            seen = httpx.get(f"{bare}status.json", params={"token": token}, timeout=60.0).json()
            assert set(seen["sites"]) == set(NAMES)
            bearer = {"Authorization": f"Bearer {token}"}
            assert (
                'pfedhgp_site_connected{site="B"} 1.0'
                in httpx.get(f"{bare}metrics", headers=bearer, timeout=60.0).text
            )
        tab.wait_for(lambda: str(tab.run(title)).startswith("Done"), "the end", patience=300.0)
        text = tab.text()
        assert "3 of 3 sites have the model" in text
        assert all(name in text for name in NAMES)  # as text
        assert tab.run("document.querySelectorAll('th b').length") == 0
        assert tab.run("document.querySelectorAll('.chart .line').length") == 1
        assert tab.loads == loads
        assert tab.errors == []
    assert here.wait(server, "server") == 0, here.out("server")
    assert [here.wait(client, f"client-{i}") for i, client in enumerate(clients)] == [0, 0, 0]
    assert token not in "".join(p.read_text(errors="ignore") for p in here.run.rglob("*.json*"))
    _check_log(here)
    monkeypatch.chdir(here.folder)
    pl.DataFrame({"x": [0.5, 1.5]}).write_csv("tomorrow.csv")
    assert run(*runbook("predict", "--client", there)).code == 0
    assert pl.read_csv("predictions.csv")["client"].unique().to_list() == ["B"]
    for more in ("home", "--against"):
        assert run(*runbook("audit", more, there)).code == 0


@contextmanager
def stopped(process):
    """A process that stands still, and goes on afterwards."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def runbook(name, word, there):
    """The words of docs/deploy.md's first command of that name with that word; `there` replaces some."""
    page = blocks(ROOT / "docs" / "deploy.md")
    commands = [words for block in page if block.language == "sh" for words in block.commands]
    found = next(words for words in commands if words[:2] == ["pfedhgp", name] and word in words)
    return [there.get(each, each) for each in found[1:]]


CERTIFICATES = ("--host", "--authority", "--key-only", "--renew")


def test_the_runbook_makes_certificates_and_keys(run, tmp_path, monkeypatch):
    for i, first in enumerate(CERTIFICATES):
        folder = tmp_path / ("0" if first == "--renew" else str(i))  # that needs the first one's
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        result = run(*runbook("certs", first, {}))
        assert result.code == 0, result.err
    assert (tmp_path / "0" / "certs" / "sites.toml").is_file()
    assert (tmp_path / "1" / "certs" / "server.crt").is_file()
    assert (tmp_path / "2" / "b.key").stat().st_mode & 0o777 == 0o600


ELSEWHERE = {
    "pfedhgp server": "test_server_and_sites.py",
    "pfedhgp client": "test_server_and_sites.py",
    "pfedhgp certs --site": "test_commands.py",
    "pfedhgp policy": "../policy/test_settings.py",
    "--roster": "test_masked_exchange_processes.py",
    "classify": "test_site.py",
    "federate": "test_processes.py",
    "simulate": "trial/test_simulate.py",
    "rehearse": "../../attacks/test_rehearsal.py",
    "flower-superlink": "test_app.py",
    "flower-supernode": "test_app.py",
    "flwr": "test_app.py",
    "pfedhgp.federation.flower.app": "test_app.py",
}
"""By a word of a command that this file does not run: the file beside it that runs its like."""


def test_every_command_of_the_runbook_is_run_somewhere():
    page = blocks(ROOT / "docs" / "deploy.md")
    commands = [words for block in page if block.language == "sh" for words in block.commands]
    here = [runbook(name, word, {}) for name, word in RUN_HERE]
    for words in commands:
        if words[1:] in here or words[0] == "export" or "pip" in words:
            continue
        text = " ".join(words)
        found = [name for word, name in ELSEWHERE.items() if word in text]
        assert found, f"no test runs: {text}"
        assert all((Path(__file__).parent / name).is_file() for name in found)


RUN_HERE = [
    *[("certs", first) for first in CERTIFICATES],
    *[("server", "--page"), ("client", "--page"), ("predict", "--client")],
    *[("audit", "home"), ("audit", "--against")],
]


def _check_looks(tab, folder):
    """Nothing is wider than the screen; pictures are kept in $PFEDHGP_SCREENSHOTS, to be looked at."""
    papers = []
    for width in (DESKTOP, PHONE):
        for dark in (False, True):
            tab.look(width=width, dark=dark)
            assert tab.run("document.documentElement.scrollWidth") <= width
            papers.append(tab.run("getComputedStyle(document.body).backgroundColor"))
            picture = folder / f"live-{width}-{'dark' if dark else 'light'}.png"
            tab.picture(picture)
            if kept := os.environ.get("PFEDHGP_SCREENSHOTS"):
                shutil.copy(picture, Path(kept))
    assert papers[0] == papers[2] != papers[1] == papers[3]


def _check_site(here, port):
    token = (here.folder / "page.token").read_text().strip()
    assert token not in here.out("client-0")
    bearer = {"Authorization": f"Bearer {token}"}
    found = httpx.get(f"http://127.0.0.1:{port}/status.json", headers=bearer, timeout=60.0).json()
    sent = [line for line in here.audit(0) if line["direction"] == "sent"]
    assert found["sent"]["census"]["bytes"] == next(
        line["bytes"] for line in sent if line["kind"] == "census"
    )


def _check_log(here):
    """Every line of a client's log is JSON, and what was sent is in it."""
    lines = [json.loads(line) for line in here.out("client-1").splitlines()]
    assert all({"time", "level", "event"} <= set(line) for line in lines)
    sent = [e for e in lines if e["event"] == "message" and e["direction"] == "sent"]
    audited = [e for e in here.audit(1) if e["direction"] == "sent"]
    assert [(e["exchange"], e["kind"], e["bytes"]) for e in sent] == [
        (e["exchange"], e["kind"], e["bytes"]) for e in audited
    ]
    assert lines[-1]["event"] == "ended"
