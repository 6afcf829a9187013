"""Records of runs, bursts and agents in three tables.

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

The keys of all rows are in :mod:`broadside.exchange.records.keys`. Agents use
:class:`AgentRecords`, which has no access to the private table.

A message is stored in one ``json`` property. A *document* is a text that is stored in several
properties and rows (:mod:`broadside.exchange.documents`).

A process can end between two writes. The tables then contain the following:

- During ``create_run``: only the control row, or also the plan, or also the header, but no row in
  ``runs``. The run is never listed, the queue has no message of it, and its id stays reserved.
- The ``runs`` row and the ``open`` row of a run are written together. If a run has an outcome and
  still an ``open`` row, its outcome will be written again.
- Between sending the messages of a burst and ``save_queued``: after a restart the coordinator finds
  no such row and sends the messages again. The queue's duplicate detection or the claim row makes
  this harmless.
- The claim was written, but the message was not settled: the message is delivered again and the
  second claim is rejected. An identical claim (same agent and time) is accepted, because the result
  of its first write may have been lost.
- The job was claimed, but not reported: the claim row has the progress of the job, and the chunks
  have its seconds so far. The server end of the test is under ``tests``.
- During a save of seconds or tests: all rows of the earlier save, because the rows of one save are
  written together (up to the batch limits of the table).
- During a save of a document above the batch limit (4 MiB): rows without row 000, which are never
  read. If the document replaces an earlier one, rows of both are mixed. Reading them raises
  ``RecordUnreadable``.
"""

from broadside.exchange.messages import Control, RunOutcome
from broadside.exchange.ports import RawStore, Table
from broadside.exchange.records.burst_records import ALL_PAIRS, BurstRecords, with_delivery_time
from broadside.exchange.records.keys import Document
from broadside.exchange.records.private_records import (
    Judging,
    PrivateRecords,
    QueuedBurst,
    RunHeader,
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
    "with_delivery_time",
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
            raw: The store for engine output. If it is None, the results table will be used.
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
            control: Control row to create.
            listed: False to list the run only after ``private.show_run``.

        Raises:
            EntityExists: The run id is already used.
        """
        await self.runs.create(header.run_id, plan, control)
        await self.private.save_header(header)
        if listed:
            await self.private.show_run(header)

    async def read_run(self, run_id: str) -> tuple[RunHeader, bytes] | None:
        """Return the header and the plan of a run, or None if one of them does not exist."""
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
