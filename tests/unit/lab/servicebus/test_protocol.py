"""Tests for the AMQP protocol of the Service Bus broker, without using sockets."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broadside.lab.servicebus import amqp
from broadside.lab.servicebus.access_tokens import TokenVerifier
from broadside.lab.servicebus.amqp import (
    AmqpSymbol,
    AmqpValue,
    Code,
    Described,
    UByte,
    UInt,
    ULong,
    UShort,
)
from broadside.lab.servicebus.protocol import LINK_CREDIT, Broker, Connection
from broadside.lab.servicebus.queues import Queue, QueueSettings

NOW = 1_800_000_000.0


def _frame(code: int, fields: Sequence[AmqpValue], payload: bytes = b"") -> bytes:
    return amqp.frame(1, amqp.performative(code, fields), payload)


def _attach(handle: int, address: str, *, receiver: bool) -> bytes:
    source = Described(ULong(0x28), [address])
    target = Described(ULong(0x29), [address])
    fields = ["link", UInt(handle), receiver, UByte(0), UByte(1), source, target, None, None]
    return _frame(Code.ATTACH, [*fields, None if receiver else UInt(0)])


def _flow(handle: int, credit: int, *, drain: bool = False, count: int = 0) -> bytes:
    window = UInt(5_000)
    fields = [UInt(0), window, UInt(0), window, UInt(handle), UInt(count), UInt(credit)]
    return _frame(Code.FLOW, [*fields, None, drain])


def _message(body: bytes, message_id: str | None = None) -> bytes:
    properties = amqp.performative(Code.PROPERTIES, [message_id])
    return properties + amqp.encode(Described(ULong(Code.DATA), body))


def _transfer(
    handle: int,
    payload: bytes,
    *,
    delivery_id: int = 0,
    message_format: int = 0,
    more: bool = False,
) -> bytes:
    fields = [UInt(handle), UInt(delivery_id), b"tag", UInt(message_format), False, more]
    return _frame(Code.TRANSFER, fields, payload)


def _batch(*raws: bytes) -> bytes:
    """Return a batch transfer for these messages, using link 0."""
    text = b"".join(amqp.encode(Described(ULong(Code.DATA), raw)) for raw in raws)
    return _transfer(0, text, message_format=amqp.BATCH_FORMAT)


def _put_token(name: str = "sb://host/", value: str = "token", request_id: str = "id") -> bytes:
    """Return the frames to open links to ``$cbs`` and send a token."""
    fields = {"operation": "put-token", "type": "jwt", "name": name}
    request = (
        amqp.performative(Code.PROPERTIES, [request_id])
        + amqp.encode(Described(ULong(Code.APPLICATION_PROPERTIES), fields))
        + amqp.encode(Described(ULong(Code.VALUE), value))
    )
    links = _attach(90, "$cbs", receiver=True) + _attach(91, "$cbs", receiver=False)
    return links + _flow(90, 10) + _transfer(91, request)


OPENING = (
    amqp.AMQP_HEADER
    + amqp.frame(0, amqp.performative(Code.OPEN, ["peer", None, UInt(1_048_576)]))
    + _frame(Code.BEGIN, [None, UInt(0), UInt(5_000), UInt(5_000)])
)


class Peer:
    """Peer to send frames to the broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.connection = Connection(broker, NOW)
        self._unread = b""

    def send(self, raw: bytes, now: float = NOW) -> list[tuple[int, list[AmqpValue], bytes]]:
        """Send bytes, then advance the broker and return the frames received."""
        self.connection.receive(raw, now)
        self.broker.advance(now)
        return self.received_frames()

    def received_frames(self) -> list[tuple[int, list[AmqpValue], bytes]]:
        raw, frames = self._unread + self.connection.take_output(), []
        while raw:
            if raw.startswith(b"AMQP"):
                raw = raw[8:]
                continue
            size = int.from_bytes(raw[:4])
            if body := raw[8:size]:
                described, end = amqp.decode(body)
                padded = described.value + [None] * (14 - len(described.value))
                frames.append((int(described.code), padded, body[end:]))
            raw = raw[size:]
        return frames


@pytest.fixture
def broker() -> Broker:
    broker = Broker()
    broker.add(Queue("jobs", QueueSettings(lock_s=10.0, max_message_bytes=200_000)))
    return broker


