"""What fits is split without loss and in order; what does not fit is named."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exchange.limits import batches, check_entity, check_message, entity_bytes
from exchange.ports import (
    BATCH_MAX_BYTES,
    BATCH_MAX_COUNT,
    ENTITY_MAX_BYTES,
    PROPERTY_MAX_BYTES,
    Entity,
    EntityTooLarge,
    Outgoing,
    Value,
)

SIZES = st.lists(st.sampled_from([0, 10, 60_000, 65_536]), max_size=13)


def entity(key: str, properties: dict[str, Value]) -> Entity:
    return Entity(partition_key="part", row_key=key, properties=properties)


@given(st.lists(SIZES, max_size=130))
def test_batches_hold_every_row_in_order_and_keep_the_limits(rows: list[list[int]]) -> None:
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


def test_a_hundred_small_rows_land_together() -> None:
    entities = [entity(f"{n:03d}", {"n": n}) for n in range(201)]
    assert [len(part) for part in batches(entities)] == [100, 100, 1]


def test_binary_counts_as_the_base64_that_travels() -> None:
    big: dict[str, Value] = {f"part_{n}": bytes(PROPERTY_MAX_BYTES) for n in range(14)}
    parts = list(batches([entity(str(n), big) for n in range(6)]))
    assert [len(part) for part in parts] == [3, 3], "four are 3.5 MiB here, but 4.7 on the wire"


def test_the_size_of_a_row_follows_azures_arithmetic() -> None:
    # 4 + 2 x (len("part") + len("row")) for the row; 8 + 2 x len(name) + value for a property
    values: dict[str, Value] = {
        "s": "é" * 3,
        "b": b"abc",
        "i": 1,
        "f": 0.5,
        "yes": True,
        "at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    expected = 4 + 14 + (10 + 6 + 4) + (10 + 3 + 4) + (10 + 8) + (10 + 8) + (14 + 1) + (12 + 8)
    assert entity_bytes(entity("row", values)) == expected


def test_a_row_of_exactly_one_mebibyte_passes_and_a_byte_more_does_not() -> None:
    properties: dict[str, Value] = {f"p{n:02d}": bytes(PROPERTY_MAX_BYTES) for n in range(15)}
    properties["rest"] = b""
    rest = ENTITY_MAX_BYTES - entity_bytes(entity("row", properties))
    check_entity(entity("row", properties | {"rest": bytes(rest)}))
    with pytest.raises(EntityTooLarge, match=str(ENTITY_MAX_BYTES + 1)):
        check_entity(entity("row", properties | {"rest": bytes(rest + 1)}))


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        check_entity(entity("row", {"s": "\ud800"}))
    with pytest.raises(ValueError, match="surrogates"):
        check_entity(entity("\ud800", {}))


@pytest.mark.parametrize("field", ["expires_at", "enqueue_at"])
def test_a_naive_instant_in_a_message_is_refused(field: str) -> None:
    at = {"expires_at": datetime(2026, 1, 1, tzinfo=UTC), field: datetime(2026, 1, 1)}  # noqa: DTZ001 - the case
    with pytest.raises(ValueError, match=r"m: .* has no zone"):
        check_message(Outgoing(body=b"", message_id="m", **at))
