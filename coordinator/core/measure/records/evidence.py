"""Evidence for a burst before any analysis, from both ends and the device counter.

Seconds are stored as columns, because rows would need ten times as much memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.records.columns import NO_HOST, HostColumns, IntervalColumns
from broadside.coordinator.core.measure.records.ends_offset import EndsOffset
from broadside.coordinator.core.run_spec import Burst
from broadside.coordinator.core.summary import ForeignRow, ForeignTest, MatchMethod
from broadside.exchange.messages import (
    Aggregation,
    Claim,
    ClockReading,
    EngineReport,
    Flow,
    JobReport,
    Outcome,
    ServerTest,
    Side,
)

# Seconds before the planned start. The start gate can open connections from this time on.
OPENED_BEFORE_MAX_S: Final = 60.0
# Outcomes of a client that sent, so that a server record may still arrive.
_SENT: Final = (Outcome.MEASURED, Outcome.LATE, Outcome.ABANDONED)
# How many seconds to unpack at once, per end.
_BLOCK_COUNT: Final = 50_000


def receiving_side(flow: Flow) -> Side:
    """Return the end that receives a flow's payload."""
    return Side.SERVER if flow is Flow.UP else Side.CLIENT


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeColumn:
    """A pair's probes, sent at a fixed interval.

    Attributes:
        first_at_s: Time in epoch seconds for the first probe.
        every_s: Interval in seconds.
        rtt_s: Round-trip time in seconds. NaN if lost, negative if not sent.
    """

    first_at_s: float
    every_s: float
    rtt_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryColumns:
    """A pair's canaries, sent at a fixed interval. All arrays have one value per round.

    Attributes:
        first_at_s: Time in epoch seconds for the first round.
        every_s: Interval in seconds.
        forbidden: Outcomes of the forbidden requests (``CanaryOutcome``).
        allowed: Outcomes of the allowed requests.
        forbidden_received: 1 if the server received it, 0 if not, -1 if unknown.
        allowed_received: The same for the allowed requests.
        took_s: Time in seconds until the outcome of the forbidden request. NaN if unknown.
    """

    first_at_s: float
    every_s: float
    forbidden: NDArray[np.int8]
    allowed: NDArray[np.int8]
    forbidden_received: NDArray[np.int8]
    allowed_received: NDArray[np.int8]
    took_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEvidence:
    """Evidence for a planned pair in a burst, where ``None`` or empty means unknown.

    Attributes:
        pair_index: Pair index.
        name: Name used in an imported file, or ``None`` if the pair just has a number.
        missing_reason: Why there is no record from this pair, when it may still have sent traffic.
        claim: Claim for the job, from the client's agent.
        report: Report for the job, from the client's agent.
        client_tracks: Seconds that the client recorded.
        client_host: Counters for the client host.
        server_test: Test that the server recorded.
        server_tracks: Seconds that the server recorded.
        server_host: Counters for the server host.
        joined_by: How the server's test was matched.
        client_nic_bits_per_second: Egress limit for the client's VM size.
        server_nic_bits_per_second: Egress limit for the server's VM size.
        nic_mtu_bytes: The smaller MTU.
        client_vm_size: The client's VM size.
        server_vm_size: The server's VM size.
        probes: Latency probes.
        canary: Canaries.
        ends_offset: Clock offset that was used to place the server's seconds. It is only set for
            imports.
    """

    pair_index: int
    name: str | None = None
    missing_reason: str | None = None
    claim: Claim | None = None
    report: JobReport | None = None
    client_tracks: tuple[IntervalColumns, ...] = ()
    client_host: HostColumns = NO_HOST
    server_test: ServerTest | None = None
    server_tracks: tuple[IntervalColumns, ...] = ()
    server_host: HostColumns = NO_HOST
    joined_by: MatchMethod | None = None
    client_nic_bits_per_second: float | None = None
    server_nic_bits_per_second: float | None = None
    nic_mtu_bytes: int | None = None
    client_vm_size: str | None = None
    server_vm_size: str | None = None
    probes: ProbeColumn | None = None
    canary: CanaryColumns | None = None
    ends_offset: EndsOffset | None = None

    @property
    def engines(self) -> tuple[EngineReport, ...]:
        """Engine reports that are available, with the client's report first."""
        ends = (self.report, self.server_test)
        return tuple(end.engine for end in ends if end is not None and end.engine is not None)

    @property
    def server_lead_s(self) -> float:
        """Seconds in the server's engine time before the gate started the client."""
        return (self.report.server_lead_s or 0.0) if self.report is not None else 0.0

    @property
    def clock_fixes(self) -> Mapping[Side, tuple[float, float | None]]:
        """Clock correction per end, see ``clock_correction``. A bound of None is unknown."""
        report, test, claim = self.report, self.server_test, self.claim
        return {
            Side.CLIENT: clock_correction(
                *((report.clock_before, report.clock_after) if report else ()),
                claim.clock if claim else None,
            ),
            Side.SERVER: clock_correction(*((test.clock_before, test.clock_after) if test else ())),
        }


