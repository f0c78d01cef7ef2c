"""RPC envelopes: the payload of an ``rpc/`` or ``event/`` message (ADR 011 §5, §6). One CBOR map
each.

    envelope       "t"   further keys
    request        "Q"   "cid" unsigned, "method" text, "params" any
    success        "R"   "cid" unsigned, "result" any
    failure        "E"   "cid" unsigned, "code" integer, "message" text, "data" any (left out when there is none)
    notification   "N"   "method" text, "params" any

``cid`` joins an answer to its request; the caller takes the frame id of the message that carries
the request. ``params`` and ``result`` may be absent and are None then, keys that are not in the
table are ignored. A body of JSON never stands in an envelope: it is the message's attachment.

What happens for every message is written without a dict, around the one item that only the encoder
can write. Integers big-endian, as CBOR has them:

    offset  size  request                     success
    0       1     A4  map of four             A3  map of three
    1       2     61 74  "t"                  61 74  "t"
    3       2     61 51  "Q"                  61 52  "R"
    5       4     63 63 69 64  "cid"          63 63 69 64  "cid"
    9       1     1B  eight bytes follow      1B  eight bytes follow
    10      8     cid                         cid
    18            "method", text, "params"    "result"
            rest  params, any item            result, any item

An ErrorFrame (a message with the ERROR flag) carries one more map: "code" integer, "message" text,
"about" unsigned, the frame id of the message that was refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, TypeAlias

import cbor2
import msgspec

CID_MAX: Final = 2**64 - 1
HEAD: Final = struct.Struct(">10sQ")
assert HEAD.size == 18
SUCCESS_HEAD: Final = struct.Struct(">10sQ7s")
assert SUCCESS_HEAD.size == 25

_REQUEST: Final = b"\xa4ataQccid\x1b"
_SUCCESS: Final = b"\xa3ataRccid\x1b"
_RESULT: Final = b"fresult"


class ErrorCode(IntEnum):
    """The codes that the router itself gives (§7). 1000-1099 protocol, 1100-1199 runtime, from 2000
    on the application.
    """

    # never renumber, only add
    INVALID_FRAME = 1002
    UNSUPPORTED_FEATURE = 1003
    UNSUPPORTED_METHOD = 1101
    TIMEOUT = 1103
    APPLICATION = 2000


class Request(msgspec.Struct, frozen=True):
    cid: int
    method: str
    params: Any


class Success(msgspec.Struct, frozen=True):
    cid: int
    result: Any


class Failure(msgspec.Struct, frozen=True):
    cid: int
    code: int
    message: str
    data: Any = None


class Notification(msgspec.Struct, frozen=True):
    method: str
    params: Any


class ErrorFrame(msgspec.Struct, frozen=True):
    """The peer refused the message ``about``; the session goes on."""

    code: int
    message: str
    about: int


class Malformed(msgspec.Struct, frozen=True):
    """Bytes that are none of the above, and why."""

    reason: str


Envelope: TypeAlias = Request | Success | Failure | Notification


def decode(payload: bytes | memoryview) -> Envelope | Malformed:
    """The envelope in ``payload``. Never raises. Bytes behind the map are not looked at."""
    try:
        fields = cbor2.loads(payload)
    except cbor2.CBORDecodeError as error:
        return Malformed(f"not CBOR: {error}")
    if type(fields) is not dict:
        return Malformed("not a map")
    kind = fields.get("t")
    read = _READERS.get(kind) if type(kind) is str else None
    return Malformed("t is none of Q, R, E, N") if read is None else read(fields)


def decode_error_frame(payload: bytes | memoryview) -> ErrorFrame | Malformed:
    """What an ErrorFrame says. Never raises."""
    try:
        fields = cbor2.loads(payload)
    except cbor2.CBORDecodeError as error:
        return Malformed(f"not CBOR: {error}")
    if type(fields) is not dict:
        return Malformed("not a map")
    code, message, about = fields.get("code"), fields.get("message"), fields.get("about")
    if (
        type(code) is not int
        or type(message) is not str
        or type(about) is not int
        or not 0 <= about <= CID_MAX
    ):
        return Malformed("code, message or about has a wrong type")
    return ErrorFrame(code, message, about)


def encode_request(cid: int, method: str, params: Any) -> bytes:
    """Raises what cbor2 raises for ``params`` that have no CBOR form; the other encoders likewise."""
    return HEAD.pack(_REQUEST, cid) + _method_and_params(method) + cbor2.dumps(params)


def encode_success(cid: int, result: Any) -> bytes:
    return SUCCESS_HEAD.pack(_SUCCESS, cid, _RESULT) + cbor2.dumps(result)


def encode_failure(cid: int, code: int, message: str, data: Any = None) -> bytes:
    fields = {"t": "E", "cid": cid, "code": int(code), "message": message}
    if data is not None:
        fields["data"] = data
    return cbor2.dumps(fields)


def encode_notification(method: str, params: Any) -> bytes:
    return cbor2.dumps({"t": "N", "method": method, "params": params})


def encode_error_frame(code: int, message: str, about: int) -> bytes:
    return cbor2.dumps({"code": int(code), "message": message, "about": about})


@lru_cache(maxsize=256)  # a program calls a few dozen methods
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
