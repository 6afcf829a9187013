"""State machine of the broker without sockets. Time is passed as an argument.

A :class:`Connection` is the state for a peer. A :class:`Broker` is the state shared by all of them.
Nothing in this module waits, reads a clock or does I/O. It must be called from a single thread, in
this order::

    connection.receive(data, now)      # any number of them
    broker.advance(now)                # timers, then deliveries
    for connection in broker.take_touched(): write(connection.take_output())

The SDK requires the following, as tests with it have shown:

- The response to an attach has the same source and target, or neither of them and a detach.
- A settlement is echoed as *settled* with the same outcome.
- An error always has an info map.
- ``$cbs`` responds with ``status-code``, ``$management`` with ``statusCode``.
"""

import struct
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal, NamedTuple
from uuid import UUID

from broadside.lab.servicebus import amqp, dialect
from broadside.lab.servicebus.access_tokens import Grant, Right, TokenVerifier, entity_path
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
from broadside.lab.servicebus.queues import Queue, QueuedMessage, Settlement

MAX_FRAME_BYTES: Final = 65_536
# Number of transfers that a sender can have in flight.
LINK_CREDIT: Final = 1_000
WINDOW: Final = 0x7FFF_FFFF
MOVED_TO: Final = "elsewhere.servicebus.windows.net"
# If a connection is idle for this time, it will be closed, as in the service.
IDLE_S: Final = 240.0
# Mask to wrap serial numbers (RFC 1982).
_SERIAL: Final = 0xFFFF_FFFF

_OUTCOMES: Final = {
    Code.ACCEPTED: Settlement.COMPLETE,
    Code.REJECTED: Settlement.DEAD_LETTER,
    Code.RELEASED: Settlement.RELEASE,
    Code.MODIFIED: Settlement.ABANDON,
}


class Broker:
    """Queues, waiting receivers and simulated faults.

    Attributes:
        guard: Checks tokens.
        idle_s: Seconds until an idle connection is closed.
        queues: Queues by path.
        busy_until_s: End of the throttling fault in epoch seconds.
        busy_wait_s: Seconds that a throttled client is asked to wait.
        refused_count: Number of throttled requests since the fault was requested.
        moved: End of the redirect fault in epoch seconds, and its condition.
        asked: Number of requests by name, of messages by direction, and of redirected peers.
        connections: Open connections.
    """

    def __init__(self, guard: TokenVerifier | None = None, *, idle_s: float = IDLE_S) -> None:
        self.guard = guard or TokenVerifier()
        self.idle_s = idle_s
        self.queues: dict[str, Queue] = {}
        self.busy_until_s = 0.0
        self.busy_wait_s = 2.0
        self.refused_count = 0
        self.moved: tuple[float, str] = (0.0, "")
        self.asked: Counter[str] = Counter()
        self.connections: list[Connection] = []
        self._waiting: dict[str, deque[Link]] = {}
        self._touched: dict[Connection, None] = {}

    def add(self, queue: Queue) -> None:
        """Add a queue and its dead-letter queue, replacing one with the same path."""
        for item in (queue, queue.dead):
            if item is not None:
                self.queues[item.path] = item

    def busy(self, now: float) -> str | None:
        """Return the error text when a request is throttled, or ``None``."""
        if now >= self.busy_until_s:
            return None
        self.refused_count += 1
        return dialect.BUSY_TEXT.format(wait_s=self.busy_wait_s)

    def redirect(self, condition: str, now: float) -> Described | None:
        """Return a redirect error while the namespace has moved.

        Args:
            condition: Redirect condition to check.
            now: Current time in epoch seconds.

        Returns:
            The error to send. None if clients are not redirected now.
        """
        until_s, how = self.moved
        if now >= until_s or how != condition:
            return None
        self.asked["redirected"] += 1
        info = {"hostname": MOVED_TO, "network-host": MOVED_TO, "port": 5671, "address": "jobs"}
        return dialect.error(how, f"The namespace has moved to '{MOVED_TO}'.", info)

    def touch(self, connection: "Connection") -> None:
        self._touched[connection] = None

    def take_touched(self) -> Sequence["Connection"]:
        """Return the connections with new output since the last call."""
        touched, self._touched = list(self._touched), {}
        return touched

    def wait(self, link: "Link") -> None:
        """Add a receiver with credit to the waiting receivers."""
        line = self._waiting.setdefault(link.path, deque())
        if link not in line:
            line.append(link)

    def advance(self, now: float) -> None:
        """Handle due timers, then deliver messages to the waiting receivers in turn."""
        for connection in self.connections:
            connection.expire(now)
        for queue in self.queues.values():
            queue.advance(now)
        for path, line in self._waiting.items():
            while line:
                link = line[0]
                if link.closed or not link.can_send:
                    line.popleft()
                    continue
                message = self.queues[path].take(now, lock=not link.presettled)
                if message is None:
                    break
                line.rotate(-1)
                link.session.connection.deliver(link, message)

    def next_due(self) -> float | None:
        """Return the time of the next timer in epoch seconds, or ``None`` if there is none."""
        dues = [queue.next_due() for queue in self.queues.values()]
        dues += [connection.token_ends_at_s for connection in self.connections]
        return min((due for due in dues if due is not None), default=None)


