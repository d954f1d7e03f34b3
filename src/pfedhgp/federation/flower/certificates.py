"""A certificate authority, a server certificate and site keys, for a trial.

DIR/ca.crt                      goes to every site
DIR/ca.key                      keep it offline; signs the server's next certificate
DIR/server.crt, server.key      the server's
DIR/sites.toml                  each site's name and public key; goes to the server
DIR/sites/<hash>.key            a site's private key; goes to that site alone
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pfedhgp.base.atomic_files import write_bytes
from pfedhgp.base.checks import short
from pfedhgp.base.toml_text import quoted
from pfedhgp.errors import InputError
from pfedhgp.federation.flower.processes import private_folder, write_secret
from pfedhgp.federation.flower.state import SITES, site_hash
from pfedhgp.settings.config import read_config

LONGEST_NAME = 200
PKCS8, OPENSSH = serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.OpenSSH
AUTHORITY_DAYS = 3650
"""Days that an authority is valid after its server certificate, which can be renewed meanwhile."""


def make_certificates(
    folder: Path, sites: Sequence[str], hosts: Sequence[str], *, days: int = 365
) -> dict[str, Path]:
    """Writes all files above into a new folder. Returns the path of each site's key; there may be none."""
    if sites:
        check_names(sites)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: choose a new folder for the certificates")
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty: choose a new folder for the certificates")
    ca_key, ca = _authority(days + AUTHORITY_DAYS)
    server_key = ec.generate_private_key(ec.SECP384R1())
    server = _server_certificate(ca_key, ca, server_key, hosts, days)
    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in sites}
    private_folder(folder, "--out")
    if sites:
        private_folder(folder / SITES, "--out")
    write_secret(folder / "ca.key", private_text(ca_key, PKCS8))
    write_secret(folder / "server.key", private_text(server_key, PKCS8))
    paths = {}
    for name, key in keys.items():
        paths[name] = folder / SITES / f"{site_hash(name)}.key"
        write_secret(paths[name], private_text(key, OPENSSH))
    write_bytes(folder / "ca.crt", ca.public_bytes(serialization.Encoding.PEM))
    write_bytes(folder / "server.crt", server.public_bytes(serialization.Encoding.PEM))
    known = {name: public_text(key.public_key()) for name, key in keys.items()}
    write_bytes(folder / "sites.toml", sites_text(known).encode("utf-8"))
    return paths


def renew_certificate(folder: Path, hosts: Sequence[str], *, days: int = 365) -> datetime.datetime:
    """Writes a new server.crt for the same server.key, by default for the same names.

    Returns its last day. Sites need not act: ca.crt stays.
    """
    ca, old = (read_certificate(folder / name) for name in ("ca.crt", "server.crt"))
    ca_key, key = (_key_in(folder / name) for name in ("ca.key", "server.key"))
    if ca_key.public_key() != ca.public_key():
        raise InputError(f"{folder}: ca.key is not the key of ca.crt")
    new = _server_certificate(ca_key, ca, key, list(hosts) or host_names(old), days)
    if new.not_valid_after_utc > ca.not_valid_after_utc:
        raise InputError(
            f"--days {days}: ca.crt is valid until {ca.not_valid_after_utc:%Y-%m-%d}: give fewer, or make a "
            "new authority, whose ca.crt has to reach all sites"
        )
    write_bytes(folder / "server.crt", new.public_bytes(serialization.Encoding.PEM))
    return new.not_valid_after_utc


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


@contextmanager
def _refusing(problem: str) -> Iterator[None]:
    """Turns what `cryptography` raises for content of another form into one line."""
    try:
        yield
    except InputError:  # a ValueError too: the file cannot be read
        raise
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(problem) from None


def read_certificate(path: Path) -> x509.Certificate:
    """A certificate from a PEM file."""
    with _refusing(f"{path}: not a certificate in PEM form"):
        return x509.load_pem_x509_certificate(_content(path))


def _key_in(path: Path) -> ec.EllipticCurvePrivateKey:
    with _refusing(f"{path}: not a private key in PEM form, without a passphrase"):
        key = serialization.load_pem_private_key(_content(path), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{path}: not an ECDSA key: make one with `pfedhgp certs`")
    return key


def make_site_key(path: Path) -> str:
    """Makes a site's key on the site's machine. Returns the public key, for the server's sites.toml."""
    if path.exists():
        raise InputError(f"{path} already exists: choose another file for the key")
    key = ec.generate_private_key(ec.SECP384R1())
    try:
        write_secret(path, private_text(key, OPENSSH))
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"{path}: nothing can be written there ({why})") from None
    return public_text(key.public_key())


# ------------------------------------------------------------------------------------- sites.toml


