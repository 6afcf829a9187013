"""Records of runs, bursts and agents in three tables, with keys from ``records/keys.py``.

=========== ====================================== ===================== ======================
table       contents                               agents                coordinator
=========== ====================================== ===================== ======================
``control`` plans, digests of jobs, control rows,  read                  read and write
            failovers
``results`` claims, reports, seconds, presences,   read and write        read and write
            tunnels, engine output
``private`` lists, queue numbers, verdicts,        no access             read and write
            schedules, studies, tokens, audit
=========== ====================================== ===================== ======================

Agents use :class:`AgentRecords`, which has no access to the private table.

A message is stored in one ``json`` property. A *document* is a text stored in several properties
and rows (:mod:`broadside.exchange.documents`).

If a process ends between two writes, the tables contain the following:

- ``create_run``: only the control row, or also the plan, or also the header, but no row in
  ``runs``. The run is never listed, no message of the run is on the queue, and its id stays
  reserved.
- The ``runs`` row and ``open`` row of a run are written together. A run with an outcome and an
  ``open`` row receives its outcome again.
- Between sending the messages of a burst and ``save_queued``: after a restart the coordinator finds
  no such row and sends the messages again. The queue's duplicate detection or the claim row makes
  this harmless.
- ``claim`` written, message not settled: the message is delivered again and the second claim is
  rejected. The exception is an identical claim (agent and time), because the result of its first
  write may have been lost.
- Claimed but not reported: the claim row has the progress of the job, and the chunks have its
  seconds so far. The server end of the test is under ``tests``.
- Seconds and tests: the rows of one save are written together (up to the batch limits of the
  table), so the tables contain a complete earlier save.
- A document above the batch limits (4 MiB): rows without row 000, which are never read. If the
  document replaced an earlier one, the rows are mixed, and reading raises ``RecordUnreadable``.
"""

from broadside.exchange.messages import Control
from broadside.exchange.ports import RawStore, Table
from broadside.exchange.records.burst_records import ALL_PAIRS, BurstRecords, told_late
from broadside.exchange.records.keys import Document
from broadside.exchange.records.private_records import (
    Judging,
    PrivateRecords,
    QueuedBurst,
    RunHeader,
    RunOutcome,
)
from broadside.exchange.records.run_records import FleetRecords, RunRecords

__all__ = [
    "ALL_PAIRS",
    "AgentRecords",
    "BurstRecords",
    "Document",
    "FleetRecords",
    "Judging",
    "PrivateRecords",
    "QueuedBurst",
    "Records",
    "RunHeader",
    "RunOutcome",
    "RunRecords",
    "told_late",
]


class AgentRecords:
    """Records that an agent reads (``runs``) and writes (``bursts``, ``fleet``).

    Every method may raise ``ExchangeUnavailable``. Every read method may raise ``RecordUnreadable``
    with the name of the row.
    """

    def __init__(self, *, control: Table, results: Table, raw: RawStore | None = None) -> None:
        """Create the records.

        Args:
            control: Table ``control``.
            results: Table ``results``.
            raw: The store of engine output. None uses the results table.
        """
        self.runs = RunRecords(control)
        self.bursts = BurstRecords(results, raw)
        self.fleet = FleetRecords(results)


class Records(AgentRecords):
    """All records, for the coordinator."""

    def __init__(
        self, *, control: Table, results: Table, private: Table, raw: RawStore | None = None
    ) -> None:
        super().__init__(control=control, results=results, raw=raw)
        self.private = PrivateRecords(private)

    async def create_run(
        self, header: RunHeader, plan: bytes, control: Control, *, listed: bool = True
    ) -> None:
        """Store a new run.

        The header is written last, so a listed run is always complete.

        Args:
            header: The run header.
            plan: The plan to store, as JSON text.
            control: The control row.
            listed: False to list the run only after ``private.show_run``.

        Raises:
            EntityExists: The run id is already used.
        """
        await self.runs.create(header.run_id, plan, control)
        await self.private.save_header(header)
        if listed:
            await self.private.show_run(header)

    async def read_run(self, run_id: str) -> tuple[RunHeader, bytes] | None:
        """Return header and plan of a run, or None if one of them does not exist."""
        header = await self.private.read_header(run_id)
        plan = await self.runs.read_plan(run_id)
        return None if header is None or plan is None else (header, plan)

    async def drop_run(self, run_id: str) -> int:
        """Delete the rows of a run that was never listed and never had a queued job.

        Returns:
            The number of deleted rows.
        """
        return await self.private.delete(run_id) + await self.runs.delete(run_id)

    async def delete_run(self, header: RunHeader, bursts_count: int) -> int:
        """Delete all rows of a run except the records of server ends.

        The row in ``runs`` is deleted last. After an interrupted deletion the run is still listed
        and can be deleted again.

        Args:
            header: The run header.
            bursts_count: The number of bursts.

        Returns:
            The number of deleted rows.
        """
        run_id = header.run_id
        await self.private.drop_open(run_id)
        deleted = [await self.bursts.delete(run_id, index) for index in range(bursts_count)]
        return sum(deleted) + await self.drop_run(run_id) + await self.private.delete_listed(header)
