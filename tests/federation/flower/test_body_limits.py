"""What the SuperLink reads of a request, by its header: strangers little, sites no more than a reply."""

from __future__ import annotations

import asyncio
from base64 import b64encode

import pytest

from support.flower_processes import needs_flower

needs_flower()
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402
from flwr.common.constant import TIMESTAMP_HEADER  # noqa: E402
from flwr.supercore.constant import (  # noqa: E402
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
)
from flwr.supercore.date import now  # noqa: E402
from flwr.supercore.primitives.asymmetric import (  # noqa: E402
    public_key_to_bytes,
    sign_message,
)

from pfedhgp.federation.flower.body_limits import (  # noqa: E402
    BESIDES,
    LARGE,
    PUSH_MESSAGE,
    PUSH_OBJECT,
    SMALL,
    BodyLimits,
    OversizedKeys,
)

pytestmark = pytest.mark.flower
PULL = "/v1/fleet/pull-messages"
SITE, STRANGER = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))


def signed(key, size, *, by=None, when=None):
    """The headers of a request with so many bytes; `by` signs in place of the key's owner."""
    when = (when or now()).isoformat()
    signature = sign_message(by or key, when.encode())
    headers = {
        "content-length": str(size),
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(key.public_key())).decode(),
        TIMESTAMP_HEADER: when,
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode(),
    }
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


@pytest.fixture
def limits(tmp_path):
    """A function that sends a request and returns its status; and the keys named as oversized."""
    listed = b64encode(public_key_to_bytes(SITE.public_key()))
    (tmp_path / "ready").write_bytes(listed)
    (tmp_path / "largest").write_text(str(2 * LARGE))
    read = []

    async def flower(scope, receive, send):
        read.append(scope["path"])

    paths = {name: tmp_path / name for name in ("ready", "largest", "oversized")}
    middleware = BodyLimits(flower, **paths)

    def post(path, headers, kind="http"):
        sent = []

        async def send(message):
            sent.append(message)

        async def receive():
            raise AssertionError("the body is not read")

        scope = {"type": kind, "path": path, "headers": headers}
        asyncio.run(middleware(scope, receive, send))
        return sent[0]["status"] if sent else 200

    return post, OversizedKeys(tmp_path / "oversized"), middleware


def test_a_strangers_body_is_refused_unread(limits):
    post, oversized, middleware = limits
    large = 300 * 1024 * 1024
    for path in (PULL, PUSH_MESSAGE, PUSH_OBJECT):
        assert post(path, [(b"content-length", str(large).encode())]) == 413
        assert post(path, [(b"transfer-encoding", b"chunked")]) == 411
    for size, status in ((SMALL, 200), (SMALL + 1, 413)):
        assert post(PUSH_OBJECT, signed(STRANGER, size)) == status
        assert post(PUSH_OBJECT, signed(SITE, size, by=STRANGER)) == (413)
        assert post(PULL, signed(SITE, size)) == status
    old = now().replace(year=2020)
    assert post(PUSH_OBJECT, signed(SITE, SMALL + 1, when=old)) == 413
    assert oversized() == []
    post(PUSH_MESSAGE, signed(STRANGER, 10))
    assert not middleware.left, "strangers leave nothing behind"
    assert post("/v1/runtime/push-object", [(b"content-length", str(large).encode())]) == 200


def test_a_sites_message_is_limited_before_it_is_read_whole(limits):
    post, oversized, _ = limits
    key = public_key_to_bytes(SITE.public_key())
    for _ in range(3):  # three messages, each as large as may be
        assert post(PUSH_MESSAGE, signed(SITE, 1000)) == 200
        assert [post(PUSH_OBJECT, signed(SITE, LARGE)) for _ in range(2)] == [200, 200]
    assert post(PUSH_OBJECT, signed(SITE, BESIDES + 1)) == 413
    assert oversized() == [key]
    assert oversized() == []
    assert post(PUSH_OBJECT, signed(SITE, LARGE + 1)) == 413
    assert post(PUSH_OBJECT, signed(SITE, BESIDES)) == 200