@dataclass(slots=True, kw_only=True, eq=False)
class AmqpSession:
    """AMQP session.

    Attributes:
        connection: Connection of the session.
        channel: Channel number.
        next_incoming_id: Id of the next transfer from the peer.
        peer_window: Number of transfer frames that the peer can accept.
        next_outgoing_id: Id of the next transfer to the peer.
        next_delivery_id: Id of the next delivery to the peer.
        links: Links by the peer's handle.
        unsettled: Link and lock token by delivery id.
    """

    connection: "Connection"
    channel: int
    next_incoming_id: int
    peer_window: int
    next_outgoing_id: int = 0
    next_delivery_id: int = 0
    links: dict[int, "Link"] = field(default_factory=dict)
    unsettled: dict[int, tuple["Link", UUID]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class Link:
    """AMQP link.

    Attributes:
        session: Session of the link.
        handle: Handle of the link.
        path: Path of an entity, "<entity>/$management" or "$cbs".
        sends: Whether the broker is the sender.
        presettled: Whether transfers are sent as settled.
        queue: The queue, or ``None`` for a request or response link.
        delivery_count: Delivery count of the link.
        credit: Credit of the link.
        closed: Whether the link is closed.
        first: Fields of the incomplete transfer.
        parts: Payload of the incomplete transfer.
        answers: Responses that wait for credit.
    """

    session: AmqpSession
    handle: int
    path: str
    sends: bool
    presettled: bool = False
    queue: Queue | None = None
    delivery_count: int = 0
    credit: int = 0
    closed: bool = False
    first: Sequence[AmqpValue] = ()
    parts: list[bytes] = field(default_factory=list)
    answers: deque[bytes] = field(default_factory=deque)

    @property
    def can_send(self) -> bool:
        return self.credit > 0 and self.session.peer_window > 0


class _Frame(NamedTuple):
    """Performative with its payload.

    Attributes:
        channel: Channel number.
        fields: Fields, padded with ``None``.
        payload: Bytes after the performative.
    """

    channel: int
    fields: Sequence[AmqpValue]
    payload: bytes


class Connection:
    """Connection to a peer.

    Attributes:
        closed: True if the socket is to be closed after the output was written.
    """

    def __init__(self, broker: Broker, now: float) -> None:
        self.closed = False
        self._broker = broker
        self._input = bytearray()
        self._output: list[bytes] = []
        self._stage: Literal["header", "sasl", "open"] = "header"
        # Limit until the peer sends its own (part 2.4.1).
        self._peer_frame_bytes = 512
        self._peer_idle_s: float | None = None
        self._heard_at_s = self._beat_at_s = now
        self._sessions: dict[int, AmqpSession] = {}
        self._answer_links: dict[str, Link] = {}
        self._grants: list[Grant] = []
        broker.connections.append(self)

    # Interface for the owner ----------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """Handle data from the peer. If it is malformed, send an error and close the connection.

        Args:
            data: Received bytes.
            now: Current time in epoch seconds.
        """
        self._heard_at_s = now
        self._input += data
        try:
            while not self.closed and self._step(now):
                pass
        except (amqp.WireError, struct.error) as nonsense:
            self.hang_up("amqp:decode-error", str(nonsense))
        except (LookupError, TypeError, AttributeError, ValueError) as nonsense:
            self.hang_up("amqp:invalid-field", repr(nonsense))

    @property
    def token_ends_at_s(self) -> float | None:
        """Return the expiry of the next token in epoch seconds, or ``None``."""
        return min(
            (grant.ends_at_s for grant in self._grants if grant.ends_at_s < inf), default=None
        )

    def expire(self, now: float) -> None:
        """Detach links with an expired token that was not renewed."""
        ends_at_s = self.token_ends_at_s
        if ends_at_s is None or now < ends_at_s:
            return
        self._grants = [grant for grant in self._grants if now < grant.ends_at_s]
        text = f"ExpiredToken: The token is expired. Expiration time: {ends_at_s:g}."
        for link in self._links():
            if link.path != "$cbs" and self._refusal(link, now):
                self._detach(link, dialect.error(dialect.UNAUTHORIZED, text))

    def detach(self, ends_with: str, condition: str, text: str) -> int:
        """Simulate a fault that detaches links.

        Args:
            ends_with: End of the path to match.
            condition: Condition of the error.
            text: Description of the error.

        Returns:
            The number of links.
        """
        links = [link for link in self._links() if link.path.endswith(ends_with)]
        for link in links:
            self._detach(link, dialect.error(condition, text))
        return len(links)

    def hang_up(self, condition: str, text: str) -> None:
        """Close the connection with an error and ignore further input.

        Args:
            condition: Condition of the error.
            text: Description of the error.
        """
        self._hang_up(dialect.error(condition, text))

    def _links(self) -> list[Link]:
        return [link for session in self._sessions.values() for link in session.links.values()]

    def _detach(self, link: Link, why: Described) -> None:
        link.closed = True
        session = link.session
        del session.links[link.handle]
        # Locked messages stay locked. If a settlement is received later, it will have no link.
        session.unsettled = {
            number: stored for number, stored in session.unsettled.items() if stored[0] is not link
        }
        if self._answer_links.get(link.path) is link:
            del self._answer_links[link.path]
        self._send(session.channel, Code.DETACH, [UInt(link.handle), True, why])

    def beat(self, now: float) -> None:
        """Send a heartbeat on an idle connection, or close it when the peer is silent.

        Call this every few seconds.
        """
        if now - self._heard_at_s > self._broker.idle_s:
            self.hang_up(dialect.CONNECTION_FORCED, f"Silent for {self._broker.idle_s:g} s.")
        elif self._peer_idle_s is not None and now - self._beat_at_s > self._peer_idle_s / 2:
            self._write(amqp.EMPTY_FRAME)
            self._beat_at_s = now

    def take_output(self) -> bytes:
        output, self._output = b"".join(self._output), []
        return output

    def lost(self) -> None:
        """Handle a lost connection. Locked messages stay locked, as in the service."""
        self.closed = True
        for link in self._links():
            link.closed = True
        if self in self._broker.connections:
            self._broker.connections.remove(self)

    def deliver(self, link: Link, message: QueuedMessage) -> None:
        """Send a message that was taken for this link.

        Args:
            link: Link to use.
            message: Message to send.
        """
        token = message.lock_token
        tag = token.bytes_le if token else message.sequence_number.to_bytes(16)
        self._broker.asked["delivered"] += 1
        delivery_id = self._transfer(link, dialect.write_message(message), tag, token is None)
        if token is not None:
            link.session.unsettled[delivery_id] = (link, token)

    # Frames ---------------------------------------------------------------------------------

    def _write(self, raw: bytes) -> None:
        self._output.append(raw)
        self._broker.touch(self)

    def _send(
        self, channel: int, code: int, fields: Sequence[AmqpValue], *, sasl: bool = False
    ) -> None:
        self._write(amqp.frame(channel, amqp.performative(code, fields), sasl=sasl))

    def _hang_up(self, why: Described) -> None:
        self._send(0, Code.CLOSE, [why])
        self.lost()

    def _step(self, now: float) -> bool:
        """Handle a header or frame from the input. Returns False if it is incomplete."""
        if len(self._input) < 8:
            return False
        if self._stage == "header":
            self._on_header(self._take(8))
            return True
        size, offset, _, channel = struct.unpack_from(">IBBH", self._input)
        if not 8 <= size <= MAX_FRAME_BYTES or not 8 <= offset * 4 <= size:
            raise amqp.WireError(f"a frame of {size} bytes with its body at {offset * 4}")
        if len(self._input) < size:
            return False
        body = self._take(size)[offset * 4 :]
        if body:
            described, end = amqp.decode(body)
            fields = described.value + [None] * (14 - len(described.value))
            handler = self._HANDLERS[described.code]
            handler(self, _Frame(channel, fields, body[end:]), now)
        return True

    def _take(self, size: int) -> bytes:
        taken = bytes(self._input[:size])
        del self._input[:size]
        return taken

    def _on_header(self, header: bytes) -> None:
        if header == amqp.AMQP_HEADER:
            self._write(header)
            self._stage = "open"
            return
        self._write(amqp.SASL_HEADER)
        if header == amqp.SASL_HEADER:
            self._stage = "sasl"
            mechanisms = amqp.Array([AmqpSymbol("ANONYMOUS"), AmqpSymbol("MSSBCBS")])
            self._send(0, Code.SASL_MECHANISMS, [mechanisms], sasl=True)
        else:
            # The supported protocol header was sent to the peer (part 2.2).
            self.lost()

    def _on_sasl_init(self, _: _Frame, now: float) -> None:
        # We will get a token for the peer later.
        self._send(0, Code.SASL_OUTCOME, [UByte(0)], sasl=True)
        self._stage = "header"

    def _on_open(self, frame: _Frame, now: float) -> None:
        _, _, frame_bytes, _, idle_ms, *_ = frame.fields
        self._peer_frame_bytes = max(512, min(frame_bytes or MAX_FRAME_BYTES, MAX_FRAME_BYTES))
        self._peer_idle_s = idle_ms / 1000 if idle_ms else None
        limits = [UInt(MAX_FRAME_BYTES), UShort(255), UInt(self._broker.idle_s * 1000)]
        self._send(0, Code.OPEN, ["broadside-lab", None, *limits])
        if elsewhere := self._broker.redirect(dialect.CONNECTION_REDIRECT, now):
            self._hang_up(elsewhere)

    def _on_begin(self, frame: _Frame, now: float) -> None:
        channel, (_, next_incoming_id, peer_window, *_) = frame.channel, frame.fields
        self._sessions[channel] = AmqpSession(
            connection=self,
            channel=channel,
            next_incoming_id=int(next_incoming_id),
            peer_window=int(peer_window),
        )
        window = UInt(WINDOW)
        self._send(channel, Code.BEGIN, [UShort(channel), UInt(0), window, window, UInt(255)])

    def _on_attach(self, frame: _Frame, now: float) -> None:
        channel, session = frame.channel, self._sessions[frame.channel]
        name, handle, sends, send_mode, receive_mode, source, target, *_ = frame.fields
        terminus = source if sends else target
        path = entity_path((terminus.value[0] if terminus else None) or "")
        link = Link(
            session=session,
            handle=handle,
            path=path,
            sends=bool(sends),
            presettled=send_mode == 1,
            queue=self._broker.queues.get(path),
        )
        refusal = self._refusal(link, now)
        size = ULong(link.queue.settings.max_message_bytes) if link.queue else None
        reply: list[AmqpValue] = [name, UInt(handle), not sends]
        reply += [UByte(2 if send_mode is None else send_mode), UByte(receive_mode or 0)]
        reply += [None, None] if refusal else [source, target]
        reply += [None, None, UInt(0) if sends else None, size, None, None]
        reply.append({AmqpSymbol("com.microsoft:max-message-batch-size"): size} if size else None)
        self._send(channel, Code.ATTACH, reply)
        if refusal:
            self._send(channel, Code.DETACH, [UInt(handle), True, refusal])
            return
        session.links[handle] = link
        if not sends:
            self._grant_credit(link)
        elif link.queue is None:
            self._answer_links[path] = link

    def _refusal(self, link: Link, now: float) -> Described | None:
        """Return the error when a link is not allowed, or ``None``."""
        entity, _, node = link.path.rpartition("/")
        if link.path == "$cbs":
            return None
        if node != "$management":
            entity = link.path
        if entity not in self._broker.queues:
            text = f"The messaging entity '{entity}' could not be found."
            return dialect.error(dialect.NOT_FOUND, text)
        if elsewhere := self._broker.redirect(dialect.LINK_REDIRECT, now):
            return elsewhere
        wanted = [Right.LISTEN if link.sends else Right.SEND] if link.queue else list(Right)
        if any(grant.covers(entity, right) for grant in self._grants for right in wanted):
            return None
        claims = "' or '".join(wanted)
        text = f"Unauthorized access. '{claims}' claim(s) are required on '{entity}'."
        return dialect.error(dialect.UNAUTHORIZED, text)

    def _grant_credit(self, link: Link) -> None:
        link.credit = LINK_CREDIT
        self._flow(link)

    def _flow(self, link: Link, *, drained: bool = False) -> None:
        session, window = link.session, UInt(WINDOW)
        fields = [UInt(session.next_incoming_id), window, UInt(session.next_outgoing_id), window]
        fields += [UInt(link.handle), UInt(link.delivery_count), UInt(link.credit)]
        self._send(session.channel, Code.FLOW, [*fields, None, drained])

    def _on_flow(self, frame: _Frame, now: float) -> None:
        session = self._sessions[frame.channel]
        seen_id, window, _, _, handle, seen_count, credit, _, drain, *_ = frame.fields
        session.peer_window = ((seen_id or 0) + window - session.next_outgoing_id) & _SERIAL
        links = [link for link in session.links.values() if link.sends]
        if handle is not None:
            links = [link for link in links if link.handle == handle]
            for link in links:
                left = ((seen_count or 0) + (credit or 0) - link.delivery_count) & _SERIAL
                link.credit = left if left <= WINDOW else 0
                # To drain, we need to use all credit and send a flow (part 2.6.7).
                if drain:
                    link.delivery_count = (link.delivery_count + link.credit) & _SERIAL
                    link.credit = 0
                    self._flow(link, drained=True)
        for link in links:
            if link.queue is not None:
                self._broker.wait(link)
            self._flush_answers(link)

    def _on_transfer(self, frame: _Frame, now: float) -> None:
        session = self._sessions[frame.channel]
        session.next_incoming_id = (session.next_incoming_id + 1) & _SERIAL
        link = session.links[frame.fields[0]]
        link.first = link.first or frame.fields
        link.parts.append(frame.payload)
        # We need to wait for the last frame of this transfer.
        if frame.fields[5]:
            return
        first, raw = link.first, b"".join(link.parts)
        link.first, link.parts = (), []
        link.delivery_count = (link.delivery_count + 1) & _SERIAL
        link.credit -= 1
        if link.queue is None:
            outcome = amqp.performative(Code.ACCEPTED, [])
            self._on_request(link.path, raw, now)
        else:
            outcome = self._enqueue(link.queue, raw, first[3] or 0, now)
        # Send the outcome, unless the sender has already settled the transfer.
        if not first[4]:
            self._disposition(frame.channel, True, first[1], outcome)
        if link.credit < LINK_CREDIT // 2:
            self._grant_credit(link)

    def _enqueue(self, queue: Queue, raw: bytes, message_format: int, now: float) -> bytes:
        """Store messages and return the outcome to send."""
        limit = queue.settings.max_message_bytes
        if busy := self._broker.busy(now):
            refusal = dialect.error(dialect.SERVER_BUSY, busy)
        elif queue.is_full:
            refusal = dialect.error(dialect.QUOTA, dialect.full(queue))
        elif len(raw) > limit:
            refusal = dialect.error(dialect.TOO_LARGE, f"The message is over {limit} bytes.")
        else:
            # We should decode all messages before we send the first one, so that a malformed batch
            # will have no effect.
            for sent in list(map(dialect.read_message, dialect.split_batch(raw, message_format))):
                queue.send(sent, now)
                self._broker.asked["sent"] += 1
            return amqp.performative(Code.ACCEPTED, [])
        return amqp.performative(Code.REJECTED, [refusal])

    def _transfer(self, link: Link, payload: bytes, tag: bytes, settled: bool) -> int:
        session = link.session
        delivery_id = session.next_delivery_id
        session.next_delivery_id = (delivery_id + 1) & _SERIAL
        link.delivery_count = (link.delivery_count + 1) & _SERIAL
        link.credit -= 1
        # Reserve space for the performative and the frame header.
        space = self._peer_frame_bytes - 64
        for at in range(0, len(payload), space):
            more = at + space < len(payload)
            fields = [UInt(link.handle), UInt(delivery_id), tag, UInt(0), settled, more]
            body = amqp.performative(Code.TRANSFER, fields)
            self._write(amqp.frame(session.channel, body, payload[at : at + space]))
            session.next_outgoing_id = (session.next_outgoing_id + 1) & _SERIAL
            session.peer_window -= 1
        return delivery_id

    def _disposition(self, channel: int, receiver: bool, delivery_id: int, outcome: bytes) -> None:
        fields = [receiver, UInt(delivery_id), UInt(delivery_id), True]
        listed = b"".join(map(amqp.encode, fields)) + outcome
        body = b"\x00\x53\x15\xd0" + struct.pack(">II", len(listed) + 4, 5) + listed
        self._write(amqp.frame(channel, body))

    def _on_disposition(self, frame: _Frame, now: float) -> None:
        role, first, last, settled, state, *_ = frame.fields
        unsettled = self._sessions[frame.channel].unsettled
        if not role or state is None:
            # The disposition is for the peer's own transfers, or has no outcome yet.
            return
        how = _OUTCOMES[state.code]
        # The second field is undeliverable-here.
        if how is Settlement.ABANDON and state.value[1:2] == [True]:
            raise amqp.WireError("messages are not deferred here")
        reason = description = None
        if how is Settlement.DEAD_LETTER and state.value and state.value[0] is not None:
            info = (state.value[0].value + [None] * 3)[2] or {}
            reason = info.get("DeadLetterReason")
            description = info.get("DeadLetterErrorDescription")
        last = first if last is None else last
        for delivery_id in [item for item in unsettled if first <= item <= last]:
            link, token = unsettled.pop(delivery_id)
            queue = self._broker.queues[link.path]
            self._broker.asked["settled"] += 1
            outcome = amqp.performative(state.code, [])
            if not queue.settle(token, how, now, reason, description):
                lost = dialect.error(dialect.LOCK_LOST, dialect.LOCK_LOST_TEXT)
                outcome = amqp.performative(Code.REJECTED, [lost])
            if not settled:
                self._disposition(frame.channel, False, delivery_id, outcome)

    def _on_detach(self, frame: _Frame, now: float) -> None:
        session = self._sessions.get(frame.channel)
        link = session.links.pop(frame.fields[0], None) if session else None
        if link is None:
            # The SDK will also detach links of a session that has ended.
            return
        link.closed = True
        if self._answer_links.get(link.path) is link:
            del self._answer_links[link.path]
        self._send(frame.channel, Code.DETACH, [UInt(link.handle), True])

    def _on_end(self, frame: _Frame, now: float) -> None:
        session = self._sessions.pop(frame.channel, None)
        if session is not None:
            for link in session.links.values():
                link.closed = True
            self._send(frame.channel, Code.END, [])

    def _on_close(self, frame: _Frame, now: float) -> None:
        self._send(0, Code.CLOSE, [])
        self.lost()

    _HANDLERS: Final = {
        Code.SASL_INIT: _on_sasl_init,
        Code.OPEN: _on_open,
        Code.BEGIN: _on_begin,
        Code.ATTACH: _on_attach,
        Code.FLOW: _on_flow,
        Code.TRANSFER: _on_transfer,
        Code.DISPOSITION: _on_disposition,
        Code.DETACH: _on_detach,
        Code.END: _on_end,
        Code.CLOSE: _on_close,
    }

    # Requests -------------------------------------------------------------------------------

    def _on_request(self, path: str, raw: bytes, now: float) -> None:
        parts = {section.code: section.value for section in amqp.sections(raw)}
        message: Mapping[str, AmqpValue] = parts[Code.APPLICATION_PROPERTIES]
        body: AmqpValue = None
        if path == "$cbs":
            granted = self._broker.guard.check(parts[Code.VALUE], message["name"], now)
            status, text = (401, granted) if isinstance(granted, str) else (202, "Accepted")
            if isinstance(granted, Grant):
                self._broker.asked["token"] += 1
                self._grants = [grant for grant in self._grants if grant.path != granted.path]
                # If we get a new token, it will replace the previous one.
                self._grants.append(granted)
            reply: dict[str, AmqpValue] = {
                "status-code": amqp.Int(status),
                "status-description": text,
            }
        else:
            queue = self._broker.queues[path.removesuffix("/$management")]
            if busy := self._broker.busy(now):
                answer = dialect.ManagementResponse(503, busy, condition=dialect.SERVER_BUSY)
            else:
                answer = dialect.manage(
                    queue, message["operation"], parts[Code.VALUE], len(raw), now
                )
            body = answer.body
            self._broker.asked[message["operation"].removeprefix("com.microsoft:")] += 1
            if isinstance(body, dict):
                self._broker.asked["told"] += len(body.get("messages", ()))
            reply = {"statusCode": amqp.Int(answer.status), "statusDescription": answer.text}
            if answer.condition:
                reply["errorCondition"] = AmqpSymbol(answer.condition)
        link = self._answer_links.get(path)
        if link is None:
            return
        correlation = [None, None, None, None, None, parts[Code.PROPERTIES][0]]
        properties = amqp.performative(Code.PROPERTIES, correlation)
        application = amqp.encode(amqp.Described(ULong(Code.APPLICATION_PROPERTIES), reply))
        value = amqp.encode(amqp.Described(ULong(Code.VALUE), body))
        link.answers.append(properties + application + value)
        self._flush_answers(link)

    def _flush_answers(self, link: Link) -> None:
        while link.answers and link.can_send:
            self._transfer(link, link.answers.popleft(), b"answer", True)
