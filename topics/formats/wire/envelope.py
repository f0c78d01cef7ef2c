"""RPC envelopes: the payload of a message under ``rpc/`` or ``event/`` (ADR 011 §5, §6). Each is
one CBOR map.

    envelope       "t"   further keys
    request        "Q"   "cid" unsigned, "method" text, "params" any
    success        "R"   "cid" unsigned, "result" any
    failure        "E"   "cid" unsigned, "code" integer, "message" text, "data" any (absent: None)
    notification   "N"   "method" text, "params" any

``cid`` joins an answer to its request: it is the id of the message that carries the request.
``params`` and ``result`` may be absent and are None then. Decoders ignore further keys. A JSON body
never travels in an envelope: it is the message's attachment.

Requests and successes are written without a dict: a fixed head, then the one item that needs the
encoder. Integers big-endian, as CBOR has them:

    offset  size  request                     success
    0       1     A4  map of four             A3  map of three
    1       2     61 74  "t"                  61 74  "t"
    3       2     61 51  "Q"                  61 52  "R"
    5       4     63 63 69 64  "cid"          63 63 69 64  "cid"
    9       1     1B  eight bytes follow      1B  eight bytes follow
    10      8     cid                         cid
    18            "method", text, "params"    "result"
            rest  params, any item            result, any item

The payload of a refusal (a message with the ERROR flag) is another map: "code" integer,
"message" text, "about" unsigned, which is the id of the refused message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, TypeAlias

import cbor2
import msgspec

RPC_PREFIX: Final = "rpc/"  # of subjects whose messages are requests and answers
EVENT_PREFIX: Final = "event/"  # of subjects whose messages are notifications

CID_MAX: Final = 2**64 - 1
HEAD: Final = struct.Struct(">10sQ")
assert HEAD.size == 18
SUCCESS_HEAD: Final = struct.Struct(">10sQ7s")
assert SUCCESS_HEAD.size == 25

_REQUEST: Final = b"\xa4ataQccid\x1b"
_SUCCESS: Final = b"\xa3ataRccid\x1b"
_RESULT: Final = b"fresult"


class ErrorCode(IntEnum):
    """Codes of failures (§7): 1000-1099 protocol, 1100-1199 runtime, from 2000 on application. The
    router gives these.
    """

    # never renumber, only add
    INVALID_FRAME = 1002
    UNSUPPORTED_FEATURE = 1003
    UNSUPPORTED_METHOD = 1101
    TIMEOUT = 1103
    APPLICATION = 2000


class Encoded(bytes):
    """A result in its CBOR form, for results that many answers have in common: they are encoded
    once.
    """

    @classmethod
    def of(cls, result: Any) -> Encoded:
        """The CBOR form of ``result``."""
        return cls(cbor2.dumps(result))


class Request(msgspec.Struct, frozen=True):
    """A call of ``method`` that waits for a `Success` or a `Failure` with its ``cid``."""

    cid: int
    method: str
    params: Any


class Success(msgspec.Struct, frozen=True):
    """The answer to a request that went well."""

    cid: int
    result: Any


class Failure(msgspec.Struct, frozen=True):
    """The answer to a request that failed. ``code`` as in `ErrorCode`."""

    cid: int
    code: int
    message: str
    data: Any = None


class Notification(msgspec.Struct, frozen=True):
    """An event that nobody answers."""

    method: str
    params: Any


class Refusal(msgspec.Struct, frozen=True):
    """The peer refused the message with the id ``about``; the link session continues."""

    code: int
    message: str
    about: int


class Malformed(msgspec.Struct, frozen=True):
    """Bytes that are no envelope, and the reason."""

    reason: str


Envelope: TypeAlias = Request | Success | Failure | Notification


def decode(payload: bytes | memoryview) -> Envelope | Malformed:
    """The envelope in ``payload``. Never raises. Ignores bytes behind the map."""
    try:
        fields = cbor2.loads(payload)
    except cbor2.CBORDecodeError as error:
        return Malformed(f"not CBOR: {error}")
    if type(fields) is not dict:
        return Malformed("not a map")
    kind = fields.get("t")
    read = _READERS.get(kind) if type(kind) is str else None
    return Malformed("t is none of Q, R, E, N") if read is None else read(fields)


def decode_refusal(payload: bytes | memoryview) -> Refusal | Malformed:
    """The content of a refusal. Never raises."""
    fields = _map_of(payload)
    if isinstance(fields, Malformed):
        return fields
    code, message, about = fields.get("code"), fields.get("message"), fields.get("about")
    if (
        type(code) is not int
        or type(message) is not str
        or type(about) is not int
        or not 0 <= about <= CID_MAX
    ):
        return Malformed("code, message or about has a wrong type")
    return Refusal(code, message, about)


def encode_request(cid: int, method: str, params: Any) -> bytes:
    """The payload of a request. All encoders raise cbor2's error for values without a CBOR form."""
    return HEAD.pack(_REQUEST, cid) + _method_and_params(method) + cbor2.dumps(params)


