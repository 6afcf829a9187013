"""Tests for parts in the embedded adapters that depend on SQLite.

These are its clock, forks and disk errors. ``tests/contract`` has the tests of the common
contract.
"""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from broadside.exchange.embedded.embedded_queue import EmbeddedQueue, QueueRules
from broadside.exchange.embedded.embedded_table import EmbeddedTable
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import (
    Delivery,
    Entity,
    ExchangeMisconfigured,
    LockLost,
    Outgoing,
    StorageGone,
)

ROW = Entity(partition_key="part", row_key="row", properties={"n": 1})


class Clock:
    """Clock that will only move when it is set by the test."""

    def __init__(self) -> None:
        self.at_s = 1_790_000_000.0

    def __call__(self) -> float:
        return self.at_s

    def after(self, seconds: float) -> datetime:
        return datetime.fromtimestamp(self.at_s + seconds, UTC)


def message(message_id: str, clock: Clock, *, lives_s: float = 1000.0) -> Outgoing:
    return Outgoing(body=b"", message_id=message_id, expires_at=clock.after(lives_s))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def queue(tmp_path: Path, clock: Clock) -> AsyncIterator[EmbeddedQueue]:
    queue = EmbeddedQueue(
        tmp_path, QueueRules(lock_s=60, deliveries_max_count=2, duplicates_s=600), clock=clock
    )
    yield queue
    await queue.close()


# Time.


async def test_lock_expires_at_its_instant(queue: EmbeddedQueue, clock: Clock) -> None:
    await queue.send([message("a", clock)])
    delivery = await queue.receive(0)
    assert delivery is not None
    assert delivery.locked_until_at == clock.after(60)
    clock.at_s += 59.999
    assert await queue.receive(0) is None
    delivery = await queue.renew(delivery)
    assert delivery.locked_until_at == clock.after(60)
    clock.at_s += 60
    with pytest.raises(LockLost):
        await queue.complete(delivery)
    again = await queue.receive(0)
    assert again is not None
    assert again.delivery_count == 2


async def test_message_id_can_be_reused_after_the_duplicate_window(
    queue: EmbeddedQueue, clock: Clock
) -> None:
    for after_s, comes in ((0, True), (599, False), (2, True)):
        clock.at_s += after_s
        await queue.send([message("a", clock)])
        delivery = await queue.receive(0)
        assert (delivery is not None) is comes
        if delivery is not None:
            await queue.complete(delivery)


async def test_scheduled_bursts_arrive_in_order_of_their_instants(
    queue: EmbeddedQueue, clock: Clock
) -> None:
    bursts = [
        Outgoing(
            body=b"",
            message_id=f"{n:02d}",
            enqueue_at=clock.after(1800 * n),
            expires_at=clock.after(1800 * n + 60),
        )
        for n in reversed(range(48))
    ]
    await queue.send(bursts)
    got = []
    for n in range(48):
        delivery = await queue.receive(0)
        assert delivery is not None
        assert await queue.receive(0) is None, "only this burst may be due"
        got.append(delivery.message_id)
        await queue.complete(delivery)
        clock.at_s += 1800
        assert (await queue.counts()).scheduled_count == max(0, 46 - n)
    assert got == [f"{n:02d}" for n in range(48)]


async def test_expired_message_is_not_dead_lettered(queue: EmbeddedQueue, clock: Clock) -> None:
    await queue.send([message("a", clock, lives_s=100)])
    for _ in range(2):
        assert await queue.receive(0) is not None
        clock.at_s += 61
    assert await queue.receive(0) is None
    assert await queue.dead_letters() == []