@pytest.fixture
def peer(broker: Broker) -> Peer:
    peer = Peer(broker)
    peer.send(OPENING)
    return peer


def _authorized(peer: Peer) -> Peer:
    """Send a token, as it is required to open links to queues."""
    peer.send(_put_token())
    return peer


def _codes(frames: list[tuple[int, list[AmqpValue], bytes]]) -> list[int]:
    return [code for code, _, _ in frames]


def test_sasl_accepts_any_identity(broker: Broker) -> None:
    peer = Peer(broker)
    assert _codes(peer.send(amqp.SASL_HEADER)) == [Code.SASL_MECHANISMS]
    init = amqp.frame(0, amqp.performative(Code.SASL_INIT, [AmqpSymbol("ANONYMOUS")]), sasl=True)
    assert peer.send(init)[0][:2] == (Code.SASL_OUTCOME, [0] + [None] * 13)
    assert _codes(peer.send(OPENING)) == [Code.OPEN, Code.BEGIN]


def test_other_protocol_receives_the_sasl_header(broker: Broker) -> None:
    connection = Connection(broker, NOW)
    connection.receive(b"GET / HTTP/1.1\r\n", NOW)
    assert connection.take_output() == amqp.SASL_HEADER
    assert connection.closed


def test_queue_requires_a_token(peer: Peer) -> None:
    (_, attach, _), (code, detach, _) = peer.send(_attach(0, "jobs", receiver=True))
    assert attach[5] is attach[6] is None
    assert code == Code.DETACH
    assert detach[2].value[0] == "amqp:unauthorized-access"


def test_rejected_token_returns_401_with_reason(broker: Broker) -> None:
    broker.guard = TokenVerifier(sas_keys={"p": "k"})
    peer = Peer(broker)
    frames = peer.send(OPENING + _put_token("sb://host/jobs", "nonsense", "the id"))
    answer = next(payload for code, _, payload in frames if code == Code.TRANSFER)
    parts = {section.code: section.value for section in amqp.sections(answer)}
    assert parts[Code.PROPERTIES][5] == "the id"
    assert parts[Code.APPLICATION_PROPERTIES]["status-code"] == 401
    assert "InvalidToken" in parts[Code.APPLICATION_PROPERTIES]["status-description"]


@pytest.mark.parametrize("address", ["nope", "nope/$management"])
def test_rejects_unknown_entity(peer: Peer, address: str) -> None:
    frames = _authorized(peer).send(_attach(0, address, receiver=True))
    assert _codes(frames) == [Code.ATTACH, Code.DETACH]
    assert frames[1][1][2].value[0] == "amqp:not-found"


def test_large_message_is_delivered_in_several_frames(peer: Peer, broker: Broker) -> None:
    # Three frames are needed to send this.
    body = bytes(range(256)) * 700
    raw = _message(body)
    _authorized(peer)
    attached = peer.send(_attach(0, "jobs", receiver=False))
    assert attached[1][1][6] == LINK_CREDIT
    parts = [raw[at : at + 60_000] for at in range(0, len(raw), 60_000)]
    sent = b"".join(_transfer(0, part, more=part is not parts[-1]) for part in parts)
    (code, disposition, _), *_ = peer.send(sent)
    assert (code, disposition[3], disposition[4].code) == (Code.DISPOSITION, True, Code.ACCEPTED)
    frames = peer.send(_attach(1, "jobs", receiver=True) + _flow(1, 1))
    transfers = [(fields, payload) for code, fields, payload in frames if code == Code.TRANSFER]
    assert [fields[5] for fields, _ in transfers] == [True] * (len(transfers) - 1) + [False]
    assert all(len(payload) < 65_536 for _, payload in transfers)
    text = b"".join(payload for _, payload in transfers)
    assert [part.value for part in amqp.sections(text)][-1] == body
    # The delivery tag is used as the lock token.
    assert len(transfers[0][0][2]) == 16


def test_batch_is_split_into_messages(peer: Peer, broker: Broker) -> None:
    _authorized(peer).send(_attach(0, "jobs", receiver=False))
    peer.send(_batch(*(_message(b"x", str(number)) for number in range(3))))
    assert broker.queues["jobs"].counts()["active"] == 3


