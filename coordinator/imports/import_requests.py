"""Request types to import a table or recordings.

The values are stored too, because they are used to recompute the run summary byte for byte.
"""

import base64
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import FailFast, Field, field_validator, model_validator

from broadside.coordinator.imports.metric_declaration import MetricDeclaration
from broadside.coordinator.imports.table_bursts import OriginalRow, problems
from broadside.exchange.chunks import check_intervals, pack_intervals
from broadside.exchange.engines.port import StartBasis
from broadside.exchange.messages import (
    EngineReport,
    Flow,
    Integer,
    Interval,
    Message,
    Number,
    Side,
    TrafficAt,
    UtcDatetime,
    renamed,
)
from broadside.exchange.ports import RecordUnreadable

# Enough for 1,000 pairs with 100 bursts.
ROWS_MAX_COUNT: Final = 100_000
# Enough for ten weeks with one point each minute.
METRIC_POINTS_MAX_COUNT: Final = 100_000
RECORDINGS_MAX_COUNT: Final = 2_000
# Limit for one flow of one recording.
PACKED_MAX_CHARS: Final = 16_000_000

LabelValues = Mapping[
    Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9._-]{0,40}$")],
    Annotated[str, Field(min_length=1, max_length=100)],
]
_Text = Annotated[str, Field(max_length=1000)]


class Note(Message):
    """Something about a file that a reader of its results should know.

    Attributes:
        id: Id of the note.
        sentence: The note as a sentence.
        next_step: What to do about it. None if nothing is needed.
    """

    id: Annotated[str, Field(max_length=40)]
    sentence: _Text
    next_step: _Text | None = None


class MetricPoint(Message):
    """A figure of the bin that starts at its label; ``None`` is unknown.

    Attributes:
        at: Start of the bin.
        bits_per_second: Rate in this bin in bit/s. None is unknown.
    """

    at: UtcDatetime
    bits_per_second: Number | None = Field(default=None, ge=0, le=1e15)
    value: Number | None = Field(
        default=None,
        ge=0,
        le=1e18,
        description="value in the unit of `metric_declaration`, in place of a rate in bit/s",
    )


class _Import(Message):
    """Fields of every import, in addition to its data."""

    labels: LabelValues = Field(
        default={}, description="labels to store with the run; you can use them to group runs"
    )
    overrides: Mapping[str, Any] = Field(
        default={},
        description="fields of the run specification by dotted name: objective, device, traffic",
        examples=[{"objective.target_bits_per_second": 180e9}],
    )
    notes: Annotated[tuple[Note, ...], FailFast()] = Field(default=(), max_length=100)
    by: str = Field(
        default="api", max_length=100, description="user who imports the run; stored with the run"
    )
    metric_source: Annotated[str, Field(max_length=255)] | None = None
    metric: Annotated[tuple[MetricPoint, ...], FailFast()] = Field(
        default=(), max_length=METRIC_POINTS_MAX_COUNT
    )
    metric_declaration: MetricDeclaration = Field(
        default=MetricDeclaration(),
        description="meaning of the values in the metric; the defaults are for the Throughput "
        "metric of Azure Firewall",
    )
    metric_problem: _Text | None = Field(
        default=None,
        description="reason why the metric is incomplete; such a metric proves nothing",
    )

    @model_validator(mode="after")
    def _metric_has_a_grain(self) -> Self:
        if self.metric and len({point.at for point in self.metric}) < max(2, len(self.metric)):
            raise ValueError("metric: at least two points, each with its own time, are needed")
        return self


