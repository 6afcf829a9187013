"""Tests for the enrolment of agents with join codes, secrets and certificates."""

import asyncio
import json
import shutil
import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from broadside.coordinator.agent_gateway.agent_permissions import DeliveredJobs
from broadside.coordinator.agent_gateway.certificate_authority import load_authority
from broadside.coordinator.agent_gateway.enrolment import (
    Enrolled,
    Enrolment,
    Enrolments,
    JoinTerms,
    NotEnrolled,
)
from broadside.coordinator.auth.audit import Audit
from broadside.coordinator.auth.static_tokens import digest
from broadside.exchange.fabric import Fabric
from broadside.exchange.http.credential import (
    AgentCredential,
    coordinator_addresses,
    load_credential,
    new_secret,
)
from broadside.exchange.http.joining import fingerprint, new_code
from broadside.exchange.messages import Role
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import ExchangeMisconfigured, ExchangeRefused

NOW = utc_now()


def agent(name: str, secret: str, role: Role = Role.CLIENT) -> Enrolled:
    return Enrolled(agent_id=name, role=role, sha256=digest(secret), join="", enrolled_at=NOW)


async def add_code(fabric: Fabric, count: int = 2, hours: float = 1) -> Enrolments:
    known = Enrolments(fabric.private)
    await known.add_code(
        "code", JoinTerms(Role.CLIENT, count, NOW + timedelta(hours=hours)), by="me", now=NOW
    )
    return known


async def test_code_enrols_limited_number_of_agents(fabric: Fabric) -> None:
    known = await add_code(fabric)
    # The agents retry because the response was lost.
    for name in ("c1", "c2", "c1", "c2"):
        await known.enrol("code", agent(name, f"secret of {name}"), NOW)
    with pytest.raises(ExchangeRefused, match="admitted its 2 agents"):
        await known.enrol("code", agent("c3", "x"), NOW)
    assert [a.key for a in await known.agents()] == ["client.c1", "client.c2"]


async def test_concurrent_enrolments_do_not_exceed_code_limit(fabric: Fabric) -> None:
    known = await add_code(fabric, count=3)
    done = await asyncio.gather(
        *(known.enrol("code", agent(f"c{n}", "x"), NOW) for n in range(8)), return_exceptions=True
    )
    assert sum(isinstance(item, Enrolled) for item in done) == 3
    assert len(await known.agents()) == 3


@pytest.mark.parametrize(
    ("code", "requested", "hours", "why"),
    [
        ("another", agent("c1", "x"), 0.0, "not known"),
        ("code", agent("c1", "x"), 2.0, "ended"),
        ("code", agent("s1", "x", Role.SERVER), 0.0, "for the role client"),
    ],
)
async def test_rejects_unknown_expired_or_other_role_code(
    fabric: Fabric, code: str, requested: Enrolled, hours: float, why: str
) -> None:
    known = await add_code(fabric)
    with pytest.raises(ExchangeRefused, match=why):
        await known.enrol(code, requested, NOW + timedelta(hours=hours))
    assert await known.agents() == []


async def test_rejects_enrolment_of_an_existing_agent_id(fabric: Fabric) -> None:
    known = await add_code(fabric)
    await known.enrol("code", agent("c1", "first"), NOW)
    with pytest.raises(ExchangeRefused, match="revoke that one first"):
        await known.enrol("code", agent("c1", "another"), NOW)


@pytest.mark.parametrize("name", ["c1", "c2"])
async def test_revoked_agent_needs_a_new_code(fabric: Fabric, name: str) -> None:
    """The host can still use the old code, which allows more agents."""
    known = await add_code(fabric, count=3)
    await known.enrol("code", agent("c1", "first"), NOW)
    [join] = await known.codes()
    done = await known.revoke("c1", NOW)
    assert (done.agents, done.codes) == (["client.c1"], [join.name])
    later = NOW + timedelta(seconds=1)
    with pytest.raises(ExchangeRefused, match=r"ended|was revoked"):
        await known.enrol("code", agent(name, "another"), later)
    ends = later + timedelta(hours=1)
    await known.add_code("new", JoinTerms(Role.CLIENT, 1, ends), by="me", now=later)
    assert (await known.enrol("new", agent(name, "another"), later)).revoked_at is None


