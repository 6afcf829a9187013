"""Tests for the certificate authority and the clients connecting to it."""

import shutil
import ssl
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
from broadside.exchange.outage_log import utc_now

NOW = datetime(2026, 11, 26, tzinfo=UTC)


def test_agent_accepts_authority_without_key_identifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The authority may have been created by an older version without key identifiers."""
    shown = load_authority(tmp_path, utc_now())
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
