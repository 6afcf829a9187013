"""Service that executes operations of agents on other hosts on the coordinator's fabric.

Each operation is checked against the permissions of its sender. It is executed once, even if it is
sent several times, because recent results are cached by operation id. Operation ids are counters.
If a write arrives after a later write to the same row, it has no effect. This can be a write on an
abandoned connection.

Jobs and control rows are sent on the sender's *session*, a stream of JSON lines. One request to the
queue serves all agents that wait for a job. One read of a control row serves all agents that watch
the row.
"""

import asyncio
import base64
import json
import logging
import random
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

from broadside.coordinator.agent_gateway.agent_permissions import ClientPermissions
from broadside.exchange.chunks import count_rows
from broadside.exchange.fabric import Fabric
from broadside.exchange.limits import entity_bytes
from broadside.exchange.messages import plain_text
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import (
    BATCH_MAX_BYTES,
    Delivery,
    Entity,
    EntityRefused,
    ExchangeError,
    ExchangeRefused,
    ExchangeUnavailable,
    LockLost,
    RecordUnreadable,
    Table,
)
from broadside.exchange.records.keys import CONTROL
from broadside.exchange.row_text import entity_fields, entity_of
from broadside.exchange.rows import joined_properties, row_name
from broadside.exchange.second_rows import CHUNK_ROWS_MAX_COUNT
from broadside.exchange.strict_json import lone_surrogate

# Time without data after which a stream sends an empty line.
PING_S: Final = 3.0
# Shortest and longest time between two queue requests while agents wait for jobs.
RECEIVE_PAUSE_S: Final = (0.04, 0.08)
# Maximum number of jobs that are locked at the same time.
HANDED_MAX_COUNT: Final = 32
# The time between two reads of the watched control rows.
CONTROL_READ_S: Final = 0.15
# The time after which a watch expires unless it is renewed.
WATCH_S: Final = 90.0
# A session is removed this time after its stream has ended.
GRACE_S: Final = 5.0
# Maximum number of lines that wait for one stream.
LINES_MAX_COUNT: Final = 1_000
RESULTS_CACHED_COUNT: Final = 20_000
WANTS_CACHED_COUNT: Final = 20_000
# Number of bursts for which the cache has the agents that received a job.
BURSTS_CACHED_COUNT: Final = 64
# Number of rows for which the latest write is cached.
ROWS_CACHED_COUNT: Final = 50_000
# How long a write will wait for other writes for each stream, so that we can use the same commit.
GATHER_S: Final = 20e-6
GATHER_MAX_S: Final = 0.02
PAGE_MAX_COUNT: Final = 256
# Maximum size of all rows in the response to one request.
ANSWERS_MAX_BYTES: Final = 32 * 2**20
# Maximum number of read operations of one request that run at the same time.
READS_AT_ONCE: Final = 16
# Number of operations to start before other tasks can run.
STARTED_AT_ONCE: Final = 50
WANT_MAX_S: Final = 120.0
_OVERWRITES: Final = frozenset({"upsert", "batch", "delete"})
_READS: Final = frozenset({"get", "scan", "ping", "watch", "want"})

log = logging.getLogger(__name__)

_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(slots=True, kw_only=True)
class ClientStream:
    """Stream to one client."""

    name: str
    lines: "asyncio.Queue[bytes]" = field(
        default_factory=lambda: asyncio.Queue(maxsize=LINES_MAX_COUNT)
    )
    streams_count: int = 0

    def push(self, line: bytes) -> None:
        # If the client does not read its stream, the stream will end after its timeout.
        with suppress(asyncio.QueueFull):
            self.lines.put_nowait(line)


@dataclass(slots=True, kw_only=True)
class _Want:
    client: ClientPermissions
    session: ClientStream
    # Monotonic time.
    until_s: float
    delivery: Mapping[str, Any] | None = None
    over: bool = False


@dataclass(slots=True, kw_only=True)
class _Watch:
    """Control row and the sessions that watch it.

    Attributes:
        etag: ETag of the row at the last read.
        version: The number of changes.
        until_s: Monotonic time at which the watch of each session ends.
    """

    etag: str | None = None
    version: int = 0
    until_s: dict[str, float] = field(default_factory=dict)


