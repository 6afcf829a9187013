"""Tests for the size limits used for rows, messages and batches."""

import base64
import json
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.exchange.limits import batches, check_entity, check_message, entity_bytes
from broadside.exchange.ports import (
    BATCH_MAX_BYTES,
    BATCH_MAX_COUNT,
    ENTITY_MAX_BYTES,
    PROPERTY_MAX_BYTES,
    Entity,
    EntityTooLarge,
    Outgoing,
    Value,
)

SIZES = st.lists(st.sampled_from([0, 10, 60_000, 65_536]), max_size=11)


def entity(key: str, properties: dict[str, Value]) -> Entity:
    return Entity(partition_key="part", row_key=key, properties=properties)


@given(st.lists(SIZES, max_size=130))
def test_batches_have_all_rows_in_order_and_within_limits(rows: list[list[int]]) -> None:
    entities = [
        entity(f"{number:03d}", {f"p{n}": bytes(size) for n, size in enumerate(sizes)})
        for number, sizes in enumerate(rows)
    ]
    parts = list(batches(entities))
    assert [row for part in parts for row in part] == entities
    for part in parts:
        assert 1 <= len(part) <= BATCH_MAX_COUNT
        binary = sum(
            len(v) for row in part for v in row.properties.values() if isinstance(v, bytes)
        )
        assert binary * 4 / 3 <= BATCH_MAX_BYTES


def test_hundred_small_rows_are_one_batch() -> None:
    entities = [entity(f"{n:03d}", {"n": n}) for n in range(201)]
    assert [len(part) for part in batches(entities)] == [100, 100, 1]


def test_binary_size_is_counted_in_base64() -> None:
    big: dict[str, Value] = {f"part_{n}": bytes(PROPERTY_MAX_BYTES) for n in range(11)}
    parts = list(batches([entity(str(n), big) for n in range(5)]))
    assert [len(part) for part in parts] == [4, 1], "five rows have 3.5 MiB, but 4.6 MiB in base64"


VALUES = st.one_of(
    st.text(max_size=300),
    st.text(alphabet='"\\\n\u20ac\U0001f680', max_size=300),
    st.binary(max_size=300),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.datetimes(timezones=st.just(UTC)),
)


@given(st.dictionaries(st.text("abcxyz_", min_size=1, max_size=30), VALUES, max_size=8), st.text())
def test_counted_size_is_at_least_the_json_and_azure_size(
    properties: dict[str, Value], key: str
) -> None:
    fields = {"PartitionKey": "part", "RowKey": key}
    azure = 4 + 2 * utf16_count("part" + key)
    for name, value in properties.items():
        azure += 8 + 2 * len(name)
        match value:
            case bool():
                fields[name], kind, size = str(value), "Edm.Boolean", 1
            case str():
                fields[name], kind, size = value, "Edm.String", 2 * utf16_count(value) + 4
            case bytes():
                fields[name] = base64.b64encode(value).decode()
                kind, size = "Edm.Binary", len(value) + 4
            case _:
                fields[name], kind, size = str(value), "Edm.DateTime", 8
        azure += size
        fields[f"{name}@odata.type"] = kind
    counted = entity_bytes(entity(key, properties))
    assert counted >= azure
    assert counted >= len(json.dumps(fields)) + len(quote(key, safe=""))


def utf16_count(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def test_row_limit_is_exactly_one_mebibyte() -> None:
    properties: dict[str, Value] = {f"p{n:02d}": bytes(PROPERTY_MAX_BYTES) for n in range(11)}
    properties["rest"] = b""
    rest = (ENTITY_MAX_BYTES - entity_bytes(entity("row", properties))) // 4 * 3
    check_entity(entity("row", properties | {"rest": bytes(rest)}))
    with pytest.raises(EntityTooLarge, match=f"over the limit of {ENTITY_MAX_BYTES}"):
        check_entity(entity("row", properties | {"rest": bytes(rest + 3)}))


def test_invalid_unicode_is_rejected() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        check_entity(entity("row", {"s": "\ud800"}))
    with pytest.raises(ValueError, match="surrogates"):
        check_entity(entity("\ud800", {}))


@pytest.mark.parametrize("field", ["expires_at", "enqueue_at"])
def test_time_without_zone_is_rejected(field: str) -> None:
    at = {"expires_at": datetime(2026, 1, 1, tzinfo=UTC), field: datetime(2026, 1, 1)}  # noqa: DTZ001 - the case
    with pytest.raises(ValueError, match=r"m: .* has no zone"):
        check_message(Outgoing(body=b"", message_id="m", **at))
