"""How a site meets its server: a wrong certificate is told from a server that is not there yet."""

from __future__ import annotations

import math
import socket
import ssl
import threading
from types import SimpleNamespace

import pytest

from pfedhgp.errors import InputError
from support.flower_processes import needs_flower
from support.reference_federation import Clock

needs_flower()
from pfedhgp.federation.flower import server_probe, transport  # noqa: E402
from pfedhgp.federation.flower.certificates import make_certificates  # noqa: E402
from pfedhgp.federation.flower.processes import free_port  # noqa: E402
from pfedhgp.federation.flower.server_probe import (  # noqa: E402
    ServerAddress,
    ServerProbe,
    check_certificate,
)
from pfedhgp.federation.flower.site_process import (  # noqa: E402
    SENT_LINE,
    STALE_NODE,
    KeyRefusals,
    SiteProcess,
)

pytestmark = pytest.mark.flower


@pytest.fixture
def serving(tmp_path):
    """A function that listens with TLS, with the certificate of a folder, until the test ends."""
    running = []

    def serve(folder, port):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        listener = socket.create_server(("127.0.0.1", port))
        running.append(listener)

        def accept():
            while True:
                try:
                    plain, _ = listener.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(plain, server_side=True).close()
                except (OSError, ssl.SSLError):
                    plain.close()

        threading.Thread(target=accept, daemon=True).start()

    yield serve
    for listener in running:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _made(folder, hosts=("127.0.0.1",), days=1):
    make_certificates(folder, ["a"], hosts, days=days)
    return folder


def test_a_wrong_authority_is_found_as_soon_as_there_is_a_server(tmp_path, serving, monkeypatch):
    ours, theirs, port = _made(tmp_path / "ours"), _made(tmp_path / "theirs"), free_port()
    wrong = ServerProbe(ServerAddress("127.0.0.1", port, theirs / "ca.crt", None))
    right = ServerProbe(ServerAddress("127.0.0.1", port, ours / "ca.crt", None))
    assert not wrong.probe()
    assert not right.probe(now=True)
    serving(ours, port)
    assert not wrong.probe(), "it does not look all the time"
    monkeypatch.setattr(server_probe, "PROBE_EVERY", 0.0)
    with pytest.raises(InputError, match=r"was not signed by .*theirs/ca\.crt"):
        wrong.probe()
    assert right.probe()
    assert right.was_there


def test_why_a_server_is_not_there_is_said_once(monkeypatch):
    """Also without TLS; again where the reason is another, or the server was there in between."""
    port, said = free_port(), []
    probe = ServerProbe(ServerAddress("127.0.0.1", port, None, None), said.append)
    for _ in range(3):
        assert not probe.probe(now=True)
    start = f"waiting for the server at 127.0.0.1:{port}: "
    assert said == [start + "the connection was refused: no server listens there"]
    with socket.create_server(("127.0.0.1", port)):
        assert probe.probe(now=True)
    assert len(said) == 1
    reasons = {
        socket.gaierror(-2, "Name or service not known"): "its name is unknown here (Name or",
        TimeoutError("timed out"): "no answer within 10 s: a firewall, or",
        OSError(113, "No route to host"): "No route to host",
    }
    for error, words in reasons.items():

        def fail(to, timeout, error=error):
            raise error

        monkeypatch.setattr(socket, "create_connection", fail)
        assert not probe.probe(now=True)
        assert said[-1].startswith(start + words)
    assert len(said) == 4


def test_a_certificate_out_of_its_dates_is_said_so(tmp_path, serving):
    folder, port = _made(tmp_path / "old", days=-0.03), free_port()  # for 17 minutes, until 43 ago
    serving(folder, port)
    words = "is not valid now, or this machine's clock is wrong: certificate has expired"
    with pytest.raises(InputError, match=words):
        check_certificate(ServerAddress("127.0.0.1", port, folder / "ca.crt", None))


def test_a_certificate_for_another_name_is_said_so(tmp_path, serving, monkeypatch):
    folder, port = _made(tmp_path / "certs", hosts=["fed.example.org"]), free_port()
    serving(folder, port)
    connect = socket.create_connection
    monkeypatch.setattr(
        socket, "create_connection", lambda to, timeout: connect(("127.0.0.1", to[1]), timeout)
    )
    check_certificate(ServerAddress("fed.example.org", port, folder / "ca.crt", None))
    with pytest.raises(InputError, match="is for another name: Hostname mismatch"):
        check_certificate(ServerAddress("elsewhere.example.org", port, folder / "ca.crt", None))


@pytest.mark.parametrize("known", [False, True])
def test_a_refused_key_is_the_users_to_mend_after_a_while(known):
    """A new site's after three refusals; one that was there may be taken for its own killed twin at first."""
    clock = Clock()
    refusals, told = KeyRefusals(clock), []
    for refused in (True, True, False, *20 * [True]):
        told.append(refusals.add(refused, known=known))
        clock.sleep(5.0)
    first = told.index(True)
    waited = 5.0 * (first - 3)  # from the first refusal after the one time that it was let in
    assert (first, waited) == ((18, STALE_NODE) if known else (5, 10.0))
    assert all(told[first:])


def test_a_site_stays_until_the_answer_to_its_last_delivery_is_sent(tmp_path, monkeypatch):
    """An old delivery of a killed server comes first: that its answer was sent is not enough."""
    child = SimpleNamespace(tail=lambda size: "".join(log))
    site = SimpleNamespace(home=tmp_path, name="a", awaits_zones=False, checked=None)
    process = SiteProcess(site, ServerAddress("127.0.0.1", 9, None, None), None)
    log, about = [], {"code": "", "kind": "deliver", "exchange": 7}
    reply = SimpleNamespace(content={"about": about})
    monkeypatch.setattr(transport, "reply_to", lambda message, site: reply)
    asked = SimpleNamespace(metadata=SimpleNamespace(group_id="7"))
    queue = SimpleNamespace(answer_one=lambda reply_to: bool(reply_to(asked)))
    for _ in range(2):
        assert process._answer_one(queue, child)
        process._check_receipt(child)
        assert process._delivered == math.inf, "its answer is not sent yet"
        log.append(f"{SENT_LINE}\n")
        process._check_receipt(child)
        assert process._delivered < math.inf