def test_rejects_message_over_the_size_limit(peer: Peer, broker: Broker) -> None:
    _authorized(peer).send(_attach(0, "jobs", receiver=False))
    raw = _message(b"x" * 200_000)
    sent = b"".join(
        _transfer(0, raw[at : at + 50_000], more=at + 50_000 < len(raw))
        for at in range(0, len(raw), 50_000)
    )
    (_, disposition, _), *_ = peer.send(sent)
    assert disposition[4].value[0].value[0] == "amqp:link:message-size-exceeded"
    assert not broker.queues["jobs"].messages


def test_busy_broker_rejects_with_server_busy(peer: Peer, broker: Broker) -> None:
    _authorized(peer).send(_attach(0, "jobs", receiver=False))
    broker.busy_until_s = NOW + 5.0
    (_, disposition, _), *_ = peer.send(_transfer(0, _message(b"x")))
    assert disposition[4].value[0].value[0] == "com.microsoft:server-busy"
    (_, disposition, _), *_ = peer.send(_transfer(0, _message(b"x"), delivery_id=1), NOW + 5.0)
    assert disposition[4].code == Code.ACCEPTED


@pytest.fixture
def receiver(peer: Peer, broker: Broker) -> Peer:
    """Return a peer after receiving a message on link 1, with delivery id 1."""
    _authorized(peer).send(_attach(0, "jobs", receiver=False) + _transfer(0, _message(b"x")))
    frames = peer.send(_attach(1, "jobs", receiver=True) + _flow(1, 1))
    assert frames[-1][0] == Code.TRANSFER
    return peer


def _settle(outcome: Described | None, *, settled: bool = False, delivery_id: int = 1) -> bytes:
    fields = [True, UInt(delivery_id), UInt(delivery_id), settled, outcome]
    return _frame(Code.DISPOSITION, fields)


@pytest.mark.parametrize(
    ("outcome", "counts"),
    [
        (Described(ULong(Code.ACCEPTED), []), {"active": 0, "dead": 0}),
        (Described(ULong(Code.MODIFIED), [True, False]), {"active": 1, "dead": 0}),
        (Described(ULong(Code.RELEASED), []), {"active": 1, "dead": 0}),
        (Described(ULong(Code.REJECTED), []), {"active": 0, "dead": 1}),
    ],
)
def test_settlement_is_confirmed_with_its_outcome(
    receiver: Peer, broker: Broker, outcome: Described, counts: dict[str, int]
) -> None:
    (code, echo, _), *_ = receiver.send(_settle(outcome))
    assert code == Code.DISPOSITION
    assert echo[:4] == [False, 1, 1, True]
    assert (echo[4].code, echo[4].value) == (outcome.code, [])
    assert broker.queues["jobs"].counts().items() >= counts.items()


def test_lost_lock_is_rejected_with_an_info_map(receiver: Peer) -> None:
    (_, echo, _), *_ = receiver.send(_settle(Described(ULong(Code.ACCEPTED), [])), NOW + 10.0)
    condition, _, info = echo[4].value[0].value
    assert condition == "com.microsoft:message-lock-lost"
    assert info


def test_credit_limits_delivery_and_drain_consumes_it(receiver: Peer) -> None:
    receiver.send(_transfer(0, _message(b"y"), delivery_id=1))
    assert Code.TRANSFER not in _codes(receiver.received_frames())
    (code, flow, _), *rest = receiver.send(_flow(1, 5, drain=True, count=1))
    assert (code, flow[5], flow[6], flow[8]) == (Code.FLOW, 6, 0, True)
    assert not rest


def test_messages_are_distributed_evenly_to_receivers(broker: Broker) -> None:
    peers = [Peer(broker) for _ in range(3)]
    for peer in peers:
        peer.send(OPENING)
        _authorized(peer).send(_attach(1, "jobs", receiver=True) + _flow(1, 9))
    sender = Peer(broker)
    sender.send(OPENING)
    _authorized(sender).send(_attach(0, "jobs", receiver=False))
    sender.send(_batch(*(_message(b"x", str(number)) for number in range(6))))
    assert [_codes(peer.received_frames()).count(Code.TRANSFER) for peer in peers] == [2, 2, 2]


