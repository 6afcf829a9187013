"""Telemetry over SNMP, from vendor MIBs by profile and from the IF-MIB by interface."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from broadside.coordinator.core.measure.telemetry import Quantity
from broadside.coordinator.device.telemetry.config import parse_entry
from broadside.coordinator.device.telemetry.polling import (
    PolledDevice,
    PolledSource,
    PolledValue,
    PollResult,
)
from broadside.coordinator.device.telemetry.snmp_client import UP, SnmpClient, SnmpEntry, number_of
from broadside.coordinator.device.telemetry.snmp_profiles import (
    ProfileRead,
    SnmpProfile,
    find_profile,
)
from broadside.coordinator.device.telemetry.source import TelemetryError

IF_NAME: Final = "1.3.6.1.2.1.31.1.1.1.1"
IF_DESCR: Final = "1.3.6.1.2.1.2.2.1.2"
# ``ifHighSpeed`` in Mbit/s. 0 means unknown.
IF_HIGH_SPEED: Final = "1.3.6.1.2.1.31.1.1.1.15"
_SPEED_SLACK: Final = 1.1
_BITS: Final = 8
# Smallest Ethernet frame on the wire. It limits the rate of packet counters.
_LEAST_PACKET_BITS: Final = 84 * 8
# Quantity, 64-bit counter, 32-bit counter, units of the quantity per count.
_COUNTERS: Final = (
    (Quantity.RECEIVED, "1.3.6.1.2.1.31.1.1.1.6", "1.3.6.1.2.1.2.2.1.10", _BITS),
    (Quantity.SENT, "1.3.6.1.2.1.31.1.1.1.10", "1.3.6.1.2.1.2.2.1.16", _BITS),
    (Quantity.PACKETS, "1.3.6.1.2.1.31.1.1.1.7", "1.3.6.1.2.1.2.2.1.11", 1),
    # ifInDiscards
    (Quantity.DROPS, None, "1.3.6.1.2.1.2.2.1.13", 1),
    # ifOutDiscards
    (Quantity.DROPS, None, "1.3.6.1.2.1.2.2.1.19", 1),
)


class SnmpPoller:
    """Requests of one polling round for a device.

    Attributes:
        wide: Whether 64-bit counters are used where available.
    """

    def __init__(self, client: SnmpClient, profile: SnmpProfile | None, entry: SnmpEntry) -> None:
        self._client = client
        self._profile = profile
        self._entry = entry
        # Interface names by index.
        self._rows: dict[str, str] = {}
        # Last ``sysUpTime`` in hundredths of a second.
        self._up = math.nan
        self.wide = entry.interface_counters == "auto"

    async def poll(self) -> PollResult:
        """Return the readings of a round. Raises TelemetryError when there is no response."""
        reads = self._profile.read if self._profile is not None else ()
        scalars = [q for q in reads if q.oid.endswith(".0")]
        columns = [q for q in reads if not q.oid.endswith(".0")]
        oids = [UP, *dict.fromkeys(oid for q in scalars for oid in q.oids)]
        self._client.truncated.clear()
        # A device may assign other interface indices after a restart.
        result, self._rows = self._rows, {}
        at_s, bound_s, values = await self._timed(oids)
        up = values[UP]
        if up is None or up >= self._up:
            self._rows = result
        self._up = math.nan if up is None else up
        readings: list[PolledValue] = []
        missing: list[str] = []
        for read in scalars:
            numbers = [values[oid] for oid in read.oids]
            self._add(read, "", numbers, readings, missing)
        readings = [replace(reading, at_s=at_s, bound_s=bound_s) for reading in readings]
        for read in columns:
            table = await self._client.table(read.oids)
            rows = [
                index
                for index in table[read.oids[0]]
                if index not in read.skip and (not read.only or index in read.only)
            ]
            # Without rows, the OID is not a column. It can be a single value, or it can be missing.
            if not rows:
                row = await self._client.get(read.oids)
                numbers = [row[oid] for oid in read.oids]
                self._add(read, "", numbers, readings, missing)
            for index in rows:
                numbers = [number_of(table[oid].get(index)) for oid in read.oids]
                self._add(read, index, numbers, readings, missing)
        truncated = ", ".join(dict.fromkeys(self._client.truncated))
        if self._entry.interfaces:
            readings += await self.interface_counters()
        return PollResult(
            readings=readings,
            missing=missing,
            up_s=None if up is None else up / 100,
            partial=f"the columns {truncated} have more rows than were read" if truncated else None,
        )

    async def _timed(self, oids: Sequence[str]) -> tuple[float, float, dict[str, float | None]]:
        """Return the middle of the request's time, half of its duration, and the scalars."""
        sent_s, began_s = time.time(), time.monotonic()
        values = await self._client.get(oids)
        half_s = (time.monotonic() - began_s) / 2
        return sent_s + half_s, half_s, values

    def _add(
        self,
        read: ProfileRead,
        instance: str,
        numbers: Sequence[float | None],
        readings: list[PolledValue],
        missing: list[str],
    ) -> None:
        known = [value for value in numbers if value is not None and math.isfinite(value)]
        value = read.compute(*known) if len(known) == len(numbers) else None
        if value is None:
            missing.append(self._absent(read))
            return
        readings.append(
            PolledValue(
                quantity=read.quantity,
                instance=instance,
                value=value,
                over_s=read.over_s,
                counts_to=None if read.counter is None else 2.0**read.counter * read.scale,
            )
        )

    def _absent(self, read: ProfileRead) -> str:
        mib = "" if self._profile is None else f" ({self._profile.mib})"
        return f"{read.quantity}: the device has no {read.oid}{mib}"

    async def interface_counters(self) -> list[PolledValue]:
        """Return the totals of the configured interfaces.

        Raises:
            TelemetryError: An interface does not exist.
        """
        if not self._rows:
            await self._find_interfaces()
        rows = [*self._rows]
        oids = [f"{IF_HIGH_SPEED}.{row}" for row in rows]
        for _, wide, narrow, _ in _COUNTERS:
            oids += [f"{oid}.{row}" for oid in (wide, narrow) if oid for row in rows]
        at_s, bound_s, values = await self._timed(oids)
        readings: dict[tuple[Quantity, str], PolledValue] = {}
        is_lost = False
        for row in rows:
            speed = values[f"{IF_HIGH_SPEED}.{row}"] or 0.0
            for quantity, wide, narrow, factor in _COUNTERS:
                total = values.get(f"{wide}.{row}") if wide and self.wide else None
                bits = 64 if total is not None else 32
                if total is None:
                    total = values.get(f"{narrow}.{row}")
                if total is None:
                    is_lost |= quantity is Quantity.RECEIVED
                    continue
                instance = self._rows[row]
                if quantity is Quantity.DROPS:
                    instance += " out" if narrow.endswith(".19") else " in"
                most = speed * 1e6 * _SPEED_SLACK if speed else None
                if most is not None and quantity is Quantity.PACKETS:
                    most /= _LEAST_PACKET_BITS
                readings[quantity, instance] = PolledValue(
                    quantity=quantity,
                    instance=instance,
                    value=total * factor,
                    counts_to=2.0**bits * factor,
                    most_per_second=None if quantity is Quantity.DROPS else most,
                    at_s=at_s,
                    bound_s=bound_s,
                )
        # The device may have assigned its index to another interface.
        if is_lost:
            self._rows = {}
        return list(readings.values())

    async def _find_interfaces(self) -> None:
        wanted = set(self._entry.interfaces)
        for column in (IF_NAME, IF_DESCR):
            table = await self._client.table([column])
            names = {index: _text(value) for index, value in table[column].items()}
            self._rows |= {index: name for index, name in names.items() if name in wanted}
            if wanted <= set(self._rows.values()):
                return
        absent = ", ".join(sorted(wanted - set(self._rows.values())))
        self._rows = {}
        raise TelemetryError(
            f"telemetry {self._entry.device}: interfaces: no {absent}; it has "
            f"{', '.join(sorted(names.values())[:20])}"
        )


