"""What one message costs in the router. Run from the top: ``python -m tests.bench.message_router``.

Microseconds of processor time a message, the best of many rounds. The transport does nothing but
count, so every figure is the router's own: what a ring adds is measured beside the ring.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import trio
import trio.testing

from tests.support.wire import encode_notification, encode_request, encode_success
from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.session import LinkSession
from topics.actors.rpc.typed_calls import InboundCall, serve, subscribe
from topics.formats.wire.calls import (
    APPEND,
    FEED_TAKEN,
    AppendOutcome,
    AppendParams,
    AppendResult,
    FeedTakenParams,
)
from topics.formats.wire.envelope import decode
from topics.formats.wire.message import Message

ROUND = 1_000
ROUNDS = 20
BODY = b'{"records":[{"data":{"n":1}}]}'
PARAMS = AppendParams("orders.eu", None, True, None, 123_456_789_012_345)
RESULT = AppendResult(bytes((AppendOutcome.CREATED,)))


class Counter:
    """A transport that throws everything away."""

    def __init__(self) -> None:
        self.sent = 0

    def send(
        self,
        subject: str,
        payload: bytes,
        attachment: object = b"",
        *,
        message_id: int | None = None,
    ) -> int:
        if message_id is None:
            self.sent = message_id = self.sent + 1
        return message_id

    def next_message_id(self) -> int:
        self.sent += 1
        return self.sent

    def send_refusal(self, code: int, message: str, about: int) -> None:
        raise AssertionError(f"refused: {code} {message}")

    def release(self, message: Message) -> None:
        raise AssertionError("nothing here lies in an arena")

    def on_lost(self, view: memoryview, release: Callable[[], object]) -> None:
        raise AssertionError("nothing here lies in an arena")


def measure(name: str, work: Callable[[], object]) -> None:
    """``work`` handles ROUND messages."""
    report(name, min(timed(work) for _ in range(ROUNDS)))


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def report(name: str, seconds: float) -> None:
    print(f"{name:<58}{seconds / ROUND * 1e6:6.2f} us")


def again(work: Callable[[], object]) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(ROUND):
            work()

    return repeat


def encoding() -> None:
    request = encode_request(123_456, APPEND.method, PARAMS)
    measure(
        "envelope: encode a request",
        again(lambda: encode_request(123_456, APPEND.method, PARAMS)),
    )
    measure("envelope: decode a request", again(lambda: decode(request)))
    measure("envelope: encode a success", again(lambda: encode_success(123_456, RESULT)))


def requests(router: MessageRouter, session: LinkSession) -> None:
    messages = [
        Message(n, 0, APPEND.subject, encode_request(n, APPEND.method, PARAMS), BODY)
        for n in range(ROUND)
    ]

    def dispatch_all() -> None:
        for message in messages:
            router.dispatch(session, message)

    at_once = serve(router, APPEND, lambda request: request.reply(RESULT))
    measure("request: dispatched, answered in the handler", dispatch_all)
    at_once()

    waiting: list[InboundCall[AppendParams, AppendResult]] = []

    def dispatch_and_answer() -> None:
        dispatch_all()
        for request in waiting:
            request.reply(RESULT)
        waiting.clear()

    later = serve(router, APPEND, waiting.append)
    measure("request: dispatched, answered after the handler", dispatch_and_answer)
    later()

    def dispatch_only() -> None:
        dispatch_all()
        session.unanswered.clear()

    serve(router, APPEND, lambda request: None)
    measure("request: dispatched, clock started, not answered", dispatch_only)


def events(router: MessageRouter, session: LinkSession) -> None:
    message = Message(
        1,
        0,
        FEED_TAKEN.subject,
        encode_notification(FEED_TAKEN.method, FeedTakenParams(7)),
        b"",
    )
    subscribe(router, FEED_TAKEN, lambda event: None)
    router.route_prefix("event/", lambda message: None)
    measure("event: dispatched to two handlers", again(lambda: router.dispatch(session, message)))


def calls(router: MessageRouter, session: LinkSession) -> None:
    def ask_and_answer() -> None:
        started = [session.call(APPEND, PARAMS, BODY, lambda _: None) for _ in range(ROUND)]
        for call in started:
            payload = encode_success(call.cid, RESULT)
            router.dispatch(session, Message(1, 0, APPEND.subject, payload, BODY))

    measure("call: started, answered, nobody parked", ask_and_answer)


async def main() -> None:
    router = MessageRouter()
    session = router.open_session("shard-0", Counter())
    encoding()
    requests(router, session)
    events(router, session)
    calls(router, session)


if __name__ == "__main__":
    trio.run(main)
