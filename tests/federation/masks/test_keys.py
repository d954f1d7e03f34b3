"""Known answers of RFC 5869 (HKDF) and RFC 7748 (X25519), and boxes that open for one key only."""

from __future__ import annotations

import numpy as np
import pytest

from support.masked_sites import needs_cryptography

needs_cryptography()
from pfedhgp.federation.masks import keys  # noqa: E402
from pfedhgp.federation.masks.keys import Identity, framed, is_signed  # noqa: E402

pytestmark = pytest.mark.flower


@pytest.mark.parametrize(
    ("secret", "salt", "info", "length", "expected"),
    [
        (
            b"\x0b" * 22,
            bytes(range(13)),
            bytes(range(0xF0, 0xFA)),
            42,
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            bytes(range(80)),
            bytes(range(0x60, 0xB0)),
            bytes(range(0xB0, 0x100)),
            82,
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e59"
            "0e09da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87",
        ),
        (
            b"\x0b" * 22,
            b"",
            b"",
            42,
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
)
def test_hkdf_gives_the_answers_of_rfc_5869(secret, salt, info, length, expected):
    """Its test cases 1 to 3."""
    assert keys.hkdf(secret, salt=salt, info=info, length=length).hex() == expected


def test_x25519_gives_the_answer_of_rfc_7748():
    """Section 5.2, after one iteration: scalar and point are both 9."""
    nine = b"\x09" + bytes(31)
    expected = "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    assert keys.agreed(nine, nine).hex() == expected
    assert keys.public_of(nine).hex() == expected


def test_both_ends_agree_and_points_of_low_order_are_refused():
    one, two = keys.new_secret(), keys.new_secret()
    assert keys.agreed(one, keys.public_of(two)) == keys.agreed(two, keys.public_of(one))
    with pytest.raises(ValueError, match=r".*"):
        keys.agreed(one, bytes(32))


def test_the_key_stream_gives_the_answer_of_nist():
    """AES-256 of a block of zeros with a key of zeros (SP 800-38A's mode, FIPS 197's cipher)."""
    stream = keys.keystream(bytes(32), 2)
    assert stream.astype("<u8").tobytes().hex() == "dc95c078a2408989ad48a21492842087"
    np.testing.assert_array_equal(keys.keystream(bytes(32), 5)[:2], stream)


def test_a_box_opens_for_its_key_and_label_alone():
    key, other = keys.new_secret(), keys.new_secret()
    box = keys.seal(key, b"share", b"from a to b")
    assert keys.unseal(key, box, b"from a to b") == b"share"
    assert keys.unseal(other, box, b"from a to b") is None
    assert keys.unseal(key, box, b"from a to c") is None
    assert keys.unseal(key, box[:-1] + bytes([box[-1] ^ 1]), b"from a to b") is None
    assert keys.unseal(key, b"", b"from a to b") is None
    assert keys.seal(key, b"share", b"from a to b") != box


def test_signatures_of_both_kinds_of_keys():
    """Sites of a federation have elliptic-curve keys already; in one process there are new ones."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    for identity in (Identity.new(), Identity(ec.generate_private_key(ec.SECP384R1()))):
        signature = identity.sign(b"this")
        assert is_signed(identity.public, b"this", signature)
        assert not is_signed(identity.public, b"that", signature)
        assert not is_signed(identity.public, b"this", b"")
        assert not is_signed(Identity.new().public, b"this", signature)
    strange = Identity(rsa.generate_private_key(public_exponent=65537, key_size=2048))
    assert not is_signed(strange.public, b"this", b"")


def test_frames_tell_lists_apart():
    assert framed("ab", "c") != framed("a", "bc")
    assert framed("ab") != framed("ab", "")
    assert framed(12, b"x") == framed("12", "x")