def _text(value: Any) -> str:
    return bytes(value).decode(errors="replace")


def open_source(entry: Mapping[str, Any]) -> PolledSource:
    """Return a source that polls a profile, the counters of interfaces, or both.

    Raises:
        TelemetryError: The entry is invalid, or it has a byte counter and names no interfaces.
    """
    parsed = parse_entry(SnmpEntry, entry)
    profile = None
    if parsed.profile is not None:
        profile = find_profile(parsed.profile, parsed.profiles_file)
    client = SnmpClient(parsed)
    if profile is None and not parsed.interfaces:
        raise TelemetryError(
            f"telemetry {parsed.device}: profile, interfaces: neither is set; name what to read"
        )
    if parsed.byte_counter is not None and not parsed.interfaces:
        raise TelemetryError(
            f"telemetry {parsed.device}: interfaces: not set; the byte counter is the bytes that "
            "they receive"
        )
    return PolledSource(
        parsed,
        PolledDevice(
            request=SnmpPoller(client, profile, parsed).poll,
            name=f"snmp {parsed.profile or 'IF-MIB'} {parsed.address}",
            counter_name="snmp IF-MIB",
            counter_instances=frozenset(parsed.interfaces),
            quantities=[
                *(read.quantity for read in (profile.read if profile is not None else ())),
                *(quantity for quantity, *_ in _COUNTERS if parsed.interfaces),
            ],
            close=client.close,
        ),
    )
