"""A transport for tests with real bytes but no ring. Each message is decoded again before the
other side receives it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from topics.actors.link.arena import ArenaBlock
from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.route_table import MessageHandler
from topics.actors.rpc.session import InboundMessage, LinkSession, Reply
from topics.formats.wire import calls
from topics.formats.wire.contract import Call, Event
from topics.formats.wire.envelope import (
    UNREADABLE,
    Failure,
    Notification,
    Refusal,
    Request,
    Success,
    decode,
)
from topics.formats.wire.envelope import encode as encoded
from topics.formats.wire.message import ARENA, ERROR, Assembler, Message, PeerClosed, encode_head

Inbound: TypeAlias = InboundMessage[Any, Any]
Row: TypeAlias = Call[Any, Any] | Event[Any]
TABLE: list[Row] = [row for row in vars(calls).values() if isinstance(row, Call | Event)]
BY_SUBJECT: dict[str, Any] = {row.subject: row for row in TABLE}


def encode(
    message_id: int, subject: str, payload: bytes, attachment: Any = b"", flags: int = 0
) -> bytes:
    """Return a complete message as it is stored in a ring."""
    return encode_head(message_id, subject, payload, len(attachment), flags) + bytes(attachment)


def arrived(
    message_id: int, subject: str, payload: bytes, attachment: bytes, flags: int
) -> Message:
    """Return the message as its receiver decodes it."""
    (message,) = Assembler().feed(encode(message_id, subject, payload, attachment, flags))
    return message


def encode_request(cid: int, method: str, params: Any) -> bytes:
    return encoded(Request(cid, method, params))


def encode_success(cid: int, result: Any) -> bytes:
    return encoded(Success(cid, result))


def encode_failure(cid: int, code: int, message: str, data: Any = None) -> bytes:
    return encoded(Failure(cid, code, message, data))


def encode_notification(method: str, params: Any) -> bytes:
    return encoded(Notification(method, params))


def encode_refusal(code: int, message: str, about: int) -> bytes:
    return encoded(Refusal(code, message, about))


class FakeBlock(ArenaBlock):
    """A replacement for memory that was reserved in an arena."""

    def __init__(self) -> None:
        self.freed = 0

    def free(self) -> None:
        self.freed += 1


@dataclass
class Wire:
    """One direction. ``sent`` has the messages that were sent and not taken yet."""

    sent: list[Message] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    message_ids: list[int] = field(default_factory=list)
    blocks: list[FakeBlock] = field(default_factory=list)
    broken: bool = False
    message_id: int = 100

    def send(
        self, subject: str, payload: bytes, attachment: Any = b"", *, message_id: int | None = None
    ) -> int:
        if isinstance(attachment, FakeBlock):
            self.blocks.append(attachment)
            attachment = b"in the arena"
        return self._put(subject, payload, attachment, 0, message_id)

    def send_refusal(self, code: int, message: str, about: int) -> None:
        self._put("", encode_refusal(code, message, about), b"", ERROR, None)

    def release(self, message: Message) -> None:
        assert message.flags & ARENA
        self.released.append(message.message_id)

    def on_reclaim(self, view: memoryview, release: Callable[[], object]) -> None:
        """Do nothing, because no session waits for memory here."""

    def _put(
        self, subject: str, payload: bytes, attachment: bytes, flags: int, message_id: int | None
    ) -> int:
        if message_id is None:
            self.message_id = message_id = self.message_id + 1
        if self.broken:
            raise PeerClosed("cut")
        self.sent.append(arrived(message_id, subject, payload, attachment, flags))
        self.message_ids.append(message_id)
        return message_id

    def take(self) -> list[Message]:
        taken, self.sent = self.sent, []
        return taken

    def answers(self) -> list[dict[str, Any]]:
        """Return the sent messages as readable maps: kind and fields of the envelope, with the
        subject.
        """
        return [readable(message) for message in self.take()]


def readable(message: Message) -> dict[str, Any]:
    kind = {"refusal": True} if message.flags & ERROR else {"subject": message.subject}
    fields: dict[str, Any] = msgspec.msgpack.decode(message.payload)
    return kind | fields


def payload_for(subject: str) -> bytes:
    """Return a payload that is valid for the subject."""
    if subject.startswith("rpc/"):
        return encode_request(7, subject[4:], None)
    return encode_notification(subject[6:], None) if subject.startswith("event/") else b"opaque"


def rpc_of(message: Inbound) -> Inbound:
    """Return the exchange of a request."""
    assert message.rpc is not None
    return message.rpc


class RouterHarness:
    """A router with one open session, and messages to put into it."""

    def __init__(self, router: MessageRouter | None = None) -> None:
        self.router = router or MessageRouter()
        self.wire = Wire()
        self.session = self.router.open_session("front-0", self.wire)
        self.record: list[str] = []

    def note(self, text: str) -> MessageHandler:
        """Return a handler that records ``text`` and replies to a request that is still open."""

        def handler(message: Inbound) -> None:
            self.record.append(text)
            if message.rpc is not None and message.is_open:
                message.rpc.reply(text)

        return handler

    def fail(self, text: str, error: Exception | None = None) -> MessageHandler:
        def handler(message: Inbound) -> None:
            self.record.append(text)
            raise error or ValueError(f"{text} failed")

        return handler

    def put(
        self,
        subject: str,
        payload: bytes,
        *,
        message_id: int = 7,
        attachment: bytes = b"",
        flags: int = 0,
    ) -> Any:
        message = arrived(message_id, subject, payload, attachment, flags)
        return self.router.dispatch(self.session, message)

    def request(
        self,
        method: str = "append",
        params: Any = None,
        *,
        cid: int = 7,
        flags: int = 0,
        subject: str = "",
    ) -> Any:
        """Put a request of the peer and return the result of its dispatch."""
        return self.put(
            subject or "rpc/" + method,
            encode_request(cid, method, params),
            message_id=cid,
            flags=flags,
        )

    def event(self, method: str, params: Any = None, *, flags: int = 0) -> Any:
        return self.put("event/" + method, encode_notification(method, params), flags=flags)


class ObservedCall:
    """A pending call, and the replies that it has received."""

    def __init__(
        self, session: LinkSession, call: Call[Any, Any], params: Any, body: Any = b""
    ) -> None:
        self.outcomes: list[Any] = []
        self.pending = session.call(call, params, body, self.outcomes.append)
        self.cid = self.pending.cid

    def reply(self) -> Reply[Any]:
        (answer,) = self.outcomes
        assert isinstance(answer, Reply), answer
        return answer


class Pair:
    """Two routers, joined by a session of each. ``deliver()`` transfers messages until both sides
    are idle.
    """

    def __init__(self) -> None:
        self.front, self.shard = MessageRouter(), MessageRouter()
        self.to_shard, self.to_front = Wire(), Wire(message_id=100_000)
        self.caller: LinkSession = self.front.open_session("shard-0", self.to_shard)
        self.server: LinkSession = self.shard.open_session("front-0", self.to_front)

    def call(self, call: Call[Any, Any], params: Any, body: Any = b"") -> ObservedCall:
        """Call the shard from the front."""
        return ObservedCall(self.caller, call, params, body)

    def deliver(self) -> list[str]:
        """Deliver all messages and return them in order, as ``subject kind``."""
        carried: list[str] = []
        while self.to_shard.sent or self.to_front.sent:
            for message in self.to_shard.take():
                carried.append(describe(message))
                assert self.shard.dispatch(self.server, message) is None
            for message in self.to_front.take():
                carried.append(describe(message))
                assert self.front.dispatch(self.caller, message) is None
        return carried


def describe(message: Message) -> str:
    if message.flags & ERROR:
        return "refusal"
    try:
        return f"{message.subject} {type(decode(message.payload)).__name__}"
    except UNREADABLE:
        return f"{message.subject} Malformed"
