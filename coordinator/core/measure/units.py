"""Units behind the address of a device, from the source addresses that servers received.

A device that translates source addresses shows the address of the unit that carries a stream. Each
address that several clients share is one unit. Nothing is claimed if servers received the clients'
own addresses, or if each client has one address of its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core import formatting
from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.formulas.quantiles import jain
from broadside.coordinator.core.measure.formulas.steady import correlated_mean
from broadside.coordinator.core.measure.grid.align import Aligned
from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.summary import (
    Translation,
    UnitChange,
    Units,
    UnitSummary,
    figure,
    instant,
)
from broadside.exchange.engines.peer_seconds import read_steps
from broadside.exchange.messages import PeerSeconds, Side

# Streams (or requests) that are missing at an end of the burst before a unit counts as joined or
# left. With this many expected, the probability of none is below 1e-5.
MISSING_LEAST: Final = 12.0
# The time without traffic needs to be this many times the longest pause inside the unit's traffic.
PAUSES: Final = 3.0
# Shortest time without traffic at an end, in seconds. It is the accuracy of the dates.
SILENT_LEAST_S: Final = 2
# A unit is slow if it has less than this share of the median of the other units.
SLOW_RATIO: Final = 0.8
# A stream that has this share of its set rate is not limited by the device.
PACED_RATIO: Final = 0.95
# Fewer streams do not show the rate of a unit's streams, if the streams have no set rate.
FLOWS_LEAST: Final = 4
# Steps of all units that are stored. With 16 units, a burst of 300 s has every second.
CELLS_MAX_COUNT: Final = 4800
# Seconds to average for the level of a unit that joined or left.
LEVEL_S: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTrack:
    """Traffic of one pair that the server received from one address, second by second.

    Attributes:
        pair_index: The pair.
        client: Own address of the client.
        address: Address that the server received.
        bytes: Payload per second of the grid.
        active: Streams with payload, or requests or connections that started, per second of the
            grid.
        streams_count: Open streams. None if the engine does not record streams.
        step_s: Resolution in seconds.
    """

    pair_index: int
    client: str
    address: str
    bytes: Floats
    active: Floats
    streams_count: int | None
    step_s: int

    @property
    def carries(self) -> NDArray[np.bool_]:
        """Seconds with payload, or with a connection without payload."""
        return (self.bytes > 0) | (self.active > 0)


@dataclass(frozen=True, kw_only=True)
class UnitGrid:
    """All units on a grid of seconds, as (units, seconds) matrices.

    Attributes:
        start_s: Epoch second of the first column.
        tracks: Traffic of all pairs with known addresses.
        window: Seconds to use for rates.
        stream_bits_per_second: Set rate of a stream. None if there is no limit.
    """

    start_s: int
    tracks: Sequence[PeerTrack]
    window: slice
    stream_bits_per_second: float | None = None

    @cached_property
    def addresses(self) -> list[str]:
        return sorted({track.address for track in self.tracks}, key=_numeric)

    def sum(self, name: str) -> Floats:
        """Return the sum over pairs of ``bytes`` or ``active`` for each unit."""
        return np.array(
            [
                np.sum([getattr(t, name) for t in self.tracks if t.address == address], axis=0)
                for address in self.addresses
            ]
        )

    @cached_property
    def bits(self) -> Floats:
        return 8 * self.sum("bytes")

    @cached_property
    def active(self) -> Floats:
        return self.sum("active")

    @cached_property
    def carries(self) -> NDArray[np.bool_]:
        """Seconds in which a unit had traffic."""
        return (self.bits > 0) | (self.active > 0)

    @cached_property
    def streams_count(self) -> int | None:
        """Number of streams, or None if an engine does not record them."""
        counts = [track.streams_count for track in self.tracks]
        return None if None in counts else sum(count or 0 for count in counts)

    def span(self, unit: int) -> slice:
        """Return the seconds from the first to the last traffic of a unit."""
        places = np.flatnonzero(self.carries[unit])
        return slice(int(places[0]), int(places[-1]) + 1)

    def during(self, unit: int) -> slice:
        """Return the complete seconds of a unit in the window."""
        span = self.span(unit)
        first = span.start if span.start <= self.window.start else span.start + 1
        last = span.stop if span.stop >= self.window.stop else span.stop - 1
        return slice(max(first, self.window.start), min(last, self.window.stop))

    def rest(self, unit: int) -> NDArray[np.bool_]:
        """Return the seconds in which the unit's pairs had traffic on other units."""
        address = self.addresses[unit]
        pairs = {track.pair_index for track in self.tracks if track.address == address}
        others = [t.carries for t in self.tracks if t.pair_index in pairs and t.address != address]
        return np.asarray(np.any([np.zeros(self.bits.shape[1], bool), *others], axis=0))