# Function to call for pairs when their seconds are still packed. It adds all columns. If the second
# argument is true, it only adds the columns with start and end times.
Unpack = Callable[[Sequence[PairEvidence], bool], Sequence[PairEvidence]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstEvidence:
    """Evidence for a planned burst.

    There is a :class:`PairEvidence` for every planned pair, in any order.

    Attributes:
        burst: Planned burst.
        pairs: Pairs with their seconds, or without them when ``unpack`` is set.
        unpack: Function to call to add the seconds.
        foreign_tests: Tests from other users on this burst's endpoints.
        foreign_rows: Rows that name another agent than their writer.
        start_known: False if the planned start was computed from recorded starts.
        cancelled_at: When the run was cancelled.
        cancel_reason: Why the run was cancelled.
    """

    burst: Burst
    pairs: tuple[PairEvidence, ...]
    unpack: Unpack | None = None
    foreign_tests: tuple["ForeignTest", ...] = ()
    foreign_rows: tuple[ForeignRow, ...] = ()
    start_known: bool = True
    cancelled_at: datetime | None = None
    cancel_reason: str | None = None

    @property
    def open_ends_count(self) -> int:
        """Pairs with an open server record, or with a client that sent and no server record."""
        return sum(
            pair.server_test.ended_at is None
            if pair.server_test is not None
            else pair.report is not None and pair.report.outcome in _SENT
            for pair in self.pairs
        )

    @property
    def in_order(self) -> tuple[PairEvidence, ...]:
        """The pairs, sorted by index."""
        return tuple(sorted(self.pairs, key=lambda pair: pair.pair_index))

    def blocks(self, *, instants_only: bool = False) -> Iterator[Sequence[PairEvidence]]:
        """Yield pairs and their seconds in blocks, because all at once may need gigabytes.

        Args:
            instants_only: Set to true to get only start and end times.
        """
        pairs = self.in_order
        if self.unpack is None:
            yield pairs
            return
        count = max(1, _BLOCK_COUNT // max(1, self.burst.duration_s))
        for first in range(0, len(pairs), count):
            yield self.unpack(pairs[first : first + count], instants_only)


# Layer at which the device counts. On the wire, frames do not include preamble and checksum.
CounterLayer = Literal["payload", "ip", "wire", "unknown"]
# Direction to count. Use "in" for clients to servers and "out" for servers to clients.
CounterDirection = Literal["in", "out", "both"]
# Values of ``aggregation`` before 1.0. They are still read.
FORMER_AGGREGATIONS: Final = {"average": "mean", "total": "sum", "maximum": "max", "minimum": "min"}
# Values of ``extreme`` for the aggregations from which bytes cannot be computed.
EXTREMES: Final[Mapping[Aggregation, Literal["maximum", "minimum"]]] = {
    Aggregation.MAX: "maximum",
    Aggregation.MIN: "minimum",
}
FLOWS_COUNTED: Final[Mapping[CounterDirection, tuple[Flow, ...]]] = {
    "in": (Flow.UP,),
    "out": (Flow.DOWN,),
    "both": tuple(Flow),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterRecord:
    """Bytes counted by the device over time, as bins in time order without overlaps.

    A bin contains the ``bytes`` that passed between ``start_s - lag`` and ``end_s - lag``. The lag
    will be estimated in :mod:`broadside.coordinator.core.judge.reconciliation.reconcile`. NaN
    means unknown, and it should not be treated as zero.

    Attributes:
        source: Name to show in reports, such as "lab", "azure-monitor" or a file name.
        layer: Layer at which the device counts.
        start_s: Bin starts as labelled, in epoch seconds.
        end_s: Bin ends as labelled, in epoch seconds.
        bytes: Counted bytes.
        grain_s: Usual bin length in seconds.
        read_at: When the counter was read.
        lag_hint_s: Lag in seconds from documentation or earlier runs.
        vxlan: True if frames at the layer ``wire`` have a VXLAN outer header.
        flows: Flows for which the payload is counted.
        snat_utilization_ratio: Highest value in the run, if the device reports it.
        notes: Notes to show in reports.
        drops_count: Dropped packets per bin, or ``None`` if they are not counted.
        counts_from_s: When the device started to count, in epoch seconds, if this is known.
        partial: Why the source's answer is not complete. Missing bytes would look like traffic that
            did not cross the device.
        counts_lost: True for a counter in front of the point where packets are dropped, false for a
            counter behind it, or ``None`` if this is not declared.
        mss_bytes: Declared TCP payload in a full packet, or ``None`` to use the recorded size.
        mtu_bytes: Declared path MTU, or ``None`` to use the recorded size.
        extreme: Set if a bin has its maximum or minimum sample and not a byte count.
    """

    source: str
    layer: CounterLayer = "unknown"
    start_s: Floats
    end_s: Floats
    bytes: Floats
    grain_s: float
    read_at: datetime
    lag_hint_s: float | None = None
    vxlan: bool = False
    flows: tuple[Flow, ...] = tuple(Flow)
    snat_utilization_ratio: float | None = None
    notes: tuple[str, ...] = ()
    drops_count: Floats | None = None
    counts_from_s: float | None = None
    partial: str | None = None
    counts_lost: bool | None = None
    mss_bytes: int | None = None
    mtu_bytes: int | None = None
    extreme: Literal["maximum", "minimum"] | None = None

    def __len__(self) -> int:
        return len(self.start_s)

    def known_s(self, before_s: float) -> float:
        """Return the time that is covered by complete bins directly before an instant.

        Args:
            before_s: The instant in epoch seconds.

        Returns:
            Time in seconds.
        """
        unknown = np.isnan(self.bytes) & (self.start_s < before_s)
        since_s = self.end_s[unknown].max(initial=-np.inf)
        complete = (self.start_s >= since_s) & (self.end_s <= before_s)
        return float((self.end_s - self.start_s)[complete].sum())

    def proving(self) -> "CounterRecord":
        """Return the counter as evidence, with all bins unknown if it is not complete."""
        if self.partial is None:
            return self
        return replace(self, bytes=np.full(len(self), np.nan), snat_utilization_ratio=None)


def clock_correction(*readings: ClockReading | None) -> tuple[float, float | None]:
    """Return the offset to subtract from an end's time stamps, and its error bound.

    Readings will only be used if they are synchronised. The offset is set to their mean, and the
    bound to their largest bound.

    Args:
        *readings: Clock readings to use. ``None`` will be ignored.

    Returns:
        Offset and bound in seconds, or ``(0, None)`` when there is no synchronised reading. When
        the bound is not known, it should not be treated as small.
    """
    good = [reading for reading in readings if reading is not None and reading.synchronised]
    offsets = [reading.offset_s for reading in good if reading.offset_s is not None]
    bounds = [reading.bound_s for reading in good if reading.bound_s is not None]
    return (sum(offsets) / len(offsets) if offsets else 0.0, max(bounds) if bounds else None)