class QueueLife(RuleBasedStateMachine):
    """Check for any order of events that a message is in one place and settled once."""

    deliveries = Bundle("deliveries")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.directory = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.queue = EmbeddedQueue(
            Path(self.directory.name),
            QueueRules(lock_s=10, deliveries_max_count=3, duplicates_s=600),
            clock=self.clock,
        )
        # Maps the id to the expiry time.
        self.sent: dict[str, float] = {}
        self.settled: Counter[str] = Counter()

    @rule(seconds=st.sampled_from([0.5, 5, 11]))
    def wait(self, seconds: float) -> None:
        self.clock.at_s += seconds

    @rule(
        number=st.integers(0, 9),
        later_s=st.sampled_from([None, 3.0]),
        lives_s=st.sampled_from([4, 60]),
    )
    def send(self, number: int, later_s: float | None, lives_s: float) -> None:
        id_ = str(number)
        outgoing = Outgoing(
            body=b"",
            message_id=id_,
            expires_at=self.clock.after(lives_s),
            enqueue_at=None if later_s is None else self.clock.after(later_s),
        )
        self.loop.run_until_complete(self.queue.send([outgoing]))
        self.sent.setdefault(id_, self.clock.at_s + lives_s)

    @rule(target=deliveries)
    def receive(self) -> object:
        delivery = self.loop.run_until_complete(self.queue.receive(0))
        if delivery is None:
            return multiple()
        assert self.settled[delivery.message_id] == 0, "settled, and delivered again"
        assert self.clock.at_s < self.sent[delivery.message_id], "delivered after its expiry"
        assert 1 <= delivery.delivery_count <= 3
        return delivery

    @rule(
        delivery=consumes(deliveries), how=st.sampled_from(["complete", "abandon", "dead_letter"])
    )
    def settle(self, delivery: Delivery, how: str) -> None:
        reason = ("Test", "test") if how == "dead_letter" else ()
        settling = getattr(self.queue, how)(delivery, *reason)
        if self.clock.after(0) >= delivery.locked_until_at:
            with pytest.raises(LockLost):
                self.loop.run_until_complete(settling)
        else:
            self.loop.run_until_complete(settling)
            self.settled[delivery.message_id] += how != "abandon"

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        counts = self.loop.run_until_complete(self.queue.counts())
        dead = self.loop.run_until_complete(self.queue.dead_letters())
        assert counts.dead_count == len({letter.message_id for letter in dead})
        assert counts.active_count is not None
        assert counts.scheduled_count is not None
        there = counts.active_count + counts.scheduled_count + counts.dead_count
        completed = sum(self.settled.values()) - sum(letter.reason == "Test" for letter in dead)
        assert there + completed <= len(self.sent), "more messages than were sent"
        assert max(self.settled.values(), default=0) <= 1
        living = sum(at_s > self.clock.at_s for at_s in self.sent.values())
        assert there + completed >= living, "a message was lost before its expiry"

    def teardown(self) -> None:
        self.loop.run_until_complete(self.queue.close())
        self.loop.close()
        self.directory.cleanup()


TestQueueLife = QueueLife.TestCase
TestQueueLife.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


async def test_cancelled_receive_does_not_lock_the_message(
    queue: EmbeddedQueue, tmp_path: Path, clock: Clock
) -> None:
    await queue.send([message("a", clock)])
    receiving = asyncio.create_task(queue.receive(5))
    # The request is in the worker thread.
    await asyncio.sleep(0)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    delivery = await queue.receive(0)
    assert delivery is not None


# Waiting.


@pytest.fixture
async def idle_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[EmbeddedQueue]:
    """Return a queue that uses the real clock and does not poll."""
    monkeypatch.setattr("broadside.exchange.embedded.embedded_queue._LULL_S", 3600.0)
    queue = EmbeddedQueue(tmp_path)
    yield queue
    await queue.close()


def settle(data_dir: Path) -> None:
    """Simulate a queue without recent writes."""
    os.utime(data_dir / "queue.sqlite3-wal", (1_790_000_000, 1_790_000_000))