def find_units(
    aligned: Aligned, window: tuple[float, float] | None, stream_bits_per_second: float | None
) -> Units | None:
    """Return the units of a burst.

    Args:
        aligned: Burst on the grid.
        window: Start and end of the window in epoch seconds. None uses the whole grid.
        stream_bits_per_second: Set rate of a stream, or None.

    Returns:
        The units with their rates and changes. None if no record has the received addresses.
    """
    tracks = [track for row in range(len(aligned.pairs)) for track in peer_tracks(aligned, row)]
    if not tracks:
        return None
    start_s, count = aligned.grid.start_s, aligned.grid.count
    first, stop = (0, count) if window is None else (round(at - start_s) for at in window)
    grid = UnitGrid(
        start_s=start_s,
        tracks=tracks,
        window=slice(max(0, first), min(count, stop)),
        stream_bits_per_second=stream_bits_per_second,
    )
    return units_of(grid)


def peer_tracks(aligned: Aligned, row: int) -> list[PeerTrack]:
    """Return the traffic of a pair by received address, or nothing if an address is unknown.

    Args:
        aligned: Burst on the grid.
        row: Row of the pair.
    """
    pair = aligned.pairs[row]
    test, claim = pair.server_test, pair.claim
    if test is None or claim is None or claim.address is None:
        return []
    tracks = []
    for peer in test.engine.peers:
        placed = _of_test(aligned, row, peer) if not peer.packed else _placed(aligned, pair, peer)
        if placed is not None:
            tracks.append(
                PeerTrack(
                    pair_index=pair.pair_index,
                    client=claim.address,
                    address=peer.address,
                    bytes=placed[0],
                    active=placed[1],
                    streams_count=peer.streams_count,
                    step_s=peer.step_s,
                )
            )
    return tracks


def _of_test(aligned: Aligned, row: int, peer: PeerSeconds) -> tuple[Floats, Floats]:
    """Return the seconds of the pair, all of which have this address."""
    amounts = np.sum([np.nan_to_num(flow.received_bytes[row]) for flow in aligned.flows], axis=0)
    return amounts, np.where(amounts > 0, float(peer.streams_count or 0), 0.0)


def _placed(
    aligned: Aligned, pair: PairEvidence, peer: PeerSeconds
) -> tuple[Floats, Floats] | None:
    """Return the steps of an address on the grid, or None if they are not readable."""
    test, steps = pair.server_test, read_steps(peer)
    if test is None or test.first_data_at is None or steps is None:
        return None
    amounts, active = (np.asarray(column, float) for column in steps)
    offset_s, _ = pair.clock_fixes[Side.SERVER]
    zero_s = test.first_data_at.timestamp() - offset_s
    begun_s = zero_s + peer.from_s + peer.step_s * np.arange(len(amounts))
    # The start gate sends a few bytes before the first data.
    sent = begun_s + peer.step_s > zero_s + pair.server_lead_s
    cells = [np.zeros(aligned.grid.count), np.zeros(aligned.grid.count)]
    for step in range(peer.step_s):
        places = np.round(begun_s + step - aligned.grid.start_s).astype(int)
        inside = sent & (places >= 0) & (places < aligned.grid.count)
        np.add.at(cells[0], places[inside], amounts[inside] / peer.step_s)
        np.add.at(cells[1], places[inside], active[inside])
    return cells[0], cells[1]