async def test_code_older_than_revocation_does_not_enrol_revoked_agent(
    fabric: Fabric,
) -> None:
    known = await add_code(fabric)
    ends = NOW + timedelta(hours=1)
    await known.add_code("second", JoinTerms(Role.CLIENT, 2, ends), by="me", now=NOW)
    await known.enrol("code", agent("c1", "first"), NOW)
    await known.revoke("c1", NOW + timedelta(minutes=1))
    with pytest.raises(ExchangeRefused, match=r"client\.c1 was revoked .* enroll new"):
        await known.enrol("second", agent("c1", "another"), NOW + timedelta(minutes=2))
    others = await known.enrol("second", agent("c2", "x"), NOW + timedelta(minutes=2))
    assert others.revoked_at is None


async def test_concurrent_retries_of_one_agent_are_accepted(fabric: Fabric) -> None:
    known = await add_code(fabric, count=1)
    requested = agent("c1", "first")
    result = await asyncio.gather(*(known.enrol("code", requested, NOW) for _ in range(4)))
    assert len({item.join for item in result}) == 1


async def test_revoking_a_code_revokes_its_agents(fabric: Fabric) -> None:
    known = await add_code(fabric)
    await known.enrol("code", agent("c1", "x"), NOW)
    [join] = await known.codes()
    assert (await known.revoke(join.name, NOW)).agents == ["client.c1"]
    with pytest.raises(ExchangeRefused, match="ended"):
        await known.enrol("code", agent("c2", "x"), NOW + timedelta(seconds=1))
    with pytest.raises(NotEnrolled):
        await known.revoke("c9", NOW)


async def test_first_use_of_new_secret_revokes_the_old_one(fabric: Fabric) -> None:
    known = await add_code(fabric)
    entry = Enrolment(fabric.private, DeliveredJobs(fabric.records), Audit(fabric.private), None)
    await known.enrol("code", agent("c1", "old"), NOW)
    rights = await entry.identify("old", "")
    assert rights is not None
    assert rights.name == "client.c1"
    await entry.renew(rights, {"sha256": digest("new")})
    assert await entry.identify("old", "") is not None
    assert await entry.identify("new", "") is not None
    assert await entry.identify("old", "") is None
    [row] = await known.agents()
    assert (row.sha256, row.next_sha256) == (digest("new"), None)


async def test_rejected_operation_is_audited_once_a_minute(fabric: Fabric) -> None:
    audit = Audit(fabric.private)
    entry = Enrolment(fabric.private, DeliveredJobs(fabric.records), audit, None)
    await (await add_code(fabric)).enrol("code", agent("c1", "x"), NOW)
    rights = await entry.identify("x", "fd00::7")
    assert rights is not None
    for _ in range(5):
        entry.refused(rights, "upsert", "burst.run-1.00000|report.00001 is not this agent's")
    await asyncio.gather(*entry._rows)
    rows, _ = await audit.read(utc_now(), limit=10)
    assert [(row.by, row.role, row.from_address, row.status) for row in rows] == [
        ("client.c1", "agent", "fd00::7", 403)
    ]
    assert "report.00001" in rows[0].path


def test_authority_is_created_once_and_private(tmp_path: Path) -> None:
    first = load_authority(tmp_path / "data", NOW)
    again = load_authority(tmp_path / "data", NOW + timedelta(days=30))
    assert (again.authority, again.certificate_file.read_text()) == (
        first.authority,
        first.certificate_file.read_text(),
    )
    shown = first.certificate_file.read_text()
    later = load_authority(tmp_path / "data", NOW + timedelta(days=300))
    assert later.authority == first.authority
    assert later.certificate_file.read_text() != shown
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "data" / "tls").iterdir()}
    assert modes == {0o600}
    assert first.authority is not None
    code, secret = new_code(first.authority)
    assert code == f"bsj.{fingerprint(first.authority)}.{secret}"