def count_reads(queue: EmbeddedQueue, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list to count how often the file is read."""
    checks: list[None] = []
    claim_next = queue._claim_next

    async def counted() -> Delivery | None:
        checks.append(None)
        return await claim_next()

    monkeypatch.setattr(queue, "_claim_next", counted)
    return checks


def soon(seconds: float) -> datetime:
    return utc_now() + timedelta(seconds=seconds)


async def test_waiting_receiver_polls_rarely_without_writes(
    idle_queue: EmbeddedQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await idle_queue.receive(0) is None
    checks = count_reads(idle_queue, monkeypatch)
    assert await idle_queue.receive(0.5) is None
    assert len(checks) > 2, "recent writes may not be readable yet"
    settle(tmp_path)
    checks.clear()
    assert await idle_queue.receive(0.5) is None
    assert len(checks) == 1


async def test_waiting_receiver_gets_a_message_of_another_process(
    idle_queue: EmbeddedQueue, tmp_path: Path
) -> None:
    assert await idle_queue.receive(0) is None
    settle(tmp_path)
    assert await idle_queue.receive(0) is None
    receiving = asyncio.create_task(idle_queue.receive(60))
    # The receiver is waiting.
    await asyncio.sleep(0.2)
    other = EmbeddedQueue(tmp_path)
    await other.send([Outgoing(body=b"", message_id="a", expires_at=soon(600))])
    delivery = await receiving
    await other.close()
    assert delivery is not None


async def test_waiting_receiver_gets_a_scheduled_message_in_time(
    idle_queue: EmbeddedQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = soon(1.0)
    later = Outgoing(body=b"", message_id="a", expires_at=soon(600), enqueue_at=at)
    await idle_queue.send([later])
    settle(tmp_path)
    checks = count_reads(idle_queue, monkeypatch)
    assert await idle_queue.receive(60) is not None
    assert utc_now() >= at
    assert len(checks) <= 4, "too many reads before the instant"


async def test_waiting_receiver_detects_a_removed_file(
    idle_queue: EmbeddedQueue, tmp_path: Path
) -> None:
    assert await idle_queue.receive(0) is None
    settle(tmp_path)
    assert await idle_queue.receive(0) is None
    shutil.rmtree(tmp_path)
    with pytest.raises(StorageGone):
        await idle_queue.receive(60)


# Processes.


async def test_closed_adapter_raises_an_error(tmp_path: Path) -> None:
    table = EmbeddedTable(tmp_path, "results")
    await table.insert(ROW)
    await table.close()
    await table.close()
    with pytest.raises(RuntimeError, match="close"):
        await table.insert(ROW)


# Disk errors.


async def assert_raises(
    data_dir: Path, error: type[Exception], *messages: str, busy_s: float = 0.2
) -> None:
    """Check that both adapters raise ``error`` in one line with the path and all ``messages``."""
    table, queue = (
        EmbeddedTable(data_dir, "results", busy_s=busy_s),
        EmbeddedQueue(data_dir, busy_s=busy_s),
    )
    try:
        for work in (table.upsert(ROW), queue.send([message("a", Clock())])):
            with pytest.raises(error) as caught:
                await work
            line = str(caught.value)
            assert "\n" not in line
            for parts in (str(data_dir), *messages):
                assert parts in line, line
    finally:
        await table.close()
        await queue.close()


async def test_directory_is_created_without_its_parents(tmp_path: Path) -> None:
    table = EmbeddedTable(tmp_path / "new", "results")
    await table.insert(ROW)
    await table.close()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700, "other users can read the runs"
    await assert_raises(
        tmp_path / "no" / "such", ExchangeMisconfigured, "No such file", "BROADSIDE_DATA_DIR"
    )


async def test_file_instead_of_the_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    await assert_raises(tmp_path / "file", ExchangeMisconfigured, "BROADSIDE_DATA_DIR")


@pytest.mark.parametrize("content", [b"not a database, but long enough to look like one" * 99])
async def test_foreign_file_is_reported(tmp_path: Path, content: bytes) -> None:
    for name in ("results.sqlite3", "queue.sqlite3"):
        (tmp_path / name).write_bytes(content)
    await assert_raises(tmp_path, ExchangeMisconfigured, "foreign", "move it away")


async def test_foreign_database_is_not_modified(tmp_path: Path) -> None:
    for name in ("results.sqlite3", "queue.sqlite3"):
        theirs = sqlite3.connect(tmp_path / name)
        theirs.execute("CREATE TABLE precious (n)")
        theirs.commit()
        theirs.close()
    before = (tmp_path / "results.sqlite3").read_bytes()
    await assert_raises(tmp_path, ExchangeMisconfigured, "not Broadside's")
    assert (tmp_path / "results.sqlite3").read_bytes() == before


async def test_file_removed_during_its_creation_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = EmbeddedTable(tmp_path, "results")
    lay_out = table._database._create

    def lay_out_and_lose(connection: sqlite3.Connection) -> None:
        lay_out(connection)
        for file in tmp_path.iterdir():
            file.unlink()

    monkeypatch.setattr(table._database, "_create", lay_out_and_lose)
    # The second call should fail too.
    for _ in range(2):
        with pytest.raises(StorageGone, match="removed or replaced while in use"):
            await table.get("p", "k")
    await table.close()


async def test_newer_layout_version_is_reported(tmp_path: Path) -> None:
    await make_both(tmp_path)
    for name in ("results.sqlite3", "queue.sqlite3"):
        newer = sqlite3.connect(tmp_path / name)
        newer.execute("PRAGMA user_version = 99")
        newer.close()
    await assert_raises(tmp_path, ExchangeMisconfigured, "version 99", "BROADSIDE_DATA_DIR")


async def test_corrupt_database_is_reported(tmp_path: Path) -> None:
    await make_both(tmp_path)
    for name in ("results.sqlite3", "queue.sqlite3"):
        pages = bytearray((tmp_path / name).read_bytes())
        pages[4096:] = b"\xa5" * (len(pages) - 4096)
        (tmp_path / name).write_bytes(pages)
    await assert_raises(tmp_path, ExchangeMisconfigured, "corrupt", "move it away")


async def make_both(data_dir: Path) -> None:
    table, queue = EmbeddedTable(data_dir, "results"), EmbeddedQueue(data_dir)
    await table.upsert(ROW)
    await queue.send([message(os.urandom(8).hex(), Clock())])
    await table.close()
    await queue.close()


def run_in_mount_namespace(directory: Path, mount_options: str, script: str) -> str:
    """Run a Python script with a tmpfs on ``directory`` and return its standard output.

    The script has its own mount namespace, so no mount remains. Without root it also has a user
    namespace.
    """
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    shell = f'mount -t tmpfs -o {mount_options} none "$1" && exec "$2" -c "$3"'
    ran = subprocess.run(
        [
            "unshare",
            "--mount",
            *as_root,
            "sh",
            "-c",
            shell,
            "sh",
            directory,
            sys.executable,
            script,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