def encode_success(cid: int, result: Any) -> bytes:
    """The payload of an answer that went well. ``result`` may be `Encoded`."""
    encoded = result if type(result) is Encoded else cbor2.dumps(result)
    return SUCCESS_HEAD.pack(_SUCCESS, cid, _RESULT) + encoded


def encode_failure(cid: int, code: int, message: str, data: Any = None) -> bytes:
    """The payload of an answer that failed."""
    fields = {"t": "E", "cid": cid, "code": int(code), "message": message}
    if data is not None:
        fields["data"] = data
    return cbor2.dumps(fields)


def encode_notification(method: str, params: Any) -> bytes:
    """The payload of an event."""
    return cbor2.dumps({"t": "N", "method": method, "params": params})


def encode_refusal(code: int, message: str, about: int) -> bytes:
    """The payload of a refusal about the message with the id ``about``."""
    return cbor2.dumps({"code": int(code), "message": message, "about": about})


def _map_of(payload: bytes | memoryview) -> dict[Any, Any] | Malformed:
    # `decode` has this in line: one call less for every message.
    try:
        fields = cbor2.loads(payload)
    except cbor2.CBORDecodeError as error:
        return Malformed(f"not CBOR: {error}")
    return fields if type(fields) is dict else Malformed("not a map")


@lru_cache(maxsize=256)  # a program has a few dozen methods
def _method_and_params(method: str) -> bytes:
    return b"fmethod" + cbor2.dumps(method) + b"fparams"


def _read_request(fields: dict[Any, Any]) -> Request | Malformed:
    cid, method = fields.get("cid"), fields.get("method")
    if type(cid) is not int or not 0 <= cid <= CID_MAX:
        return Malformed("cid is not an unsigned 64-bit integer")
    if type(method) is not str:
        return Malformed("method is not text")
    return Request(cid, method, fields.get("params"))


def _read_success(fields: dict[Any, Any]) -> Success | Malformed:
    cid = fields.get("cid")
    if type(cid) is not int or not 0 <= cid <= CID_MAX:
        return Malformed("cid is not an unsigned 64-bit integer")
    return Success(cid, fields.get("result"))


def _read_failure(fields: dict[Any, Any]) -> Failure | Malformed:
    cid, code, message = fields.get("cid"), fields.get("code"), fields.get("message")
    if type(cid) is not int or not 0 <= cid <= CID_MAX:
        return Malformed("cid is not an unsigned 64-bit integer")
    if type(code) is not int or type(message) is not str:
        return Malformed("code or message has a wrong type")
    return Failure(cid, code, message, fields.get("data"))


def _read_notification(fields: dict[Any, Any]) -> Notification | Malformed:
    method = fields.get("method")
    if type(method) is not str:
        return Malformed("method is not text")
    return Notification(method, fields.get("params"))


_READERS: Final[dict[str, Callable[[dict[Any, Any]], Envelope | Malformed]]] = {
    "Q": _read_request,
    "R": _read_success,
    "E": _read_failure,
    "N": _read_notification,
}