def units_of(grid: UnitGrid) -> Units:
    """Return the units of a burst."""
    pairs_count = len({track.pair_index for track in grid.tracks})
    count = grid.bits.shape[1]
    every = max(1, math.ceil(count * len(grid.addresses) / CELLS_MAX_COUNT))
    units = Units(
        translation=translation_of(grid.tracks),
        pairs_count=pairs_count,
        start_at=instant(grid.start_s),
        every_s=float(every),
    )
    carrying = [unit for unit in range(len(grid.addresses)) if grid.carries[unit].any()]
    if units.translation is not Translation.UNITS or not carrying:
        return units
    summaries = tuple(_summary(grid, unit, every) for unit in carrying)
    loads = np.array([unit.received_bits_per_second or 0.0 for unit in summaries])
    if not loads.any():
        loads = np.array([unit.starts_per_second or 0.0 for unit in summaries])
    at_once = grid.carries[:, grid.window].sum(axis=0)
    known = loads.any()
    return units.model_copy(
        update={
            "count": len(carrying),
            "missed_ratio": _missed_ratio(grid, len(carrying)),
            "imbalance_ratio": figure(float(loads.max() / loads.mean())) if known else None,
            "jain_ratio": figure(jain(loads)) if known else None,
            "median_count": float(np.median(at_once)) if len(at_once) else None,
            "min_count": int(at_once.min(initial=len(carrying))) if len(at_once) else None,
            "max_count": int(at_once.max(initial=0)) if len(at_once) else None,
            "units": summaries,
            "changes": tuple(
                sorted(
                    (one for unit in carrying for one in _changes(grid, unit)),
                    key=lambda one: (one.at, one.address),
                )
            ),
            **_limits(grid, summaries),
        }
    )


def translation_of(tracks: Sequence[PeerTrack]) -> Translation:
    """Return how the device translates source addresses.

    Args:
        tracks: Traffic of all pairs by received address.
    """
    links = {(track.client, track.address) for track in tracks}
    if all(client == address for client, address in links):
        return Translation.NONE
    clients = {client for client, _ in links}
    addresses = {address for _, address in links}
    if 1 < len(links) == len(clients) == len(addresses):
        return Translation.ONE_TO_ONE
    return Translation.UNITS


def _missed_ratio(grid: UnitGrid, count: int) -> float | None:
    streams = grid.streams_count
    return None if not streams else figure((1 - 1 / (count + 1)) ** streams)


def _summary(grid: UnitGrid, unit: int, every: int) -> UnitSummary:
    span, during = grid.span(unit), grid.during(unit)
    address = grid.addresses[unit]
    rates = grid.bits[unit, during]
    mean = correlated_mean(rates) if len(rates) > 1 else None
    flows = grid.active[unit, during]
    return UnitSummary(
        address=address,
        clients_count=len({t.client for t in grid.tracks if t.address == address}),
        flows_count=(
            sum(t.streams_count or 0 for t in grid.tracks if t.address == address)
            if grid.streams_count
            else None
        ),
        flows_mean_count=(
            figure(float(flows.mean())) if grid.streams_count and len(flows) else None
        ),
        starts_per_second=(
            figure(float(flows.mean())) if grid.streams_count is None and len(flows) else None
        ),
        received_bits_per_second=figure(float(rates.mean())) if len(rates) else None,
        received_half_width_bits_per_second=None if mean is None else figure(mean.half_width),
        first_at=instant(grid.start_s + span.start),
        last_at=instant(grid.start_s + span.stop),
        bits_per_second=_thinned(grid.bits[unit], every),
        flows=_thinned(grid.active[unit], every),
    )


def _thinned(values: Floats, every: int) -> tuple[float, ...]:
    """Return means of ``every`` seconds, with six digits."""
    padded = np.concatenate([values, np.zeros(-len(values) % every)])
    return tuple(float(f"{mean:.6g}") for mean in padded.reshape(-1, every).mean(axis=1))


# Units that joined or left


