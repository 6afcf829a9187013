"""Unit tests for the readings of an SNMP device, with a client that answers from a dictionary."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from broadside.coordinator.core.measure.telemetry import Quantity
from broadside.coordinator.device.telemetry.polling import PolledValue
from broadside.coordinator.device.telemetry.snmp import (
    IF_DESCR,
    IF_HIGH_SPEED,
    IF_NAME,
    SnmpPoller,
)
from broadside.coordinator.device.telemetry.snmp_client import UP, SnmpEntry
from broadside.coordinator.device.telemetry.snmp_profiles import ProfileRead, SnmpProfile
from broadside.coordinator.device.telemetry.source import TelemetryError

CPU, FREE, SESSIONS = "1.3.6.1.4.1.9.1.0", "1.3.6.1.4.1.9.2", "1.3.6.1.4.1.9.3"
WIDE_IN, NARROW_IN = "1.3.6.1.2.1.31.1.1.1.6", "1.3.6.1.2.1.2.2.1.10"
WIDE_PACKETS, DROPS_IN = "1.3.6.1.2.1.31.1.1.1.7", "1.3.6.1.2.1.2.2.1.13"
DROPS_OUT = "1.3.6.1.2.1.2.2.1.19"


class AnsweringClient:
    """SNMP client of a device with fixed values.

    Attributes:
        values: Value by OID. A column has one entry for each row.
        tables: Columns that were read, in order.
        truncated: Columns that are reported as incomplete.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)
        self.tables: list[str] = []
        self.truncated: list[str] = []
        self.is_cut = False

    async def get(self, oids: Sequence[str]) -> dict[str, float | None]:
        return {oid: self.values.get(oid) for oid in oids}

    async def table(self, oids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        self.tables += oids
        self.truncated += oids if self.is_cut else ()
        return {
            oid: {
                name.removeprefix(f"{oid}."): value
                for name, value in self.values.items()
                if name.startswith(f"{oid}.")
            }
            for oid in oids
        }


def poller(
    client: AnsweringClient, *reads: ProfileRead, interfaces: Sequence[str] = (), **fields: Any
) -> SnmpPoller:
    entry = SnmpEntry.model_validate(
        {"type": "snmp", "device": "fw", "address": "192.0.2.1", "interfaces": interfaces, **fields}
    )
    profile = SnmpProfile(mib="X-MIB", read=reads) if reads else None
    return SnmpPoller(client, profile, entry)  # type: ignore[arg-type]


def by_instance(readings: Sequence[PolledValue], quantity: Quantity) -> dict[str, float]:
    return {one.instance: one.value for one in readings if one.quantity is quantity}


def interface(row: int, name: str, **columns: float) -> dict[str, Any]:
    oids = {"wide": WIDE_IN, "narrow": NARROW_IN, "speed": IF_HIGH_SPEED, "packets": WIDE_PACKETS}
    oids |= {"drops_in": DROPS_IN, "drops_out": DROPS_OUT}
    values = {f"{oids[column]}.{row}": value for column, value in columns.items()}
    return {f"{IF_NAME}.{row}": name.encode(), **values}


async def test_scalar_has_the_unit_of_its_quantity_and_the_time_of_the_request() -> None:
    read = ProfileRead(quantity=Quantity.CPU, oid=CPU, scale=0.01)
    answer = await poller(AnsweringClient({UP: 4200, CPU: 37.0}), read).poll()
    (reading,) = answer.readings
    assert reading.value == pytest.approx(0.37)
    assert reading.at_s is not None
    assert answer.up_s == 42.0
    assert answer.missing == []
    assert answer.partial is None


async def test_rows_of_a_column_are_instances_and_some_are_skipped() -> None:
    read = ProfileRead(quantity=Quantity.SESSIONS, oid=SESSIONS, skip=("3",))
    values = {UP: 1, f"{SESSIONS}.1": 10, f"{SESSIONS}.2": 20, f"{SESSIONS}.3": 30}
    answer = await poller(AnsweringClient(values), read).poll()
    assert by_instance(answer.readings, Quantity.SESSIONS) == {"1": 10, "2": 20}
    read = read.model_copy(update={"skip": (), "only": ("3",)})
    answer = await poller(AnsweringClient(values), read).poll()
    assert by_instance(answer.readings, Quantity.SESSIONS) == {"3": 30}


@pytest.mark.parametrize("value", [None, float("nan")])
async def test_absent_value_is_missing_with_its_mib_and_never_zero(value: float | None) -> None:
    read = ProfileRead(quantity=Quantity.CPU, oid=CPU)
    answer = await poller(AnsweringClient({UP: 1, CPU: value}), read).poll()
    assert answer.readings == []
    assert answer.missing == [f"{Quantity.CPU}: the device has no {CPU} (X-MIB)"]


async def test_ratio_of_nothing_is_missing() -> None:
    read = ProfileRead(quantity=Quantity.MEMORY, oid=CPU, total=f"{FREE}.0")
    answer = await poller(AnsweringClient({UP: 1, CPU: 5, f"{FREE}.0": 20}), read).poll()
    assert [one.value for one in answer.readings] == [0.25]
    answer = await poller(AnsweringClient({UP: 1, CPU: 5, f"{FREE}.0": 0}), read).poll()
    assert answer.readings == []
    assert len(answer.missing) == 1


async def test_incomplete_column_makes_the_answer_partial_for_one_round() -> None:
    client = AnsweringClient({UP: 1, f"{SESSIONS}.1": 10})
    polled = poller(client, ProfileRead(quantity=Quantity.SESSIONS, oid=SESSIONS))
    client.is_cut = True
    assert SESSIONS in ((await polled.poll()).partial or "")
    client.is_cut = False
    assert (await polled.poll()).partial is None


async def test_interface_counters_are_in_bits_and_wrap_at_their_width() -> None:
    values = {UP: 1, **interface(7, "port1", wide=1000, narrow=5, speed=10_000)}
    readings = await poller(AnsweringClient(values), interfaces=["port1"]).interface_counters()
    (wide,) = readings
    assert (wide.quantity, wide.instance, wide.value) == (Quantity.RECEIVED, "port1", 8000)
    assert wide.counts_to == 2.0**64 * 8
    # A rate above the speed of the interface, with 10 % tolerance, is not plausible.
    assert wide.most_per_second == pytest.approx(11e9)
    values.pop(f"{WIDE_IN}.7")
    readings = await poller(AnsweringClient(values), interfaces=["port1"]).interface_counters()
    (narrow,) = readings
    assert (narrow.value, narrow.counts_to) == (40, 2.0**32 * 8)


async def test_narrow_counters_can_be_configured() -> None:
    values = {UP: 1, **interface(7, "port1", wide=1000, narrow=5)}
    polled = poller(AnsweringClient(values), interfaces=["port1"], interface_counters="32")
    (reading,) = await polled.interface_counters()
    assert reading.value == 40
    # The speed is unknown.
    assert reading.most_per_second is None


async def test_discards_of_both_directions_are_separate_instances() -> None:
    values = {UP: 1, **interface(7, "a", wide=1, packets=9, drops_in=3, drops_out=4, speed=1)}
    readings = await poller(AnsweringClient(values), interfaces=["a"]).interface_counters()
    assert by_instance(readings, Quantity.DROPS) == {"a in": 3, "a out": 4}
    (packets,) = [one for one in readings if one.quantity is Quantity.PACKETS]
    # 1.1 Mbit/s in frames of 84 bytes.
    assert packets.most_per_second == pytest.approx(1.1e6 / 672)
    assert packets.value == 9


async def test_unknown_interface_is_an_error_with_the_names_of_the_device() -> None:
    client = AnsweringClient({UP: 1, f"{IF_DESCR}.1": b"eth0", f"{IF_DESCR}.2": b"eth1"})
    with pytest.raises(TelemetryError, match="interfaces: no eth9; it has eth0, eth1"):
        await poller(client, interfaces=["eth0", "eth9"]).interface_counters()


async def test_interfaces_are_found_again_after_a_restart() -> None:
    """Check this, because a device may then use the same index for another interface."""
    client = AnsweringClient({UP: 900, **interface(1, "a", wide=1), **interface(2, "b", wide=2)})
    polled = poller(client, interfaces=["b"])
    await polled.poll()
    tables_count = len(client.tables)
    client.values[UP] = 1800
    await polled.poll()
    assert len(client.tables) == tables_count
    client.values = {UP: 5, **interface(1, "b", wide=30), **interface(2, "a", wide=40)}
    answer = await polled.poll()
    assert by_instance(answer.readings, Quantity.RECEIVED) == {"b": 240}


async def test_interfaces_are_found_again_after_a_counter_is_lost() -> None:
    client = AnsweringClient({UP: 1, **interface(1, "a", wide=1)})
    polled = poller(client, interfaces=["a"])
    assert await polled.interface_counters()
    client.values = {UP: 2, **interface(4, "a", wide=5)}
    assert await polled.interface_counters() == []
    readings = await polled.interface_counters()
    assert by_instance(readings, Quantity.RECEIVED) == {"a": 40}
