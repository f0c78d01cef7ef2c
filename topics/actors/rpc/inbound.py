"""For modules that name these here still."""

from typing import Any, TypeAlias

from topics.actors.rpc.session import AlreadyAnsweredError as AlreadyAnsweredError
from topics.actors.rpc.session import InboundMessage as InboundMessage
from topics.formats.wire.contract import P

InboundEvent: TypeAlias = InboundMessage[P, Any]
