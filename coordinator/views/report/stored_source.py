"""Read all stored data of a run that its report needs."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from broadside.coordinator.core.measure.records.columns import NO_HOST, HostColumns
from broadside.coordinator.core.measure.records.evidence import OPENED_BEFORE_MAX_S, CounterRecord
from broadside.coordinator.core.measure.records.server_tests import join_tests
from broadside.coordinator.core.metrics import RECEIVED
from broadside.coordinator.core.plan.budget import PriceMeter
from broadside.coordinator.core.run_spec import Burst, Plan
from broadside.coordinator.core.summary import BurstSummary, RunSummary, Verdict, parse_run
from broadside.coordinator.imports.import_requests import TABLES_SCENARIO
from broadside.coordinator.request_errors import BurstNotOver, RunNotOver, UnknownRun
from broadside.coordinator.runs.reading_store import read_telemetry
from broadside.coordinator.runs.run_documents import complete_summary, read_counter, read_fleet
from broadside.coordinator.runs.stored_runs import parse_plan
from broadside.coordinator.views.charts.inputs import BurstView
from broadside.coordinator.views.charts.stored_charts import read_burst_view
from broadside.exchange.messages import JobReport, Presence, ServerTest
from broadside.exchange.records import Document, Records, RunHeader
from broadside.exchange.version import version_text

# Limit for bursts for which the report shows seconds and pairs.
DETAILED_MAX: Final = 3
# Limit for bursts for which the agents' reports are read (clocks, engine settings).
READ_MAX: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Records of both ends of one burst.

    Attributes:
        reports: Reports of the clients by pair index.
        tests: Tests of the servers by pair index.
    """

    reports: Mapping[int, JobReport] = field(default_factory=dict)
    tests: Mapping[int, ServerTest] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Input of a report.

    Attributes:
        plan: The run's plan.
        header: The run's header.
        summary: The run's summary, with pairs.
        summary_sha256: SHA-256 hash of the stored summary.
        device_counter: Readings of the device counter. None if there are none.
        views: Bursts that the report shows in detail.
        ends: Records of both ends by burst index, for at most ``READ_MAX`` bursts.
        imported: True for an imported run.
        means_only: True if each pair has only its mean rate for a burst, and no measured seconds.
        generated_at: Creation time of the report.
        broadside_version: Version that creates the report.
        price: What the run costs. None if it is unknown.
        fleet: Agents at the launch.
    """

    plan: Plan
    header: RunHeader
    summary: RunSummary
    summary_sha256: str
    device_counter: CounterRecord | None
    views: tuple[BurstView, ...]
    ends: Mapping[int, Ends]
    imported: bool
    means_only: bool
    generated_at: datetime
    broadside_version: str
    price: PriceMeter | None = None
    fleet: tuple[Presence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """Server test without seconds, in the form that :func:`join_tests` expects."""

    test: ServerTest
    tracks: tuple[()] = ()
    host: HostColumns = NO_HOST


async def gather(
    records: Records,
    run_id: str,
    now: datetime,
    read_price: Callable[[], Awaitable[PriceMeter]] | None = None,
) -> Source:
    """Read the input of a report.

    Args:
        records: Stored records.
        run_id: The run's id.
        now: Current time.
        read_price: Function that reads the cost of the run. None to omit the cost.

    Returns:
        Plan, summary with SHA-256, device counter and cost. Unknown parts are None.

    Raises:
        UnknownRun: The run does not exist.
        RunNotOver: The run is not finished.
    """
    stored, document = await asyncio.gather(
        records.read_run(run_id), records.private.read_document(run_id, Document.RUN)
    )
    if stored is None:
        raise UnknownRun(run_id)
    if document is None:
        raise RunNotOver(run_id)
    plan = parse_plan(run_id, stored[1])
    summary = parse_run(document)
    telemetry = await read_telemetry(records, run_id)
    views = []
    for burst_index in detailed(summary.bursts):
        try:
            view = await read_burst_view(records, plan, burst_index)
            views.append(replace(view, telemetry=telemetry))
        # The seconds were removed or never measured. The tables show that.
        except BurstNotOver:
            continue
    imported = await records.private.read_document(run_id, Document.IMPORT) is not None
    ends = {}
    for burst in () if imported else plan.bursts[:READ_MAX]:
        ends[burst.index] = await _ends(records, plan, burst)
    return Source(
        plan=plan,
        header=stored[0],
        summary=await complete_summary(records, run_id, summary),
        summary_sha256=hashlib.sha256(document).hexdigest(),
        device_counter=await read_counter(records, run_id),
        views=tuple(views),
        ends=ends,
        imported=imported,
        means_only=imported and plan.spec.scenario == TABLES_SCENARIO,
        generated_at=now,
        fleet=await read_fleet(records, run_id),
        broadside_version=version_text(),
        price=None if imported or read_price is None else await read_price(),
    )


def detailed(bursts: Sequence[BurstSummary]) -> list[int]:
    """Return the indices of the bursts to show second by second.

    These are all bursts if there are at most ``DETAILED_MAX``, else the first, the worst and the
    last.
    """
    if len(bursts) <= DETAILED_MAX:
        return [burst.index for burst in bursts]
    severity = {Verdict.FAIL: 0, Verdict.INCONCLUSIVE: 1, Verdict.MEASURED: 2, Verdict.PASS: 2}
    worst = min(
        bursts,
        key=lambda b: (
            severity[b.verdict],
            b.completeness_ratio,
            RECEIVED.of_burst(b) or 0.0,
        ),
    )
    return sorted({bursts[0].index, worst.index, bursts[-1].index})


async def _ends(records: Records, plan: Plan, burst: Burst) -> Ends:
    claims, reports = await asyncio.gather(
        records.bursts.read_claims(plan.run_id, burst.index),
        records.bursts.read_reports(plan.run_id, burst.index),
    )
    opened_at = burst.planned_start_at - timedelta(seconds=OPENED_BEFORE_MAX_S)
    tests = [
        _Record(test=test)
        async for test, _ in records.bursts.stream_tests(opened_at, burst.planned_end_at)
    ]
    join = join_tests(burst, plan.pairs, claims, reports, tests)
    return Ends(
        reports=reports,
        tests={index: record.test for index, record in join.records.items()},
    )
