"""RPC envelopes: the payload of a message under ``rpc/`` or ``event/``. Each is one MessagePack map
(`decisions/0003` §5, §6).

    envelope       "t"   further keys
    request        "Q"   "cid" unsigned, "method" text, "params" any
    success        "R"   "cid" unsigned, "result" any
    failure        "E"   "cid" unsigned, "code" integer, "message" text, "data" any
    notification   "N"   "method" text, "params" any

``cid`` correlates a reply with its request: it is the id of the message that carries the request.
If ``params``, ``result`` or ``data`` is absent, it is None. A decoder ignores unknown keys. A JSON
body is never part of an envelope, because it is the attachment of the message.

The payload of a refusal (a message with the ERROR flag) is another map: "code" integer,
"message" text, "about" unsigned, which is the id of the refused message.

    encode(Request(cid, method, params))    raises for values without a MessagePack form
    decode(payload)                         raises one of UNREADABLE if it is not a valid envelope
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec.msgpack import Decoder, Encoder

RPC_PREFIX: Final = "rpc/"  # prefix of the subjects of requests and replies
EVENT_PREFIX: Final = "event/"  # prefix of the subjects of notifications

Unsigned: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class ErrorCode(IntEnum):
    """Failure codes (`decisions/0003` §7): 1000 to 1099 for the protocol, 1100 to 1199 for the
    runtime, and from 2000 for the application. `MessageRouter` sends the listed codes.
    """

    # never renumber, only add
    INVALID_FRAME = 1002
    UNSUPPORTED_FEATURE = 1003
    UNSUPPORTED_METHOD = 1101
    TIMEOUT = 1103
    APPLICATION = 2000


class Request(msgspec.Struct, frozen=True, tag_field="t", tag="Q"):
    """A call of ``method`` that waits for a `Success` or a `Failure` with its ``cid``."""

    cid: Unsigned
    method: str
    params: Any = None


class Success(msgspec.Struct, frozen=True, tag_field="t", tag="R"):
    """The reply to a successful request."""

    cid: Unsigned
    result: Any = None


class Failure(msgspec.Struct, frozen=True, tag_field="t", tag="E", omit_defaults=True):
    """The reply to a failed request. ``code`` is an `ErrorCode`."""

    cid: Unsigned
    code: int
    message: str
    data: Any = None


class Notification(msgspec.Struct, frozen=True, tag_field="t", tag="N"):
    """An event. It has no reply."""

    method: str
    params: Any = None


class Refusal(msgspec.Struct, frozen=True):
    """The peer refused the message with the id ``about``; the link session continues."""

    code: int
    message: str
    about: Unsigned


Envelope: TypeAlias = Request | Success | Failure | Notification

encode: Final = Encoder().encode
decode: Final = Decoder(Envelope).decode
decode_refusal: Final = Decoder(Refusal).decode

UNREADABLE: Final[tuple[type[Exception], ...]] = (
    msgspec.DecodeError,
    RecursionError,
    TypeError,
    ValueError,
)
"""The exceptions that the decoders raise for invalid bytes."""
