"""The coordinator's own certificates are accepted by every Python that agents may have."""

import shutil
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broadside.coordinator.agent_gateway.certificate_authority import load_authority
from broadside.coordinator.agent_gateway.enrolment import Enrolments
from broadside.coordinator.agent_gateway.gateway_server import GatewayMisconfigured, check_authority
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.exchange.fabric import Fabric
from broadside.exchange.http.coordinator_client import trust_authority
from broadside.exchange.messages import Role

NOW = datetime(2026, 11, 26, tzinfo=UTC)


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
    shown = load_authority(tmp_path, datetime.now(UTC))
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
    shown = load_authority(tmp_path, datetime.now(UTC))
    assert shown.authority is not None
    made = ssl.create_default_context(cadata=shown.authority)
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: made)
    context = trust_authority(shown.authority)
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    no_check_time = 0x200000  # of OpenSSL's x509_vfy.h
    assert context.verify_flags & no_check_time, "a clock that is years off reaches it too"
    assert context.verify_mode is ssl.CERT_REQUIRED


async def enrol_one(fabric: Fabric, data: Path) -> None:
    enrolments = Enrolments(fabric.private)
    await enrolments.add_code(
        "code", Role.CLIENT, 1, by="me", now=NOW, expires_at=NOW + timedelta(hours=1)
    )
    load_authority(data, NOW)


async def test_a_lost_folder_stops_the_start_and_names_the_ways_out(
    tmp_path: Path, fabric: Fabric
) -> None:
    settings = CoordinatorSettings(hosts_listen="127.0.0.1:0")
    await check_authority(settings, fabric.private, tmp_path, NOW)  # nobody is enrolled
    await enrol_one(fabric, tmp_path)
    await check_authority(settings, fabric.private, tmp_path, NOW)
    shutil.rmtree(tmp_path / "tls")
    with pytest.raises(GatewayMisconfigured, match=r"was lost.*backup.*new-authority"):
        await check_authority(settings, fabric.private, tmp_path, NOW)
    assert not (tmp_path / "tls").exists(), "and none was made"
    # The open code has ended; nobody joined by it.
    await check_authority(settings, fabric.private, tmp_path, NOW + timedelta(hours=2))


async def test_a_sites_own_certificate_rests_on_no_authority(
    tmp_path: Path, fabric: Fabric
) -> None:
    await enrol_one(fabric, tmp_path)
    shutil.rmtree(tmp_path / "tls")
    settings = CoordinatorSettings(
        hosts_listen="127.0.0.1:0",
        hosts_certificate_file=tmp_path / "a.pem",
        hosts_key_file=tmp_path / "a.key",
    )
    await check_authority(settings, fabric.private, tmp_path, NOW)


def test_the_commands_refuse_and_the_way_out_works(
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
        code, reported = broadside(*parts)
        assert code == 4, reported
        assert "enroll new-authority" in reported
        assert "Traceback" not in reported
    assert broadside("enroll", "new-authority")[0] == 0
    assert broadside("enroll", "new-authority")[0] == 3
    assert broadside("enroll", "new", "--role", "client")[0] == 0
