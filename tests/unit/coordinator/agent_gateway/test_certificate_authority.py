"""Tests for the certificate authority and the clients connecting to it."""

import shutil
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broadside.coordinator.agent_gateway.certificate_authority import load_authority
from broadside.coordinator.agent_gateway.enrolment import Enrolments, JoinTerms
from broadside.coordinator.agent_gateway.gateway_server import GatewayMisconfigured, check_authority
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.exchange.fabric import Fabric
from broadside.exchange.http.coordinator_client import trust_authority
from broadside.exchange.messages import Role

NOW = datetime(2026, 11, 26, tzinfo=UTC)


def handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> str:
    """Run a TLS handshake in memory and return the version."""
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


def test_strict_client_accepts_the_certificates(tmp_path: Path) -> None:
    """Python 3.13 is strict by default and needs an Authority Key Identifier."""
    shown = load_authority(tmp_path, datetime.now(UTC))
    assert shown.authority is not None
    strict = ssl.create_default_context(cadata=shown.authority)
    strict.check_hostname = False
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(shown.certificate_file, shown.key_file)
    assert handshake(strict, server).startswith("TLS")


def test_agent_accepts_authority_without_key_identifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The authority may have been created by an older version without key identifiers."""
    shown = load_authority(tmp_path, datetime.now(UTC))
    assert shown.authority is not None
    strict = ssl.create_default_context(cadata=shown.authority)
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: strict)
    context = trust_authority(shown.authority)
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    # See X509_V_FLAG_NO_CHECK_TIME in OpenSSL x509_vfy.h.
    no_check_time = 0x200000
    assert context.verify_flags & no_check_time, "a host with a wrong clock must be able to connect"
    assert context.verify_mode is ssl.CERT_REQUIRED


async def add_code(fabric: Fabric, data: Path) -> None:
    enrolments = Enrolments(fabric.private)
    await enrolments.add_code(
        "code", JoinTerms(Role.CLIENT, 1, NOW + timedelta(hours=1)), by="me", now=NOW
    )
    load_authority(data, NOW)


async def test_lost_authority_folder_stops_start_with_remedies(
    tmp_path: Path, fabric: Fabric
) -> None:
    settings = CoordinatorSettings(hosts_listen="127.0.0.1:0")
    # There is no enrolled agent yet.
    await check_authority(settings, fabric.private, tmp_path, NOW)
    await add_code(fabric, tmp_path)
    await check_authority(settings, fabric.private, tmp_path, NOW)
    shutil.rmtree(tmp_path / "tls")
    with pytest.raises(GatewayMisconfigured, match=r"was lost.*backup.*new-authority"):
        await check_authority(settings, fabric.private, tmp_path, NOW)
    assert not (tmp_path / "tls").exists(), "the check must not create one"
    # The code can be ignored if it expired and was not used.
    await check_authority(settings, fabric.private, tmp_path, NOW + timedelta(hours=2))


async def test_configured_certificate_needs_no_authority(tmp_path: Path, fabric: Fabric) -> None:
    await add_code(fabric, tmp_path)
    shutil.rmtree(tmp_path / "tls")
    settings = CoordinatorSettings(
        hosts_listen="127.0.0.1:0",
        hosts_certificate_file=tmp_path / "a.pem",
        hosts_key_file=tmp_path / "a.key",
    )
    await check_authority(settings, fabric.private, tmp_path, NOW)


def test_commands_fail_until_new_authority_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROADSIDE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("BROADSIDE_HOSTS_LISTEN", "127.0.0.1:0")

    def broadside(*parts: str) -> tuple[int, str]:
        command = [sys.executable, "-P", "-m", "broadside.coordinator", *parts]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stderr

    assert broadside("enroll", "new", "--role", "client")[0] == 0
    shutil.rmtree(tmp_path / "data" / "tls")
    for parts in (["enroll", "new", "--role", "client"], ["serve", "--port", "0"]):
        code, error = broadside(*parts)
        assert code == 4, error
        assert "enroll new-authority" in error
        assert "Traceback" not in error
    assert broadside("enroll", "new-authority")[0] == 0
    assert broadside("enroll", "new-authority")[0] == 3
    assert broadside("enroll", "new", "--role", "client")[0] == 0
