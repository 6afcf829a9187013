"""A join code lets in so many agents of one role until its end; each has a secret of its own."""

import asyncio
import json
import shutil
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broadside.coordinator.agent_gateway.agent_permissions import DeliveredJobs
from broadside.coordinator.agent_gateway.certificate_authority import load_authority
from broadside.coordinator.agent_gateway.enrolment import (
    Enrolled,
    Enrolment,
    Enrolments,
    UnknownAgent,
)
from broadside.coordinator.auth.audit import Audit
from broadside.coordinator.auth.static_tokens import digest
from broadside.exchange.fabric import Fabric
from broadside.exchange.http.credential import (
    Credential,
    coordinator_addresses,
    load_credential,
    new_secret,
)
from broadside.exchange.http.joining import fingerprint, new_code
from broadside.exchange.messages import Role
from broadside.exchange.ports import ExchangeMisconfigured, ExchangeRefused

NOW = datetime.now(UTC)


def agent(name: str, secret: str, role: Role = Role.CLIENT) -> Enrolled:
    return Enrolled(agent_id=name, role=role, sha256=digest(secret), join="", enrolled_at=NOW)


async def with_code(fabric: Fabric, count: int = 2, hours: float = 1) -> Enrolments:
    known = Enrolments(fabric.private)
    await known.add_code(
        "code", Role.CLIENT, count, by="me", now=NOW, expires_at=NOW + timedelta(hours=hours)
    )
    return known


async def test_a_code_lets_in_as_many_as_it_says(fabric: Fabric) -> None:
    known = await with_code(fabric)
    for name in ("c1", "c2", "c1", "c2"):  # the same agents again, as after a lost answer
        await known.enrol("code", agent(name, f"secret of {name}"), NOW)
    with pytest.raises(ExchangeRefused, match="let in its 2 agents"):
        await known.enrol("code", agent("c3", "x"), NOW)
    assert [a.key for a in await known.agents()] == ["client.c1", "client.c2"]


async def test_many_at_once_use_a_code_up_and_no_more(fabric: Fabric) -> None:
    known = await with_code(fabric, count=3)
    done = await asyncio.gather(
        *(known.enrol("code", agent(f"c{n}", "x"), NOW) for n in range(8)), return_exceptions=True
    )
    assert sum(isinstance(one, Enrolled) for one in done) == 3
    assert len(await known.agents()) == 3


@pytest.mark.parametrize(
    ("code", "asked", "hours", "why"),
    [
        ("another", agent("c1", "x"), 0.0, "not known"),
        ("code", agent("c1", "x"), 2.0, "ended"),
        ("code", agent("s1", "x", Role.SERVER), 0.0, "for the role client"),
    ],
)
async def test_a_code_is_good_for_what_it_says_only(
    fabric: Fabric, code: str, asked: Enrolled, hours: float, why: str
) -> None:
    known = await with_code(fabric)
    with pytest.raises(ExchangeRefused, match=why):
        await known.enrol(code, asked, NOW + timedelta(hours=hours))
    assert await known.agents() == []


async def test_an_agent_that_is_there_is_nobodys_to_become(fabric: Fabric) -> None:
    known = await with_code(fabric)
    await known.enrol("code", agent("c1", "its own"), NOW)
    with pytest.raises(ExchangeRefused, match="revoke that one first"):
        await known.enrol("code", agent("c1", "another"), NOW)


@pytest.mark.parametrize("name", ["c1", "c2"])
async def test_a_revoked_agent_joins_by_a_new_code_only(fabric: Fabric, name: str) -> None:
    """Its host still knows the old code, which had places left."""
    known = await with_code(fabric, count=3)
    await known.enrol("code", agent("c1", "its own"), NOW)
    [join] = await known.codes()
    done = await known.revoke("c1", NOW)
    assert (done.agents, done.codes) == (["client.c1"], [join.name])
    later = NOW + timedelta(seconds=1)
    with pytest.raises(ExchangeRefused, match=r"ended|was revoked"):
        await known.enrol("code", agent(name, "another"), later)
    ends = later + timedelta(hours=1)
    await known.add_code("new", Role.CLIENT, 1, by="me", now=later, expires_at=ends)
    assert (await known.enrol("new", agent(name, "another"), later)).revoked_at is None


async def test_a_code_that_is_older_than_the_revocation_does_not_bring_an_agent_back(
    fabric: Fabric,
) -> None:
    known = await with_code(fabric)
    ends = NOW + timedelta(hours=1)
    await known.add_code("second", Role.CLIENT, 2, by="me", now=NOW, expires_at=ends)
    await known.enrol("code", agent("c1", "its own"), NOW)
    await known.revoke("c1", NOW + timedelta(minutes=1))
    with pytest.raises(ExchangeRefused, match=r"client\.c1 was revoked .* enroll new"):
        await known.enrol("second", agent("c1", "another"), NOW + timedelta(minutes=2))
    others = await known.enrol("second", agent("c2", "x"), NOW + timedelta(minutes=2))
    assert others.revoked_at is None