def _changes(grid: UnitGrid, unit: int) -> list[UnitChange]:
    """Return the change at each end of a unit's traffic.

    The pairs with traffic on the unit need to have traffic on other units in the time in which this
    unit has none. So the end of a pair is not the end of a unit.
    """
    span, rest = grid.span(unit), np.flatnonzero(grid.rest(unit))
    if not len(rest):
        return []
    address = grid.addresses[unit]
    step_s = max(track.step_s for track in grid.tracks if track.address == address)
    seen = float(grid.active[unit, span].sum())
    # The number of independent requests has the standard deviation of its root.
    per_s = (seen - 2 * math.sqrt(seen)) / (span.stop - span.start)
    traffic = np.flatnonzero(grid.carries[unit])
    pause_s = int(np.diff(traffic).max(initial=1)) - 1
    least_s = max(SILENT_LEAST_S + 1, step_s + 1, PAUSES * pause_s)
    results = []
    for change, silent_s, level in (
        ("joined", span.start - int(rest[0]), slice(span.start, span.start + LEVEL_S)),
        ("left", int(rest[-1]) + 1 - span.stop, slice(max(0, span.stop - LEVEL_S), span.stop)),
    ):
        flows = grid.active[unit, level]
        if silent_s < least_s or per_s * silent_s < MISSING_LEAST:
            continue
        counted = grid.streams_count is not None
        at_s = span.start if change == "joined" else span.stop
        inner = grid.bits[unit, level][1:] if change == "joined" else grid.bits[unit, level][:-1]
        results.append(
            UnitChange(
                address=address,
                change=change,
                at=instant(grid.start_s + at_s),
                resolution_s=float(step_s),
                flows_count=round(float(flows.max())) if counted else None,
                bits_per_second=figure(float(inner.mean())) if len(inner) else None,
                flows_cut=bool(flows[-2:].max() > 0) if counted and change == "left" else None,
            )
        )
    return results


# Slow units


def _limits(grid: UnitGrid, units: Sequence[UnitSummary]) -> dict[str, str | None]:
    """Return the unit that is slower than the others, and the evidence that it alone is limited.

    A stream with a set rate shows whether its unit limits it. Without a set rate, the streams of
    the unit are compared with those of the other units.
    """
    if len(units) < 2 or not grid.streams_count:
        return {}
    totals = np.array([unit.received_bits_per_second or math.nan for unit in units])
    # A stream that a full unit starves has seconds without payload, so all open streams count.
    flows = np.array([unit.flows_count or math.nan for unit in units])
    rates = totals / flows
    if np.isnan(rates).any():
        return {}
    pace = grid.stream_bits_per_second
    lowest = int(np.argmin(rates))
    others = np.arange(len(units)) != lowest
    slow = _slow(totals, rates, flows, pace)
    alone = _alone(totals[others], rates[others], pace)
    usual = pace or float(np.median(rates[others]))
    limit = None
    if alone and rates[lowest] < SLOW_RATIO * usual and (pace or flows[lowest] >= FLOWS_LEAST):
        limit = (
            f"{units[lowest].address} carries {formatting.rate(totals[lowest])}, and its streams "
            f"have {formatting.rate(float(rates[lowest]))} each; the median of the other units is "
            f"{formatting.rate(float(np.median(rates[others])))}"
        )
    return {"slow": None if slow is None else units[slow].address, "limit": limit}


def _slow(totals: Floats, rates: Floats, flows: Floats, pace: float | None) -> int | None:
    """Return the unit that has less traffic than others because it is slower, or None.

    With a set rate, its streams are slower than that, and another unit carries more. Without one,
    its traffic is below the median of the others, and so are its streams. If the others have equal
    totals, they are at a limit, and it is enough that its streams are slower than the fastest.
    """
    if pace is not None:
        limited = np.flatnonzero(rates < PACED_RATIO * pace)
        if not len(limited):
            return None
        unit = int(limited[np.argmin(totals[limited])])
        return unit if totals[unit] < SLOW_RATIO * totals.max() else None
    unit = int(np.argmin(totals))
    others = np.arange(len(totals)) != unit
    if totals[unit] >= SLOW_RATIO * np.median(totals[others]) or flows[unit] < FLOWS_LEAST:
        return None
    is_slow = rates[unit] < SLOW_RATIO * np.median(rates[others])
    if others.sum() > 1 and _cov(totals[others]) < 1 - PACED_RATIO:
        is_slow |= rates[unit] < PACED_RATIO * rates[others].max()
    return unit if is_slow else None


def _alone(totals: Floats, rates: Floats, pace: float | None) -> bool:
    """Return True if no other unit is at its limit.

    Without a set rate, units below their limit have streams with equal rates, and units at an equal
    limit have equal totals.
    """
    if pace is not None:
        return bool((rates >= PACED_RATIO * pace).all())
    equal = min(1 - PACED_RATIO, _cov(totals) / 2)
    return len(rates) > 2 and _cov(rates) < equal


def _cov(values: NDArray[np.floating]) -> float:
    return float(values.std() / values.mean())


def _numeric(address: str) -> tuple[int, int]:
    """Return a sort key that sorts addresses by number."""
    parsed = ip_address(address)
    return parsed.version, int(parsed)