@pytest.mark.parametrize(
    ("lost", "later", "message"),
    [
        (["authority.pem"], 0, "authority.pem was lost"),
        (["authority.pem", "authority.key"], 0, "authority.pem was lost"),
        # This key is not needed until the certificate is renewed.
        (["authority.key"], 0, None),
        (["authority.key"], 300, "authority.key was lost"),
        (["authority.key", "coordinator.pem"], 0, "authority.key was lost"),
        (["coordinator.key"], 0, None),
        (["coordinator.pem"], 0, None),
    ],
)
def test_lost_authority_is_not_replaced_silently(
    tmp_path: Path, lost: list[str], later: int, message: str | None
) -> None:
    first = load_authority(tmp_path, NOW)
    for name in lost:
        (tmp_path / "tls" / name).unlink()
    if message is None:
        again = load_authority(tmp_path, NOW + timedelta(days=later))
        assert again.authority == first.authority
        ssl.create_default_context().load_cert_chain(again.certificate_file, again.key_file)
    else:
        with pytest.raises(ValueError, match=message):
            load_authority(tmp_path, NOW + timedelta(days=later))


@pytest.mark.parametrize("name", ["authority.key", "coordinator.key", "coordinator.pem"])
def test_files_of_two_authorities_are_not_mixed(tmp_path: Path, name: str) -> None:
    first, other = (load_authority(tmp_path / folder, NOW) for folder in ("one", "other"))
    shown = first.certificate_file.read_text()
    shutil.copy(tmp_path / "other" / "tls" / name, tmp_path / "one" / "tls" / name)
    again = load_authority(tmp_path / "one", NOW)
    assert again.authority == first.authority != other.authority
    assert (again.certificate_file.read_text() == shown) == (name == "authority.key")
    with pytest.raises(ValueError, match=r"not the key of authority\.pem"):
        shutil.copy(tmp_path / "other/tls/authority.key", tmp_path / "one/tls/authority.key")
        load_authority(tmp_path / "one", NOW + timedelta(days=300))


def test_stored_credential_is_private_and_validated(tmp_path: Path) -> None:
    path = tmp_path / "spool" / "credential.json"
    assert load_credential(path) is None
    stored = AgentCredential(
        coordinators=("https://a:1", "https://b:2"),
        authority=None,
        agent_id="c1",
        role="client",
        secret=new_secret(),
        issued_s=1.0,
    ).save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_credential(path) == stored
    fields = json.loads(path.read_text())
    invalid: list[dict[str, object]] = [
        {"coordinators": value} for value in ("https://a:1", [5], [], ["a"], None)
    ]
    invalid += [{"authority": value} for value in (5, "no certificate")]
    invalid += [{"secret": 5}, {"issued_s": "x"}, {"agent_id": None}]
    for text in ("{}", "[]", "[" * 100_000, *(json.dumps(fields | item) for item in invalid)):
        path.write_text(text)
        with pytest.raises(ExchangeMisconfigured, match="join again"):
            load_credential(path)


NO_PORTS = ("https://a:99999", "https://a:0", "https://a:-1", "https://a:x", "https://a:1:2")
NO_HOSTS = ("https://", "https://:8443", "https://[::1:8443", "https://fd00::1:8443", "https://a\0")


@pytest.mark.parametrize(
    "text", ["", "http://a:1", "a:8443", "https://a, http://b", *NO_PORTS, *NO_HOSTS]
)
def test_rejects_invalid_or_unencrypted_coordinator_address(text: str) -> None:
    with pytest.raises(ExchangeMisconfigured, match="BROADSIDE_COORDINATOR"):
        coordinator_addresses(text)


def test_coordinator_addresses_preserve_order() -> None:
    assert coordinator_addresses("https://[fd00::1]:8443/, https://a") == (
        "https://[fd00::1]:8443",
        "https://a",
    )
