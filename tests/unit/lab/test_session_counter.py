"""Tests for the session counter of the lab, using messages as the kernel sends them."""

import struct

from tests.scenarios.session_counter import SessionTable

NEW_FLAGS, UPDATE, DELETE = 0x600, 0x100, 0x102
SYN_SENT, ESTABLISHED, TIME_WAIT, CLOSE = 1, 3, 7, 8


def attribute(kind: int, value: bytes) -> bytes:
    data = struct.pack("=HH", 4 + len(value), kind) + value
    return data + b"\0" * (-len(data) % 4)


def event(session: int, state: int | None, *, new: bool = False, deleted: bool = False) -> bytes:
    """Return a ctnetlink message. Without a state, it is not TCP."""
    body = b"\2\0\0\0" + attribute(0x8001, b"tuple")
    if state is not None:
        body += attribute(0x8004, attribute(0x8001, attribute(1, bytes([state]))))
    body += attribute(12, session.to_bytes(4, "big"))
    kind = DELETE if deleted else UPDATE
    return struct.pack("=IHHII", 16 + len(body), kind, NEW_FLAGS if new else 0, 0, 0) + body


def test_counts_set_up_and_tear_down_once() -> None:
    table = SessionTable()
    table.feed(event(1, SYN_SENT, new=True) + event(2, SYN_SENT, new=True))
    table.feed(event(1, ESTABLISHED) + event(1, CLOSE) + event(1, CLOSE))
    assert table.next_second() == "1,2,1"
    table.feed(event(1, CLOSE, deleted=True) + event(2, TIME_WAIT))
    assert table.next_second() == "0,0,1"


def test_expired_session_is_torn_down() -> None:
    table = SessionTable()
    table.feed(event(7, SYN_SENT, new=True) + event(7, ESTABLISHED, deleted=True))
    assert table.next_second() == "0,1,1"


def test_ignores_other_protocols_and_sessions_from_before() -> None:
    table = SessionTable()
    table.feed(event(1, None, new=True) + event(5, CLOSE) + b"short")
    assert table.next_second() == "0,0,0"


def test_lost_events_leave_the_second_empty() -> None:
    table = SessionTable()
    table.is_lost = True
    assert table.next_second() == ",,"
    assert table.next_second() == "0,0,0"
