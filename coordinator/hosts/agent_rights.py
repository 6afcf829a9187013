"""What one agent may ask of the coordinator: the plans that it is in, and rows of its own.

The coordinator knows whom it handed which job, and who claimed it. So unlike a table service it
can tell one agent's rows from another's: an agent that was broken into spoils its own pairs only.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pydantic import ValidationError

from broadside.coordinator.hosts.row_content import TEST, wrong_field
from broadside.exchange.messages import Claim, Job, Role
from broadside.exchange.ports import (
    Delivery,
    Entity,
    EntityRefused,
    ExchangeRefused,
    RecordUnreadable,
)
from broadside.exchange.records import Records
from broadside.exchange.records.keys import (
    ANSWER,
    ASK,
    CHUNK,
    CLAIM,
    PASSPORT,
    PRESENCE,
    PROBE,
    REPORT,
)
from broadside.exchange.row_text import entity_of
from broadside.exchange.rows import parse_row
from broadside.exchange.second_rows import TAIL

_RUNS_KEPT_COUNT: Final = 64
_CLAIMERS_KEPT_COUNT: Final = 100_000
_RUN: Final = re.compile(r"run\.([a-z0-9-]+)(?:\.control\.[0-9]{3})?")  # a copy of control too
_BURST: Final = re.compile(r"burst\.([a-z0-9-]+)\.([0-9]{5})")
_PAIR_ROW: Final = re.compile(
    rf"({re.escape(CLAIM)}|{re.escape(REPORT)}|{re.escape(CHUNK)}|{re.escape(PROBE)})"
    rf"([0-9]{{5}})(?:\.(?:[0-9]{{3}}|{TAIL}))?"
)
_RAW_FOLDER: Final = re.compile(r"raw\.([a-z0-9-]+)\.([0-9]{5})")
_RAW_FILE: Final = re.compile(r"client\.([0-9]{5})")
_HOUR: Final = re.compile(r"(?:raw\.)?tests\.[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}(?:\.[1-9])?")
_TUNNEL_ROW: Final = re.compile(rf"({ASK}|{ANSWER})\.[0-9]{{8}}\.(.+)")
_SETTLES: Final = frozenset({"complete", "abandon", "renew", "dead_letter"})


class Rights(Protocol):
    """What somebody may ask."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str:
        """Whence it asks, for the record."""

    async def allow(self, operation: Mapping[str, Any]) -> None:
        """Raises ``ExchangeRefused``, and ``EntityRefused`` where others may touch such rows."""

    async def hand(self, delivery: Delivery) -> None:
        """Note that a message is about to be handed over."""


