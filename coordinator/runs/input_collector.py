"""Collection of the inputs for a verdict that come from the device and from other runs.

They are stored when they no longer change. A verdict uses only what is stored.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta

from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.device.telemetry.collector import TelemetryCollector
from broadside.coordinator.device.telemetry.run_span import RunSpan
from broadside.coordinator.device.telemetry.stabilization import StableReader
from broadside.coordinator.device.telemetry.telemetry_storage import dump_counter
from broadside.coordinator.runs.overlapping_runs import (
    find_bursts_beside,
    find_overlapping_bursts,
    planned_bursts,
)
from broadside.coordinator.runs.reading_store import (
    extend_with_stored,
    save_readings,
    save_telemetry,
)
from broadside.exchange.records import Document, Records


class InputCollector:
    """Service that reads the device counter and the telemetry of finished runs, and stores them."""

    def __init__(
        self,
        records: Records,
        read_plan: Callable[[str], Awaitable[Plan]],
        counter_reader: StableReader | None,
        collector: TelemetryCollector | None,
    ) -> None:
        """Keep the readers.

        Args:
            records: Records to use for access to the tables.
            read_plan: Function to get the plan for a run id.
            counter_reader: Reader of the device counter, or None if there is none.
            collector: Telemetry sources, or None without any.
        """
        self._records = records
        self._read_plan = read_plan
        self._counter_reader = counter_reader
        self._collector = collector
        # Records that no longer change, for runs that wait until overlapping runs are measured.
        self._final_counters: dict[str, CounterRecord] = {}

    async def collect_inputs(self, plan: Plan, span: RunSpan) -> bool:
        """Store the device counter, the telemetry and the bursts of other runs, each only once.

        Args:
            plan: Plan of the run.
            span: Time span of the run.

        Returns:
            True if all are stored, or False while one of them may change. The caller should then
            try again later.
        """
        private, run_id, reader = self._records.private, plan.run_id, self._counter_reader
        if reader is not None and not await self._collect_counter(plan, span, reader):
            return False
        if self._collector is None or await private.read_document(run_id, Document.TELEMETRY):
            return True
        telemetry = await self._collector.collect(span)
        if telemetry is None:
            return False
        if reader is None:
            beside = await find_bursts_beside(self._records, self._read_plan, span)
            await private.save_document(run_id, Document.NEIGHBOURS, beside.dump())
        await save_telemetry(self._records, plan, telemetry)
        return True

    async def _collect_counter(self, plan: Plan, span: RunSpan, reader: StableReader) -> bool:
        """Store the record and the overlapping bursts, or return False while one may change."""
        records, counter = self._records, reader.counter
        run_id = plan.run_id
        if await records.private.read_document(run_id, Document.COUNTER):
            return True
        record = self._final_counters.get(run_id)
        if record is None:
            record = await reader.read(span)
            if record is None:
                return False
            if counter.is_polled:
                # We need to store them again, because a counter might need some time to report
                # after the traffic.
                if self._collector is not None:
                    query = self._collector.polled_readings
                    await save_readings(records, plan, plan.bursts[-1], query)
                planned = await planned_bursts(
                    records, self._read_plan, span.from_at, span.before_at
                )
                record = await extend_with_stored(records, planned, span, record, counter)
            self._final_counters[run_id] = record
        lag = timedelta(seconds=counter.latency.lag_s)
        overlapping = await find_overlapping_bursts(
            records, self._read_plan, span, record, begun_before_at=span.ended_at + lag
        )
        if overlapping is None:
            return False
        document = dump_counter(overlapping.trim(record))
        # Write the device counter last, to show that the overlapping bursts have been stored too.
        await records.private.save_document(run_id, Document.NEIGHBOURS, overlapping.dump())
        await records.private.save_document(run_id, Document.COUNTER, document)
        del self._final_counters[run_id]
        return True
