"""The list of sites as masks need it: public keys by name, its hash, and a site's own key beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives import serialization

from pfedhgp.errors import InputError
from pfedhgp.federation.flower.certificates import check_private_key, public_bytes, read_sites
from pfedhgp.federation.flower.masked_exchange import masked_roster
from pfedhgp.federation.flower.masked_site import MaskKeys
from pfedhgp.federation.masks.keys import Identity

HASH = re.compile(r"[0-9a-f]{64}")


def der_keys(sites: Mapping[str, str]) -> dict[str, bytes]:
    """The public keys of sites.toml in DER, as signatures are checked with them."""
    found = {}
    for name, text in sites.items():
        key = serialization.load_pem_public_key(public_bytes(text, "sites.toml"))
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        found[name] = key.public_bytes(serialization.Encoding.DER, form)
    return found


def roster_hash(sites: Mapping[str, str]) -> str:
    """SHA-256 of names and keys: what the owners of sites compare."""
    return masked_roster(der_keys(sites)).digest.hex()


def mask_keys(roster: str, key: Path) -> MaskKeys:
    """What a site brings; `roster` is its own copy of sites.toml, or the hash of the list."""
    check_private_key(key)
    identity = Identity(serialization.load_ssh_private_key(key.read_bytes(), None))
    if HASH.fullmatch(roster):
        return MaskKeys(identity, bytes.fromhex(roster))
    path = Path(roster)
    if not path.is_file():
        raise InputError(
            f"--roster {roster}: neither a file nor the SHA-256 of a list of sites (64 digits)"
        )
    return MaskKeys(identity, bytes.fromhex(roster_hash(read_sites(path))))
