"""Test the computed load against the requests to the recorded services."""

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from broadside.exchange.azure.table_storage import AzureTable, TableAddress
from broadside.exchange.messages import Outcome
from broadside.exchange.pacing import CONTROL_PAIRS_COUNT, control_copies_count
from broadside.exchange.records import Records
from tests.contract.recorded_azure import RecordedAzure
from tests.contract.test_records import control, host, job, report, server_test, track
from tests.docs_build import azure_limits_page
from tests.one_table import records_in

SCRIPT = vars(azure_limits_page)
PAIRS = 20


@pytest.fixture
async def records(recorded: RecordedAzure) -> AsyncIterator[Records]:
    recorded.create("limits")
    keyed = TableAddress(table="limits", connection_string=recorded.connection_string)
    recorded.asked.clear()
    table = AzureTable(keyed)
    yield records_in(table)
    await table.close()


async def test_requests_at_the_end_of_a_burst_match_the_page(
    records: Records, recorded: RecordedAzure
) -> None:
    """Test without probes, which are counted as one row per pair."""
    for pair in range(PAIRS):
        await records.bursts.save_seconds(job(pair), [track(280)], host(280))
        await records.bursts.save_report(report(pair, Outcome.MEASURED))
        test = server_test(agent_id=f"server-{pair:04d}")
        await records.bursts.save_test(test, [track(280)], host(280))
    rows = Counter[str]()
    for requested in recorded.asked:
        rows[str(requested.partition)] += requested.rows_count
    loads = SCRIPT["loads"](PAIRS)
    [burst] = (count for name, count in rows.items() if name.startswith("burst."))
    assert burst == loads["results: the burst, its end"][0] - PAIRS
    shares = [count for name, count in rows.items() if name.startswith("tests.")]
    assert len(shares) > 1
    assert max(shares) == loads["results: a share of servers' tests"][0]


async def test_control_polls_use_the_documented_partition_count(
    records: Records, recorded: RecordedAzure
) -> None:
    pairs = range(0, 1_000, 10)
    copies_count = control_copies_count(1_000)
    row = control("run-1").model_copy(update={"copies_count": copies_count})
    await records.runs.create("run-1", b"plan", row)
    recorded.asked.clear()
    for pair in pairs:
        assert await records.runs.read_control("run-1", pair) == row
    requested = Counter(str(request.partition) for request in recorded.asked)
    assert len(requested) == copies_count
    assert max(requested.values()) <= CONTROL_PAIRS_COUNT / 10