def sites_text(sites: Mapping[str, str]) -> str:
    """The table [sites] with a line for each site: "name" = "public key"."""
    lines = [f"{quoted(name)} = {quoted(key)}" for name, key in sites.items()]
    return "\n".join(["# The sites of a federation: name = public key", "[sites]", *lines, ""])


def read_sites(path: Path, *, keys: bool = True) -> dict[str, str]:
    """Names and public keys, each of them once. Without `keys` the keys are not looked at."""
    try:
        tree = read_config(path)
    except InputError as error:
        if "overwrite" not in str(error):
            raise
        twice = str(error).replace("not TOML", "a site is named twice", 1)
        raise InputError(twice) from None
    table = tree.get("sites")
    if not isinstance(table, dict) or not table or set(tree) != {"sites"}:
        raise InputError(f'{path}: expected one table, [sites], with lines "name" = "public key"')
    check_names(list(table))
    if not keys:
        return {name: "" for name in table}
    seen: dict[bytes, str] = {}
    for name, text in table.items():
        if not isinstance(text, str):
            raise InputError(f"{path}: site {short(name)!r}: the public key is not a string")
        raw = public_bytes(text, f"{path}: site {short(name)!r}")
        if raw in seen:
            raise InputError(f"{path}: {short(seen[raw])!r} and {short(name)!r} have the same key")
        seen[raw] = name
    return dict(table)


def check_names(names: Sequence[str]) -> None:
    """Refuses names that are repeated, empty, too long, or cannot be written to a file."""
    if not names:
        raise InputError("no site: name at least one")
    for name in names:
        if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in name):
            raise InputError(f"site {short(name)!r}: a name is UTF-8, without NUL")
        if not name.strip() or len(name) > LONGEST_NAME:
            raise InputError(f"site {short(name)!r}: a name has 1 to {LONGEST_NAME} characters")
        if list(names).count(name) > 1:
            raise InputError(f"site {short(name)!r} is named twice")


# ------------------------------------------------------------------------------------------- keys


def public_text(key: ec.EllipticCurvePublicKey) -> str:
    """In OpenSSH's form: ecdsa-sha2-nistp384 AAAA…"""
    openssh = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return key.public_bytes(*openssh).decode("ascii")


def private_text(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def public_bytes(text: str, where: str) -> bytes:
    """The key in the form that Flower registers; `where` begins the error message."""
    problem = f"{where}: not an ECDSA public key in OpenSSH's form: `pfedhgp certs` makes one"
    with _refusing(problem):
        key = serialization.load_ssh_public_key(text.encode("ascii"))
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InputError(problem)
    pem = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return key.public_bytes(*pem)


def check_private_key(path: Path) -> str:
    """The public key that belongs to a site's key file."""
    problem = f"{path}: not an ECDSA private key in OpenSSH's form, without a passphrase"
    with _refusing(problem):
        key = serialization.load_ssh_private_key(_content(path), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(problem)
    return public_text(key.public_key())


def check_server_certificate(folder: Path, host: str) -> None:
    """Refuses a server.crt that does not fit server.key, is not valid now, or is not for `host`."""
    path = folder / "server.crt"
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path, folder / "server.key", password="")
        ssl.create_default_context(cafile=str(folder / "ca.crt"))
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or "not PEM"
        raise InputError(
            f"{folder}: ca.crt, server.crt and server.key cannot be used: {why}"
        ) from None
    now = datetime.datetime.now(datetime.UTC)
    first, last = found.not_valid_before_utc, found.not_valid_after_utc
    if not first <= now <= last:
        raise InputError(
            f"{path} is valid from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC, and by this "
            f"machine's clock it is {now:%Y-%m-%d %H:%M}: renew it, or set the clock"
        )
    if not {host, f"*.{host.partition('.')[2]}"} & set(host_names(found)):
        raise InputError(
            f"{path} is not for {host}, which the server's own processes connect to: make one with "
            f"`pfedhgp certs --host {host}`"
        )


def host_names(certificate: x509.Certificate) -> list[str]:
    """The names and addresses that a server certificate is for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]


# ----------------------------------------------------------------------------------- certificates


def _authority(days: int) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pFedHGP trial CA")])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    built = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return key, built.sign(key, hashes.SHA384())


def _server_certificate(
    ca_key: ec.EllipticCurvePrivateKey,
    ca: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    days: int,
) -> x509.Certificate:
    # The server's own processes talk to it over loopback, whatever its name is.
    names = list(dict.fromkeys([*hosts, "localhost", "127.0.0.1", "::1"]))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    built = (
        _builder(subject, ca.subject, key.public_key(), days)
        .add_extension(
            x509.SubjectAlternativeName([_alternative(n) for n in names]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer_key, critical=False)
    )
    return built.sign(ca_key, hashes.SHA384())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        try:
            return x509.DNSName(host)
        except ValueError:
            raise InputError(f"--host {host!r} is neither an address nor a domain name") from None