class Handed:
    """Who was handed which job and who claimed it, by what is stored: kept in memory too."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._given: OrderedDict[str, set[tuple[int, int, str]]] = OrderedDict()
        self._claimers: OrderedDict[tuple[str, int, int], str] = OrderedDict()

    async def given(self, run_id: str) -> set[tuple[int, int, str]]:
        found = self._given.get(run_id)
        if found is None:
            read = await self._records.private.read_given(run_id)
            found = self._given.setdefault(run_id, read)
            while len(self._given) > _RUNS_KEPT_COUNT:
                self._given.popitem(last=False)
        self._given.move_to_end(run_id)
        return found

    async def hand(self, job: Job, agent_id: str) -> None:
        given = await self.given(job.run_id)
        await self._records.private.save_given(
            job.run_id, job.burst_index, job.pair_index, agent_id
        )
        given.add((job.burst_index, job.pair_index, agent_id))

    async def claimer(self, run_id: str, burst_index: int, pair_index: int) -> str | None:
        """Who claimed a job: for good, as a claim is created once."""
        place = (run_id, burst_index, pair_index)
        if (known := self._claimers.get(place)) is not None:
            return known
        row = await self._records.bursts.read_claim_row(run_id, burst_index, pair_index)
        if row is None:
            return None
        try:
            claimer = parse_row(Claim, row).agent_id
        except RecordUnreadable:
            return ""  # somebody's, whoever wrote it
        self._claimers[place] = claimer
        while len(self._claimers) > _CLAIMERS_KEPT_COUNT:
            self._claimers.popitem(last=False)
        return claimer


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRights:
    """Of one enrolled agent."""

    agent_id: str
    role: Role
    address: str
    handed: Handed = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.role}.{self.agent_id}"

    async def hand(self, delivery: Delivery) -> None:
        try:
            job = Job.model_validate_json(delivery.body)
        except ValidationError:  # the agent sets it aside, and may write no row for it
            return
        await self.handed.hand(job, self.agent_id)

    async def allow(self, operation: Mapping[str, Any]) -> None:
        match operation:
            case {"do": "ping"}:
                return
            case {"do": "want" | "unwant"} if self.role is Role.CLIENT:
                return
            case {"do": str(do)} if do in _SETTLES and self.role is Role.CLIENT:
                return
            case {"do": "watch", "partition": str(partition)}:
                await self._read_run(partition)
            case {"do": "get", "table": "control", "partition": str(partition)}:
                await self._read_run(partition)
            case {"do": "get", "table": "results", "partition": str(partition), "key": str(key)}:
                await self._read_result(partition, key)
            case {"do": "scan", "table": "results", "partition": str(partition)}:
                self._tunnels_of(partition)
            case {"do": "insert" | "upsert" as do, "table": "results", "row": row}:
                await self._write(do, [entity_of(row)])
            case {"do": "batch", "table": "results", "rows": list(rows)}:
                await self._write("upsert", [entity_of(row) for row in rows])
            case {"do": "delete", "table": "results", "partition": str(partition), "key": str(key)}:
                await self._delete(partition, key)
            case {"do": "put_raw", "folder": str(folder), "file": str(file)}:
                await self._put_raw(folder, file)
            case _:
                what = " ".join(str(operation.get(name, ""))[:40] for name in ("do", "table"))
                raise ExchangeRefused(f"{self.name}: no agent may {what.strip()}")

    def _no(self, partition: str, key: str = "") -> EntityRefused:
        return EntityRefused(f"{self.name}: {partition}|{key} is not this agent's")

    async def _read_run(self, partition: str) -> None:
        run = _RUN.fullmatch(partition)
        if run is None or not any(
            who == self.agent_id for _, _, who in await self.handed.given(run[1])
        ):
            raise self._no(partition)

    async def _read_result(self, partition: str, key: str) -> None:
        burst, row = _BURST.fullmatch(partition), _PAIR_ROW.fullmatch(key)
        if burst and row and row[1] == CLAIM:
            handed = (int(burst[2]), int(row[2]), self.agent_id)
            if handed in await self.handed.given(burst[1]):
                return
            raise self._no(partition, key)
        self._tunnels_of(partition)

    def _tunnels_of(self, partition: str) -> None:
        """A server's asks: its own, or as a client's any, which says whose tunnel is in the way."""
        own = partition == f"tunnel.{self.agent_id}"
        if not partition.startswith("tunnel.") or not (own or self.role is Role.CLIENT):
            raise self._no(partition)

    async def _write(self, do: str, rows: Sequence[Entity]) -> None:
        for row in rows:
            await self._write_row(do, row)

    async def _write_row(self, do: str, row: Entity) -> None:
        partition, key = row.partition_key, row.row_key
        if burst := _BURST.fullmatch(partition):
            await self._write_pair(do, row, burst[1], int(burst[2]))
        elif partition == PRESENCE:
            if key != self.name:
                raise self._no(partition, key)
            self._check_content(PRESENCE, row)
        elif (partition, key) == (PASSPORT, self.name):
            return
        elif partition.startswith("tunnel."):
            await self._tunnel_row(partition, key)
            if (named := _TUNNEL_ROW.fullmatch(key)) and named[1] == ASK:
                vni, job = key.removeprefix(f"{ASK}.").split(".", 1)
                self._check_content(ASK, row, vni=int(vni), job=job)
        else:
            self._test_row(partition, key)
            started_ms, _, port = key.partition(".chunk.")[0].partition(f".{self.agent_id}.")
            if ".chunk." not in key:
                self._check_content(TEST, row, started_ms=int(started_ms), port=int(port))

    async def _write_pair(self, do: str, row: Entity, run_id: str, burst_index: int) -> None:
        named = _PAIR_ROW.fullmatch(row.row_key)
        if named is None or self.role is not Role.CLIENT:
            raise self._no(row.partition_key, row.row_key)
        pair_index = int(named[2])
        if named[1] in (CLAIM, REPORT):
            job = f"{run_id}.{burst_index:05d}.{pair_index:05d}"
            self._check_content(
                named[1], row, job=job, run=run_id, burst=burst_index, pair=pair_index
            )
        if do == "insert" and named[1] == CLAIM:  # one that is there is not replaced
            own = (burst_index, pair_index, self.agent_id) in await self.handed.given(run_id)
        else:
            claimer = await self.handed.claimer(run_id, burst_index, pair_index)
            own = claimer == self.agent_id
        if not own:
            raise self._no(row.partition_key, row.row_key)

    def _check_content(self, kind: str, row: Entity, **facts: object) -> None:
        """Refuse a row whose content names another writer, job or place than its key."""
        own = {"agent": self.agent_id, "role": self.role.value}
        wrong = wrong_field(kind, row, own | facts)
        if wrong is not None:
            raise EntityRefused(
                f"{self.name}: {row.partition_key}|{row.row_key}: {wrong} is not what the row's "
                "key and this agent's credential say"
            )

    async def _tunnel_row(self, partition: str, key: str) -> None:
        """A server's own rows, and the ask of a job that this client claimed."""
        named = _TUNNEL_ROW.fullmatch(key)
        if named is None:
            raise self._no(partition, key)
        if self.role is Role.SERVER:
            if partition != f"tunnel.{self.agent_id}":
                raise self._no(partition, key)
            return
        job = re.fullmatch(r"(.+)\.([0-9]+)\.([0-9]+)", named[2])
        if job is None or self.agent_id != await self.handed.claimer(
            job[1], int(job[2]), int(job[3])
        ):
            raise self._no(partition, key)

    def _test_row(self, partition: str, key: str) -> None:
        """A server's end of a test: its key has the agent's name."""
        part = rf"\.chunk\.(?:[0-9]{{3}}|{TAIL})"
        own = rf"[0-9]{{13}}\.{re.escape(self.agent_id)}\.[0-9]{{1,5}}(?:{part})?"
        if (
            self.role is not Role.SERVER
            or not _HOUR.fullmatch(partition)
            or not re.fullmatch(own, key)
        ):
            raise self._no(partition, key)

    async def _delete(self, partition: str, key: str) -> None:
        if partition.startswith("tunnel."):
            await self._tunnel_row(partition, key)
        elif key != self.name or partition not in (PRESENCE, PASSPORT):
            raise self._no(partition, key)

    async def _put_raw(self, folder: str, file: str) -> None:
        burst, pair = _RAW_FOLDER.fullmatch(folder), _RAW_FILE.fullmatch(file)
        if burst and pair and self.role is Role.CLIENT:
            claimer = await self.handed.claimer(burst[1], int(burst[2]), int(pair[1]))
            if claimer == self.agent_id:
                return
            raise self._no(folder, file)
        if not folder.startswith("raw."):
            raise self._no(folder, file)
        self._test_row(folder, file)
