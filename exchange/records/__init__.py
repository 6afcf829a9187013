"""Domain verbs over three tables; :mod:`broadside.exchange.records.keys` spells what stands where.

=========== ====================================== ===================== ======================
table       holds                                  agents                coordinator
=========== ====================================== ===================== ======================
``control`` plans, jobs' digests, control rows,    read                  read and write
            moves
``results`` claims, reports, seconds, presences,   read and write        read and write
            tunnels, what engines printed
``private`` lists, queue numbers, verdicts,        nothing               read and write
            schedules, studies, tokens, audit
=========== ====================================== ===================== ======================

An agent is given :class:`AgentRecords`, in which nothing private can be named.

A message is one ``json`` property. A *document* is a text over several properties and rows
(:mod:`broadside.exchange.documents`).

When a process dies between two writes, what stands afterwards is this:

- ``create_run``: control row only, or control row and plan, or header as well, but no row in
  ``runs``: the run never shows in a list, no message of it is on the queue, and its id stays taken.
- a run's row in ``runs`` and its ``open`` row land together; a run that has its outcome and an
  ``open`` row still is told its outcome again.
- between sending a burst's messages and ``save_queued``: the coordinator that resumes sees no such
  row and sends again, which the queue's duplicate detection, or at last the claim row, makes
  harmless.
- ``claim`` written, message not settled: the message comes again, and loses, unless it is the very
  same claim (agent and instant) whose answer was lost on the way.
- claimed, never reported: the claim row tells how far the job came and the chunks hold its seconds
  so far; the server's end of the test is under ``tests``.
- seconds and tests: the rows of one save land together (up to the table's batch limits), so what
  stands is an earlier save, whole.
- a document over the batch limits (4 MiB): rows without row 000, which nobody reads, or, where it
  replaced another one, a mixture that is found out and raises ``RecordUnreadable``.
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
    """What an agent reads (``runs``) and writes (``bursts``, ``fleet``).

    Every verb may raise ``ExchangeUnavailable``; every reading one ``RecordUnreadable``, which
    names the row.
    """

    def __init__(self, *, control: Table, results: Table, raw: RawStore | None = None) -> None:
        """Without ``raw`` the table of results keeps what engines printed."""
        self.runs = RunRecords(control)
        self.bursts = BurstRecords(results, raw)
        self.fleet = FleetRecords(results)


class Records(AgentRecords):
    """All that there is, for the coordinator."""

    def __init__(
        self, *, control: Table, results: Table, private: Table, raw: RawStore | None = None
    ) -> None:
        super().__init__(control=control, results=results, raw=raw)
        self.private = PrivateRecords(private)

    async def create_run(
        self, header: RunHeader, plan: bytes, control: Control, *, listed: bool = True
    ) -> None:
        """Store a new run: plan and control first, the header last, so that a run that shows in
        a list is whole; unless ``listed`` it shows from ``private.show_run`` on. Raises
        EntityExists when the run id is taken."""
        await self.runs.create(header.run_id, plan, control)
        await self.private.save_header(header)
        if listed:
            await self.private.show_run(header)

    async def read_run(self, run_id: str) -> tuple[RunHeader, bytes] | None:
        """Header and plan, or None."""
        header = await self.private.read_header(run_id)
        plan = await self.runs.read_plan(run_id)
        return None if header is None or plan is None else (header, plan)

    async def drop_run(self, run_id: str) -> int:
        """Remove what is kept of a run itself, as of one that never showed: no job of it was ever
        queued. Returns how many rows it was."""
        return await self.private.delete(run_id) + await self.runs.delete(run_id)

    async def delete_run(self, header: RunHeader, bursts_count: int) -> int:
        """Remove everything of a run but its server ends' records; return how many rows it was.

        Its row in ``runs`` goes last: a removal that dies midway shows, and can be done again.
        """
        run_id = header.run_id
        await self.private.drop_open(run_id)
        deleted = [await self.bursts.delete(run_id, index) for index in range(bursts_count)]
        return sum(deleted) + await self.drop_run(run_id) + await self.private.delete_listed(header)
