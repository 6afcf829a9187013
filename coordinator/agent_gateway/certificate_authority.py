"""Certificate authority of the coordinator, created at the first start.

It signs only the coordinator's certificate. Agents trust only this authority.
"""

import datetime as dt
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from broadside.exchange.embedded.backup import TLS_FOLDER

NAME: Final = "broadside-coordinator"
AUTHORITY_LIFE: Final = dt.timedelta(days=3650)
LIFE: Final = dt.timedelta(days=397)
# A certificate that expires within this time is replaced at the start.
RENEW_BEFORE: Final = dt.timedelta(days=180)
_REMEDY: Final = (
    "put it back from a backup; or remove that folder, run `broadside enroll new-authority`, and "
    "enroll every agent again"
)
# How long before now a certificate should be valid. We need this because the clock of an agent can
# be behind.
_BACKDATED: Final = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCertificate:
    """Certificate files that a listener uses.

    Attributes:
        authority: The certificate of the authority as PEM, or None if the site provides the
            certificate.
        certificate_file: The certificate of the coordinator.
        key_file: The private key of the coordinator.
    """

    authority: str | None
    certificate_file: Path
    key_file: Path


def load_authority(data_dir: Path, now: dt.datetime) -> ServerCertificate:
    """Return authority and certificate from ``data_dir``. Create missing or expiring ones.

    A lost authority is not replaced, because agents trust only the original one. Its key is needed
    only to sign a new certificate.

    Args:
        data_dir: The coordinator data folder.
        now: Current time to use.

    Raises:
        OSError: A file cannot be read or written.
        ValueError: A file is missing or invalid.
    """
    folder = data_dir / TLS_FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority, authority_key = folder / "authority.pem", folder / "authority.key"
    certificate, key = folder / "coordinator.pem", folder / "coordinator.key"
    if not has_authority(data_dir):
        _make(authority, authority_key, now, signer=None)
    signed_by = x509.load_pem_x509_certificate(_read_file(authority))
    if not _lives(certificate, key, signed_by, now):
        signing = serialization.load_pem_private_key(_read_file(authority_key), None)
        if signing.public_key() != signed_by.public_key():
            raise ValueError(f"{authority_key}: not the key of {authority.name}; {_REMEDY}")
        _make(certificate, key, now, signer=(signed_by, signing))
    return ServerCertificate(
        authority=authority.read_text(), certificate_file=certificate, key_file=key
    )


def has_authority(data_dir: Path) -> bool:
    """Return True if ``data_dir`` contains files of an authority."""
    folder = data_dir / TLS_FOLDER
    return any((folder / name).exists() for name in ("authority.pem", "coordinator.pem"))


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ValueError(f"{path} was lost; {_REMEDY}") from error


def _lives(certificate: Path, key: Path, authority: x509.Certificate, now: dt.datetime) -> bool:
    if not (certificate.exists() and key.exists()):
        return False
    stored = x509.load_pem_x509_certificate(certificate.read_bytes())
    try:
        stored.verify_directly_issued_by(authority)
    except (ValueError, InvalidSignature):
        return False
    private_key = serialization.load_pem_private_key(key.read_bytes(), None)
    return (
        private_key.public_key() == stored.public_key()
        and stored.not_valid_after_utc - RENEW_BEFORE > now
    )


def _make(
    certificate_file: Path,
    key_file: Path,
    now: dt.datetime,
    *,
    signer: "tuple[x509.Certificate, object] | None",
) -> None:
    """Create the authority, or the certificate of the coordinator if there is a signer."""
    name, life = ("Broadside authority", AUTHORITY_LIFE) if signer is None else (NAME, LIFE)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if signer is None else signer[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + life)
        .add_extension(
            x509.BasicConstraints(ca=signer is None, path_length=0 if signer is None else None),
            critical=True,
        )
    )
    # RFC 5280, section 4.2.1. Python 3.13 and newer reject certificates without these two
    # extensions.
    key_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.add_extension(key_id, critical=False)
    if signer is not None:
        signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(_public_key(signer[0]))
        builder = builder.add_extension(signed_by, critical=False)
    if signer is None:
        usage = {"key_cert_sign": True, "crl_sign": True, "digital_signature": False}
    else:
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        builder = builder.add_extension(names, critical=False)
        usage = {"key_cert_sign": False, "crl_sign": False, "digital_signature": True}
    usage |= dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
    )
    builder = builder.add_extension(
        x509.KeyUsage(encipher_only=False, decipher_only=False, **usage), critical=True
    )
    signing = key if signer is None else signer[1]
    if not isinstance(signing, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{key_file.parent}: the authority's key was not created by Broadside")
    made = builder.sign(signing, hashes.SHA256())
    _write(
        key_file,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
    _write(certificate_file, made.public_bytes(serialization.Encoding.PEM))


def _public_key(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("the authority's certificate was not created by Broadside")
    return key


def _write(path: Path, text: bytes) -> None:
    unfinished = path.with_suffix(".part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(unfinished, flags, 0o600), "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
