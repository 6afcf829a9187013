"""Test the Table Storage SDK against Azurite, with throttling, errors and lost responses."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import jwt
import pytest

from broadside.exchange.azure.table_storage import AzureTable, TableAddress
from broadside.exchange.azure.wire import StorageBounds
from broadside.exchange.ports import (
    Entity,
    EntityChanged,
    EntityExists,
    ExchangeError,
    ExchangeMisconfigured,
    ExchangeUnavailable,
    Value,
)
from broadside.lab.azurite import Azurite
from broadside.lab.relay import Relay
from tests.live.certificates import Certificates, make_certificates
from tests.live.given_token import GivenToken
from tests.live.started import started

pytestmark = pytest.mark.live

BOUNDS = StorageBounds(backoff_s=0.05, attempt_s=5)


def row(key: str, **properties: Value) -> Entity:
    return Entity(partition_key="part", row_key=key, properties=properties)


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    with started(Azurite(tmp_path_factory.mktemp("azurite"))) as azurite:
        yield azurite


@pytest.fixture
def name(azurite: Azurite) -> str:
    fresh = f"t{uuid4().hex[:8]}"
    azurite.create_tables(fresh)
    return fresh


@pytest.fixture
def relay(azurite: Azurite) -> Iterator[Relay]:
    with Relay(azurite.port) as relay:
        yield relay


@pytest.fixture
async def table(azurite: Azurite, relay: Relay, name: str) -> AsyncIterator[AzureTable]:
    """Yield the table, with a connection through the relay."""
    endpoint = azurite.endpoint.replace(str(azurite.port), str(relay.port))
    address = TableAddress(table=name, connection_string=azurite.connection_string(endpoint))
    table = AzureTable(address, bounds=BOUNDS)
    yield table
    await table.close()


# A busy service -----------------------------------------------------------------------------------


async def test_waits_for_retry_after(table: AzureTable, relay: Relay) -> None:
    relay.refuse(429, count=2, headers={"Retry-After": "1"})
    await table.upsert(row("a", n=1))
    sent_s = [*relay.refused_at_s, *relay.passed_at_s]
    assert len(sent_s) == 3
    assert all(after - before >= 1 for before, after in pairwise(sent_s))


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_retries_busy_service(table: AzureTable, relay: Relay, status: int) -> None:
    relay.refuse(status, count=3)
    await table.upsert(row("a", n=1))
    assert len(relay.refused_at_s) == 3
    relay.refuse(status, count=3)
    await table.batch([row("b", n=1), row("c", n=1)])
    relay.refuse(status, count=3)
    assert [entity.row_key async for entity in table.scan("part")] == ["a", "b", "c"]


@pytest.mark.parametrize("fault", ["busy", "cut"])
async def test_reports_long_outage_and_recovers(
    table: AzureTable, relay: Relay, name: str, fault: str
) -> None:
    if fault == "busy":
        relay.refuse(503)
    else:
        relay.cut()
    with pytest.raises(ExchangeUnavailable, match=f"table '{name}' is not available: ") as caught:
        await table.upsert(row("a", n=1))
    assert "\n" not in str(caught.value)
    assert len(relay.refused_at_s) == BOUNDS.retries_max_count + 1
    relay.heal()
    await table.upsert(row("a", n=1))


async def test_unreachable_service_is_unavailable(azurite: Azurite, relay: Relay) -> None:
    no_user = azurite.connection_string("http://127.0.0.1:1/lab")
    table = AzureTable(TableAddress(table="some", connection_string=no_user), bounds=BOUNDS)
    with pytest.raises(ExchangeUnavailable, match="table 'some' is not available: "):
        await table.get("part", "a")
    await table.close()


# Broken connections
# --------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["cut", "lose_answer"])
async def test_writes_survive_broken_connection(
    table: AzureTable, relay: Relay, fault: str
) -> None:
    """Test lost requests, and lost responses to requests that the service has executed."""
    strike = getattr(relay, fault)
    strike("POST", count=1)
    first = await table.insert(row("a", n=1))
    assert (await table.get("part", "a")) == Entity(
        partition_key="part", row_key="a", properties={"n": 1}, etag=first
    )
    strike("PUT", count=1)
    second = await table.replace(row("a", n=2), first)
    strike("PUT", count=1)
    third = await table.upsert(row("a", n=3))
    assert len({first, second, third}) == 3
    strike("POST", count=1)
    await table.batch([row("a", n=4), row("b", n=4)])
    strike("GET", count=1)
    stored = [entity async for entity in table.scan("part")]
    assert [(entity.row_key, entity.properties) for entity in stored] == [
        ("a", {"n": 4}),
        ("b", {"n": 4}),
    ]
    strike("DELETE", count=1)
    assert await table.delete("part", "a")
    strike("POST", count=1)
    assert await table.delete_partition("part") == 1
    assert [entity async for entity in table.scan("part")] == []
    assert len(relay.refused_at_s) == 7


async def test_retry_detects_row_of_another_writer(table: AzureTable, relay: Relay) -> None:
    etag = await table.insert(row("a", by="another"))
    relay.cut("POST", count=1)
    with pytest.raises(EntityExists):
        await table.insert(row("a", by="me"))
    await table.upsert(row("a", by="a third"))
    relay.cut("PUT", count=1)
    with pytest.raises(EntityChanged):
        await table.replace(row("a", by="me"), etag)
    assert len(relay.refused_at_s) == 2
    stored = await table.get("part", "a")
    assert stored is not None
    assert stored.properties == {"by": "a third"}


async def test_insert_rejects_equal_row_without_retry(table: AzureTable) -> None:
    await table.insert(row("a", n=1))
    with pytest.raises(EntityExists):
        await table.insert(row("a", n=1))


# Authorization ------------------------------------------------------------------------------------


def identity(**claims: Any) -> GivenToken:
    """Return a token created by the test."""
    now = int(datetime.now(UTC).timestamp())
    good = {
        "aud": "https://storage.azure.com",
        "iss": "https://sts.windows.net/tenant",
        **{"iat": now, "nbf": now - 60, "exp": now + 600},
    }
    return GivenToken(jwt.encode(good | claims, "unused: Azurite checks no signature, of 32 bytes"))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Azurite]:
    """Run Azurite with TLS and bearer tokens, as in production, with a single table."""
    folder = tmp_path_factory.mktemp("secured")
    with started(Azurite(folder, tls=(certificates.chain, certificates.key))) as azurite:
        azurite.create_tables("secured", authority=certificates.authority)
        yield azurite


@asynccontextmanager
async def open_table(
    secured: Azurite, credential: GivenToken, ca_file: Path | None
) -> AsyncIterator[AzureTable]:
    address = TableAddress(
        table="secured", endpoint=secured.endpoint, client_id="c1", ca_file=ca_file
    )
    table = AzureTable(address, bounds=BOUNDS, credential=credential)
    yield table
    await table.close()


async def test_identity_has_access_over_tls(secured: Azurite, certificates: Certificates) -> None:
    async with open_table(secured, identity(), certificates.authority) as table:
        await table.upsert(row("a", n=1))
        await table.batch([row("b", n=1)])
        assert [entity.row_key async for entity in table.scan("part")] == ["a", "b"]


@pytest.mark.parametrize("claims", [{"aud": "https://vault.azure.net"}, {"exp": 1}])
async def test_wrong_token_error_names_the_role(
    secured: Azurite, certificates: Certificates, claims: dict[str, Any]
) -> None:
    async with open_table(secured, identity(**claims), certificates.authority) as table:
        with pytest.raises(ExchangeMisconfigured, match="Storage Table Data Contributor") as caught:
            await table.upsert(row("a", n=1))
    assert "table 'secured' at https://127.0.0.1:" in str(caught.value)
    assert "refuses identity c1" in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_rejection_after_success_is_an_outage(table: AzureTable, relay: Relay) -> None:
    """Test that a wrong role fails at once at first, and later is a temporary outage."""
    relay.refuse(403, count=1, code="AuthorizationPermissionMismatch")
    with pytest.raises(ExchangeMisconfigured, match="Storage Table Data Contributor"):
        await table.upsert(row("a", n=1))
    await table.upsert(row("a", n=1))
    relay.refuse(403, count=1, code="AuthorizationPermissionMismatch")
    with pytest.raises(ExchangeUnavailable, match="Storage Table Data Contributor"):
        await table.upsert(row("a", n=2))


async def test_unknown_authority_error_names_the_setting(secured: Azurite) -> None:
    async with open_table(secured, identity(), None) as table:
        with pytest.raises(ExchangeMisconfigured, match="BROADSIDE_TABLES_CA_FILE"):
            await table.upsert(row("a", n=1))


async def test_distinguishes_wrong_key_from_missing_table(azurite: Azurite, name: str) -> None:
    good = azurite.connection_string()
    wrong = good.replace("AccountKey=", "AccountKey=AAAA")
    cases: tuple[tuple[str, str, str], ...] = (
        (name, wrong, "refuses the connection string's key"),
        ("nosuch", good, "table 'nosuch' does not exist; create it, or name another in BROADSIDE_"),
    )
    for table_name, connection_string, parts in cases:
        table = AzureTable(TableAddress(table=table_name, connection_string=connection_string))
        for work in (table.get("part", "a"), table.upsert(row("a")), table.batch([row("a")])):
            with pytest.raises(ExchangeError, match=parts) as caught:
                await work
            assert isinstance(caught.value, ExchangeMisconfigured)
        await table.close()