class FairCache(Generic[_K, _V]):
    """Cache of limited size that first drops entries of the client with the most entries."""

    def __init__(self, max_count: int) -> None:
        self._max_count = max_count
        self._count = 0
        self._of: dict[str, OrderedDict[_K, _V]] = {}

    def get(self, client_name: str, key: _K) -> _V | None:
        entries = self._of.get(client_name)
        return None if entries is None else entries.get(key)

    def put(self, client_name: str, key: _K, value: _V) -> list[tuple[str, _K]]:
        """Store a value. Above the limit, half of the values of the largest client are removed.

        Args:
            client_name: Name of the client.
            key: Key of the value.
            value: Value to store.

        Returns:
            Client and key of each removed value.
        """
        entries = self._of.setdefault(client_name, OrderedDict())
        self._count += key not in entries
        entries[key] = value
        entries.move_to_end(key)
        if self._count <= self._max_count:
            return []
        fullest = max(self._of, key=lambda name: len(self._of[name]))
        # We should remove several entries at once, because it is slow to find the client with the
        # most entries.
        count = len(self._of[fullest]) // 2 + 1
        forgotten = [(fullest, oldest) for oldest in list(self._of[fullest])[:count]]
        for place in forgotten:
            self.pop(*place)
        return forgotten

    def pop(self, client_name: str, key: _K) -> _V | None:
        entries = self._of.get(client_name)
        if entries is None or key not in entries:
            return None
        deliveries = entries.pop(key)
        self._count -= 1
        if not entries:
            del self._of[client_name]
        return deliveries


_HALF: Final = "invalid Unicode (a lone surrogate)"

# Client, operation, reason
Refusals = Callable[[ClientPermissions, str, str], None]


