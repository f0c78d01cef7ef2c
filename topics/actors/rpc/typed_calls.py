"""For modules that name these here still."""

from __future__ import annotations

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.session import InboundMessage

InboundCall = InboundMessage
serve, subscribe = MessageRouter.serve, MessageRouter.subscribe