def test_lock_of_a_lost_peer_expires(receiver: Peer, broker: Broker) -> None:
    receiver.connection.lost()
    broker.advance(NOW + 9.9)
    assert broker.queues["jobs"].counts()["locked"] == 1
    broker.advance(NOW + 10.0)
    assert broker.queues["jobs"].counts()["locked"] == 0


def test_silent_connection_is_closed_and_idle_one_is_not(broker: Broker) -> None:
    peer = Peer(broker)
    fields = ["peer", None, UInt(65_536), UShort(1), UInt(60_000)]
    peer.send(amqp.AMQP_HEADER + amqp.frame(0, amqp.performative(Code.OPEN, fields)))
    peer.connection.beat(NOW + 31.0)
    assert peer.connection.take_output() == amqp.EMPTY_FRAME
    peer.connection.receive(amqp.EMPTY_FRAME, NOW + 200.0)
    peer.connection.beat(NOW + 300.0)
    assert not peer.connection.closed
    peer.connection.beat(NOW + 441.0)
    assert peer.connection.closed


@pytest.mark.parametrize(
    "invalid",
    [
        pytest.param(b"\x00\x00\x00\x07\x02\x00\x00\x00", id="shorter than its header"),
        pytest.param(b"\x7f\xff\xff\xff\x02\x00\x00\x00", id="too long"),
        pytest.param(b"\x00\x00\x00\x0c\x02\x00\x00\x00\x3f\x00\x00\x00", id="no value"),
        pytest.param(_frame(0x99, []), id="unknown performative"),
        pytest.param(_frame(Code.FLOW, [None, None]), id="a flow without a window"),
        pytest.param(_attach(0, "jobs", receiver=True)[:8] + b"\x40" * 50, id="half an attach"),
        pytest.param(_transfer(77, b"x"), id="a transfer on no link"),
    ],
)
def test_invalid_frame_closes_the_connection(peer: Peer, invalid: bytes) -> None:
    frames = peer.send(invalid)
    assert _codes(frames) == [Code.CLOSE]
    assert peer.connection.closed


def test_malformed_batch_stores_no_message(peer: Peer, broker: Broker) -> None:
    _authorized(peer).send(_attach(0, "jobs", receiver=False))
    assert _codes(peer.send(_batch(_message(b"x"), b"\x3f"))) == [Code.CLOSE]
    assert not broker.queues["jobs"].messages


@given(st.lists(st.integers(1, 200), max_size=40))
def test_bytes_can_arrive_in_any_pieces(sizes: list[int]) -> None:
    text = OPENING + _attach(0, "nope", receiver=True) + _attach(1, "$cbs", receiver=False)
    at_once = Connection(Broker(), NOW)
    at_once.receive(text, NOW)
    pieces = Connection(Broker(), NOW)
    rest = text
    for size in sizes:
        pieces.receive(rest[:size], NOW)
        rest = rest[size:]
    pieces.receive(rest, NOW)
    assert pieces.take_output() == at_once.take_output()


@given(st.binary(max_size=200))
def test_arbitrary_bytes_do_not_break_the_broker(garbage: bytes) -> None:
    connection = Connection(Broker(), NOW)
    connection.receive(OPENING + garbage, NOW)


_CONVERSATION = (
    OPENING
    + _put_token()
    + _attach(0, "jobs", receiver=False)
    + _transfer(0, amqp.performative(Code.HEADER, [True, UByte(4), UInt(9)]) + _message(b"x"))
    + _attach(1, "jobs", receiver=True)
    + _flow(1, 1)
)


@example([])
@given(st.lists(st.tuples(st.integers(8, len(_CONVERSATION) - 1), st.integers(0, 255)), max_size=4))
def test_corrupt_frames_do_not_affect_other_peers(flips: list[tuple[int, int]]) -> None:
    broker = Broker()
    broker.add(Queue("jobs", QueueSettings()))
    text = bytearray(_CONVERSATION)
    for at, value in flips:
        text[at] = value
    corrupt, other = Connection(broker, NOW), Peer(broker)
    corrupt.receive(bytes(text), NOW)
    broker.advance(NOW)
    if text == _CONVERSATION:
        assert broker.queues["jobs"].counts()["locked"] == 1, "no message was delivered"
    broker.advance(NOW + 1_000.0)
    assert _codes(other.send(OPENING)) == [Code.OPEN, Code.BEGIN]
