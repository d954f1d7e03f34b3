"""The cryptography that masks need, from `cryptography` alone: nothing here is our own.

A site has a signing key (its identity). Of X25519 keys it has one a run, which seals shares for other sites,
and one an exchange, from which masks are made. Every key that is used is derived by HKDF-SHA256 and says in
its `info` what it is for. `cryptography` comes with the extra `flower`.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np

from pfedhgp.errors import InputError

KEY_BYTES, NONCE_BYTES = 32, 12


def check_installed() -> None:
    """Raises if `cryptography` is missing."""
    try:
        import cryptography  # noqa: F401
    except ModuleNotFoundError:
        raise InputError(
            "masks need the package cryptography: pip install 'pfedhgp[flower]'"
        ) from None


def framed(*parts: bytes | str | int) -> bytes:
    """Parts with their lengths in front: two different lists never give the same bytes."""
    whole = b""
    for part in parts:
        data = str(part).encode("utf-8") if isinstance(part, str | int) else part
        whole += len(data).to_bytes(8, "big") + data
    return whole


def hkdf(secret: bytes, *, salt: bytes, info: bytes, length: int = KEY_BYTES) -> bytes:
    """HKDF-SHA256 (RFC 5869)."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(secret)


# ---------------------------------------------------------------------------------- who a site is


@dataclass(frozen=True)
class Identity:
    """A site's signing key: Ed25519, or the elliptic-curve key that it has already."""

    private: Any

    @staticmethod
    def new() -> Identity:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Identity(Ed25519PrivateKey.generate())

    @property
    def public(self) -> bytes:
        """DER, as a roster has it."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        key = self.private.public_key()
        return bytes(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))

    def sign(self, message: bytes) -> bytes:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        if isinstance(self.private, ec.EllipticCurvePrivateKey):
            return bytes(self.private.sign(message, ec.ECDSA(hashes.SHA256())))
        return bytes(self.private.sign(message))


def is_signed(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the owner of the public key (DER) signed the message."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    key = load_der_public_key(public)
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        elif isinstance(key, Ed25519PublicKey):
            key.verify(signature, message)
        else:
            return False
    except InvalidSignature:
        return False
    return True


# ------------------------------------------------------------------------------------ X25519


def new_secret() -> bytes:
    """32 bytes of the operating system's randomness: an X25519 key, or the seed of a mask."""
    return secrets.token_bytes(KEY_BYTES)


def public_of(secret: bytes) -> bytes:
    """The X25519 public key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def agreed(secret: bytes, public: bytes) -> bytes:
    """What both ends of an X25519 pair know. Raises ValueError for a public key of low order."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    private = X25519PrivateKey.from_private_bytes(secret)
    return private.exchange(X25519PublicKey.from_public_bytes(public))


# ------------------------------------------------------------------------- boxes and key streams


def seal(key: bytes, content: bytes, about: bytes) -> bytes:
    """ChaCha20-Poly1305 with a random nonce in front; `about` is not in it, and is checked."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, about)


def unseal(key: bytes, box: bytes, about: bytes) -> bytes | None:
    """What is in a box; None if it was not sealed with this key, or was changed."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], about)
    except (InvalidTag, ValueError):
        return None


def keystream(key: bytes, count: int) -> np.ndarray:
    """`count` numbers of Z_2⁶⁴: AES-256 in counter mode. A key is used for one stream only."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    stream = cipher.update(bytes(8 * count)) + cipher.finalize()
    return np.frombuffer(stream, "<u8").astype(np.uint64)
