"""Typed calls: the calls table (`topics.formats.wire.calls`) on top of the message router.

A handler is registered by its `Call` or `Event` and gets typed params:

    serve(router, DIFF, handler)             handler(request: InboundCall[DiffParams, NoResult])
    subscribe(router, FEED_TAKEN, handler)   handler(message, params: FeedTakenParams)

A caller sends typed params:

    call_soon(session, DIFF, DiffParams(...), body)
    notify(session, FEED_TAKEN, FeedTakenParams(...))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol

import msgspec

from topics.actors.rpc.call import PendingCall
from topics.actors.rpc.inbound import InboundMessage, PeerSession, RpcContext
from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.route_table import Unsubscribe
from topics.actors.rpc.session import LinkSession
from topics.actors.rpc.transport import Attachment
from topics.formats.wire.contract import Call, Event, P, R
from topics.formats.wire.envelope import Encoded


class InboundCall(msgspec.Struct, Generic[P, R], frozen=True, eq=False):
    """A request of the calls table, as its handler gets it.

    ``attachment`` may lie in the caller's memory: it is valid until the answer or `release`.
    """

    _message: InboundMessage
    _rpc: RpcContext
    params: P
    attachment: bytes | memoryview

    @property
    def subject(self) -> str:
        """The request's subject."""
        return self._message.subject

    @property
    def session(self) -> PeerSession:
        """The link session that the request came on."""
        return self._message.session

    @property
    def cid(self) -> int:
        """The id that joins the answer to the request."""
        return self._rpc.cid

    @property
    def parked_ms(self) -> float:
        """For how long the request waited behind others; 0.0: it did not."""
        return self._message.frame.parked_ms

    @property
    def is_open(self) -> bool:
        """Neither answered nor timed out."""
        return self._rpc.open

    def reply(self, result: R | Encoded, attachment: Attachment = b"") -> None:
        """As `RpcContext.reply`."""
        self._rpc.reply(result, attachment)

    def error(self, code: int, message: str, data: Any = None) -> None:
        """As `RpcContext.error`."""
        self._rpc.error(code, message, data)

    def outlast(self) -> None:
        """As `RpcContext.outlast`."""
        self._rpc.outlast()

    def release(self) -> None:
        """As `InboundMessage.release`."""
        if type(self.attachment) is not bytes:  # bytes are a copy: nothing to release
            self._message.release()


def serve(
    router: MessageRouter,
    call: Call[P, R],
    handler: Callable[[InboundCall[P, R]], Awaitable[None] | None],
) -> Unsubscribe:
    """Handle the requests of ``call`` on all sessions of ``router``."""
    params_type, make = call.params, tuple.__new__  # as `Call.params_of`, one call less

    def handle(message: InboundMessage) -> Awaitable[None] | None:
        rpc = message.rpc
        assert rpc is not None, "messages under rpc/ subjects come with an envelope"
        params = make(params_type, rpc.request.params)
        return handler(InboundCall(message, rpc, params, message.frame.attachment))

    return router.route(call.subject, handle)


def subscribe(
    router: MessageRouter, event: Event[P], handler: Callable[[InboundMessage, P], None]
) -> Unsubscribe:
    """Handle the events of ``event`` on all sessions of ``router``."""
    params_type, make = event.params, tuple.__new__  # as `Event.params_of`, one call less

    def handle(message: InboundMessage) -> None:
        assert message.notification is not None, "messages under event/ subjects have an envelope"
        handler(message, make(params_type, message.notification.params))

    return router.route(event.subject, handle)


class Notifier(Protocol):
    """What events are sent through."""

    def notify(self, method: str, params: Any, attachment: Attachment = b"") -> None:
        """Queue an event. Raises PeerGone."""


def call_soon(
    session: LinkSession, call: Call[P, R], params: P, attachment: Attachment = b""
) -> PendingCall:
    """As `LinkSession.call_soon`; ``call.result_of`` makes the result of its reply."""
    return session.call_soon(call.method, params, attachment)


def notify(session: Notifier, event: Event[P], params: P, attachment: Attachment = b"") -> None:
    """As `LinkSession.notify`."""
    session.notify(event.method, params, attachment)
