"""Certificate authority and server certificate to use in a test."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

CERTIFICATES_ALONE = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False,
    data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=False,
    encipher_only=False, decipher_only=False,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Paths of PEM files."""

    authority: Path
    chain: Path
    key: Path


def make_certificates(folder: Path, host: str = "127.0.0.1") -> Certificates:
    """Create an authority and use it to sign a certificate for ``host`` (an IP address)."""
    made = Certificates(
        authority=folder / "ca.pem", chain=folder / "server.pem", key=folder / "server.key"
    )
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Broadside test authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)

    def build(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        authority_id = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_id), False
            )
        )

    authority = (
        build(issuer, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        # Python 3.13 rejects an authority without this extension.
        .add_extension(CERTIFICATES_ALONE, True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), False)
        .sign(authority_key, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))])
    server = build(subject, server_key).add_extension(names, False)
    made.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    made.chain.write_bytes(
        server.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
    made.key.write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return made
