"""Test the journal of a broker on disk."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broadside.lab.servicebus.amqp import AmqpSymbol
from broadside.lab.servicebus.journal import Journal
from broadside.lab.servicebus.queues import Queue, QueueSettings, Sent, Settlement

SETTINGS = QueueSettings(lock_s=10.0, duplicate_window_s=60.0)


Open = Callable[[], Journal]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def open_journal(path: Path) -> Iterator[Open]:
    """Return a function to open the same journal again, as a killed broker would."""
    opened = []

    def open_one() -> Journal:
        opened.append(Journal(path))
        return opened[-1]

    yield open_one
    for journal in opened:
        journal.close()


def _busy_queue(journal: Journal) -> Queue:
    queue = journal.queue("Jobs", SETTINGS)
    annotations = {AmqpSymbol("x-opt-partition-key"): "k"}
    queue.send(Sent(content=b"first", message_id="1", annotations=annotations), 0.0)
    queue.send(Sent(content=b"second", message_id="2", ttl_s=99.5), 1.0)
    queue.send(Sent(content=b"later", message_id="3", enqueue_at_s=500.0), 1.0)
    first, second = queue.take(2.0), queue.take(2.0)
    assert first is not None
    assert first.lock_token is not None
    assert second is not None
    queue.settle(first.lock_token, Settlement.DEAD_LETTER, 3.0, "poison", "It did not parse.")
    return queue


def test_restores_queue_after_a_kill(open_journal: Open) -> None:
    journal = open_journal()
    before = _busy_queue(journal)
    # The journal should not be closed, as if the broker were killed.
    journal.flush()
    after = open_journal().queues["jobs"]
    assert after.settings == SETTINGS
    assert after.messages == before.messages
    assert before.dead is not None
    assert after.dead is not None
    assert after.dead.messages == before.dead.messages
    token = after.messages[2].lock_token
    assert token is not None
    # The new process should be able to use the lock.
    assert after.settle(token, Settlement.COMPLETE, 11.9)


def test_loses_unflushed_records(open_journal: Open) -> None:
    journal = open_journal()
    journal.queue("jobs", SETTINGS)
    journal.flush()
    journal.queues["jobs"].send(Sent(content=b"x"), 0.0)
    assert not open_journal().queues["jobs"].messages


def test_overwrites_truncated_record(open_journal: Open, path: Path) -> None:
    journal = open_journal()
    journal.queue("jobs", SETTINGS).send(Sent(content=b"whole"), 0.0)
    journal.flush()
    journal.queues["jobs"].send(Sent(content=b"cut"), 0.0)
    journal.close()
    path.write_bytes(path.read_bytes()[:-3])
    again = open_journal()
    assert [message.sent.content for message in again.queues["jobs"].messages.values()] == [
        b"whole"
    ]
    again.queues["jobs"].send(Sent(content=b"next"), 0.0)
    again.close()
    stored = open_journal().queues["jobs"].messages.values()
    assert [message.sent.content for message in stored] == [b"whole", b"next"]


def test_existing_queue_keeps_its_settings(open_journal: Open) -> None:
    journal = open_journal()
    journal.queue("jobs", SETTINGS)
    journal.close()
    assert open_journal().queue("jobs", QueueSettings()).settings == SETTINGS
