"""Typed calls: handlers of the calls table (`topics.formats.wire.calls`) on a message router.

serve(router, DIFF, handler)             handler(request: InboundCall[DiffParams, NoResult])
subscribe(router, FEED_TAKEN, handler)   handler(event: InboundEvent[FeedTakenParams])
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from topics.actors.rpc.inbound import InboundEvent, InboundMessage
from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.route_table import Unsubscribe
from topics.actors.rpc.session import Attachment, LinkSession
from topics.formats.wire.contract import Call, Event, P, R

InboundCall = InboundMessage


def serve(
    router: MessageRouter,
    call: Call[P, R],
    handler: Callable[[InboundMessage[P, R]], Awaitable[None] | None],
) -> Unsubscribe:
    """Handle the requests of ``call`` on all sessions of ``router``."""
    return router.route(call.subject, handler, params=call.params)


def subscribe(
    router: MessageRouter,
    event: Event[P],
    handler: Callable[[InboundEvent[P]], None],
) -> Unsubscribe:
    """Handle the events of ``event`` on all sessions of ``router``."""
    return router.route(event.subject, handler, params=event.params)


def notify(session: LinkSession, event: Event[P], params: P, attachment: Attachment = b"") -> None:
    """As `LinkSession.notify`."""
    session.notify(event, params, attachment)