class ExchangeService:
    """Service of one coordinator that executes operations and sends data to streams."""

    def __init__(self, fabric: Fabric, refused: Refusals = lambda *_: None) -> None:
        self._fabric = fabric
        self._refused = refused
        self._tables: Mapping[str, Table] = {
            "control": fabric.control,
            "results": fabric.results,
        }
        self._answers: FairCache[str, asyncio.Future[Any]] = FairCache(RESULTS_CACHED_COUNT)
        self._newest: FairCache[tuple[str, ...], int] = FairCache(ROWS_CACHED_COUNT)
        self._sessions: dict[str, ClientStream] = {}
        self._wants: FairCache[str, _Want] = FairCache(WANTS_CACHED_COUNT)
        self._waiting: OrderedDict[tuple[str, str], _Want] = OrderedDict()
        # Clients that received a job, by burst.
        self._receivers: OrderedDict[str, set[str]] = OrderedDict()
        self._wanted = asyncio.Event()
        self._locks: OrderedDict[str, tuple[str, Delivery]] = OrderedDict()
        self._watches: dict[str, _Watch] = {}
        self._gathering: asyncio.Event | None = None

    # Operations -------------------------------------------------------------------------------

    async def do(
        self, client: ClientPermissions, operations: Sequence[Any]
    ) -> list[dict[str, Any]]:
        """Execute operations and return their results in order.

        Args:
            client: The sender's permissions.
            operations: Operations, parsed from JSON.

        Returns:
            ``{"ok": value}`` or ``{"error": name, "said": why}`` for each operation.
        """
        left, tasks = _RequestBudget(ANSWERS_MAX_BYTES), []
        for number, one in enumerate(operations, 1):
            tasks.append(asyncio.create_task(self._answer(client, one, left)))
            if number % STARTED_AT_ONCE == 0:
                # We should let other tasks run, because each operation will be decoded at the
                # start.
                await asyncio.sleep(0)
        return await asyncio.gather(*tasks)

    async def allow(self, client: ClientPermissions, operation: Mapping[str, Any]) -> None:
        """Check an operation against the permissions of its client, and record a rejection.

        Args:
            client: The sender's permissions.
            operation: Operation to check.

        Raises:
            ExchangeRefused: Agents may not use this operation.
            EntityRefused: The row belongs to another agent.
        """
        try:
            await client.allow(operation)
        except (ExchangeRefused, EntityRefused) as error:
            self._note_refusal(client, operation, error)
            raise

    async def _answer(
        self, client: ClientPermissions, operation: Any, left: "_RequestBudget"
    ) -> dict[str, Any]:
        try:
            if not isinstance(operation, dict):
                raise ValueError("not an object")
            if (field := lone_surrogate(operation)) is not None:
                self._note_refusal(client, operation, f"{field}: {_HALF}")
                return {"error": "ExchangeMisconfigured", "said": f"{plain_text(field)}: {_HALF}"}
            async with left.turn(operation):
                done = await self._once(client, operation)
                left.take(_result_bytes(done))
            return {"ok": done}
        except (ExchangeRefused, EntityRefused) as error:
            self._note_refusal(client, operation, error)
            return {"error": type(error).__name__, "said": str(error)}
        except ExchangeError as error:
            return {"error": type(error).__name__, "said": str(error)}
        # Any error ends only this operation.
        except Exception as error:
            text = plain_text(f"not an operation: {type(error).__name__} {error}", 300)
            return {"error": "ExchangeMisconfigured", "said": text}

    def _note_refusal(
        self, client: ClientPermissions, operation: Mapping[str, Any], why: object
    ) -> None:
        """Record a rejection. Its text can contain any characters, even lone surrogates."""
        self._refused(client, plain_text(str(operation.get("do")), 40), plain_text(str(why), 300))

    async def _once(self, client: ClientPermissions, operation: Mapping[str, Any]) -> Any:
        operation = await client.allow(operation)
        if operation["do"] in _READS:
            return await self._do(client, operation)
        key = (client.name, str(operation["id"])[:64])
        if (earlier := self._answers.get(*key)) is not None:
            return await asyncio.shield(earlier)
        answer = asyncio.get_running_loop().create_future()
        self._answers.put(*key, answer)
        try:
            done = await self._do(client, operation)
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, ExchangeUnavailable):
                answer.set_exception(error)
                # We need to mark the exception as retrieved, because it might not be read.
                answer.exception()
            # A retry may succeed.
            else:
                self._answers.pop(*key)
                answer.cancel()
            raise
        answer.set_result(done)
        return done

    async def _gathered(self) -> None:
        """Wait a short time, so that the current writes go to the store together.

        Without this, a thousand agents would need a thousand commits.
        """
        if self._gathering is None:
            self._gathering = asyncio.Event()
            pause_s = min(GATHER_S * len(self._sessions), GATHER_MAX_S)
            asyncio.get_running_loop().call_later(pause_s, self._end_gathering, self._gathering)
        await self._gathering.wait()

    def _end_gathering(self, gathering: asyncio.Event) -> None:
        self._gathering = None
        gathering.set()

    async def _do(self, client: ClientPermissions, operation: Mapping[str, Any]) -> Any:
        if operation["do"] not in _READS:
            await self._gathered()
        if (name := operation.get("table")) is None:
            return await self._on_queue(client, operation)
        if operation["do"] in _OVERWRITES and self._is_late(client, operation):
            return None
        return await _on_table(self._tables[name], operation)

    async def _on_queue(self, client: ClientPermissions, operation: Mapping[str, Any]) -> Any:
        queue = self._fabric.queue
        match operation:
            case {"do": "want"}:
                return await self._want(client, operation)
            case {"do": "unwant", "want": str(want)}:
                return await self._unwant(client, want)
            case {"do": "watch", "session": str(session), "partition": str(partition)}:
                return await self._watch(self._session(client, session), partition)
            case {"do": "complete", "token": str(token)}:
                await queue.complete(self._delivery(client, token))
            case {"do": "abandon", "token": str(token)}:
                await queue.abandon(self._delivery(client, token))
            case {"do": "dead_letter", "token": str(token), "reason": why, "description": text}:
                await queue.dead_letter(self._delivery(client, token), str(why), str(text))
            case {"do": "renew", "token": str(token)}:
                renewed = await queue.renew(self._delivery(client, token))
                self._locks[token] = (client.name, renewed)
                return renewed.locked_until_at.isoformat()
            case {"do": "ping"}:
                await queue.ping()
            case _:
                raise ValueError(str(operation.get("do"))[:40])
        return None

    def _is_late(self, client: ClientPermissions, operation: Mapping[str, Any]) -> bool:
        """Return True if a later operation of the same client has already changed these rows."""
        client_name, _, number = str(operation["id"]).rpartition(".")
        # This id is not a counter, so we do not know the order.
        if not number.isdecimal() or len(number) > 15:
            return False
        if operation["do"] == "delete":
            rows = [(str(operation["partition"]), str(operation["key"]))]
        else:
            rows_fields = operation["rows"] if operation["do"] == "batch" else [operation["row"]]
            rows = [(row.partition_key, row.row_key) for row in map(entity_of, rows_fields)]
        keys = [(client_name[:64], str(operation["table"]), *row) for row in rows]
        if any((self._newest.get(client.name, key) or 0) > int(number) for key in keys):
            return True
        for key in keys:
            self._newest.put(client.name, key, int(number))
        return False

    # Jobs -------------------------------------------------------------------------------------

    async def _want(self, client: ClientPermissions, operation: Mapping[str, Any]) -> None:
        key = (client.name, str(operation["want"])[:64])
        session = self._session(client, str(operation["session"]))
        # The result is 0 for NaN.
        wait_s = min(max(0.0, float(operation["wait_s"])), WANT_MAX_S)
        want = self._wants.get(*key)
        # Repeated request, for example on a new stream.
        if want is not None:
            want.session = session
            if want.over:
                self._send_result(key, want)
            return
        want = _Want(client=client, session=session, until_s=time.monotonic() + wait_s)
        self._waiting[key] = want
        for forgotten in self._wants.put(*key, want):
            self._waiting.pop(forgotten, None)
        self._wanted.set()

    async def _unwant(self, client: ClientPermissions, want_id: str) -> None:
        key = (client.name, want_id[:64])
        want = self._wants.pop(*key)
        self._waiting.pop(key, None)
        if want is None:
            return
        want.over = True
        if want.delivery is not None:
            with suppress(LockLost):
                settled = self._delivery(client, str(want.delivery["token"]))
                await self._fabric.queue.abandon(settled)

    def _delivery(self, client: ClientPermissions, token: str) -> Delivery:
        """Return the delivery of a token, which only its receiver may use."""
        deliveries = self._locks.get(token)
        if deliveries is None:
            raise LockLost("its lock is not known here: the coordinator started again, or it ended")
        owner, delivery = deliveries
        if owner != client.name:
            raise ExchangeRefused(f"{client.name}: that message is another agent's")
        return delivery

    async def deliver_jobs(self) -> None:
        """Deliver jobs to waiting agents, the longest waiting first, until cancelled."""
        while True:
            if not self._waiting:
                await self._wanted.wait()
            self._wanted.clear()
            try:
                delivered_count = await self._deliver_some()
            except ExchangeError as error:
                log.warning("no jobs: %s", error, extra={"action": "receive_failed"})
                await asyncio.sleep(1.0)
                continue
            if not delivered_count:
                # A new waiting agent is served immediately.
                with suppress(TimeoutError):
                    async with asyncio.timeout(random.uniform(*RECEIVE_PAUSE_S)):  # noqa: S311 - jitter
                        await self._wanted.wait()

    async def _deliver_some(self) -> int:
        """Receive and deliver jobs, and return the number of jobs.

        The first request serves all waiting agents. More requests follow if it returns a job.
        """
        requested_s = time.monotonic()
        first = await self._fabric.queue.receive(0)
        deliveries = [first] if first is not None else []
        if deliveries and (more_count := min(len(self._waiting), HANDED_MAX_COUNT) - 1) > 0:
            more = await asyncio.gather(
                *(self._fabric.queue.receive(0) for _ in range(more_count)), return_exceptions=True
            )
            deliveries += [one for one in more if isinstance(one, Delivery)]
        await asyncio.gather(*(self._deliver(delivery) for delivery in deliveries))
        for key, want in list(self._waiting.items()):
            if want.until_s <= requested_s:
                del self._waiting[key]
                want.over = True
                self._send_result(key, want)
        return len(deliveries)

    async def _deliver(self, delivery: Delivery) -> None:
        run_id, burst, *_ = [*delivery.message_id.split("."), ""]
        receivers = self._receivers.setdefault(f"{run_id}.{burst}", set())
        while len(self._receivers) > BURSTS_CACHED_COUNT:
            self._receivers.popitem(last=False)
        while self._waiting:
            # Serve agents that have a job of this burst last, to distribute the jobs.
            firsts = (key for key in self._waiting if key[0] not in receivers)
            key = next(firsts, None) or next(iter(self._waiting))
            want = self._waiting.pop(key)
            # The agent is not connected. It will send a new request later.
            if want.session.streams_count == 0:
                self._wants.pop(*key)
                continue
            receivers.add(key[0])
            try:
                await want.client.record_delivery(delivery)
            except ExchangeError as error:
                log.warning("not handed: %s", error, extra={"action": "hand_failed"})
                self._waiting[key] = want
                self._waiting.move_to_end(key, last=False)
                receivers.discard(key[0])
                break
            # The agent cancelled its request in the meantime.
            if want.over:
                continue
            token = secrets.token_hex(16)
            self._locks[token] = (want.client.name, delivery)
            self._drop_old_locks()
            want.delivery = _delivery_fields(delivery, token)
            want.over = True
            self._send_result(key, want)
            return
        with suppress(LockLost):
            await self._fabric.queue.abandon(delivery)

    def _drop_old_locks(self) -> None:
        oldest_at = utc_now() - timedelta(seconds=60)
        while self._locks:
            token, (_, delivery) = next(iter(self._locks.items()))
            if delivery.locked_until_at > oldest_at:
                return
            del self._locks[token]

    def _send_result(self, key: tuple[str, str], want: _Want) -> None:
        news = {"want": key[1], "delivery": want.delivery}
        want.session.push(_line(news))

    # Control rows -----------------------------------------------------------------------------

    async def _watch(self, session: ClientStream, partition: str) -> dict[str, Any]:
        watch = self._watches.setdefault(partition, _Watch())
        watch.until_s[session.name] = time.monotonic() + WATCH_S
        row = await self._read_control(partition, watch)
        return {"row": _row_fields(row), "version": watch.version}

    async def _read_control(self, partition: str, watch: _Watch) -> Entity | None:
        """Read the control row and send a change to all watching sessions."""
        row = await self._fabric.control.get(partition, CONTROL)
        etag = "" if row is None else row.etag
        if etag != watch.etag:
            watch.etag = etag
            watch.version += 1
            line = _line({"watch": partition, "row": _row_fields(row), "version": watch.version})
            for name in watch.until_s:
                if (session := self._sessions.get(name)) is not None:
                    session.push(line)
        return row

    async def watch_control(self) -> None:
        """Send changes of control rows to their watchers, until cancelled."""
        while True:
            await asyncio.sleep(CONTROL_READ_S)
            now_s = time.monotonic()
            for partition, watch in list(self._watches.items()):
                watch.until_s = {
                    name: until_s for name, until_s in watch.until_s.items() if until_s > now_s
                }
                if not watch.until_s:
                    del self._watches[partition]
                    continue
                # The watchers see no change until their lease ends.
                with suppress(ExchangeError):
                    await self._read_control(partition, watch)

    # Streams ----------------------------------------------------------------------------------

    def _session(self, client: ClientPermissions, session_id: str) -> ClientStream:
        session = self._sessions.get(f"{client.name} {session_id}")
        if session is None:
            raise ExchangeUnavailable("unknown stream; open one first")
        return session

    async def stream(
        self, client: ClientPermissions, session_id: str
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a session until the stream is cancelled.

        Args:
            client: The client's permissions.
            session_id: Session id that the client chose.
        """
        # This includes the name of the client, so that it should not be able to use other sessions.
        key = f"{client.name} {session_id}"
        session = self._sessions.setdefault(key, ClientStream(name=key))
        session.streams_count += 1
        # Drop the lines that the previous stream has not sent.
        session.lines = asyncio.Queue(maxsize=LINES_MAX_COUNT)
        lines = session.lines
        try:
            yield _line({"stream": session_id})
            while session.lines is lines:
                try:
                    async with asyncio.timeout(PING_S):
                        line = await lines.get()
                except TimeoutError:
                    line = _line({})
                while not lines.empty():
                    line += lines.get_nowait()
                yield line
        finally:
            session.streams_count -= 1
            if session.streams_count == 0:
                asyncio.get_running_loop().call_later(GRACE_S, self._end_session, key)

    def _end_session(self, key: str) -> None:
        session = self._sessions.get(key)
        if session is not None and session.streams_count == 0:
            del self._sessions[key]


async def _on_table(table: Table, operation: Mapping[str, Any]) -> Any:
    match operation:
        case {"do": "insert", "row": row}:
            return await table.insert(_bounded(entity_of(row)))
        case {"do": "upsert", "row": row}:
            return await table.upsert(_bounded(entity_of(row)))
        case {"do": "get", "partition": str(partition), "key": str(key)}:
            return _row_fields(await table.get(partition, key))
        case {"do": "scan", "partition": str(partition)}:
            return await _page(table, partition, operation)
        case {"do": "delete", "partition": str(partition), "key": str(key)}:
            return await table.delete(partition, key)
        case {"do": "batch", "rows": list(rows)}:
            return await table.batch([_bounded(entity_of(row)) for row in rows])
    raise ValueError(str(operation.get("do"))[:40])


class _RequestBudget:
    """Limits for one request, on the bytes of its results and on its concurrent reads."""

    def __init__(self, left_bytes: int) -> None:
        self._bytes = left_bytes
        self._turns = asyncio.Semaphore(READS_AT_ONCE)

    @asynccontextmanager
    async def turn(self, operation: Mapping[str, Any]) -> AsyncGenerator[None, None]:
        """Wait for a turn if the operation reads rows.

        Without turns, all rows would be read before the first result is counted.

        Raises:
            ExchangeUnavailable: The results have reached the size limit.
        """
        if operation.get("do") not in ("get", "scan"):
            yield
            return
        async with self._turns:
            self.take(0)
            yield

    def take(self, size_bytes: int) -> None:
        """Count a result. Raises ``ExchangeUnavailable`` if the limit is exceeded."""
        self._bytes -= size_bytes
        if self._bytes < 0:
            raise ExchangeUnavailable(
                f"the answers to one request are over {ANSWERS_MAX_BYTES} bytes; request less"
            )


def _result_bytes(answer: Any) -> int:
    """Return the approximate size of the rows in a result, in bytes."""
    match answer:
        case {"rows": list(rows)}:
            return sum(map(_result_bytes, rows))
        case {"row": dict(row)}:
            return _result_bytes(row)
        case {"row": [_, _, dict(properties)]}:
            tagged = (
                text
                for value in properties.values()
                if isinstance(value, dict)
                for text in value.values()
            )
            return sum(
                len(text) for text in (*properties.values(), *tagged) if isinstance(text, str)
            )
    return 0


def _bounded(row: Entity) -> Entity:
    """Return the row if its packed chunks have an allowed number of readings.

    Otherwise a reader would allocate memory for all of them. The reader detects invalid chunks.

    Raises:
        EntityRefused: A chunk has too many readings.
    """
    for name, value in row.properties.items():
        if not (isinstance(value, bytes) and name.endswith("_0")):
            continue
        with suppress(RecordUnreadable):
            count = count_rows(joined_properties(row, name.removesuffix("_0")))
            if count > CHUNK_ROWS_MAX_COUNT:
                raise EntityRefused(
                    f"row {row_name(row)}: {name}: {count} readings; at most "
                    f"{CHUNK_ROWS_MAX_COUNT} are in one row"
                )
    return row


def _line(news: Mapping[str, Any]) -> bytes:
    return json.dumps(news).encode() + b"\n"


def _row_fields(row: Entity | None) -> dict[str, Any] | None:
    return None if row is None else {"row": entity_fields(row), "etag": row.etag}


async def _page(table: Table, partition: str, operation: Mapping[str, Any]) -> dict[str, Any]:
    """Return a page of rows, and the key of the next page. It is None on the last page."""
    limit, row_from = operation.get("limit"), operation.get("row_from")
    wanted_count = PAGE_MAX_COUNT if limit is None else min(int(limit), PAGE_MAX_COUNT)
    rows: list[dict[str, Any] | None] = []
    page_bytes = 0
    scan = table.scan(
        partition,
        row_from=row_from,
        row_before=operation.get("row_before"),
        limit=wanted_count + 1,
    )
    async for row in scan:
        size = entity_bytes(row)
        if len(rows) == wanted_count or (rows and page_bytes + size > BATCH_MAX_BYTES):
            return {"rows": rows, "next": row.row_key}
        rows.append(_row_fields(row))
        page_bytes += size
    return {"rows": rows, "next": None}


def _delivery_fields(delivery: Delivery, token: str) -> dict[str, Any]:
    return {
        "body": base64.b64encode(delivery.body).decode(),
        "message_id": delivery.message_id,
        "delivery_count": delivery.delivery_count,
        "locked_until_at": delivery.locked_until_at.isoformat(),
        "token": token,
    }
