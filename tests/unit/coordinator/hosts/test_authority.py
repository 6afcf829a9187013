"""The coordinator's own certificates are accepted by every Python that agents may have."""

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broadside.coordinator.hosts.authority import own_authority
from broadside.exchange.http.coordinator_link import trust_authority


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> str:
    """Return the protocol that both ends agree on, without a network."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    done: set[int] = set()
    for _ in range(10):
        for index, end in enumerate(ends):
            if index not in done:
                try:
                    end.do_handshake()
                    done.add(index)
                except ssl.SSLWantReadError:
                    continue
    assert done == {0, 1}
    return str(ends[0].version())


def test_a_strict_client_accepts_the_certificates(tmp_path: Path) -> None:
    """As Python 3.13 is by default: "Missing Authority Key Identifier" ended every join there."""
    shown = own_authority(tmp_path, datetime.now(UTC))
    assert shown.authority is not None
    strict = ssl.create_default_context(cadata=shown.authority)
    strict.check_hostname = False
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(shown.certificate_file, shown.key_file)
    assert shake_hands(strict, server).startswith("TLS")


def test_an_agent_is_not_strict_with_authorities_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its Python's default: those have no key identifiers."""
    shown = own_authority(tmp_path, datetime.now(UTC))
    assert shown.authority is not None
    made = ssl.create_default_context(cadata=shown.authority)
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: made)
    context = trust_authority(shown.authority)
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    no_check_time = 0x200000  # of OpenSSL's x509_vfy.h
    assert context.verify_flags & no_check_time, "a clock that is years off reaches it too"
    assert context.verify_mode is ssl.CERT_REQUIRED
