"""Telemetry over SNMP, from vendor MIBs by profile and from the IF-MIB by interface."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from broadside.coordinator.core.measure.testimony import Quantity
from broadside.coordinator.device.ledgers.source import LedgerError
from broadside.coordinator.device.witnesses.polled import Answer, PolledWitness, Reading
from broadside.coordinator.device.witnesses.snmp import UP, SnmpDevice, SnmpEntry, number_of
from broadside.coordinator.device.witnesses.snmp_profiles import Profile, Question, find_profile
from broadside.coordinator.device.witnesses.witness_file import parsed

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


class SnmpWitness:
    """Requests of one polling round for a device.

    Attributes:
        wide: Whether 64-bit counters are used where available.
    """

    def __init__(self, device: SnmpDevice, profile: Profile | None, entry: SnmpEntry) -> None:
        self._device = device
        self._profile = profile
        self._entry = entry
        # Interface names by index.
        self._rows: dict[str, str] = {}
        # Last ``sysUpTime`` in hundredths of a second.
        self._up = math.nan
        self.wide = entry.interface_counters == "auto"

    async def ask(self) -> Answer:
        """Return the readings of a round. Raises LedgerError when there is no response."""
        questions = self._profile.read if self._profile is not None else ()
        scalars = [q for q in questions if q.oid.endswith(".0")]
        columns = [q for q in questions if not q.oid.endswith(".0")]
        asked = [UP, *dict.fromkeys(oid for q in scalars for oid in q.oids)]
        self._device.cut.clear()
        # A device may assign other interface indices after a restart.
        found, self._rows = self._rows, {}
        at_s, bound_s, values = await self._timed(asked)
        up = values[UP]
        if up is None or up >= self._up:
            self._rows = found
        self._up = math.nan if up is None else up
        readings: list[Reading] = []
        untold: list[str] = []
        for question in scalars:
            told = [values[oid] for oid in question.oids]
            self._add(question, "", told, readings, untold)
        readings = [replace(each, at_s=at_s, bound_s=bound_s) for each in readings]
        for question in columns:
            table = await self._device.table(question.oids)
            rows = [i for i in table[question.oids[0]] if not question.only or i in question.only]
            # Without rows, the OID is not a column. It can be a single value, or it can be missing.
            if not rows:
                row = await self._device.get(question.oids)
                told = [row[oid] for oid in question.oids]
                self._add(question, "", told, readings, untold)
            for index in rows:
                told = [number_of(table[oid].get(index)) for oid in question.oids]
                self._add(question, index, told, readings, untold)
        cut = ", ".join(dict.fromkeys(self._device.cut))
        if self._entry.interfaces:
            readings += await self.interface_counters()
        return Answer(
            readings=readings,
            untold=untold,
            up_s=None if up is None else up / 100,
            partial=f"the columns {cut} were not read to their end" if cut else None,
        )

    async def _timed(self, oids: Sequence[str]) -> tuple[float, float, dict[str, float | None]]:
        """Return the middle of the request's time, half of its duration, and the scalars."""
        asked_s, began_s = time.time(), time.monotonic()
        values = await self._device.get(oids)
        half_s = (time.monotonic() - began_s) / 2
        return asked_s + half_s, half_s, values

    def _add(
        self,
        question: Question,
        instance: str,
        told: Sequence[float | None],
        readings: list[Reading],
        untold: list[str],
    ) -> None:
        known = [value for value in told if value is not None and math.isfinite(value)]
        value = question.figure(*known) if len(known) == len(told) else None
        if value is None:
            untold.append(self._absent(question))
            return
        readings.append(
            Reading(
                quantity=question.quantity,
                instance=instance,
                value=value,
                over_s=question.over_s,
                counts_to=None
                if question.counter is None
                else 2.0**question.counter * question.scale,
            )
        )

    def _absent(self, question: Question) -> str:
        mib = "" if self._profile is None else f" ({self._profile.mib})"
        return f"{question.quantity}: the device has no {question.oid}{mib}"

    async def interface_counters(self) -> list[Reading]:
        """Return the totals of the configured interfaces.

        Raises:
            LedgerError: An interface does not exist.
        """
        if not self._rows:
            await self._find_interfaces()
        rows = [*self._rows]
        asked = [f"{IF_HIGH_SPEED}.{row}" for row in rows]
        for _, wide, narrow, _each in _COUNTERS:
            asked += [f"{oid}.{row}" for oid in (wide, narrow) if oid for row in rows]
        at_s, bound_s, values = await self._timed(asked)
        readings: dict[tuple[Quantity, str], Reading] = {}
        gone = False
        for row in rows:
            speed = values[f"{IF_HIGH_SPEED}.{row}"] or 0.0
            for quantity, wide, narrow, each in _COUNTERS:
                total = values.get(f"{wide}.{row}") if wide and self.wide else None
                bits = 64 if total is not None else 32
                if total is None:
                    total = values.get(f"{narrow}.{row}")
                if total is None:
                    gone |= quantity is Quantity.RECEIVED
                    continue
                instance = self._rows[row]
                if quantity is Quantity.DROPS:
                    instance += " out" if narrow.endswith(".19") else " in"
                most = speed * 1e6 * _SPEED_SLACK if speed else None
                if most is not None and quantity is Quantity.PACKETS:
                    most /= _LEAST_PACKET_BITS
                readings[quantity, instance] = Reading(
                    quantity=quantity,
                    instance=instance,
                    value=total * each,
                    counts_to=2.0**bits * each,
                    most_per_second=None if quantity is Quantity.DROPS else most,
                    at_s=at_s,
                    bound_s=bound_s,
                )
        # The device may have assigned its index to another interface.
        if gone:
            self._rows = {}
        return list(readings.values())

    async def _find_interfaces(self) -> None:
        wanted = set(self._entry.interfaces)
        for column in (IF_NAME, IF_DESCR):
            table = await self._device.table([column])
            names = {index: _text(value) for index, value in table[column].items()}
            self._rows |= {index: name for index, name in names.items() if name in wanted}
            if wanted <= set(self._rows.values()):
                return
        missing = ", ".join(sorted(wanted - set(self._rows.values())))
        self._rows = {}
        raise LedgerError(
            f"witness {self._entry.device}: interfaces: no {missing}; it has "
            f"{', '.join(sorted(names.values())[:20])}"
        )


def _text(value: Any) -> str:
    return bytes(value).decode(errors="replace")


def open_interfaces(entry: Mapping[str, Any]) -> PolledWitness:
    """Return a witness that reads only the interface counters."""
    named = parsed(SnmpEntry, entry).model_copy(update={"profile": None})
    return _polled(named, None)


def open_source(entry: Mapping[str, Any]) -> PolledWitness:
    named = parsed(SnmpEntry, entry)
    profile = None if named.profile is None else find_profile(named.profile, named.profiles_file)
    return _polled(named, profile)


def _polled(named: SnmpEntry, profile: Profile | None) -> PolledWitness:
    device = SnmpDevice(named)
    if named.profile is None and not named.interfaces:
        raise LedgerError(
            f"witness {named.device}: profile, interfaces: neither is set; name what to ask for"
        )
    witness = SnmpWitness(device, profile, named)
    return PolledWitness(
        witness.ask,
        name=f"snmp {named.profile or 'IF-MIB'} {named.address}",
        entry=named,
        quantities=[
            *(question.quantity for question in (profile.read if profile is not None else ())),
            *(quantity for quantity, *_ in _COUNTERS if named.interfaces),
        ],
        close=device.close,
    )