async def test_an_agent_that_lost_patience_asks_beside_itself(fabric: Fabric) -> None:
    known = await with_code(fabric, count=1)
    requested = agent("c1", "its own")
    result = await asyncio.gather(*(known.enrol("code", requested, NOW) for _ in range(4)))
    assert len({item.join for item in result}) == 1


async def test_a_revoked_code_takes_its_agents_with_it(fabric: Fabric) -> None:
    known = await with_code(fabric)
    await known.enrol("code", agent("c1", "x"), NOW)
    [join] = await known.codes()
    assert (await known.revoke(join.name, NOW)).agents == ["client.c1"]
    with pytest.raises(ExchangeRefused, match="ended"):
        await known.enrol("code", agent("c2", "x"), NOW + timedelta(seconds=1))
    with pytest.raises(UnknownAgent):
        await known.revoke("c9", NOW)


async def test_a_new_secret_ends_the_old_one_by_being_used(fabric: Fabric) -> None:
    known = await with_code(fabric)
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


async def test_what_an_agent_tried_is_on_record_once_a_minute(fabric: Fabric) -> None:
    audit = Audit(fabric.private)
    entry = Enrolment(fabric.private, DeliveredJobs(fabric.records), audit, None)
    await (await with_code(fabric)).enrol("code", agent("c1", "x"), NOW)
    rights = await entry.identify("x", "fd00::7")
    assert rights is not None
    for _ in range(5):
        entry.refused(rights, "upsert", "burst.run-1.00000|report.00001 is not this agent's")
    await asyncio.gather(*entry._rows)
    rows, _ = await audit.read(datetime.now(UTC), limit=10)
    assert [(row.by, row.role, row.from_address, row.status) for row in rows] == [
        ("client.c1", "agent", "fd00::7", 403)
    ]
    assert "report.00001" in rows[0].path


def test_an_authority_is_made_once_and_stays_private(tmp_path: Path) -> None:
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
    ("lost", "later", "said"),
    [
        (["authority.pem"], 0, "authority.pem was lost"),
        (["authority.pem", "authority.key"], 0, "authority.pem was lost"),
        (["authority.key"], 0, None),  # it signs nothing now
        (["authority.key"], 300, "authority.key was lost"),
        (["authority.key", "coordinator.pem"], 0, "authority.key was lost"),
        (["coordinator.key"], 0, None),
        (["coordinator.pem"], 0, None),
    ],
)
def test_a_lost_authority_is_never_silently_another(
    tmp_path: Path, lost: list[str], later: int, said: str | None
) -> None:
    first = load_authority(tmp_path, NOW)
    for name in lost:
        (tmp_path / "tls" / name).unlink()
    if said is None:
        again = load_authority(tmp_path, NOW + timedelta(days=later))
        assert again.authority == first.authority
        ssl.create_default_context().load_cert_chain(again.certificate_file, again.key_file)
    else:
        with pytest.raises(ValueError, match=said):
            load_authority(tmp_path, NOW + timedelta(days=later))


@pytest.mark.parametrize("name", ["authority.key", "coordinator.key", "coordinator.pem"])
def test_files_of_two_authorities_are_not_shown_together(tmp_path: Path, name: str) -> None:
    first, other = (load_authority(tmp_path / folder, NOW) for folder in ("one", "other"))
    shown = first.certificate_file.read_text()
    shutil.copy(tmp_path / "other" / "tls" / name, tmp_path / "one" / "tls" / name)
    again = load_authority(tmp_path / "one", NOW)
    assert again.authority == first.authority != other.authority
    assert (again.certificate_file.read_text() == shown) == (name == "authority.key")
    with pytest.raises(ValueError, match=r"not the key of authority\.pem"):
        shutil.copy(tmp_path / "other/tls/authority.key", tmp_path / "one/tls/authority.key")
        load_authority(tmp_path / "one", NOW + timedelta(days=300))


def test_a_credential_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "spool" / "credential.json"
    assert load_credential(path) is None
    stored = Credential(
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
        with pytest.raises(ExchangeMisconfigured, match="join anew"):
            load_credential(path)


NO_PORTS = ("https://a:99999", "https://a:0", "https://a:-1", "https://a:x", "https://a:1:2")
NO_HOSTS = ("https://", "https://:8443", "https://[::1:8443", "https://fd00::1:8443", "https://a\0")


@pytest.mark.parametrize(
    "text", ["", "http://a:1", "a:8443", "https://a, http://b", *NO_PORTS, *NO_HOSTS]
)
def test_what_is_no_address_or_in_clear_text_is_refused(text: str) -> None:
    with pytest.raises(ExchangeMisconfigured, match="BROADSIDE_COORDINATOR"):
        coordinator_addresses(text)


def test_addresses_are_tried_in_their_order() -> None:
    assert coordinator_addresses("https://[fd00::1]:8443/, https://a") == (
        "https://[fd00::1]:8443",
        "https://a",
    )