class OriginalTable(_Import):
    """One of the original's tables: a row a client a burst. Rates are bit/s of payload.

    Attributes:
        notes: Notes about the files, which become findings.
        metric_source: Name of the file with the device metric. None if there is none.
        metric: Values of the device metric.
        kind: Always original.
        source: Name of the file.
        engine: Engine that made the traffic. The clients of http and https receive.
        timezone: Time zone for local times in the table.
        rows: Results, with one row for each client and burst.
        period_s: Seconds between the starts of bursts. If None, it is found in the rows.
        pairs_planned: Number of pairs per burst. If None, all clients with rows.
        skipped_rows: Number of rows that were skipped because they are not results of the engine,
            by kind.
    """

    kind: Literal["original"] = "original"
    source: Annotated[str, Field(max_length=255)]
    engine: Literal["iperf3", "http", "https"] = "iperf3"
    timezone: Annotated[str, Field(max_length=64)] = "UTC"
    rows: Annotated[tuple[OriginalRow, ...], FailFast()] = Field(
        min_length=1, max_length=ROWS_MAX_COUNT
    )
    period_s: Number | None = Field(default=None, ge=1, le=604_800)
    pairs_planned: Integer | None = Field(default=None, ge=1, le=2000)
    skipped_rows: Annotated[Mapping[str, Integer], renamed("skipped_rows", "set_apart")] = {}

    @field_validator("rows")
    @classmethod
    def _rows_can_be(cls, rows: tuple[OriginalRow, ...]) -> tuple[OriginalRow, ...]:
        wrong = problems(rows)
        if wrong:
            raise ValueError(str(wrong[0]))
        return rows


class RecordingState(StrEnum):
    """Content of a recording of iperf3.

    Attributes:
        MEASURED: A complete test without an error, with bytes in every flow.
        FAILED: iperf3 reported an error, or no data arrived.
        REFUSED: The server was not listening or was busy.
        TRUNCATED: The output is incomplete.
        UNSUPPORTED: The version is older than 3.0. Until Broadside 1.0 also versions from 3.0 to
            3.8.
        UNREADABLE: The file is not an iperf3 recording.
    """

    MEASURED = "measured"
    FAILED = "failed"
    REFUSED = "refused"
    TRUNCATED = "truncated"
    UNSUPPORTED = "unsupported"
    UNREADABLE = "unreadable"


class Recording(Message):
    """One end of one iperf3 test, as a file of its output tells it.

    Attributes:
        file: Name of the file.
        test_index: Test index in the file.
        state: Content of the recording.
        reason: Why the test was not measured. None if it was.
        side: End that wrote the file. None if unknown.
        report: Values that iperf3 reported. None if there are none.
        started_at: Timestamp from iperf3, or the file modification time.
        first_data_at_s: Epoch seconds at engine time zero.
        start_basis: Source of `first_data_at_s`.
    """

    file: Annotated[str, Field(max_length=1000)]
    test_index: Integer = Field(default=0, ge=0)
    state: RecordingState
    reason: _Text | None = None
    side: Side | None = None
    report: EngineReport | None = None
    started_at: TrafficAt
    first_data_at_s: Annotated[Number, Field(ge=0, lt=9.9e9)] | None = None
    start_basis: StartBasis | None = None
    packed: Mapping[Flow, Annotated[str, Field(max_length=PACKED_MAX_CHARS)]] = Field(
        default={},
        description="seconds of each flow: base64 of what broadside.exchange.chunks packs",
    )

    @field_validator("packed")
    @classmethod
    def _packed_unpacks(cls, packed: Mapping[Flow, str]) -> Mapping[Flow, str]:
        for flow, text in packed.items():
            try:
                check_intervals(base64.b64decode(text, validate=True))
            except (RecordUnreadable, ValueError) as error:
                raise ValueError(f"{flow}: {error}") from error
        return packed

    @classmethod
    def pack(cls, intervals: Mapping[Flow, Sequence[Interval]]) -> Mapping[Flow, str]:
        """Pack intervals for the field ``packed``."""
        return {
            flow: base64.b64encode(pack_intervals(seconds)).decode()
            for flow, seconds in intervals.items()
        }

    @property
    def chunks(self) -> Mapping[Flow, bytes]:
        """Seconds of each flow, decoded from base64.

        See :mod:`broadside.exchange.chunks` for the format.
        """
        return {flow: base64.b64decode(text, validate=True) for flow, text in self.packed.items()}


class Recordings(_Import):
    """Files of iperf3's output as one run.

    Attributes:
        notes: Notes about the files, which become findings.
        metric_source: Name of the file with the device metric. None if there is none.
        metric: Values of the device metric.
        kind: Always iperf3.
        recordings: Tests, with one entry for each end.
    """

    kind: Literal["iperf3"] = "iperf3"
    recordings: Annotated[tuple[Recording, ...], FailFast()] = Field(
        min_length=1, max_length=RECORDINGS_MAX_COUNT
    )


Imported = Annotated[OriginalTable | Recordings, Field(discriminator="kind")]


# Scenario used for runs that are imported from a table.
TABLES_SCENARIO: Final = "original"
