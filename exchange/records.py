"""Domain verbs over a :class:`~exchange.ports.Table`: the only place that spells keys and columns.

Layout (partition key | row key)::

    runs                    | <inverted created epoch ms>.<run>   RunHeader; newest first
    run.<run>               | header                              RunHeader
                            | plan                                document (coordinator's)
                            | control                             Control
                            | queued.<burst>                      sequence numbers of its messages
                            | summary.<name>                      document (coordinator's)
    burst.<run>.<burst>     | claim.<pair>                        Claim
                            | report.<pair>                       JobReport
                            | chunk.<side>.<pair>.<n>             packed seconds
                            | raw.<side>.<pair>.<n>               compressed engine output
    tests.<UTC hour>        | <epoch ms>.<agent>.<port>           ServerTest
                            | <epoch ms>.<agent>.<port>.chunk.<n> packed seconds
    presence                | <role>.<agent>                      Presence

One entity holds up to :data:`CHUNK_S` seconds of one end's flows and host counters, so a 1740 s
burst is at most four entities an end. A chunk is rewritten whole every few seconds under the same
key: writing it twice is harmless.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from exchange.messages import (
    Claim,
    Control,
    HostSecond,
    Job,
    JobReport,
    Message,
    Presence,
    Role,
    RunId,
    ServerTest,
    Side,
    Track,
    UtcDatetime,
)
from exchange.ports import Table

CHUNK_S: Final = 450  # s of engine time in one entity


class RunHeader(Message):
    """What a list of runs shows without opening any."""

    run_id: RunId
    scenario: str
    created_at: UtcDatetime
    created_by: str
    labels: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSeconds:
    """Everything one end of one pair stored for one burst."""

    pair_index: int
    tracks: tuple[Track, ...]  # one a flow
    host: tuple[HostSecond, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TestSeconds:
    """One server-side test with its seconds."""

    test: ServerTest
    tracks: tuple[Track, ...]
    host: tuple[HostSecond, ...]


class Records:
    """Reads and writes the project's values in one table."""

    def __init__(self, table: Table) -> None:
        self._table = table

    # Runs -------------------------------------------------------------------------------------

    async def create_run(self, header: RunHeader, plan: bytes, control: Control) -> None:
        """Store a new run: plan and control first, the header last, so that a run that shows in
        a list is whole. Raises EntityExists when the run id is taken."""
        raise NotImplementedError

    async def read_run(self, run_id: str) -> tuple[RunHeader, bytes] | None:
        """Header and plan, or None."""
        raise NotImplementedError

    def list_runs(
        self, *, limit: int = 100, before_at: datetime | None = None
    ) -> AsyncIterator[RunHeader]:
        """Newest first, created before ``before_at``."""
        raise NotImplementedError

    async def read_control(self, run_id: str) -> Control | None:
        raise NotImplementedError

    async def renew_lease(self, run_id: str, until_at: datetime) -> Control:
        """Move the lease forward (never back) and return the row; keeps a concurrent cancel."""
        raise NotImplementedError

    async def cancel_run(self, run_id: str, *, at: datetime, by: str, reason: str) -> Control:
        """Mark cancelled; the first cancel wins and later ones return it unchanged."""
        raise NotImplementedError

    async def save_queued(self, run_id: str, burst_index: int, numbers: Sequence[int]) -> None:
        """Note that a burst's messages are on the queue, with their sequence numbers."""
        raise NotImplementedError

    async def read_queued(self, run_id: str) -> Mapping[int, tuple[int, ...]]:
        """Sequence numbers by burst index."""
        raise NotImplementedError

    async def save_summary(self, run_id: str, name: str, document: bytes) -> None:
        raise NotImplementedError

    async def read_summary(self, run_id: str, name: str) -> bytes | None:
        raise NotImplementedError

    # Jobs -------------------------------------------------------------------------------------

    async def claim(self, job: Job, claim: Claim) -> bool:
        """Create the claim row; False when somebody else (or an earlier delivery) has it."""
        raise NotImplementedError

    async def save_claim(self, job: Job, claim: Claim) -> None:
        """Replace one's own claim row as the job moves on."""
        raise NotImplementedError

    async def save_report(self, report: JobReport) -> None:
        raise NotImplementedError

    async def save_seconds(
        self,
        job: Job,
        tracks: Sequence[Track],
        host: Sequence[HostSecond],
        *,
        from_s: float = 0.0,
    ) -> None:
        """Store the client end's seconds so far; only chunks that end after ``from_s`` (engine
        time) are written, so a live upload rewrites the open chunk only."""
        raise NotImplementedError

    async def read_claims(self, run_id: str, burst_index: int) -> Mapping[int, Claim]:
        """By pair index."""
        raise NotImplementedError

    async def read_reports(self, run_id: str, burst_index: int) -> Mapping[int, JobReport]:
        """By pair index."""
        raise NotImplementedError

    async def read_seconds(self, run_id: str, burst_index: int) -> Sequence[PairSeconds]:
        """The client ends' seconds of a burst, by pair index."""
        raise NotImplementedError

    async def save_raw(
        self, run_id: str, burst_index: int, pair_index: int, side: Side, text: bytes
    ) -> None:
        """Keep an engine's own output, compressed, over as many entities as it needs."""
        raise NotImplementedError

    async def read_raw(
        self, run_id: str, burst_index: int, pair_index: int, side: Side
    ) -> bytes | None:
        raise NotImplementedError

    # Server ends ------------------------------------------------------------------------------

    async def save_test(
        self,
        test: ServerTest,
        tracks: Sequence[Track],
        host: Sequence[HostSecond],
        *,
        from_s: float = 0.0,
    ) -> None:
        """Store a server-side test so far, or whole; keyed by agent, port and start."""
        raise NotImplementedError

    async def read_tests(self, from_at: datetime, before_at: datetime) -> Sequence[TestSeconds]:
        """Every server-side test that started in the span, over the whole fleet."""
        raise NotImplementedError

    # Presence ---------------------------------------------------------------------------------

    async def beat(self, presence: Presence) -> None:
        raise NotImplementedError

    async def leave(self, role: Role, agent_id: str) -> None:
        """Remove an agent's row: it said goodbye."""
        raise NotImplementedError

    async def read_presences(self) -> Sequence[Presence]:
        """Every row, also stale ones: judge by ``beat_at``."""
        raise NotImplementedError
