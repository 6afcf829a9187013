"""Response types for importing iperf3 files or a table."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from broadside.coordinator.core.measure.records.evidence import receiving_side
from broadside.coordinator.core.summary import (
    BurstSummary,
    Completeness,
    Finding,
    Reconciliation,
    Verdict,
)
from broadside.coordinator.imports.import_requests import Recording, RecordingState
from broadside.exchange.chunks import sum_intervals
from broadside.exchange.messages import (
    Direction,
    EngineReport,
    FlowTotals,
    Message,
    OwnBurstIndex,
    Protocol,
    RunId,
    Side,
    UtcDatetime,
)

_Number = TypeVar("_Number", int, float)


class FileResult(Message):
    """One test of one file. Sums are over both flows of a bidirectional test; None is unknown.

    Attributes:
        file: Name of the file.
        test: Test number in the file, starting at 1.
        state: State of the test.
        reason: Why the test was not measured. None if it was.
        side: End that wrote the file. None if unknown.
        version: Version of iperf3.
        direction: Flows of the test: from the client, to the client, or both.
        protocol: Transport protocol.
        streams: Number of streams.
        started_at: Start of the test.
        duration_s: Requested duration in seconds.
        sent_bytes: Sent payload in bytes.
        received_bytes: Received payload in bytes.
        retransmits: Number of retransmitted segments.
        rtt_min_s: Smallest round-trip time in seconds.
        rtt_max_s: Largest round-trip time in seconds.
        lost_ratio: Lost UDP datagrams divided by sent ones (0 to 1).
        flows: Results for each flow.
    """

    file: str
    test: int
    state: RecordingState
    reason: str | None = None
    side: Side | None = None
    version: str | None = None
    direction: Direction | None = None
    protocol: Protocol | None = None
    streams: int | None = None
    started_at: UtcDatetime
    duration_s: int | None = None
    sent_bytes: int | None = None
    received_bytes: int | None = None
    sent_bits_per_second: float | None = None
    received_bits_per_second: float | None = None
    retransmits: int | None = None
    rtt_mean_s: float | None = None
    rtt_min_s: float | None = None
    rtt_max_s: float | None = None
    lost_ratio: float | None = None
    flows: tuple[FlowTotals, ...] = ()


class ImportedBurst(Message):
    """One burst of an import, in short.

    Attributes:
        duration_s: Duration of the measured traffic in seconds.
        files: Names of the files of this burst.
    """

    index: OwnBurstIndex
    planned_start_at: UtcDatetime
    duration_s: int
    files: tuple[str, ...]
    fleet_sent_bits_per_second: float | None = None
    fleet_received_bits_per_second: float | None = None
    completeness_ratio: float

    @classmethod
    def of(cls, burst: BurstSummary) -> "ImportedBurst":
        files = [pair.pair for pair in burst.pairs]
        return cls.model_validate(shared(cls, burst) | {"files": files})


class ImportedRecordings(Message):
    """Result of an import of recordings.

    Attributes:
        run_id: Id of the run. None if no file contained a test, and nothing was stored.
        verdict: Verdict of the run. None if nothing was stored.
        files: Result of each test in the files.
        bursts: Bursts of the run.
    """

    run_id: RunId | None
    verdict: Verdict | None = None
    labels: Mapping[str, str] = {}
    files: tuple[FileResult, ...]
    bursts: tuple[ImportedBurst, ...] = ()
    findings: tuple[Finding, ...] = ()


class LatePair(Message):
    """A pair that started after its burst did.

    Attributes:
        late_s: Seconds between the start of the burst and that of the pair.
    """

    pair: str
    late_s: float


class OriginalBurst(Message):
    """One planned burst of a table. Rates are payload, including pairs that started late.

    ``completeness_ratio`` counts pair-seconds that were on time.

    Attributes:
        duration_s: Duration in seconds. None if the table has no durations.
        pairs_measured: Pairs with a received rate, including late ones.
        null_pairs: Names of the pairs whose tests had no bytes.
        late_pairs: Pairs that started late.
        missing_pairs: Names of pairs of other bursts that have no row in this one.
        repeated_rows: Numbers of the rows of clients that have another row in this burst. They are
            not used.
        rtt_mean_s: Mean of the mean round-trip times of all rows, in seconds.
    """

    index: OwnBurstIndex
    planned_start_at: UtcDatetime
    duration_s: float | None
    pairs_planned: int
    pairs_measured: int
    null_pairs: tuple[str, ...] = ()
    late_pairs: tuple[LatePair, ...] = ()
    missing_pairs: tuple[str, ...] = ()
    repeated_rows: tuple[int, ...] = ()
    fleet_sent_bits_per_second: float | None = None
    fleet_received_bits_per_second: float | None = None
    rtt_mean_s: float | None = None
    completeness_ratio: float
    completeness: Completeness
    reconciliation: Reconciliation | None = None


class ImportedTable(Message):
    """Result of an import of a table, with the planned bursts and the run.

    Attributes:
        period_s: Seconds between the starts of bursts. None for a single burst, and for series with
            different periods.
        pairs_planned: Number of pairs of the largest series.
        fleet_sent_bits_per_second: Payload rate that the fleet sent, as the mean over the bursts,
            in bit/s.
        bursts: Bursts of the run.
        verdict: Verdict of the run.
        source: Name of the file.
        timezone: IANA time zone of local times in the table.
        rows_count: Number of results that were read.
        skipped_rows: Number of rows that were skipped, by kind.
    """

    period_s: float | None
    pairs_planned: int
    completeness_ratio: float
    fleet_sent_bits_per_second: float | None = None
    fleet_received_bits_per_second: float | None = None
    firewall_bits_per_second: float | None = None
    reconciliation: Reconciliation | None = None
    bursts: tuple[OriginalBurst, ...] = ()
    findings: tuple[Finding, ...] = ()
    run_id: RunId
    verdict: Verdict
    source: str
    timezone: str
    labels: Mapping[str, str] = {}
    rows_count: int
    skipped_rows: Mapping[str, int] = {}


def shared(model: type[Message], source: Message) -> dict[str, Any]:
    """Return the fields of a model that another message has too, apart from nested bursts.

    Args:
        model: The model.
        source: Message to take the values from.

    Returns:
        Values by field name.
    """
    names = model.model_fields.keys() & type(source).model_fields.keys() - {"bursts"}
    return {name: getattr(source, name) for name in names}


def describe(recording: Recording) -> FileResult:
    """Return the result to report for a recording."""
    report = recording.report or EngineReport(engine="iperf3")
    totals = report.totals or _so_far(recording)
    packets = _sum([t.packets_count for t in totals])
    lost = _sum([t.lost_count for t in totals])
    rtts = _known(t.rtt_mean_s for t in totals)
    return FileResult.model_validate(
        shared(FileResult, report)
        | shared(FileResult, recording)
        | {
            "test": recording.test_index + 1,
            "streams": report.streams_count,
            "sent_bytes": _sum([t.sent_bytes for t in totals]),
            "received_bytes": _sum([t.received_bytes for t in totals]),
            "sent_bits_per_second": _sum([bit_rate(t.sent_bytes, t.sent_s) for t in totals]),
            "received_bits_per_second": _sum(
                [bit_rate(t.received_bytes, t.received_s) for t in totals]
            ),
            "retransmits": _sum([t.retransmits_count for t in totals]),
            "rtt_mean_s": sum(rtts) / len(rtts) if rtts else None,
            "rtt_min_s": min(
                (t.rtt_min_s for t in totals if t.rtt_min_s is not None), default=None
            ),
            "rtt_max_s": max(
                (t.rtt_max_s for t in totals if t.rtt_max_s is not None), default=None
            ),
            "lost_ratio": lost / packets if lost is not None and packets else None,
            "flows": totals,
        }
    )


def _so_far(recording: Recording) -> tuple[FlowTotals, ...]:
    """Return the totals of an incomplete recording, summed over its seconds."""
    totals = []
    for flow, chunk in recording.chunks.items():
        amount, over_s = sum_intervals(chunk)
        if receiving_side(flow) is recording.side:
            totals.append(FlowTotals(flow=flow, received_bytes=amount, received_s=over_s))
        else:
            totals.append(FlowTotals(flow=flow, sent_bytes=amount, sent_s=over_s))
    return tuple(totals)


def _known(values: Iterable[_Number | None]) -> list[_Number]:
    return [value for value in values if value is not None]


def _sum(values: Sequence[_Number | None]) -> _Number | None:
    """Return the sum, or None if there is no value or an unknown value."""
    known = _known(values)
    return sum(known[1:], known[0]) if known and len(known) == len(values) else None


def bit_rate(amount: int | None, over_s: float | None) -> float | None:
    """Return the rate of an amount of bytes.

    Args:
        amount: Number of bytes. None if unknown.
        over_s: Duration in seconds. None if unknown.

    Returns:
        Rate in bit/s. None if an argument is unknown or the duration is 0.
    """
    return amount * 8 / over_s if amount is not None and over_s else None
